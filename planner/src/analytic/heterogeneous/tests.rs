use super::*;
use crate::analytic::search::{PricedLayout, SearchProblem, search as search_equal};
use crate::analytic::{Constants, MatmulPrecision, PeakMemory, Software, StepTimes, Transformer};
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::{HostGroup, gpu};
use crate::rng::SearchRng;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LayoutPins, PipelineSchedule, Recompute, ZeroStage};

fn decoder(layers: u32, hidden: u32, heads: u32) -> Transformer {
    let head = f64::from(hidden) / f64::from(heads);
    Transformer {
        layers: layers.into(),
        hidden: hidden.into(),
        heads: heads.into(),
        kv_heads: f64::from(heads.div_ceil(4)),
        head,
        head_value: head,
        latent: None,
        window: None,
        ffn: 3.5 * f64::from(hidden),
        is_gated: true,
        experts: None,
        is_tied: None,
        adapters: None,
        vocabulary: 32_000.0,
        sequence: 4096.0,
        mtp_layers: 0.0,
    }
}

fn on(part: &str, hosts: u32, per_host: u32) -> HostGroup {
    HostGroup::of(gpu(part).expect("it is in the table"), hosts, per_host)
}

fn grouped(model: Transformer, groups: &[HostGroup], batch: u32) -> GroupedProblem {
    let problem = SearchProblem {
        model,
        cluster: groups[0],
        engine: Software::of(SoftwareStyle::Modern, Constants::shipped()),
        runs_on: None,
        kernel: AttentionKernel::Fused,
        products: MatmulPrecision::Bits16,
        state: dtrain_recipes::StatePolicy::PLAIN,
        batch,
        pins: LayoutPins::default(),
        sync: dtrain_recipes::Synchronisation::EXACT,
        constants: Constants::shipped(),
    };
    GroupedProblem::of(&problem, groups)
}

/// A decoder of 24 layers on two stages of each of two groups.
fn layout() -> GroupedLayout {
    GroupedLayout {
        tensor: 2,
        context: 1,
        expert: 1,
        data: 4,
        micro: 1,
        is_sequence_parallel: true,
        recompute: (Recompute::None, 1),
        zero: ZeroStage::Zero1,
        schedule: PipelineSchedule::OneForwardOneBackward,
        chunks: 1,
        runs: vec![GroupStages { group: 0, stages: 2 }, GroupStages { group: 1, stages: 2 }],
    }
}

#[test]
fn equal_groups_with_even_layers_cost_what_one_cluster_costs() {
    let group = on("H100", 2, 8);
    let two = grouped(decoder(24, 2048, 16), &[group, group], 64);
    let whole = SearchProblem { cluster: HostGroup { devices: 32, ..group }, ..two.problems()[0].clone() };
    let orders = [
        (PipelineSchedule::OneForwardOneBackward, 1),
        (PipelineSchedule::ZeroBubble, 1),
        (PipelineSchedule::Gpipe, 1),
        (PipelineSchedule::Interleaved, 3),
    ];
    for (schedule, chunks) in orders {
        for zero in whole.zeros() {
            for recompute in whole.modes() {
                let layout = GroupedLayout { schedule, chunks, zero, recompute, ..layout() };
                let found = Pricer::new(&two).stages_of(&layout, &[6; 4]);
                let case = whole.at(&layout.config(64));
                let step = StepTimes::of(&case);
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
                assert!(near(found.step.total(), step.total()), "{layout:?}: {:?} {step:?}", found.step);
                assert!(
                    found
                        .step
                        .causes_of(6.0)
                        .iter()
                        .zip(step.causes(&case))
                        .all(|(a, b)| (a.1 - b.1).abs() < 1e-12 * step.total())
                );
                let heaviest = found.peaks.iter().map(PeakMemory::total).fold(0.0, f64::max);
                assert!(near(heaviest, PeakMemory::of(&case).total()), "{layout:?}: {:?}", found.peaks);
            }
        }
    }
}

