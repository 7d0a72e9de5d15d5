mod names;
mod newer;
mod parsers;
mod readers;
mod state;
mod values;

use super::*;
use crate::BatchSplit;
use crate::fixtures;
use crate::planning::plan;
use dtrain_protocol::{Arrangement, ContextExchange, DeviceKind, EmbeddingHeadCost, Layout, RankOrder};
use dtrain_recipes::*;
use proptest::prelude::*;
use std::num::{NonZeroU32, NonZeroU64};

fn n(degree: u32) -> NonZeroU32 {
    NonZeroU32::new(degree).expect("degrees start at one")
}

/// Returns a plan for `model` with this arrangement, on GPUs in bf16, with micro-batches of two samples.
fn planned(model: Model, arrangement: Arrangement) -> Plan {
    let (mut recipe, host) = (fixtures::recipe(), fixtures::host(2));
    recipe.model = model;
    let mut plan = plan(&fixtures::request(&recipe, &host, None)).expect("the samples fit");
    let device = DeviceKind::Cuda;
    let shard = if arrangement.zero == ZeroStage::Zero0 { 1 } else { arrangement.shard };
    let candidate = &mut plan.choices[0].candidate;
    candidate.arrangement = Arrangement { device, shard, precision: Precision::Bf16, ..arrangement };
    let batch = NonZeroU64::new(plan.batch.value).expect("a batch has samples");
    let readers = n(arrangement.layout.readers());
    candidate.split = BatchSplit::of(batch, n(2), readers).expect("32 samples split evenly");
    plan
}

fn arranged(layout: Layout, zero: ZeroStage) -> Arrangement {
    let whole = Arrangement { layout, ..Arrangement::SINGLE };
    Arrangement { zero, shard: whole.replicas(), ..whole }
}

/// Four replicas with ZeRO-1.
fn gpt() -> Plan {
    planned(fixtures::gpt2(), arranged(Layout::replicas(n(4)), ZeroStage::Zero1))
}

/// Tensor parallelism with ZeRO-3 and full recompute.
fn llama() -> Plan {
    let layout = Layout { tensor: n(2), ..Layout::replicas(n(4)) };
    let arrangement =
        Arrangement { sequence: true, recompute: Recompute::Full, ..arranged(layout, ZeroStage::Zero3) };
    planned(fixtures::llama(), arrangement)
}

/// Two stages of two chunks.
fn pipeline() -> Plan {
    let layout = Layout { pipeline: n(2), ..Layout::replicas(n(2)) };
    let arrangement = Arrangement {
        schedule: PipelineSchedule::Interleaved,
        chunks: 2,
        recompute: Recompute::Selective,
        ..arranged(layout, ZeroStage::Zero1)
    };
    planned(fixtures::llama(), arrangement)
}

/// Mixture of experts: two expert ranks, two replicas.
fn experts() -> Plan {
    let layout = Layout { expert: n(2), ..Layout::replicas(n(2)) };
    planned(fixtures::experts(), arranged(layout, ZeroStage::Zero2))
}

/// Context parallelism of two, state sharded in groups of four.
fn hybrid() -> Plan {
    let layout = Layout { context: n(2), ..Layout::replicas(n(4)) };
    planned(fixtures::llama(), Arrangement { shard: 4, ..arranged(layout, ZeroStage::Zero3) })
}

/// Tensor parallelism with ZeRO-3, without sequence parallelism.
fn cut() -> Plan {
    let layout = Layout { tensor: n(2), ..Layout::replicas(n(4)) };
    planned(
        fixtures::llama(),
        Arrangement { recompute: Recompute::Full, ..arranged(layout, ZeroStage::Zero3) },
    )
}

/// Four replicas with ZeRO-2.
fn gradients() -> Plan {
    planned(fixtures::gpt2(), arranged(Layout::replicas(n(4)), ZeroStage::Zero2))
}

/// Mixture of experts without expert parallelism, ZeRO-3.
fn whole() -> Plan {
    planned(fixtures::experts(), arranged(Layout::replicas(n(4)), ZeroStage::Zero3))
}

/// Two stages of two chunks with ZeRO-2, and context parallelism by all-gather.
fn gathered() -> Plan {
    let layout = Layout { pipeline: n(2), context: n(2), ..Layout::replicas(n(2)) };
    let arrangement = Arrangement {
        schedule: PipelineSchedule::Interleaved,
        chunks: 2,
        context_exchange: ContextExchange::AllGather,
        ..arranged(layout, ZeroStage::Zero2)
    };
    planned(fixtures::llama(), arrangement)
}

