//! Simulated annealing over the layouts of a heterogeneous cluster; the layers are partitioned exactly for
//! each layout.

use super::best_n::{BestN, GroupedSearchResult};
use super::grouped_layout::{GroupStages, GroupedLayout, single_rank_layout};
use super::moves::LayoutMove;
use super::price::Pricer;
use super::space::{GroupedProblem, SharedDegree};
use crate::analytic::StepConfig;
use crate::analytic::search::{SearchProblem, fastest};
use crate::hardware::{HostGroup, Link};
use crate::rng::SearchRng;
use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::simulatedannealing::{Anneal, SATempFunc, SimulatedAnnealing};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_recipes::{LayoutPins, Recompute};
use std::cell::{Cell, RefCell};

/// Number of layouts tried in one search, in all descents together.
pub const ITERATIONS: u64 = 24_000;

/// Highest and lowest temperature of a descent, in units of ln(seconds).
const TEMPERATURES: (f64, f64) = (0.2, 1e-4);

/// Penalties, in ln(seconds), of layouts that do not fit: low in the first descent, which may cross such
/// layouts, and prohibitive in the second.
const FENCES: [f64; 2] = [0.3, 30.0];

/// Returns the best `keep` layouts found in `iterations` moves. Descents start at the best layout of each
/// group alone, at the best layout of all devices at the speed of the weakest, and at the one that uses the
/// least memory. The result is deterministic for a seed.
pub fn anneal(grouped: &GroupedProblem, seed: u64, keep: usize, iterations: u64) -> GroupedSearchResult {
    let starts = starts(grouped);
    let descents = u64::try_from((FENCES.len() * starts.len()).max(1)).expect("starts are few");
    let mut landscape = AnnealingNeighborhood {
        grouped,
        pricer: Pricer::new(grouped),
        moves: grouped.moves(),
        fence: FENCES[0],
        kept: RefCell::new(BestN::new(keep)),
        stream: Cell::new(SearchRng::new(splitmix64(seed, 0))),
    };
    let mut lowest: Vec<GroupedLayout> = Vec::new();
    for (descent, start) in (1..).zip(&starts) {
        let mut at = start.clone();
        for fence in FENCES {
            landscape.fence = fence;
            let random = SearchRng::new(splitmix64(seed, descent));
            (landscape, at) = descend(landscape, at, random, iterations / descents);
        }
        if !lowest.contains(&at) {
            lowest.push(at);
        }
    }
    for layout in lowest {
        landscape.polish(layout);
    }
    landscape.kept.into_inner().into_result()
}

/// Anneals from the layout `start`; returns the best layout found on the way.
fn descend(
    landscape: AnnealingNeighborhood<'_>,
    start: GroupedLayout,
    random: SearchRng,
    iterations: u64,
) -> (AnnealingNeighborhood<'_>, GroupedLayout) {
    let (hot, cold) = TEMPERATURES;
    let steps = f64::from(u32::try_from(iterations.max(2)).unwrap_or(u32::MAX));
    let solver = SimulatedAnnealing::new_with_rng(hot, random)
        .expect("the temperature is positive")
        .with_temp_func(SATempFunc::Exponential((cold / hot).powf(1.0 / steps)));
    let mut result = Executor::new(landscape, solver)
        .configure(|state| state.param(start.clone()).max_iters(iterations))
        .ctrlc(false)
        .run()
        .expect("pricing has no error to return");
    let landscape = result.problem.take_problem().expect("the executor gives the problem back");
    (landscape, result.state.take_best_param().unwrap_or(start))
}

/// The objective and the moves of simulated annealing, with the best layouts so far.
struct AnnealingNeighborhood<'a> {
    grouped: &'a GroupedProblem,
    pricer: Pricer<'a>,
    moves: Vec<LayoutMove>,
    /// Penalty, in ln(seconds), of a layout that does not fit.
    fence: f64,
    kept: RefCell<BestN>,
    stream: Cell<SearchRng>,
}

