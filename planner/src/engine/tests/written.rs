//! Property test: exactly the layouts that an engine can run are emitted for it.

use super::*;
use crate::emit::{ConfigFiles, DecoderPlan, EmitError, emit};
use crate::fixtures;
use crate::planning::plan;
use crate::{BatchSplit, Plan};
use dtrain_recipes::Synchronisation;
use proptest::prelude::*;
use std::num::NonZeroU64;

/// Returns a plan of `arrangement` with `micro_batches` passes of one sample per reader.
pub(super) fn planned(
    (model, optimizer): (Decoder, OptimizerKind),
    arrangement: Arrangement,
    micro_batches: u32,
) -> Plan {
    let (mut recipe, host) = (fixtures::recipe(), fixtures::host(2));
    recipe.model = Model::Decoder(model);
    recipe.train.optimizer.kind = optimizer;
    let mut plan = plan(&fixtures::request(&recipe, &host, None)).expect("the samples fit");
    let readers = n(arrangement.layout.readers());
    let batch = NonZeroU64::from(readers).saturating_mul(NonZeroU64::from(n(micro_batches)));
    let candidate = &mut plan.choices[0].candidate;
    candidate.arrangement = arrangement;
    candidate.split = BatchSplit::of(batch, n(1), readers).expect("one sample a pass");
    plan
}

prop_compose! {
    fn any_layout()(
        [tensor, context, expert] in prop::array::uniform3(0usize..3), data in 0usize..4, pipeline in 0usize..3,
    ) -> Layout {
        let degree = |place: usize| n([1, 2, 4, 3][place]);
        Layout {
            tensor: degree(tensor),
            context: degree(context),
            expert: degree(expert),
            data: degree(data),
            pipeline: degree(pipeline),
        }
    }
}

prop_compose! {
    fn any_arrangement()(
        layout in any_layout(),
        (zero, shard) in (0usize..4, 0usize..8),
        (recompute, recompute_every) in (0usize..3, 1u32..3),
        (schedule, chunks, head) in (0usize..4, 1u32..3, 0u32..4),
        (exchange, fold, order) in (0usize..3, 0usize..3, prop::bool::weighted(0.2)),
        (sequence, half, stale) in (any::<bool>(), 0usize..4, prop::bool::weighted(0.05)),
    ) -> Arrangement {
        let zero = [Zero0, Zero1, Zero2, Zero3][zero];
        let base = on_gpus(layout, zero);
        let divisors: Vec<u32> = (1..=base.replicas()).filter(|size| base.replicas().is_multiple_of(*size)).collect();
        let mut sync = Synchronisation::EXACT;
        sync.staleness = u32::from(stale);
        Arrangement {
            // All replicas in three cases of four.
            shard: if zero == Zero0 || shard > 1 { base.shard } else { divisors[shard * (divisors.len() - 1) / 2] },
            sequence,
            recompute: [Recompute::None, Recompute::Selective, Recompute::Full][recompute],
            recompute_every,
            schedule: [OneForwardOneBackward, Gpipe, Interleaved, ZeroBubble][schedule],
            chunks: if layout.pipeline.get() == 1 { 1 } else { chunks },
            ends: EmbeddingHeadCost { embedding: 0, head },
            context_exchange: [Ring, AllGather, AllToAll][exchange],
            expert_fold: [1, layout.tensor.get(), layout.tensor.get() * layout.context.get()][fold],
            order: if order { RankOrder::DataOutermost } else { RankOrder::PipelineOutermost },
            sync,
            precision: [Precision::Bf16, Precision::F32, Precision::F16, Precision::Fp8][half],
            ..base
        }
    }
}

