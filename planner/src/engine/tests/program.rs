//! Tests of the layouts that dtrain's program for FSDP2 accepts and refuses.

use super::*;

#[test]
fn the_program_for_fsdp2_runs_these() {
    let every_second = |a: &mut Arrangement| (a.recompute, a.recompute_every) = (Recompute::Full, 2);
    let selective = |a: &mut Arrangement| a.recompute = Recompute::Selective;
    holds(
        engine_of_recipe(TrainingEngine::Fsdp).expect("it is none of dtrain's worker"),
        vec![
            ("replicas", llama(), on_gpus(data(8), Zero0), None),
            ("zero 1", llama(), on_gpus(data(8), Zero1), None),
            ("zero 3", gpt2(), on_gpus(data(8), Zero3), None),
            ("shard groups", llama(), with(on_gpus(data(8), Zero3), |a| a.shard = 4), None),
            ("tensor alone", llama(), on_gpus(Layout { tensor: n(2), ..data(1) }, Zero0), None),
            ("tensor with whole weights", llama(), tensor(4, Zero0), None),
            ("tensor with shards", llama(), tensor(4, Zero3), None),
            ("tensor of gpt-2", gpt2(), tensor(4, Zero3), Some("GPT-2")),
            (
                "sequence",
                llama(),
                with(tensor(4, Zero3), |a| a.sequence = true),
                Some("sequence parallelism"),
            ),
            ("context", llama(), context(AllGather, Zero3), Some("context parallelism")),
            ("pipeline", llama(), piped(OneForwardOneBackward, 1, Zero1), Some("pipeline")),
            ("a load-balancing loss", mixtral(), experts(1, 1, 1, Zero3), Some("model.balance")),
            (
                "norms of heads cut among ranks",
                Decoder { qk_norm: true, ..llama() },
                tensor(4, Zero3),
                Some("qk_norm"),
            ),
            ("every second block", llama(), with(on_gpus(data(8), Zero3), every_second), None),
            ("selective", llama(), with(on_gpus(data(8), Zero3), selective), Some("selective")),
            ("f16", llama(), with(on_gpus(data(8), Zero3), |a| a.precision = Precision::F16), Some("f16")),
        ],
    );
}

/// The engine that a recipe names is found by its keyword.
#[test]
fn recipes_name_engines_by_their_keywords() {
    for engine in TrainingEngine::ALL {
        let found = engine_of_recipe(*engine).map(Engine::name);
        assert_eq!(found, engine.is_foreign().then(|| engine.name()), "{engine:?}");
    }
}

/// Torchtitan needs whole blocks of FlexAttention in each part of a sequence, which its emitted files do not.
#[test]
fn torchtitan_divides_sequences_into_whole_blocks_when_it_is_started() {
    let long = |tokens| Decoder { context: tokens, ..llama() };
    let arrangement = context(AllGather, Zero2);
    let ranks = arrangement.layout.context.get();
    assert_eq!(TORCHTITAN.unsupported_in_run(&long(128 * ranks), &arrangement), None);
    let reason = TORCHTITAN.unsupported_in_run(&long(64 * ranks), &arrangement).expect("half a block");
    assert!(reason.what.contains("128 tokens"), "{reason:?}");
    assert_eq!(TORCHTITAN.unsupported_in_run(&long(64), &on_gpus(data(2), Zero2)), None);
    assert_eq!(unsupported_in_run(&TORCHTITAN, &long(64 * ranks), &arrangement), Some(reason));
    assert_eq!(
        TORCHTITAN.unsupported_layout(&with_adamw(&long(64 * ranks)), &arrangement, MICRO_BATCHES),
        None
    );
    assert!(
        ALL.iter()
            .filter(|one| one.name() != "torchtitan")
            .all(|one| one.unsupported_in_run(&long(64), &arrangement).is_none())
    );
}

#[test]
fn engines_that_are_started_have_no_gpus_through_wgpu() {
    for engine in [TrainingEngine::Torchtitan, TrainingEngine::Fsdp].map(engine_of_recipe) {
        let engine = engine.expect("it is none of dtrain's worker");
        let on = |device| Arrangement { device, ..on_gpus(data(2), Zero2) };
        let reason = unsupported_in_run(engine, &llama(), &on(DeviceKind::Wgpu)).expect("PyTorch has none");
        assert!(reason.what.contains("wgpu"), "{reason:?}");
        assert_eq!(unsupported_in_run(engine, &llama(), &on(DeviceKind::Cuda)), None);
    }
}