impl AnnealingNeighborhood<'_> {
    /// Returns ln(seconds per step) of a layout, plus the penalty and the excess memory if it does not fit.
    fn height(&self, layout: &GroupedLayout) -> f64 {
        let (seconds, full) = self.pricer.price(layout);
        if !self.pricer.allows(layout) {
            // A descent may cross it.
            self.kept.borrow_mut().skip(1);
            return seconds.max(1e-12).ln() + self.fence;
        }
        self.kept.borrow_mut().record(layout, seconds, full);
        let missing = if full > 1.0 { self.fence * (1.0 + full.ln()) } else { 0.0 };
        seconds.max(1e-12).ln() + missing
    }

    /// Climbs from a layout to the best one within one move, or within two if one does not help, until no
    /// neighbor is better. Each candidate is tried with every recompute mode, schedule and ZeRO stage.
    fn polish(&self, from: GroupedLayout) {
        let mut height = self.height(&from);
        let mut at = from;
        loop {
            let near = self.near(&at);
            let lowest = self.lowest(&near, height).or_else(|| {
                let far: Vec<GroupedLayout> = near.iter().flat_map(|layout| self.near(layout)).collect();
                self.lowest(&far, height)
            });
            let Some((layout, lower)) = lowest else { return };
            (at, height) = (layout, lower);
        }
    }

    fn near(&self, layout: &GroupedLayout) -> Vec<GroupedLayout> {
        self.moves.iter().filter_map(|step| self.grouped.apply_move(layout, *step)).collect()
    }

    /// Returns the best variant of `layouts` whose height is below `height`; `None` if there is none.
    fn lowest(&self, layouts: &[GroupedLayout], height: f64) -> Option<(GroupedLayout, f64)> {
        let mut lowest = None;
        let mut below = height;
        for layout in layouts {
            for recompute in self.grouped.modes() {
                let layout = GroupedLayout { recompute, ..layout.clone() };
                if self.pricer.lower_bound(&layout).ln() >= below {
                    continue;
                }
                for layout in self.grouped.variants(&layout) {
                    let height = self.height(&layout);
                    if height < below {
                        below = height;
                        lowest = Some((layout, height));
                    }
                }
            }
        }
        lowest
    }
}

impl CostFunction for AnnealingNeighborhood<'_> {
    type Param = GroupedLayout;
    type Output = f64;

    fn cost(&self, layout: &GroupedLayout) -> Result<f64, Error> {
        Ok(self.height(layout))
    }
}

impl Anneal for AnnealingNeighborhood<'_> {
    type Param = GroupedLayout;
    type Output = GroupedLayout;
    type Float = f64;

    /// Returns `layout` after one or several random moves.
    fn anneal(&self, layout: &GroupedLayout, _: f64) -> Result<GroupedLayout, Error> {
        let mut stream = self.stream.get();
        let mut next = layout.clone();
        for _ in 0..[1, 1, 1, 1, 2, 2, 3, 6][stream.pick(8)] {
            let step = self.moves[stream.pick(self.moves.len())];
            next = self.grouped.apply_move(&next, step).unwrap_or(next);
        }
        self.stream.set(stream);
        Ok(next)
    }
}

/// Returns the starting layouts: the best of each group alone, the best if all devices were as weak as the
/// weakest, in both orders of the groups, and the one that uses the least memory.
fn starts(grouped: &GroupedProblem) -> Vec<GroupedLayout> {
    let problems = grouped.problems();
    let alone = problems.iter().enumerate().filter_map(|(group, problem)| {
        let stages = |layout: &GroupedLayout| vec![GroupStages { group, stages: layout.depth() }];
        best(problem).map(|layout| GroupedLayout { runs: stages(&layout), ..layout })
    });
    let whole = SearchProblem { cluster: weakest(grouped), ..grouped.first().clone() };
    let together = best(&whole).into_iter().flat_map(|layout| {
        let (depth, width) = (layout.depth(), layout.width());
        let forward: Vec<usize> = (0..problems.len()).collect();
        let backward = forward.iter().rev().copied().collect();
        [forward, backward]
            .map(|order| GroupedLayout { runs: spread(grouped, &order, depth, width), ..layout.clone() })
    });
    alone
        .chain(together)
        .chain(smallest(grouped))
        .filter_map(|layout| grouped.nearest_valid(layout))
        .collect()
}

