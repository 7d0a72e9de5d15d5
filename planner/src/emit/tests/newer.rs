//! Tests features of newer models: emitted if an engine supports them, refused elsewhere.

use super::*;

/// Returns a plan, like `plan --on`, for a model that dtrain's own worker cannot train.
pub(super) fn newer(model: Model, precision: Precision) -> Plan {
    let layout = Layout { expert: n(2), ..Layout::replicas(n(2)) };
    let mut plan = planned(fixtures::experts(), arranged(layout, ZeroStage::Zero1));
    plan.recipe.model = model;
    plan.choices[0].candidate.arrangement.precision = precision;
    plan
}

fn windowed(every: Option<u32>) -> Model {
    let Model::Decoder(mixture) = fixtures::experts() else { unreachable!("it is a decoder") };
    Model::Decoder(Decoder {
        window: Some(SlidingWindow { tokens: 128, every, rotary_base: None }),
        head_width: Some(64),
        ..mixture
    })
}

#[test]
fn megatron_has_windows_and_widths_of_heads() {
    let slides = shown(&newer(windowed(Some(2)), Precision::Bf16), ConfigFormat::Megatron);
    for argument in ["--window-size 127,0", "--window-attn-skip-freq 2", "--kv-channels 64"] {
        assert!(slides.contains(&format!("\n    {argument}\n")), "{argument}: {slides}");
    }
    let always = shown(&newer(windowed(None), Precision::Bf16), ConfigFormat::Megatron);
    assert!(
        always.contains("--window-size 127,0") && !always.contains("--window-attn-skip-freq"),
        "{always}"
    );
}

#[test]
fn every_argument_of_newer_models_is_one_that_megatron_has() {
    let mut plans =
        vec![newer(windowed(Some(2)), Precision::Bf16), newer(fixtures::deepseek(), Precision::Fp8)];
    plans[1].recipe.train.fp8_recipe = Some(Fp8Recipe::Mxfp8);
    for plan in plans {
        let emitted = emit(&plan, ConfigFormat::Megatron).expect("Megatron-LM has it");
        names::megatron_has_the_arguments_of(&emitted.files[0].text);
    }
}

#[test]
fn layers_that_predict_further_tokens_stand_in_the_last_of_uneven_stages() {
    let Model::Decoder(model) = fixtures::deepseek() else { unreachable!("it is a decoder") };
    let layout = Layout { pipeline: n(2), ..Layout::SINGLE };
    let mut plan = planned(fixtures::llama(), arranged(layout, ZeroStage::Zero0));
    plan.recipe.model = Model::Decoder(Decoder { layers: 5, ..model });
    let script = shown(&plan, ConfigFormat::Megatron);
    assert!(script.contains("--pipeline-model-parallel-layout 'Et*2|t*3mL'"), "{script}");
}

#[test]
fn heads_bases_and_windows_of_all_layers_are_said_everywhere() {
    let Model::Decoder(model) = fixtures::llama() else { unreachable!("it is a decoder") };
    let mut plan = llama();
    plan.recipe.model = Model::Decoder(Decoder { head_width: Some(48), rotary_base: Some(500_000), ..model });
    let module = shown(&plan, ConfigFormat::Torchtitan);
    assert!(module.contains("HEAD_WIDTH, FFN, VOCAB = ") && module.contains("theta=500000.0"), "{module}");
    plan.choices[0].candidate.arrangement.sequence = false;
    let config = shown(&plan, ConfigFormat::HfTrainer);
    assert!(config.contains("\"head_dim\": 48") && config.contains("\"rope_theta\": 500000.0"), "{config}");
    let mut slides = newer(windowed(None), Precision::Bf16);
    let arrangement = &mut slides.choices[0].candidate.arrangement;
    arrangement.layout.expert = n(1);
    arrangement.shard = arrangement.replicas();
    let config = shown(&slides, ConfigFormat::Deepspeed);
    assert!(config.contains("\"sliding_window\": 128"), "{config}");
}

#[test]
fn biases_of_queries_keys_and_values_alone_are_those_of_qwen2() {
    let Model::Decoder(model) = fixtures::llama() else { unreachable!("it is a decoder") };
    let mut plan = llama();
    let qwen2 = Decoder { qkv_bias: Some(true), norm_epsilon: Some(1e-6), ..model };
    plan.recipe.model = Model::Decoder(qwen2);
    let script = shown(&plan, ConfigFormat::Megatron);
    assert!(script.contains("--disable-bias-linear") && script.contains("--add-qkv-bias"), "{script}");
    assert!(script.contains("--norm-epsilon 1e-6"), "{script}");
    plan.choices[0].candidate.arrangement.sequence = false;
    let config = shown(&plan, ConfigFormat::HfTrainer);
    assert!(config.contains("Qwen2ForCausalLM") && config.contains("\"rms_norm_eps\": 1e-6"), "{config}");
}