/// Shorter stages at the ends, context parallelism by all-to-all, stages as the innermost axis after tensor.
fn ends() -> Plan {
    let Model::Decoder(model) = fixtures::llama() else { unreachable!("it is a decoder") };
    let layout = Layout { pipeline: n(2), context: n(2), ..Layout::replicas(n(2)) };
    let arrangement = Arrangement {
        ends: EmbeddingHeadCost { embedding: 0, head: 2 },
        context_exchange: ContextExchange::AllToAll,
        order: RankOrder::DataOutermost,
        ..arranged(layout, ZeroStage::Zero1)
    };
    planned(Model::Decoder(Decoder { layers: 6, ..model }), arrangement)
}

/// Experts folded over the tensor ranks.
fn folded() -> Plan {
    let layout = Layout { tensor: n(2), ..Layout::replicas(n(4)) };
    let arrangement = Arrangement { sequence: true, expert_fold: 2, ..arranged(layout, ZeroStage::Zero2) };
    planned(fixtures::experts(), arrangement)
}

/// GPipe over two stages; weights sharded among all replicas.
fn circular() -> Plan {
    let layout = Layout { pipeline: n(2), ..Layout::replicas(n(2)) };
    let arrangement = Arrangement {
        schedule: PipelineSchedule::Gpipe,
        recompute: Recompute::Full,
        ..arranged(layout, ZeroStage::Zero3)
    };
    planned(fixtures::llama(), arrangement)
}

/// Mixture of experts with every axis but the pipeline, weights sharded in two groups.
fn mixture() -> Plan {
    let layout = Layout { tensor: n(2), context: n(2), expert: n(2), ..Layout::replicas(n(4)) };
    let arrangement = Arrangement {
        sequence: true,
        recompute: Recompute::Selective,
        shard: 8,
        ..arranged(layout, ZeroStage::Zero3)
    };
    planned(fixtures::experts(), arrangement)
}

/// One rank on a CPU, as planned.
fn single() -> Plan {
    let (recipe, host) = (fixtures::recipe(), fixtures::host(1));
    plan(&fixtures::request(&recipe, &host, None)).expect("the sample fits")
}

/// The four replicas, on two hosts.
fn hosts() -> Plan {
    let mut plan = gpt();
    plan.host.hosts = n(2);
    plan
}

