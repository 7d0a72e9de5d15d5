//! Tests of the layouts that every engine accepts and refuses.

mod layouts;
mod overlaps;
mod program;
mod trained;
mod written;

use super::*;
use crate::emit::ConfigFormat;
use dtrain_protocol::{ContextExchange, DeviceKind, EmbeddingHeadCost, Layout, RankOrder};
use dtrain_recipes::{Compression, Model, PipelineSchedule, Precision, Recompute, SlidingWindow, ZeroStage};
use layouts::*;

/// One case: name, model, arrangement, and part of the reason if it is refused.
type Row = (&'static str, Decoder, Arrangement, Option<&'static str>);

/// Micro-batches in all cases.
const MICRO_BATCHES: u32 = 8;

#[track_caller]
fn holds(engine: &dyn Engine, rows: Vec<Row>) {
    for (name, model, arrangement, expected) in rows {
        let found = engine.unsupported_layout(&with_adamw(&model), &arrangement, MICRO_BATCHES);
        match (found, expected) {
            (None, None) => {}
            (Some(UnsupportedLayout { what, .. }), Some(part)) if what.contains(part) => {}
            _ => panic!("{}, {name}: {found:?}, not {expected:?}", engine.name()),
        }
    }
}

/// Returns a training by AdamW, with block scales in fp8.
fn with_adamw(model: &Decoder) -> TrainingSpec {
    TrainingSpec {
        model: model.clone(),
        optimizer: OptimizerKind::Adamw,
        fp8_recipe: Fp8Recipe::Blockwise,
        has_z_loss: false,
        state: StatePins::default(),
    }
}

use ContextExchange::{AllGather, AllToAll, Ring};
use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
use ZeroStage::{Zero0, Zero1, Zero2, Zero3};

#[test]
fn megatron_runs_these() {
    let uneven = |schedule, chunks| Arrangement {
        ends: EmbeddingHeadCost { embedding: 0, head: 2 },
        ..piped(schedule, chunks, Zero1)
    };
    let ten = Decoder { layers: 10, ..llama() };
    holds(
        &MEGATRON,
        vec![
            ("zero 1", llama(), on_gpus(data(8), Zero1), None),
            ("zero 3", llama(), on_gpus(data(8), Zero3), None),
            ("gpt-2", gpt2(), on_gpus(data(8), Zero1), None),
            ("shard groups", llama(), with(on_gpus(data(8), Zero1), |a| a.shard = 4), None),
            ("1f1b", llama(), piped(OneForwardOneBackward, 1, Zero1), None),
            ("interleaved", llama(), piped(Interleaved, 2, Zero1), None),
            ("uneven ends", ten.clone(), uneven(OneForwardOneBackward, 1), None),
            ("gpipe", llama(), piped(Gpipe, 1, Zero1), Some("gpipe")),
            ("zero bubble", llama(), piped(ZeroBubble, 1, Zero1), Some("zero_bubble")),
            (
                "zero 2 in a pipeline",
                llama(),
                piped(OneForwardOneBackward, 1, Zero2),
                Some("zero 2 or 3 in a pipeline"),
            ),
            (
                "more stages than blocks",
                Decoder { layers: 3, ..llama() },
                piped(OneForwardOneBackward, 1, Zero1),
                Some("without blocks"),
            ),
            (
                "a stage of ends only",
                llama(),
                with(piped(OneForwardOneBackward, 1, Zero1), |a| a.ends.head = 3),
                Some("without blocks"),
            ),
            (
                "order",
                llama(),
                with(piped(Interleaved, 2, Zero1), |a| a.order = RankOrder::DataOutermost),
                None,
            ),
            ("tensor", llama(), tensor(4, Zero1), None),
            ("tensor over copies of key and value heads", llama(), tensor(8, Zero1), None),
            ("tensor 3", llama(), tensor(3, Zero1), Some("do not divide")),
            (
                "sequence alone",
                llama(),
                with(on_gpus(data(2), Zero1), |a| a.sequence = true),
                Some("without tensor"),
            ),
            ("ring", llama(), context(Ring, Zero1), None),
            ("gather", llama(), context(AllGather, Zero1), None),
            ("heads", llama(), context(AllToAll, Zero1), None),
            (
                "heads that are too few",
                Decoder { kv_heads: 1, ..llama() },
                context(AllToAll, Zero1),
                Some("all-to-all"),
            ),
            (
                "context in f32",
                llama(),
                with(context(Ring, Zero1), |a| a.precision = Precision::F32),
                Some("f32"),
            ),
            ("experts", mixtral(), experts(1, 2, 1, Zero1), None),
            ("experts, cut", mixtral(), experts(2, 2, 1, Zero1), None),
            ("experts, folded", mixtral(), experts(2, 2, 2, Zero1), None),
            (
                "experts, folded over some",
                mixtral(),
                experts(4, 1, 2, Zero1),
                Some("some of the tensor ranks"),
            ),
            (
                "experts without sequences",
                mixtral(),
                with(experts(2, 2, 1, Zero1), |a| a.sequence = false),
                Some("no sequence"),
            ),
            ("experts of none", llama(), experts(1, 2, 1, Zero1), Some("without experts")),
            (
                "some blocks",
                llama(),
                with(piped(OneForwardOneBackward, 1, Zero1), |a| {
                    a.recompute = Recompute::Full;
                    a.recompute_every = 2;
                }),
                None,
            ),
            (
                "some blocks of uneven runs",
                ten,
                with(piped(OneForwardOneBackward, 1, Zero1), |a| {
                    a.recompute = Recompute::Full;
                    a.recompute_every = 2;
                }),
                Some("unequal"),
            ),
            (
                "approximate",
                llama(),
                with(on_gpus(data(2), Zero0), |a| a.sync.staleness = 1),
                Some("approximately"),
            ),
        ],
    );
}

