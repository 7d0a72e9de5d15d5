//! Precision and place of training state, adapters, and kernels of loss and attention, in the files of Hugging
//! Face's Trainer and of DeepSpeed.

use super::readers::{Lines, flat, yaml};
use super::*;

const INT8: StatePolicy = StatePolicy { moments: MomentPrecision::Int8, ..StatePolicy::PLAIN };
const BF16: StatePolicy =
    StatePolicy { weights: StatePrecision::Bf16, moments: MomentPrecision::Bf16, ..StatePolicy::PLAIN };

/// Returns a plan for `model` with this state: on one GPU, or on four that shard all of it.
fn with(model: Model, state: StatePolicy, is_sharded: bool) -> Plan {
    let ranks = if is_sharded { n(4) } else { n(1) };
    let zero = if is_sharded { ZeroStage::Zero3 } else { ZeroStage::Zero0 };
    planned(model, Arrangement { state, ..arranged(Layout::replicas(ranks), zero) })
}

/// Returns a plan for `model` with adapters of all its layers.
fn adapted(model: Model, base: Option<FrozenPrecision>, is_sharded: bool) -> Plan {
    let mut plan = with(model, StatePolicy::PLAIN, is_sharded);
    let Model::Decoder(model) = &mut plan.recipe.model else { unreachable!("it is a decoder") };
    model.lora = Some(Lora { rank: 16, alpha: 32.0, layers: AdaptedLayers::All, base });
    plan
}

fn attending(mut plan: Plan, attention: AttentionImplementation) -> Plan {
    plan.recipe.train.state.attention = Some(attention);
    plan
}