/// Returns all plans with their names.
fn plans() -> [(&'static str, Plan); 15] {
    let (gpt, llama, pipeline) = (gpt(), llama(), pipeline());
    [
        ("gpt", gpt),
        ("llama", llama),
        ("pipeline", pipeline),
        ("experts", experts()),
        ("hybrid", hybrid()),
        ("single", single()),
        ("hosts", hosts()),
        ("cut", cut()),
        ("gradients", gradients()),
        ("whole", whole()),
        ("gathered", gathered()),
        ("ends", ends()),
        ("folded", folded()),
        ("circular", circular()),
        ("mixture", mixture()),
    ]
}

/// Returns the files one after the other, each below its name, or the error.
fn shown(plan: &Plan, format: ConfigFormat) -> String {
    match emit(plan, format) {
        Ok(ConfigFiles { files, start, .. }) => {
            let files = files.iter().map(|ConfigFile { name, text }| format!("==> {name}\n{text}"));
            files.collect::<String>() + "==> start\n" + &start
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn what_starts_in_a_checkout_is_named_by_its_whole_path() {
    let (_, plan) = plans().into_iter().find(|(name, _)| *name == "single").expect("there is one");
    let command = |format| emit(&plan, format).expect("it can be written").command("'/a b/out'");
    assert_eq!(command(ConfigFormat::Megatron), "cd MEGATRON-LM && bash '/a b/out'/megatron.sh");
    assert_eq!(command(ConfigFormat::Slurm), "cd '/a b/out' && sbatch slurm.sh");
    let before = |format| emit(&plan, format).expect("it can be written").preparation("'/a b/out'");
    let clone = format!(
        "git clone --depth 1 --branch core_v{} https://github.com/NVIDIA/Megatron-LM MEGATRON-LM",
        megatron::VERSION
    );
    let data = "cd MEGATRON-LM && bash '/a b/out'/megatron.sh data";
    assert_eq!(before(ConfigFormat::Megatron), [clone, data.into()]);
    assert_eq!(before(ConfigFormat::Slurm), Vec::<String>::new());
}

#[test]
fn every_file_with_comments_names_its_plan_and_what_the_user_sets() {
    for (name, plan) in plans() {
        let (digest, candidate) = (plan.digest(), &plan.best().candidate);
        let origin =
            format!("# Written by dtrain {} from plan {}: tiny-llama\n", plan.program, &digest[..12]);
        for format in ConfigFormat::ALL {
            let Ok(emitted) = emit(&plan, format) else { continue };
            for ConfigFile { name: file, text } in emitted.files {
                let settings = match file.as_str() {
                    "ds_config.json" | "config.json" => continue,
                    "dtrain_config.py" | "kubernetes.yaml" => 2,
                    "maxtext.yml" | "megatron.sh" => 3,
                    "deepspeed.sh" => plan.host.hosts.get() as usize,
                    "slurm.sh" | "maxtext.sh" => 1,
                    "accelerate.yaml" | "training_arguments.yaml" => 0,
                    // A new file is to say here how many settings it leaves to the user.
                    other => panic!("{name}: {other} is not known here"),
                };
                let flat = text.replace("\n#  ", "");
                assert!(flat.contains(&origin), "{name}: {text}");
                assert!(flat.contains(&format!("# Choice: {candidate}\n")), "{name}: {text}");
                assert_eq!(text.matches("# SET").count(), settings, "{name}: {text}");
            }
        }
    }
}

#[test]
fn a_format_is_found_by_its_name_only() {
    for format in ConfigFormat::ALL {
        assert_eq!(ConfigFormat::parse(format.word()), Ok(format));
    }
    let told = |name| ConfigFormat::parse(name).expect_err("it is no format").to_string();
    let all = "torchtitan, megatron, deepspeed, hf-trainer, maxtext, slurm, kubernetes";
    assert_eq!(told("Megatron"), format!("unknown format `Megatron`; known are {all}"));
    assert!(told("fsdp").ends_with("the files for Hugging Face's Trainer are `hf-trainer` now"));
}

#[test]
fn other_models_are_launched_but_not_translated() {
    let (mut recipe, host) = (fixtures::recipe(), fixtures::host(1));
    recipe.model = Model::Mlp(Mlp {
        inputs: 4,
        hidden: vec![8],
        classes: 3,
        activation: dtrain_recipes::MlpActivation::Relu,
    });
    let plan = plan(&fixtures::request(&recipe, &host, None)).expect("the sample fits");
    for format in ConfigFormat::ALL {
        let launches = matches!(format, ConfigFormat::Slurm | ConfigFormat::Kubernetes);
        match emit(&plan, format) {
            Ok(_) => assert!(launches, "{format:?}"),
            Err(error) => {
                assert!(!launches && error.to_string().contains("model.kind is \"mlp\""), "{error}");
            }
        }
    }
}

#[track_caller]
fn refused(plan: &Plan, format: ConfigFormat, words: &str) {
    let error = emit(plan, format).expect_err("it cannot be said").to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn what_an_engine_cannot_do_is_refused_with_the_way_out() {
    let with = |kind| {
        let mut plan = llama();
        plan.recipe.train.optimizer.kind = kind;
        plan
    };
    refused(
        &with(OptimizerKind::Lion),
        ConfigFormat::Torchtitan,
        "train.optimizer = \"lion\" (data 4 × tensor 2",
    );
    refused(
        &with(OptimizerKind::Lion),
        ConfigFormat::Megatron,
        "train.optimizer = \"lion\" with zero 2 or 3",
    );
    let mut lamb = cut();
    lamb.recipe.train.optimizer.kind = OptimizerKind::Lamb;
    refused(&lamb, ConfigFormat::Deepspeed, "train.optimizer = \"lamb\"");
    refused(&lamb, ConfigFormat::HfTrainer, "train.optimizer = \"lamb\"");
    refused(&gpt(), ConfigFormat::Torchtitan, "not of the Llama family");
    refused(&pipeline(), ConfigFormat::Deepspeed, "pipeline parallelism (data 2 × pipeline 2");
    refused(&pipeline(), ConfigFormat::Deepspeed, "micro-batches); it cuts pipelines in the program");
    refused(&pipeline(), ConfigFormat::HfTrainer, "pipeline parallelism (data 2 × pipeline 2");
    refused(&experts(), ConfigFormat::HfTrainer, "expert parallelism (data 2 × expert 2");
    refused(&hybrid(), ConfigFormat::Deepspeed, "context parallelism (data 4 × context 2");
    let mut half = llama();
    half.choices[0].candidate.arrangement.precision = Precision::F16;
    refused(&half, ConfigFormat::Torchtitan, "train.precision = \"f16\" (data 4 × tensor 2");
    let mut uneven = gpt();
    uneven.choices[0].candidate.split = BatchSplit::of_shares(&[8, 8, 8, 16], n(8)).expect("it splits");
    for format in [ConfigFormat::Megatron, ConfigFormat::Deepspeed, ConfigFormat::HfTrainer] {
        refused(&uneven, format, "replicas do [1, 1, 1, 2] micro-batches each; remove layout.shares");
    }
}

#[test]
fn stages_of_other_lengths_are_told_block_by_block() {
    let Model::Decoder(model) = fixtures::llama() else { unreachable!("it is a decoder") };
    let five = Model::Decoder(Decoder { layers: 5, ..model });
    let layout = Layout { pipeline: n(2), ..Layout::SINGLE };
    let plan = planned(five, arranged(layout, ZeroStage::Zero0));
    let script = shown(&plan, ConfigFormat::Megatron);
    assert!(script.contains("--pipeline-model-parallel-layout 'Et*2|t*3L'"), "{script}");
    let module = shown(&plan, ConfigFormat::Torchtitan);
    assert!(module.contains("[\"tok_embeddings\", \"layers.0\", \"layers.1\"],"), "{module}");
    assert!(
        module.contains("[\"layers.2\", \"layers.3\", \"layers.4\", \"norm\", \"lm_head\"],"),
        "{module}"
    );
}

#[test]
fn what_is_approximate_is_done_or_refused() {
    let mut plan = gpt();
    let sync = &mut plan.choices[0].candidate.arrangement.sync;
    *sync = Synchronisation { compress: Compression::Bf16, ..Synchronisation::EXACT };
    let config = shown(&plan, ConfigFormat::Deepspeed);
    assert!(config.contains("\"communication_data_type\": \"bf16\""), "{config}");
    for format in [ConfigFormat::Megatron, ConfigFormat::HfTrainer] {
        refused(&plan, format, "replicas that are kept alike approximately");
    }
    plan.choices[0].candidate.arrangement.sync.staleness = 2;
    refused(&plan, ConfigFormat::Deepspeed, "replicas that are kept alike approximately");
}

#[test]
fn a_path_with_a_line_break_stays_within_its_comment() {
    let mut plan = llama();
    let data = plan.recipe.data.as_mut().expect("a decoder has data");
    data.train = vec!["a\nrm -rf b\"".into()];
    for format in ConfigFormat::ALL {
        let text = shown(&plan, format);
        assert!(!text.contains("\nrm"), "{text}");
    }
    let module = shown(&plan, ConfigFormat::Torchtitan);
    assert!(module.contains(r#"FILES = ["/data/a\nrm -rf b\""]"#), "{module}");
}

#[test]
fn names_are_fit_for_kubernetes() {
    for (given, expected) in [
        ("tiny-llama", "tiny-llama"),
        ("Tiny_Llama.2", "tiny-llama-2"),
        ("7b", "train-7b"),
        ("--", "train"),
        (&"a".repeat(60), &"a".repeat(52)),
    ] {
        let mut plan = single();
        plan.recipe.name = given.into();
        assert_eq!(slurm::name(&plan), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_layout_is_said_in_files_with_all_notes_or_refused(
        [tensor, context, expert, data, pipeline] in prop::array::uniform5(1u32..3), zero in 0usize..4, mixture: bool,
    ) {
        let expert = if mixture { expert } else { 1 };
        let cut = Layout { tensor: n(tensor), context: n(context), expert: n(expert), ..Layout::SINGLE };
        let layout = Layout { data: n(data), pipeline: n(pipeline), ..cut };
        let zero = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3][zero];
        let model = if mixture { fixtures::experts() } else { fixtures::llama() };
        let plan = planned(model, arranged(layout, zero));
        for format in ConfigFormat::ALL {
            let Ok(ConfigFiles { files, notes, .. }) = emit(&plan, format) else { continue };
            let all: String = files.iter().map(|file| file.text.as_str()).collect();
            let flat = all.replace("\n#  ", "");
            for note in &notes {
                prop_assert!(flat.contains(&format!("# * {note}\n")), "{note}\n{all}");
            }
            for ConfigFile { name, text } in &files {
                prop_assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}: {text}");
                prop_assert!(!text.contains('\t') && !name.contains('/'), "{name}: {text}");
            }
        }
    }
}