/// Returns the product of the numbers behind `keys` in `text`; an absent key counts as 1.
fn product(text: &str, keys: &[&str]) -> u32 {
    let number = |key: &&str| {
        let rest = &text[text.find(key)? + key.len()..];
        let rest = rest.trim_start_matches([' ', '=', ':', '"']);
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    keys.iter().map(|key| number(key).unwrap_or(1)).product()
}

/// Returns the number of ranks that the files are for.
fn ranks(engine: &str, emitted: &ConfigFiles, arrangement: &Arrangement) -> u32 {
    let text = &emitted.files[0].text;
    let world = arrangement.layout.world();
    match engine {
        "megatron" => {
            // The remaining ranks are data parallel, and divide into copies of the optimizer state.
            let dense =
                ["--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"];
            let sparse = [
                "--expert-tensor-parallel-size",
                "--pipeline-model-parallel-size",
                "--expert-model-parallel-size",
            ];
            let copies = product(text, &["--num-distributed-optimizer-instances"]);
            let context = product(text, &["--context-parallel-size"]);
            let replicas = world / product(text, &dense);
            let is_whole = world.is_multiple_of(product(text, &dense))
                && world.is_multiple_of(product(text, &sparse))
                && (replicas * context).is_multiple_of(copies)
                && (world / product(text, &sparse)).is_multiple_of(copies);
            u32::from(is_whole) * replicas * product(text, &dense)
        }
        "torchtitan" => {
            let inner = ["data_parallel_shard_degree", "context_parallel_degree", "tensor_parallel_degree"];
            let expert = product(text, &["expert_parallel_degree"]);
            let is_whole = product(text, &inner).is_multiple_of(expert);
            let outer = product(text, &["data_parallel_replicate_degree", "pipeline_parallel_degree"]);
            u32::from(is_whole) * outer * product(text, &inner)
        }
        "hf-trainer" if text.contains("parallelism_config:") => {
            product(text, &["dp_replicate_size", "dp_shard_size", "tp_size", "cp_size"])
        }
        "hf-trainer" => product(text, &["num_processes"]),
        "deepspeed" => {
            // The batch is the product of its parts and the readers.
            let parts = product(text, &["train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]);
            let readers = product(text, &["\"train_batch_size\""]) / parts;
            readers * product(text, &["autotp_size"])
        }
        "jax" => {
            let axes = ["pipeline", "data", "fsdp", "expert", "context", "tensor_sequence"];
            let keys = axes.map(|axis| format!("ici_{axis}_parallelism"));
            product(text, &keys.each_ref().map(String::as_str))
        }
        // Add new engines above.
        other => panic!("the test cannot read the files of {other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn what_an_engine_can_run_is_written_and_nothing_else(
        arrangement in any_arrangement(), kind in 0usize..3, optimizer in 0usize..8, micro_batches in 1u32..9,
        z_loss in 0usize..4,
    ) {
        let model = [llama(), mixtral(), gpt2()][kind].clone();
        // AdamW in five cases of eight.
        let optimizer = [OptimizerKind::Lamb, OptimizerKind::Lion, OptimizerKind::Sgd]
            .get(optimizer)
            .copied()
            .unwrap_or(OptimizerKind::Adamw);
        let mut plan = planned((model.clone(), optimizer), arrangement, micro_batches);
        plan.recipe.train.z_loss = [1e-4, 0.0, 0.0, 0.0][z_loss];
        let training = TrainingSpec::of(&model, &plan.recipe.train);
        let world = arrangement.layout.world();
        for engine in ALL {
            let reason = engine.unsupported_layout(&training, &arrangement, micro_batches);
            let format = ConfigFormat::ALL.into_iter().find(|format| format.engine().is_some_and(|of| of.name() == engine.name()));
            let written = match format {
                Some(format) => emit(&plan, format).map(Some),
                // dtrain starts the engine itself.
                None => DecoderPlan::of(&plan, engine).map(|_| None),
            };
            match (reason, written) {
                (None, Ok(Some(emitted))) => prop_assert_eq!(ranks(engine.name(), &emitted, &arrangement), world),
                (None, Ok(None)) => prop_assert!([DTRAIN.name(), FSDP_PROGRAM.name()].contains(&engine.name())),
                (Some(UnsupportedLayout { what, instead }), Err(EmitError::CannotSay { what: said, instead: way, .. })) => {
                    prop_assert!(said.starts_with(what) && way == instead, "{said}");
                }
                (reason, written) => prop_assert!(false, "{}: {reason:?}, {written:?}", engine.name()),
            }
        }
        for format in ConfigFormat::ALL {
            let is_able = format.engine().is_none_or(|engine| engine.unsupported_layout(&training, &arrangement, micro_batches).is_none());
            prop_assert_eq!(emit(&plan, format).is_ok(), is_able);
        }
    }
}

/// Guards the property above against engines that accept no layout at all.
#[test]
fn random_layouts_are_within_the_abilities_of_every_engine_now_and_then() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut accepted = [0; ALL.len()];
    for _ in 0..4000 {
        let arrangement = any_arrangement().new_tree(&mut runner).expect("it makes one").current();
        for (engine, count) in ALL.into_iter().zip(&mut accepted) {
            let able = |model: &Decoder| {
                engine.unsupported_layout(&with_adamw(model), &arrangement, MICRO_BATCHES).is_none()
            };
            *count += u32::from([llama(), mixtral(), gpt2()].iter().any(able));
        }
    }
    assert!(accepted.iter().all(|count| *count >= 10), "{accepted:?}");
}