/// Returns plans with every kind of state, with their names.
pub(super) fn plans() -> [(&'static str, Plan); 13] {
    let host = |state, offload| StatePolicy { offload, ..state };
    let one = |state| with(fixtures::llama(), state, false);
    let four = |state| with(fixtures::llama(), state, true);
    let fused = StatePolicy { loss: LossKernel::Fused, ..INT8 };
    let reduced = StatePolicy { gradients: Some(StatePrecision::F32), ..StatePolicy::PLAIN };
    [
        ("lora", attending(adapted(fixtures::llama(), None, false), AttentionImplementation::Flash)),
        ("qlora", adapted(fixtures::llama(), Some(FrozenPrecision::Nf4), false)),
        ("qlora-sharded", adapted(fixtures::llama(), Some(FrozenPrecision::Nf4), true)),
        ("qlora-int8", adapted(fixtures::llama(), Some(FrozenPrecision::Int8), false)),
        ("lora-gpt", adapted(fixtures::gpt2(), None, true)),
        ("int8", one(INT8)),
        ("int8-sharded", attending(four(host(fused, Offload::All)), AttentionImplementation::Eager)),
        ("int8-optimizer", one(host(INT8, Offload::Optimizer))),
        ("int8-all", one(host(INT8, Offload::All))),
        ("host-sharded", four(host(StatePolicy::PLAIN, Offload::Optimizer))),
        ("bf16", attending(one(BF16), AttentionImplementation::Sdpa)),
        ("bf16-all", one(host(BF16, Offload::All))),
        ("gradients-f32", four(reduced)),
    ]
}

/// Returns every value of the JSON and YAML files of the plan with this name, below the names of the files.
#[track_caller]
fn read(name: &str, format: ConfigFormat) -> Lines {
    let plan = plans().into_iter().find(|(known, _)| *known == name).expect("there is such a plan").1;
    let emitted = emit(&plan, format).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut found = Lines::new();
    for ConfigFile { name, text } in &emitted.files {
        let value = match name.rsplit('.').next() {
            Some("json") => serde_json::from_str(text).expect("it is JSON"),
            Some("yaml") => yaml::documents(text).remove(0),
            // Scripts have no values to compare.
            _ => continue,
        };
        found.append(&mut flat(name.split('.').next().expect("a name"), &value));
    }
    found
}

/// Checks values; `-` for a key that is not there.
#[track_caller]
fn says(name: &str, format: ConfigFormat, expected: &[(&str, &str)]) {
    let found = read(name, format);
    for (key, value) in expected {
        assert_eq!(found.get(*key).map_or("-", String::as_str), *value, "{name}: {key} in {found:#?}");
    }
}

#[test]
fn hf_trainer_is_given_the_precision_and_place_of_state() {
    let says = |name: &str, expected: &[(&str, &str)]| says(name, ConfigFormat::HfTrainer, expected);
    says("int8", &[("training_arguments.optim", "adamw_bnb_8bit"), ("accelerate.distributed_type", "NO")]);
    says(
        "int8-sharded",
        &[
            ("training_arguments.optim", "adamw_torch_8bit"),
            ("training_arguments.use_liger_kernel", "true"),
            ("accelerate.fsdp_config.fsdp_offload_params", "true"),
            ("config.attn_implementation", "eager"),
            ("ds_config.train_batch_size", "-"),
        ],
    );
    for (name, stage, param) in [("int8-optimizer", "2", "-"), ("int8-all", "3", "cpu")] {
        says(
            name,
            &[
                ("accelerate.distributed_type", "DEEPSPEED"),
                ("accelerate.mixed_precision", "-"),
                ("accelerate.deepspeed_config.deepspeed_config_file", "ds_config.json"),
                ("accelerate.deepspeed_config.zero3_init_flag", if stage == "3" { "true" } else { "false" }),
                ("ds_config.zero_optimization.stage", stage),
                ("ds_config.zero_optimization.offload_optimizer.device", "cpu"),
                ("ds_config.zero_optimization.offload_param.device", param),
                ("ds_config.zero_force_ds_cpu_optimizer", "false"),
                ("ds_config.bf16.enabled", "true"),
                ("ds_config.optimizer.type", "-"),
                ("training_arguments.optim", "adamw_bnb_8bit"),
                ("training_arguments.bf16", "true"),
                ("config.dtype", "float32"),
            ],
        );
    }
    says(
        "host-sharded",
        &[
            ("training_arguments.optim", "adamw_torch"),
            ("ds_config.zero_optimization.stage", "3"),
            ("ds_config.zero_force_ds_cpu_optimizer", "-"),
            ("accelerate.fsdp_config.fsdp_version", "-"),
        ],
    );
    says(
        "bf16",
        &[
            ("config.dtype", "bfloat16"),
            ("config.attn_implementation", "sdpa"),
            ("accelerate.mixed_precision", "no"),
            ("training_arguments.bf16", "false"),
        ],
    );
    says(
        "bf16-all",
        &[
            ("ds_config.bf16.bf16_master_weights_and_grads", "true"),
            ("ds_config.bf16.bf16_optimizer_states", "true"),
            ("training_arguments.bf16", "true"),
        ],
    );
}

#[test]
fn deepspeed_is_given_the_precision_and_place_of_state() {
    let says = |name: &str, expected: &[(&str, &str)]| says(name, ConfigFormat::Deepspeed, expected);
    says(
        "int8",
        &[
            ("ds_config.optimizer.type", "-"),
            ("ds_config.zero_allow_untested_optimizer", "true"),
            ("ds_config.zero_force_ds_cpu_optimizer", "-"),
            ("ds_config.zero_optimization.stage", "0"),
        ],
    );
    says(
        "int8-all",
        &[
            ("ds_config.zero_force_ds_cpu_optimizer", "false"),
            ("ds_config.zero_optimization.stage", "3"),
            ("ds_config.zero_optimization.offload_param.device", "cpu"),
        ],
    );
    says(
        "host-sharded",
        &[
            ("ds_config.optimizer.type", "AdamW"),
            ("ds_config.zero_optimization.offload_optimizer.device", "cpu"),
            ("ds_config.zero_optimization.offload_param.device", "-"),
        ],
    );
    says(
        "bf16",
        &[("ds_config.zero_optimization.stage", "1"), ("ds_config.bf16.bf16_optimizer_states", "true")],
    );
    says("gradients-f32", &[("ds_config.data_types.grad_accum_dtype", "fp32")]);
    let plan = with(fixtures::llama(), INT8, false);
    let notes = emit(&plan, ConfigFormat::Deepspeed).expect("it has them").notes.join("\n");
    assert!(notes.contains("optimizer=bitsandbytes.optim.AdamW8bit(parameters, lr="), "{notes}");
}

#[test]
fn adapters_are_those_of_peft() {
    for format in [ConfigFormat::HfTrainer, ConfigFormat::Deepspeed] {
        says(
            "lora",
            format,
            &[
                ("adapter_config.peft_type", "LORA"),
                ("adapter_config.r", "16"),
                ("adapter_config.lora_alpha", "32.0"),
                (
                    "adapter_config.target_modules",
                    "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]",
                ),
                ("adapter_config.fan_in_fan_out", "false"),
                ("quantization_config.load_in_4bit", "-"),
                ("config.dtype", "bfloat16"),
                ("config.attn_implementation", "flash_attention_2"),
            ],
        );
        says(
            "lora-gpt",
            format,
            &[
                ("adapter_config.target_modules", "[attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj]"),
                ("adapter_config.fan_in_fan_out", "true"),
            ],
        );
        for (name, storage) in [("qlora", "-"), ("qlora-sharded", "bfloat16")] {
            says(
                name,
                format,
                &[
                    ("quantization_config.load_in_4bit", "true"),
                    ("quantization_config.bnb_4bit_quant_type", "nf4"),
                    ("quantization_config.bnb_4bit_use_double_quant", "true"),
                    ("quantization_config.bnb_4bit_compute_dtype", "bfloat16"),
                    ("quantization_config.bnb_4bit_quant_storage", storage),
                ],
            );
        }
        says("qlora-int8", format, &[("quantization_config.load_in_8bit", "true")]);
    }
    let plan = adapted(fixtures::llama(), Some(FrozenPrecision::Nf4), false);
    let notes = emit(&plan, ConfigFormat::HfTrainer).expect("it has them").notes.join("\n");
    for words in [
        "from_pretrained(YOUR_MODEL, dtype=\"bfloat16\", quantization_config=quantization)",
        "get_peft_model(model, LoraConfig.from_pretrained(\".\"))",
    ] {
        assert!(notes.contains(words), "{notes}");
    }
}

/// Returns `plan` with a change to its arrangement.
fn but(mut plan: Plan, change: impl FnOnce(&mut Arrangement)) -> Plan {
    change(&mut plan.choices[0].candidate.arrangement);
    plan
}

#[test]
fn state_that_an_engine_cannot_hold_is_refused() {
    use ConfigFormat::{Deepspeed, HfTrainer};
    let host = |state, offload| StatePolicy { offload, ..state };
    let llama = |state, is_sharded| with(fixtures::llama(), state, is_sharded);
    let whole = but(llama(host(StatePolicy::PLAIN, Offload::Optimizer), true), |arrangement| {
        arrangement.zero = ZeroStage::Zero0;
    });
    let half = but(llama(host(StatePolicy::PLAIN, Offload::All), true), |arrangement| {
        arrangement.zero = ZeroStage::Zero2;
    });
    let narrow = but(llama(BF16, false), |arrangement| arrangement.precision = Precision::F32);
    let fused = StatePolicy { loss: LossKernel::Fused, ..StatePolicy::PLAIN };
    let mut lion = llama(StatePolicy::PLAIN, true);
    lion.recipe.train.optimizer.kind = OptimizerKind::Lion;
    for (format, plan, words) in [
        (HfTrainer, &whole, "unsharded state of several replicas in host memory"),
        (Deepspeed, &half, "weights in host memory with zero 0, 1 or 2"),
        (HfTrainer, &narrow, "weights in bf16 with products in another precision"),
        (Deepspeed, &narrow, "weights in bf16 with products in another precision"),
        (HfTrainer, &with(fixtures::gpt2(), fused, false), "a fused loss of GPT-2"),
        (Deepspeed, &llama(fused, false), "train.state.loss"),
        (HfTrainer, &lion, "train.optimizer = \"lion\" with zero 2 or 3"),
        (
            HfTrainer,
            &llama(StatePolicy { weights: StatePrecision::Bf16, ..host(INT8, Offload::Optimizer) }, false),
            "8-bit moments of bf16 weights in host memory",
        ),
        (
            HfTrainer,
            &adapted(fixtures::llama(), Some(FrozenPrecision::Int8), true),
            "sharded frozen weights in int8",
        ),
        (Deepspeed, &adapted(fixtures::llama(), Some(FrozenPrecision::F32), false), "DeepSpeed casts them"),
        (
            Deepspeed,
            &llama(StatePolicy { gradients: Some(StatePrecision::F32), ..BF16 }, true),
            "gradients in f32 of weights in bf16",
        ),
    ] {
        refused(plan, format, words);
    }
}
