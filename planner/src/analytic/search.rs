//! Branch-and-bound search over all layouts of a cluster of equal devices, which finds the same optimum as
//! pricing every layout.

mod best_layouts;
mod micro_batch_modes;
mod pipeline_options;
mod placement;
mod space;

#[cfg(test)]
mod tests;

pub use best_layouts::{GPIPE, LayoutSearchResult, PricedLayout, SearchAxis};
pub use pipeline_options::PipelineOption;
pub use space::SearchProblem;
pub(super) use space::divisors_of;
pub(crate) use space::to_count;

use super::{Degrees, PeakMemory, StagePartition, StepConfig, StepInputs, StepTimes};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use best_layouts::BestLayouts;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LayoutPins, Recompute, ZeroStage};
use micro_batch_modes::{MicroBatchMode, MicroBatchModeCache};
use pipeline_options::StagePartitionCache;
use placement::RankPlacement;
use std::cell::RefCell;

/// Searches all layouts that `problem` leaves open, and keeps the best `keep`.
pub fn search(problem: &SearchProblem, keep: usize) -> LayoutSearchResult {
    run(problem, BestLayouts::new(problem, keep), true)
}

/// Returns the fastest layout that fits and takes less than `limit` seconds. Faster than [`search`], as
/// nothing else is kept.
pub fn fastest(problem: &SearchProblem, limit: f64) -> Option<PricedLayout> {
    run(problem, BestLayouts::fastest(problem, limit), true).best.into_iter().next()
}

/// Returns the fastest layout that fits and takes less than `limit` seconds, given the best layout `known` of
/// a similar problem. Layouts with its degrees are searched first, so that the bound excludes most others.
pub fn fastest_beside(problem: &SearchProblem, known: &StepConfig, limit: f64) -> Option<PricedLayout> {
    let degrees = known.degrees();
    let pins = LayoutPins {
        tensor: Some(degrees.tensor),
        context: Some(degrees.context),
        expert: Some(degrees.expert),
        ..problem.pins.clone()
    };
    let like = fastest(&SearchProblem { pins, ..problem.clone() }, limit);
    // Allows ties, so that an equally fast or earlier layout is found again.
    fastest(problem, like.map_or(limit, |like| like.seconds.next_up().min(limit)))
}

/// Searches as [`search`] does, but without the bound; slower, to check the bound.
pub fn search_all(problem: &SearchProblem, keep: usize) -> LayoutSearchResult {
    run(problem, BestLayouts::new(problem, keep), false)
}

/// Searches as [`search`] does, and also finds the Pareto front of time, memory and cost; with `keep` 0, the
/// front alone.
pub fn search_front(problem: &SearchProblem, keep: usize) -> LayoutSearchResult {
    run(problem, BestLayouts::with_front(problem, keep), true)
}

fn run(problem: &SearchProblem, table: BestLayouts, is_bounded: bool) -> LayoutSearchResult {
    let shapes = if problem.can_train() { problem.shapes() } else { Vec::new() };
    let prices = ShapeCostFunction {
        table: RefCell::new(table),
        problem,
        modes: problem.modes(),
        is_bounded,
        ways: RefCell::default(),
        divisions: RefCell::default(),
    };
    if shapes.is_empty() {
        return prices.table.into_inner().into_result();
    }
    let walk = ShapeSweep { shapes, next: 0 };
    let result = Executor::new(prices, walk).ctrlc(false).run();
    let prices = result.expect("pricing has no error to return").problem.take_problem();
    prices.expect("the executor gives the problem back").table.into_inner().into_result()
}

/// Solver that visits all shapes of the search space in turn.
struct ShapeSweep {
    shapes: Vec<Degrees>,
    next: usize,
}

type ShapeSweepState = IterState<Degrees, (), (), (), (), f64>;

impl<O: CostFunction<Param = Degrees, Output = f64>> Solver<O, ShapeSweepState> for ShapeSweep {
    fn name(&self) -> &str {
        "every layout"
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        state: ShapeSweepState,
    ) -> Result<(ShapeSweepState, Option<KV>), Error> {
        let shape = self.shapes[self.next];
        self.next += 1;
        let best = problem.cost(&shape)?;
        Ok((state.param(shape).cost(best), None))
    }

    fn terminate(&mut self, _: &ShapeSweepState) -> TerminationStatus {
        if self.next < self.shapes.len() {
            TerminationStatus::NotTerminated
        } else {
            TerminationStatus::Terminated(TerminationReason::SolverConverged)
        }
    }
}

