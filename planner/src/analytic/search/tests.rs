use super::*;
use crate::analytic::{Constants, ExpertDims, MatmulPrecision, MicroBatchTimes, Software, Transformer};
use crate::choice::pareto_front::pareto_front;
use crate::engine::{AttentionKernel, EngineSupport, SoftwareStyle};
use crate::hardware::{HostGroup, gpu};
use crate::price::candidate_cost::CandidateCost;
use crate::{engine, fixtures, what_if};
use dtrain_recipes::{Decoder, LayoutPins, Model, PipelineSchedule, Recompute, ZeroStage};
use proptest::prelude::*;

/// Returns a decoder of these dimensions.
fn decoder(layers: u32, hidden: u32, heads: u32) -> Transformer {
    Transformer {
        layers: layers.into(),
        hidden: hidden.into(),
        heads: heads.into(),
        kv_heads: f64::from(heads.div_ceil(8)),
        head: f64::from(hidden) / f64::from(heads),
        head_value: f64::from(hidden) / f64::from(heads),
        latent: None,
        window: None,
        ffn: 3.5 * f64::from(hidden),
        is_gated: true,
        experts: None,
        is_tied: None,
        adapters: None,
        vocabulary: 128_256.0,
        sequence: 8192.0,
        mtp_layers: 0.0,
    }
}