#[test]
fn torchtitan_runs_these() {
    holds(
        &TORCHTITAN,
        vec![
            ("zero 0", llama(), on_gpus(data(8), Zero0), None),
            ("zero 1", llama(), on_gpus(data(8), Zero1), Some("zero 1")),
            ("zero 2", llama(), on_gpus(data(8), Zero2), None),
            ("shard groups", llama(), with(on_gpus(data(8), Zero3), |a| a.shard = 4), None),
            ("gpt-2", gpt2(), on_gpus(data(8), Zero2), Some("Llama")),
            ("1f1b", llama(), piped(OneForwardOneBackward, 1, Zero2), None),
            ("gpipe", llama(), piped(Gpipe, 1, Zero2), None),
            ("interleaved", llama(), piped(Interleaved, 2, Zero2), None),
            ("zero bubble", llama(), piped(ZeroBubble, 1, Zero2), None),
            (
                "zero bubble, again",
                llama(),
                with(piped(ZeroBubble, 1, Zero2), |a| a.recompute = Recompute::Full),
                Some("zero_bubble with recompute"),
            ),
            ("tied", Decoder { tied: true, ..llama() }, piped(Gpipe, 1, Zero2), Some("tied")),
            (
                "order",
                llama(),
                with(piped(Gpipe, 1, Zero2), |a| a.order = RankOrder::DataOutermost),
                Some("nearer"),
            ),
            (
                "tensor over copies of key and value heads",
                llama(),
                tensor(8, Zero2),
                Some("key and value heads"),
            ),
            ("ring", llama(), context(Ring, Zero2), Some("ring")),
            ("gather", llama(), context(AllGather, Zero2), None),
            ("gather with whole weights", llama(), context(AllGather, Zero0), Some("zero 0 with context")),
            ("experts", mixtral(), experts(1, 2, 1, Zero2), None),
            ("experts, cut", mixtral(), experts(2, 2, 1, Zero2), Some("cut along tensor ranks")),
            ("experts, folded", mixtral(), experts(2, 2, 2, Zero2), None),
            (
                "some blocks",
                llama(),
                with(on_gpus(data(2), Zero2), |a| {
                    a.recompute = Recompute::Full;
                    a.recompute_every = 2;
                }),
                Some("one block in several"),
            ),
            ("f16", llama(), with(on_gpus(data(2), Zero2), |a| a.precision = Precision::F16), Some("f16")),
            ("fp8", llama(), with(on_gpus(data(2), Zero2), |a| a.precision = Precision::Fp8), None),
            ("fp8 experts", mixtral(), with(experts(1, 2, 1, Zero2), |a| a.precision = Precision::Fp8), None),
        ],
    );
}