#[test]
fn what_others_have_no_word_for_is_refused_with_the_engine_that_has() {
    let plan = newer(fixtures::deepseek(), Precision::Bf16);
    refused(
        &plan,
        ConfigFormat::Torchtitan,
        "model.latent (data 2 × expert 2, 4 micro-batches); only files for `megatron`",
    );
    refused(
        &newer(windowed(Some(2)), Precision::Bf16),
        ConfigFormat::Torchtitan,
        "model.window (data 2 × expert 2, 4 micro-batches); only files for `megatron`",
    );
    refused(
        &newer(windowed(Some(2)), Precision::Bf16),
        ConfigFormat::Deepspeed,
        "a decoder of none of the families of transformers that dtrain knows",
    );
    let mut whole = newer(fixtures::experts(), Precision::Fp8);
    let arrangement = &mut whole.choices[0].candidate.arrangement;
    arrangement.layout.expert = n(1);
    arrangement.shard = arrangement.replicas();
    for format in [ConfigFormat::Deepspeed, ConfigFormat::HfTrainer, ConfigFormat::Maxtext] {
        refused(&whole, format, "only files for `megatron` and `torchtitan` say it");
    }
}

/// Returns a plan with fp8 products.
pub(super) fn in_fp8(mut plan: Plan, scales: Option<Fp8Recipe>) -> Plan {
    plan.choices[0].candidate.arrangement.precision = Precision::Fp8;
    plan.recipe.train.fp8_recipe = scales;
    plan
}

#[test]
fn torchtitan_has_no_scale_of_a_whole_tensor() {
    for (scales, word) in [
        (None, "tensorwise"),
        (Some(Fp8Recipe::Tensorwise), "tensorwise"),
        (Some(Fp8Recipe::Delayed), "delayed"),
    ] {
        let plan = in_fp8(llama(), scales);
        refused(
            &plan,
            ConfigFormat::Torchtitan,
            &format!("train.fp8_recipe = \"{word}\" (data 4 × tensor 2"),
        );
        refused(&plan, ConfigFormat::Torchtitan, "; it has no scale for a whole tensor; set \"blockwise\"");
    }
}

#[test]
fn torchtitan_compiles_no_backward_in_two_halves() {
    let layout = Layout { pipeline: n(2), ..Layout::SINGLE };
    let of = |schedule| {
        let arrangement = Arrangement { schedule, ..arranged(layout, ZeroStage::Zero0) };
        let plan = in_fp8(planned(fixtures::llama(), arrangement), Some(Fp8Recipe::Blockwise));
        shown(&plan, ConfigFormat::Torchtitan)
    };
    let usual = of(PipelineSchedule::OneForwardOneBackward);
    assert!(
        usual.contains("model_compile_enabled=True") && usual.contains("compile=CompileConfig("),
        "{usual}"
    );
    let halved = of(PipelineSchedule::ZeroBubble);
    assert!(halved.contains("model_compile_enabled=False") && !halved.contains("CompileConfig"), "{halved}");
}

#[test]
fn torchtitan_cuts_no_loss_into_chunks_where_the_backward_pass_is_split() {
    let layout = Layout { pipeline: n(2), ..Layout::SINGLE };
    for (schedule, is_chunked) in
        [(PipelineSchedule::OneForwardOneBackward, true), (PipelineSchedule::ZeroBubble, false)]
    {
        let arrangement = Arrangement { schedule, ..arranged(layout, ZeroStage::Zero0) };
        let module = shown(&planned(fixtures::llama(), arrangement), ConfigFormat::Torchtitan);
        assert_eq!(module.contains("ChunkedLossWrapper"), is_chunked, "{module}");
        assert!(module.contains("CrossEntropyLoss.Config(global_vocab_size=VOCAB)"), "{module}");
    }
}

#[test]
fn a_z_loss_is_written_for_maxtext_and_refused_elsewhere() {
    let layout = Layout::replicas(n(2));
    let mut arrangement = arranged(layout, ZeroStage::Zero3);
    arrangement.recompute = Recompute::Full;
    arrangement.shard = arrangement.replicas();
    let mut plan = planned(fixtures::llama(), arrangement);
    plan.recipe.train.z_loss = 1e-4;
    let config = shown(&plan, ConfigFormat::Maxtext);
    assert!(config.contains("\nz_loss_multiplier: 0.0001\n"), "{config}");
    for format in
        [ConfigFormat::Megatron, ConfigFormat::Torchtitan, ConfigFormat::Deepspeed, ConfigFormat::HfTrainer]
    {
        refused(&plan, format, "train.z_loss (data 2");
        refused(
            &plan,
            format,
            "; dtrain and MaxText (`--engine jax`) have a z-loss; or set train.z_loss = 0",
        );
        plan.recipe.train.z_loss = 0.0;
        assert!(emit(&plan, format).is_ok(), "{format:?} writes it without");
        plan.recipe.train.z_loss = 1e-4;
    }
}