fn problem(model: Transformer, devices: u32, batch: u32) -> SearchProblem {
    let part = gpu("H100").expect("it is in the table");
    SearchProblem {
        model,
        cluster: HostGroup { devices, ..HostGroup::of(part, 1, 8.min(devices)) },
        engine: Software::of(SoftwareStyle::Modern, Constants::shipped()),
        runs_on: None,
        kernel: AttentionKernel::Fused,
        products: MatmulPrecision::Bits16,
        state: dtrain_recipes::StatePolicy::PLAIN,
        batch,
        pins: LayoutPins::default(),
        sync: dtrain_recipes::Synchronisation::EXACT,
        constants: Constants::shipped(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn a_bound_changes_nothing_that_is_found(
        layers in 1u32..13, width in 1u32..9, heads in prop::sample::select(vec![6u32, 7, 8, 12, 16, 20]),
        devices in prop::sample::select(vec![1u32, 2, 3, 4, 5, 6, 8, 12, 16, 24]),
        batch in prop::sample::select(vec![1u32, 12, 16, 48, 60, 84, 128]),
        memory in 1.0f64..80.0, network in 1e9f64..100e9, has_experts: bool,
    ) {
        let mut model = decoder(layers, 128 * heads * width / 4, heads);
        if has_experts {
            model.experts = Some(ExpertDims { count: 12.0, chosen: 2.0, ffn: 512.0, shared: 0.0, dense_layers: 0.0, drop: false });
        }
        let mut problem = problem(model, devices, batch);
        problem.cluster.memory = memory * 1e9;
        problem.cluster = problem.cluster.with_network(network);
        let (bounded, all) = (search(&problem, 5), search_all(&problem, 5));
        prop_assert_eq!(all.bounded, 0);
        prop_assert_eq!(bounded.layouts, all.layouts);
        prop_assert_eq!(&bounded.best, &all.best);
        prop_assert_eq!(&bounded.best_per_axis, &all.best_per_axis);
        let weighed = search_front(&problem, 5);
        prop_assert_eq!((weighed.best, weighed.best_per_axis), (all.best, all.best_per_axis));
        prop_assert_eq!(weighed.front.is_empty(), bounded.best.is_empty());
        let unbounded = run(&problem, BestLayouts::with_front(&problem, 5), false);
        prop_assert_eq!((unbounded.bounded, &unbounded.front), (0, &weighed.front));
        let alone = search_front(&problem, 0);
        prop_assert_eq!((alone.front, alone.best.len(), alone.best_per_axis.len()), (weighed.front, 0, 0));
        let best = bounded.best.first().copied();
        prop_assert_eq!(fastest(&problem, f64::INFINITY), best);
        for (_, _, known) in bounded.best_per_axis.iter().take(3) {
            prop_assert_eq!(fastest_beside(&problem, &known.config, f64::INFINITY), best);
        }
    }
}

/// Returns all layouts of a problem.
fn every(problem: &SearchProblem) -> Vec<StepConfig> {
    let mut all = Vec::new();
    let shapes = problem.shapes();
    let placed =
        shapes.iter().flat_map(|shape| problem.placements(shape).into_iter().map(move |p| (shape, p)));
    for (shape, placed) in placed {
        for micro_batch in problem.micro_batches(shape) {
            for sequence in problem.sequence_modes(shape) {
                for (recompute, recompute_every) in problem.modes() {
                    let sequence = *sequence;
                    let arrangement =
                        Arrangement { sequence, recompute, recompute_every, ..placed.arrangement };
                    let open = StepConfig { arrangement, micro_batch, ..placed };
                    let with = |context_exchange| {
                        let arrangement = Arrangement { context_exchange, ..open.arrangement };
                        let open = StepConfig { arrangement, ..open };
                        (open, MicroBatchTimes::of(&problem.at(&open)))
                    };
                    let units = problem.exchanges(&open).into_iter().map(with);
                    let first = units.min_by(|a, b| a.1.layer.total().total_cmp(&b.1.layer.total()));
                    let (open, unit) = first.expect("there is an exchange");
                    for passes in problem.schedules(&open) {
                        let config = passes.of(&open);
                        let (config, _) =
                            problem.divided(&config, &unit, &mut StagePartitionCache::default());
                        for (zero, shard) in problem.shards(&placed) {
                            let arrangement = Arrangement { zero, shard, ..config.arrangement };
                            all.push(StepConfig { arrangement, ..config });
                        }
                    }
                }
            }
        }
    }
    all
}

#[test]
fn what_is_found_is_the_best_and_the_front_of_all_layouts_priced_one_by_one() {
    let problem = problem(decoder(12, 1536, 12), 24, 48);
    let (mut fastest, mut fitting) = (f64::INFINITY, Vec::new());
    for config in every(&problem) {
        let case = problem.at(&config);
        let full = PeakMemory::of(&case).total() / problem.cluster.memory;
        if full <= 1.0 {
            let seconds = StepTimes::of(&case).total();
            fastest = fastest.min(seconds);
            fitting.push((CandidateCost::of(seconds, full, 24), ()));
        }
    }
    let found = search(&problem, 3);
    assert_eq!(found.best[0].seconds.to_bits(), fastest.to_bits());
    let of_search: Vec<CandidateCost> =
        search_front(&problem, 1).front.iter().map(|point| point.cost).collect();
    let of_all: Vec<CandidateCost> = pareto_front(fitting).iter().map(|point| point.cost).collect();
    assert_eq!(of_search, of_all);
    assert!(found.best.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
}

/// For each engine, checks the layouts of a dense model and of one with experts.
#[test]
fn what_is_found_for_an_engine_is_the_best_of_all_that_it_can_run() {
    let mut found = 0;
    for model in [fixtures::recipe().model, fixtures::deepseek()] {
        let Model::Decoder(decoder) = model else { panic!("the samples are decoders") };
        for engine in engine::ALL {
            let model = Decoder { layers: 6, tied: false, ..decoder.clone() };
            let transformer = what_if::transformer(&model);
            let training = engine::TrainingSpec::of(&model, &fixtures::recipe().train);
            let problem = SearchProblem {
                runs_on: Some(EngineSupport { engine, training }),
                ..problem(transformer, 16, 24)
            };
            let mut best: Option<PricedLayout> = None;
            for config in every(&problem).into_iter().filter(|config| problem.allows(config)) {
                let case = problem.at(&config);
                let (seconds, bytes) = (StepTimes::of(&case).total(), PeakMemory::of(&case).total());
                if bytes <= problem.cluster.memory && best.is_none_or(|best| seconds < best.seconds) {
                    best = Some(PricedLayout { seconds, bytes, config });
                }
            }
            let seconds = best.map(|best| best.seconds);
            let (bounded, all) = (search_front(&problem, 5), search_all(&problem, 5));
            assert_eq!(bounded.best.first().map(|best| best.seconds), seconds, "{}", engine.name());
            assert_eq!((&bounded.best, &bounded.best_per_axis), (&all.best, &all.best_per_axis));
            assert_eq!(bounded.layouts, all.layouts);
            assert_eq!(fastest(&problem, f64::INFINITY).map(|best| best.seconds), seconds);
            found += u32::from(best.is_some());
        }
    }
    assert!(found > 6, "only {found} of 14 have a layout");
}

#[test]
fn degrees_that_are_no_powers_of_two_are_among_the_layouts() {
    let mut model = decoder(84, 84 * 128, 84);
    model.sequence = 6720.0;
    let found = search(&problem(model, 2520, 2520), 3);
    for degree in [3, 5, 6, 7, 12] {
        for axis in [SearchAxis::Context, SearchAxis::Pipeline, SearchAxis::Data] {
            let has = found.best_per_axis.iter().any(|(of, value, _)| (*of, *value) == (axis, degree));
            assert!(has, "{axis:?} {degree}");
        }
    }
    let tensor: Vec<u32> = found
        .best_per_axis
        .iter()
        .filter(|(axis, ..)| *axis == SearchAxis::Tensor)
        .map(|(_, value, _)| *value)
        .collect();
    assert!([3, 6, 7, 12].iter().all(|degree| tensor.contains(degree)), "{tensor:?}");
}

#[test]
fn nothing_fits_is_said_with_what_came_nearest() {
    let mut problem = problem(decoder(96, 12288, 96), 8, 64);
    problem.cluster.memory = 8e9;
    let found = search(&problem, 3);
    assert!(found.best.is_empty() && found.best_per_axis.is_empty());
    assert!(found.nearest.is_some_and(|nearest| nearest.bytes > 8e9), "{:?}", found.nearest);
}

#[test]
fn a_pinned_axis_has_its_value_and_the_rest_is_searched() {
    let mut problem = problem(decoder(12, 1536, 12), 24, 48);
    let free = search(&problem, 1).best[0];
    problem.pins = LayoutPins {
        tensor: Some(4),
        pipeline: Some(3),
        schedule: Some(PipelineSchedule::Gpipe),
        zero: Some(ZeroStage::Zero1),
        recompute: Some(Recompute::Full),
        micro_batch: Some(2),
        sequence: Some(true),
        ..LayoutPins::default()
    };
    let found = search(&problem, 3);
    let pinned = found.best[0];
    assert!(pinned.seconds > free.seconds, "a pin never helps");
    for choice in found.best {
        let StepConfig { arrangement, micro_batch, .. } = choice.config;
        let degrees = choice.config.degrees();
        assert_eq!((degrees.tensor, degrees.pipeline, micro_batch), (4, 3, 2));
        assert_eq!(
            (arrangement.schedule, arrangement.zero, arrangement.recompute),
            (PipelineSchedule::Gpipe, ZeroStage::Zero1, Recompute::Full)
        );
        assert!(arrangement.sequence);
    }
}