#[test]
fn a_faster_group_has_more_layers_and_every_stage_fits() {
    let two = grouped(decoder(24, 4096, 32), &[on("H100", 1, 8), on("A100-80GB", 1, 8)], 64);
    let layout = GroupedLayout { data: 2, ..layout() };
    let (seconds, full) = Pricer::new(&two).price(&layout);
    let found = Pricer::new(&two).stages(&layout);
    assert_eq!(found.layers.iter().sum::<u32>(), 24);
    assert!(found.layers[..2].iter().min() > found.layers[2..].iter().max(), "{:?}", found.layers);
    assert!((found.step.total() - seconds).abs() <= 1e-12 * seconds && full <= 1.0);
    // If the fast group has little memory, it takes only the layers that fit.
    let mut small = on("H100", 1, 8);
    small.memory =
        1.001 * (found.peaks[0].total() - 2.0 * (found.peaks[0].total() / f64::from(found.layers[0])));
    let less = grouped(decoder(24, 4096, 32), &[small, on("A100-80GB", 1, 8)], 64);
    let (slower, full) = Pricer::new(&less).price(&layout);
    let squeezed = Pricer::new(&less).stages(&layout);
    assert!(full <= 1.0 && slower > seconds && squeezed.layers[0] < found.layers[0], "{squeezed:?}");
    assert!(squeezed.peaks[0].total() <= small.memory);
}

#[test]
fn a_group_that_only_slows_the_others_stays_idle() {
    let weak = on("V100", 1, 1);
    let weak = weak.with_network(1e8).with_link(weak.link.class, Some(1e8));
    let two = grouped(decoder(8, 2048, 16), &[on("H100", 1, 8), weak], 32);
    let found = search(&two, 1, 3);
    assert_eq!(found.best[0].layout.runs.len(), 1, "{:?}", found.best[0]);
    assert_eq!(found.best[0].layout.runs[0].group, 0);
}

#[test]
fn a_bound_changes_nothing_and_what_cannot_fit_is_said() {
    let two = grouped(decoder(4, 1024, 4), &[on("H100", 1, 3), on("A100-40GB", 1, 2)], 6);
    let (bounded, all) = (search_exhaustively(&two, 1), search_exhaustively(&two, 1_000_000));
    assert_eq!(bounded.best[0], all.best[0]);
    assert_eq!(bounded.layouts, all.layouts);
    let mut tiny = on("H100", 1, 2);
    tiny.memory = 2e9;
    let none = search(&grouped(decoder(24, 4096, 32), &[tiny, tiny], 8), 1, 3);
    assert!(none.best.is_empty() && none.nearest.is_some_and(|nearest| nearest.full > 1.0));
}

/// Returns a random cluster of one to three groups with a decoder for it.
fn small(random: &mut SearchRng) -> GroupedProblem {
    let parts = ["H100", "A100-80GB", "A100-40GB", "V100", "B200"];
    let heads = [2, 4, 6, 8][random.pick(4)];
    let model = decoder([2, 3, 5, 6, 8, 12][random.pick(6)], heads * 128 * [1, 2, 4][random.pick(3)], heads);
    let count = [1, 1, 2, 2, 2, 3][random.pick(6)];
    let groups: Vec<HostGroup> = (0..count)
        .map(|_| {
            let devices = [1, 2, 3, 4, 6, 8][random.pick(if count == 3 { 4 } else { 6 })];
            let mut group = on(parts[random.pick(5)], 1, devices);
            group.per_host = [1, 2, devices][random.pick(3)].min(devices);
            group.memory *= [1.0, 0.5, 0.15, 0.05][random.pick(4)];
            group.network.bandwidth *= [1.0, 0.1][random.pick(2)];
            group
        })
        .collect();
    grouped(model, &groups, [4, 6, 8, 12, 16][random.pick(5)])
}