#[test]
fn hf_trainer_runs_these() {
    holds(
        &HF_TRAINER,
        vec![
            ("fp8", llama(), with(on_gpus(data(8), Zero3), |a| a.precision = Precision::Fp8), Some("fp8")),
            ("zero 0", llama(), on_gpus(data(8), Zero0), None),
            ("zero 1", llama(), on_gpus(data(8), Zero1), Some("zero 1")),
            ("zero 2", gpt2(), on_gpus(data(8), Zero2), None),
            ("shard groups", llama(), with(on_gpus(data(8), Zero3), |a| a.shard = 4), None),
            (
                "shard groups of one",
                llama(),
                with(on_gpus(data(8), Zero3), |a| a.shard = 1),
                Some("one reader"),
            ),
            ("pipeline", llama(), piped(OneForwardOneBackward, 1, Zero3), Some("pipeline")),
            ("tensor", llama(), tensor(4, Zero3), None),
            ("tensor with whole weights", llama(), tensor(4, Zero0), Some("zero 0 with tensor")),
            ("tensor of gpt-2", gpt2(), tensor(4, Zero3), Some("GPT-2")),
            (
                "sequence",
                llama(),
                with(tensor(4, Zero3), |a| a.sequence = true),
                Some("sequence parallelism"),
            ),
            ("ring", llama(), context(Ring, Zero3), None),
            ("gather", llama(), context(AllGather, Zero3), None),
            ("heads", llama(), context(AllToAll, Zero3), Some("all-to-all")),
            ("experts, whole", mixtral(), experts(1, 1, 1, Zero3), None),
            ("experts", mixtral(), experts(1, 2, 1, Zero3), Some("expert parallelism")),
            ("full", llama(), with(on_gpus(data(8), Zero3), |a| a.recompute = Recompute::Full), None),
            (
                "selective",
                llama(),
                with(on_gpus(data(8), Zero3), |a| a.recompute = Recompute::Selective),
                Some("selective"),
            ),
            (
                "biases of experts",
                Decoder { bias: true, ..mixtral() },
                on_gpus(data(8), Zero3),
                Some("none of the families"),
            ),
        ],
    );
}

#[test]
fn deepspeed_runs_these() {
    let rounded = |a: &mut Arrangement| a.sync.compress = Compression::Bf16;
    holds(
        &DEEPSPEED,
        vec![
            ("zero 1", llama(), on_gpus(data(8), Zero1), None),
            ("zero 3", gpt2(), on_gpus(data(8), Zero3), None),
            ("shard groups", llama(), with(on_gpus(data(8), Zero3), |a| a.shard = 4), Some("shard groups")),
            ("rounded sums", llama(), with(on_gpus(data(8), Zero0), rounded), None),
            (
                "old gradients",
                llama(),
                with(on_gpus(data(8), Zero0), |a| a.sync.staleness = 1),
                Some("approximately"),
            ),
            ("pipeline", llama(), piped(OneForwardOneBackward, 1, Zero1), Some("pipeline")),
            ("context", llama(), context(AllToAll, Zero3), Some("context parallelism")),
            ("tensor", llama(), tensor(4, Zero3), None),
            (
                "sequence",
                llama(),
                with(tensor(4, Zero3), |a| a.sequence = true),
                Some("sequence parallelism"),
            ),
            ("experts", mixtral(), experts(1, 2, 1, Zero2), None),
            (
                "experts, cut",
                mixtral(),
                with(experts(2, 2, 1, Zero2), |a| a.sequence = false),
                Some("cut along tensor ranks"),
            ),
            ("experts, folded", mixtral(), with(experts(2, 2, 2, Zero2), |a| a.sequence = false), None),
        ],
    );
}