/// Returns the single-replica layout across all groups that uses the least memory.
fn smallest(grouped: &GroupedProblem) -> Option<GroupedLayout> {
    let pricer = Pricer::new(grouped);
    let all: Vec<GroupStages> =
        (0..grouped.problems().len()).map(|group| GroupStages { group, stages: grouped.layers() }).collect();
    let one = GroupedLayout {
        is_sequence_parallel: true,
        recompute: (Recompute::Full, 1),
        runs: all,
        ..single_rank_layout()
    };
    let degrees = grouped.values(SharedDegree::Tensor, &one).into_iter().flat_map(|tensor| {
        let contexts = grouped.values(SharedDegree::Context, &one).into_iter();
        contexts.map(move |context| (tensor, context))
    });
    let settled = degrees.filter_map(|(tensor, context)| {
        grouped.nearest_valid(GroupedLayout { tensor, context, ..one.clone() })
    });
    let full = settled.map(|layout| (pricer.price(&layout).1, layout));
    full.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, layout)| layout)
}

/// Distributes `depth` stages over the groups in the order `order`, up to the number of devices of each
/// group; at least one stage each, even if degrees must shrink.
fn spread(grouped: &GroupedProblem, order: &[usize], depth: u32, width: u32) -> Vec<GroupStages> {
    let mut left = depth;
    let runs = order.iter().map(|group| {
        let stages = grouped.room(*group, width).min(left).max(1);
        left = left.saturating_sub(stages);
        GroupStages { group: *group, stages }
    });
    runs.collect()
}

/// Returns the fastest layout for a cluster of equal devices, as a single run of stages.
fn best(problem: &SearchProblem) -> Option<GroupedLayout> {
    // Heterogeneous layouts recompute all layers, or none.
    let every = problem.pins.recompute_every.or(Some(1));
    let pins = LayoutPins { recompute_every: every, ..problem.pins.clone() };
    let problem = SearchProblem { pins, ..problem.clone() };
    let StepConfig { arrangement, micro_batch, .. } = fastest(&problem, f64::INFINITY)?.config;
    let degrees = StepConfig { arrangement, micro_batch, batch: 0 }.degrees();
    Some(GroupedLayout {
        tensor: degrees.tensor,
        context: degrees.context,
        expert: degrees.expert,
        data: degrees.data,
        micro: micro_batch,
        is_sequence_parallel: arrangement.sequence,
        recompute: (arrangement.recompute, arrangement.recompute_every),
        zero: arrangement.zero,
        schedule: arrangement.schedule,
        chunks: arrangement.chunks,
        runs: vec![GroupStages { group: 0, stages: degrees.pipeline }],
    })
}

/// Returns all devices as one cluster that has the worst value of each property in any group.
fn weakest(grouped: &GroupedProblem) -> HostGroup {
    let clusters = || grouped.problems().iter().map(|problem| problem.cluster);
    let rate = |one: &HostGroup| one.gpu.dense_16 * one.watts.map_or(1.0, |watts| one.gpu.clock_at(watts));
    let slowest = clusters().min_by(|a, b| rate(a).total_cmp(&rate(b)));
    let slower = |a: Link, b: Link| if b.bandwidth < a.bandwidth { b } else { a };
    clusters().fold(slowest.expect("a cluster has groups"), |weakest, other| HostGroup {
        devices: grouped.devices(),
        per_host: weakest.per_host.min(other.per_host),
        pair: weakest.pair.zip(other.pair).map(|(a, b)| slower(a, b)),
        link: slower(weakest.link, other.link),
        network: slower(weakest.network, other.network),
        memory: weakest.memory.min(other.memory),
        ..weakest
    })
}
