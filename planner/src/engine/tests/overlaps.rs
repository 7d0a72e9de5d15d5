//! Overlap that the price of a layout counts on is asked for in what is emitted for Megatron-LM.

use super::written::planned;
use super::*;
use crate::BatchSplit;
use crate::analytic::search::SearchProblem;
use crate::analytic::software_profile::SoftwareProfile;
use crate::analytic::step::StepTimes;
use crate::analytic::{Constants, MatmulPrecision, Software, StepConfig};
use crate::emit::emit;
use crate::fixtures;
use crate::hardware::{HostGroup, gpu};
use crate::what_if::transformer;
use dtrain_recipes::LayoutPins;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::num::NonZeroU64;

prop_compose! {
    /// A layout of those that Megatron-LM runs, mostly, with the number of its hosts.
    fn any_training()(
        degrees in prop::array::uniform5(1u32..3), (zero, sequence, fold) in (0usize..4, any::<bool>(), any::<bool>()),
        (model, products, hosts, chunks) in (0usize..4, 0usize..3, 1u32..3, 1u32..3),
    ) -> (Decoder, MatmulPrecision, Arrangement, u32) {
        let [tensor, context, expert, data, pipeline] = degrees.map(n);
        let zero = [Zero0, Zero1, Zero2, Zero3][zero];
        let model = [llama(), mixtral(), gpt2(), decoder(fixtures::deepseek())][model].clone();
        let expert = if model.experts.is_some() { expert } else { n(1) };
        let products = [MatmulPrecision::Bits16, MatmulPrecision::Bits32, MatmulPrecision::Blocks8][products];
        let layout = Layout { tensor, context, expert, data, pipeline };
        let is_interleaved = pipeline.get() > 1 && chunks > 1;
        let arrangement = Arrangement {
            sequence,
            precision: products.precision(),
            expert_fold: if fold && model.experts.is_some() { tensor.get() * context.get() } else { 1 },
            schedule: if is_interleaved { Interleaved } else { OneForwardOneBackward },
            chunks: if is_interleaved { chunks } else { 1 },
            ..on_gpus(layout, zero)
        };
        (model, products, arrangement, hosts)
    }
}

/// A share of hidden communication, with the arguments of Megatron-LM that hide it in an arrangement.
type Hidden = (fn(&mut SoftwareProfile) -> &mut f64, fn(&Arrangement) -> &'static [&'static str]);

const HIDDEN: [Hidden; 3] = [
    (
        |profile| &mut profile.hidden_data,
        |arrangement| match arrangement.zero {
            Zero0 => &["--overlap-grad-reduce"],
            Zero1 | Zero2 | Zero3 => &["--overlap-grad-reduce", "--overlap-param-gather"],
        },
    ),
    (|profile| &mut profile.hidden_tensor, |_| &["--tp-comm-overlap"]),
    (|profile| &mut profile.hidden_expert, |_| &["--overlap-moe-expert-parallel-comm"]),
];

#[test]
fn overlap_that_is_priced_for_megatron_is_asked_for() {
    let mut runner = TestRunner::deterministic();
    let mut base = planned((llama(), OptimizerKind::Adamw), on_gpus(data(2), Zero0), MICRO_BATCHES);
    base.recipe.train.fp8_recipe = Some(Fp8Recipe::Blockwise);
    let (mut run, mut counted) = (0, BTreeMap::new());
    for _ in 0..1500 {
        let (model, products, arrangement, hosts) =
            any_training().new_tree(&mut runner).expect("it makes one").current();
        let training = with_adamw(&model);
        if MEGATRON.unsupported_layout(&training, &arrangement, MICRO_BATCHES).is_some() {
            continue;
        }
        run += 1;
        let world = arrangement.layout.world();
        let mut plan = base.clone();
        plan.recipe.model = Model::Decoder(model.clone());
        let (candidate, readers) = (&mut plan.choices[0].candidate, n(arrangement.layout.readers()));
        candidate.arrangement = arrangement;
        let batch = NonZeroU64::from(readers).saturating_mul(NonZeroU64::from(n(MICRO_BATCHES)));
        candidate.split = BatchSplit::of(batch, n(1), readers).expect("one sample a pass");
        plan.host.hosts = n(if world.is_multiple_of(hosts) { hosts } else { 1 });
        let script = emit(&plan, ConfigFormat::Megatron).expect("the engine runs it").files.remove(0).text;
        let asks = |flag: &str| script.contains(&format!("    {flag}\n"));

        let hosts = plan.host.hosts.get();
        let problem = SearchProblem {
            model: transformer(&model),
            cluster: HostGroup::of(gpu("H100").expect("it is in the table"), hosts, world / hosts),
            engine: Software::of_engine(&MEGATRON, &training, products.precision(), Constants::shipped()),
            runs_on: None,
            kernel: AttentionKernel::Fused,
            products,
            state: dtrain_recipes::StatePolicy::PLAIN,
            batch: arrangement.layout.readers() * MICRO_BATCHES,
            pins: LayoutPins::default(),
            sync: dtrain_recipes::Synchronisation::EXACT,
            constants: Constants::shipped(),
        };
        let case = problem.at(&StepConfig { arrangement, micro_batch: 1, batch: problem.batch });
        let seconds = StepTimes::of(&case).total();
        for (share, flags) in HIDDEN {
            let mut exposed = case;
            *share(&mut exposed.engine.profile) = 0.0;
            if seconds < StepTimes::of(&exposed).total() {
                for flag in flags(&arrangement) {
                    *counted.entry(*flag).or_insert(0) += 1;
                    assert!(asks(flag), "{flag} is priced in {arrangement:?}:\n{script}");
                }
            }
        }

        // The conditions of `validate_args` in Megatron-LM.
        assert!(!asks("--overlap-param-gather") || asks("--use-distributed-optimizer"), "{script}");
        assert!(!asks("--overlap-param-gather") || asks("--overlap-grad-reduce"), "{script}");
        let is_cut = arrangement.sequence && arrangement.layout.tensor.get() > 1;
        assert!(!asks("--tp-comm-overlap") || asks("--sequence-parallel") && is_cut, "{script}");
        assert!(!asks("--tp-comm-overlap") || asks("--bf16"), "{script}");
        assert!(!script.contains("--no-overlap-p2p-communication"), "{script}");
    }
    assert!(run >= 200, "only {run} layouts were run");
    let expected = ["--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"];
    assert_eq!(counted.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counted.values().all(|count| *count >= 20), "{counted:?}");
}