/// Cost function that prices the layouts of one shape and returns the best time so far.
struct ShapeCostFunction<'a> {
    problem: &'a SearchProblem,
    modes: Vec<(Recompute, u32)>,
    table: RefCell<BestLayouts>,
    is_bounded: bool,
    ways: RefCell<MicroBatchModeCache>,
    divisions: RefCell<StagePartitionCache>,
}

impl CostFunction for ShapeCostFunction<'_> {
    type Param = Degrees;
    type Output = f64;

    /// Prices all layouts of `shape`; returns the seconds of the best layout so far.
    fn cost(&self, shape: &Degrees) -> Result<f64, Error> {
        let mut table = self.table.borrow_mut();
        let micro_batches = self.problem.micro_batches(shape);
        for placed in self.problem.placements(shape) {
            self.placement(&RankPlacement::of(self.problem, placed), &micro_batches, &mut table);
        }
        Ok(table.best())
    }
}

impl ShapeCostFunction<'_> {
    /// Prices all layouts of one rank placement with each of `micro_batches`.
    fn placement(&self, placement: &RankPlacement<'_>, micro_batches: &[u32], table: &mut BestLayouts) {
        // A search for the fastest alone asks the engine only about promising layouts.
        if (table.has_axes() || !self.is_bounded) && !placement.may_run() {
            return;
        }
        let mut case = self.problem.at(&placement.config);
        for (index, micro_batch) in micro_batches.iter().enumerate() {
            let open = StepConfig { micro_batch: *micro_batch, ..placement.config };
            case.config = open;
            // If a micro-batch did not fit, larger ones do not fit either; certain only if full recompute is
            // allowed.
            if index > 0
                && self.modes.contains(&(Recompute::Full, 1))
                && !placement
                    .may_fit(&case, MicroBatchModeCache::lower_bound(&self.ways, self.problem, &case))
            {
                break;
            }
            let ways = MicroBatchModeCache::of(&self.ways, self.problem, &case, &self.modes);
            let schedules = placement.schedules(&open);
            for way in ways.iter() {
                case.config = way.of(&open);
                if self.is_bounded && !placement.may_change(&case, way, schedules, table) {
                    table.skip(schedules.len() * placement.shards.len());
                    continue;
                }
                self.leaves(&mut case, way, placement, schedules.len(), table);
            }
        }
    }

    /// Returns `true` if layouts with the schedule of `case` that take at least the `bound` seconds may
    /// change the result.
    fn may_change(
        &self,
        case: &StepInputs<'_>,
        shards: &[(ZeroStage, u32)],
        table: &BestLayouts,
        bound: (f64, StagePartition),
    ) -> bool {
        let (seconds, division) = bound;
        table.may_gain(&case.config, shards, seconds)
            || table.may_better(seconds, || PeakMemory::lower_bound(case, shards, division))
    }

    /// Prices the layouts that remain once placement, micro-batch and mode are fixed: the first `schedules`
    /// of the placement, with each sharding of the replicas.
    fn leaves(
        &self,
        case: &mut StepInputs<'_>,
        way: &MicroBatchMode,
        placement: &RankPlacement<'_>,
        schedules: usize,
        table: &mut BestLayouts,
    ) {
        let (open, unit) = (case.config, &way.unit);
        for (passes, shards) in &placement.able()[..schedules] {
            (0..placement.shards.len() - shards.len()).for_each(|_| table.refuse());
            if shards.is_empty() {
                continue;
            }
            let (config, division) =
                self.problem.divided(&passes.of(&open), unit, &mut self.divisions.borrow_mut());
            case.config = config;
            let step = StepTimes::passes(case, unit, division);
            if self.is_bounded && !self.may_change(case, shards, table, (step.total(), division)) {
                table.skip(shards.len());
                continue;
            }
            for (zero, shard) in shards {
                let arrangement = Arrangement { zero: *zero, shard: *shard, ..config.arrangement };
                case.config = StepConfig { arrangement, ..config };
                if !self.problem.allows(&case.config) {
                    table.refuse();
                    continue;
                }
                let step =
                    if case.config.gathers_layers() { StepTimes::passes(case, unit, division) } else { step };
                let seconds = step.with_update(case, division).total();
                table.record(&case.config, seconds, || PeakMemory::with(case, division).total());
            }
        }
    }
}