/// Returns the relative slowdown of the annealing result over the optimum of all layouts.
fn gap(seed: u64) -> f64 {
    let grouped = small(&mut SearchRng::new(seed));
    let best = |found: GroupedSearchResult| found.best.first().map_or(f64::INFINITY, |choice| choice.seconds);
    let (all, annealed) =
        (best(search_exhaustively(&grouped, 1)), best(anneal(&grouped, seed, 1, ITERATIONS / 2)));
    if all.is_finite() != annealed.is_finite() {
        println!("case {seed}: {all} {annealed}");
        return f64::INFINITY;
    }
    if let ([problem], true) = (grouped.problems(), all.is_finite()) {
        // Heterogeneous layouts recompute all layers or none, use ring exchange and one rank order, and
        // interleave equal chunks.
        let has = |choice: &&PricedLayout| {
            let Arrangement { shard, recompute_every, order, context_exchange, chunks, ends, .. } =
                choice.config.arrangement;
            let is_whole = shard == 1 || shard == choice.config.arrangement.replicas();
            let is_plain = context_exchange.is_ring() && order.is_pipeline_outermost();
            let is_even = chunks == 1 || ends.are_free();
            is_whole && recompute_every == 1 && is_plain && is_even
        };
        let equal = search_equal(problem, 500).best;
        if let Some(choice) = equal.iter().find(has) {
            let equal = choice.seconds;
            assert!(all <= 1.0005 * equal, "case {seed}: {all} of all, {equal} with even layers: {choice:?}");
        }
    }
    if all.is_finite() { annealed / all - 1.0 } else { 0.0 }
}

/// The target is all cases; the worst miss is 31 % slower, in case 2039, where few layouts fit.
#[test]
fn annealing_is_within_half_a_percent_of_all_layouts_in_49_of_50_cases() {
    // The first seeds are regressions: most devices idle, several changes at once, one layout that fits.
    let seeds = [129, 156, 1145, 1222, 2039, 2194, 2336, 2485].into_iter().chain(5000..5192);
    let gaps: Vec<(f64, u64)> = seeds.map(|seed| (gap(seed), seed)).collect();
    let worst = gaps.iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are cases");
    println!("worst of {} cases: {:.4} % (case {})", gaps.len(), 100.0 * worst.0, worst.1);
    println!("{} are not the very best", gaps.iter().filter(|(gap, _)| *gap > 1e-12).count());
    let missed: Vec<_> = gaps.iter().filter(|(gap, _)| *gap > 0.005).collect();
    println!("beyond half a percent: {missed:?}");
    assert!(50 * missed.len() <= gaps.len() && gaps.iter().all(|(gap, _)| *gap > -1e-9), "{missed:?}");
}

#[test]
fn the_same_seed_finds_the_same() {
    let two = grouped(decoder(24, 4096, 32), &[on("H100", 2, 8), on("A100-80GB", 2, 8)], 64);
    let find = |seed| anneal(&two, seed, 5, 2000);
    assert_eq!(find(3), find(3));
    assert_ne!(find(3).layouts, 0);
}

/// Prints the duration of a search, without a limit on it.
#[test]
fn the_time_to_search_two_groups_of_512_is_printed() {
    let mut model = decoder(126, 16384, 128);
    (model.vocabulary, model.sequence, model.kv_heads) = (128_256.0, 8192.0, 8.0);
    let two = grouped(model, &[on("H100", 64, 8), on("A100-80GB", 64, 8)], 2048);
    let best = |seed| {
        let began = std::time::Instant::now();
        let found = search(&two, seed, 20);
        let best = found.best[0].clone();
        println!("{:.2} s, {} layouts: {best:?}", began.elapsed().as_secs_f64(), found.layouts);
        best.seconds
    };
    let seconds: Vec<f64> = (0..5).map(best).collect();
    let fastest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(seconds.iter().all(|seconds| *seconds <= 1.005 * fastest), "{seconds:?}");
}