#[test]
fn maxtext_runs_these() {
    let again = |recompute, arrangement| Arrangement { recompute, ..arrangement };
    let full = |arrangement| again(Recompute::Full, arrangement);
    let sequence = |arrangement| Arrangement { sequence: true, ..full(arrangement) };
    holds(
        &JAX,
        vec![
            ("zero 0", llama(), full(on_gpus(data(8), Zero0)), None),
            ("zero 1", llama(), full(on_gpus(data(8), Zero1)), None),
            ("zero 2", llama(), full(on_gpus(data(8), Zero2)), Some("zero 2")),
            ("shard groups", llama(), with(full(on_gpus(data(8), Zero3)), |a| a.shard = 4), None),
            ("everything kept", llama(), on_gpus(data(8), Zero3), Some("no recompute")),
            ("selective", llama(), again(Recompute::Selective, on_gpus(data(8), Zero3)), None),
            ("gpt-2", gpt2(), full(on_gpus(data(8), Zero3)), Some("Llama")),
            ("tensor", llama(), sequence(tensor(4, Zero3)), None),
            (
                "tensor without sequences",
                llama(),
                full(tensor(4, Zero3)),
                Some("without sequence parallelism"),
            ),
            ("ring", llama(), full(context(Ring, Zero3)), None),
            ("heads", llama(), full(context(AllToAll, Zero3)), Some("all-to-all")),
            ("gpipe", llama(), full(piped(Gpipe, 1, Zero3)), None),
            ("1f1b", llama(), full(piped(OneForwardOneBackward, 1, Zero3)), Some("mixes")),
            (
                "uneven stages",
                Decoder { layers: 9, ..llama() },
                full(piped(Gpipe, 1, Zero3)),
                Some("unequal"),
            ),
            ("experts", mixtral(), full(experts(1, 2, 1, Zero3)), None),
            ("experts, folded", mixtral(), full(experts(2, 1, 2, Zero3)), Some("folded")),
        ],
    );
}

#[test]
fn the_worker_runs_what_its_abilities_say() {
    let on_cpus = |layout| Arrangement { layout, ..Arrangement::SINGLE };
    holds(
        &DTRAIN,
        vec![
            ("replicas", gpt2(), on_cpus(data(8)), None),
            ("zero bubble", llama(), piped(ZeroBubble, 1, Zero2), None),
            ("ring", llama(), on_cpus(Layout { context: n(2), ..data(2) }), None),
            ("ring on GPUs", llama(), context(Ring, Zero2), Some("CPUs only")),
            (
                "gather",
                llama(),
                with(on_cpus(data(2)), |a| a.context_exchange = AllGather),
                Some("ring only"),
            ),
            (
                "order",
                llama(),
                with(on_cpus(data(2)), |a| a.order = RankOrder::DataOutermost),
                Some("outermost axis"),
            ),
            ("zero 3", llama(), on_gpus(data(8), Zero3), Some("zero = 3")),
            ("experts on GPUs", mixtral(), experts(1, 2, 1, Zero0), Some("CPUs only")),
            ("fp8", llama(), with(on_gpus(data(8), Zero0), |a| a.precision = Precision::Fp8), Some("fp8")),
            (
                "windows",
                Decoder {
                    window: Some(SlidingWindow { tokens: 8, every: None, rotary_base: None }),
                    ..llama()
                },
                on_gpus(data(8), Zero0),
                None,
            ),
            ("tensor", llama(), tensor(4, Zero1), None),
            ("tensor over key and value heads", llama(), tensor(8, Zero1), Some("key and value heads")),
            (
                "more stages than blocks",
                Decoder { layers: 3, ..llama() },
                piped(OneForwardOneBackward, 1, Zero1),
                Some("without blocks"),
            ),
        ],
    );
    let interleaved = piped(Interleaved, 2, Zero0);
    let training = with_adamw(&llama());
    assert_eq!(DTRAIN.unsupported_layout(&training, &interleaved, 8), None);
    assert!(
        DTRAIN
            .unsupported_layout(&training, &interleaved, 6)
            .is_some_and(|why| why.what.contains("multiple of its stages"))
    );
}

#[test]
fn engines_are_found_by_their_names() {
    for engine in ALL {
        assert_eq!(engine_by_name(engine.name()).map(Engine::title), Some(engine.title()));
    }
    assert!(engine_by_name("Megatron").is_none());
    let of_formats: Vec<_> =
        ConfigFormat::ALL.into_iter().filter_map(ConfigFormat::engine).map(Engine::name).collect();
    assert_eq!(of_formats, ["torchtitan", "megatron", "deepspeed", "hf-trainer", "jax"]);
}
