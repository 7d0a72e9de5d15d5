//! Searches every layout of a cluster of equal devices, with a bound: the same optimum as pricing them all.

mod passes;
mod placement;
mod space;
mod table;
mod ways;

#[cfg(test)]
mod tests;

pub use passes::Passes;
pub(super) use space::divisors_of;
pub(crate) use space::whole;
pub use space::{Cluster, Question, RunsOn};
pub use table::{Axis, Choice, Found, GPIPE};

use super::{Case, Config, Degrees, Division, Peak, Step};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LayoutPins, Recompute, ZeroStage};
use passes::Divisions;
use placement::Placement;
use std::cell::RefCell;
use table::Table;
use ways::{Way, Ways};

/// Searches all layouts that a question leaves open, keeping the best `keep`.
pub fn search(question: &Question, keep: usize) -> Found {
    run(question, Table::new(question, keep), true)
}

/// The fastest layout that fits, where one takes less than `limit` seconds. Nothing else is kept, so that it is found sooner.
pub fn fastest(question: &Question, limit: f64) -> Option<Choice> {
    run(question, Table::fastest(question, limit), true).best.into_iter().next()
}

/// The same where a layout of a like question is `known`. Layouts of its degrees are searched first, so that most of the others are
/// seen to be slower.
pub fn fastest_beside(question: &Question, known: &Config, limit: f64) -> Option<Choice> {
    let degrees = known.degrees();
    let pins = LayoutPins {
        tensor: Some(degrees.tensor),
        context: Some(degrees.context),
        expert: Some(degrees.expert),
        ..question.pins.clone()
    };
    let like = fastest(&Question { pins, ..question.clone() }, limit);
    // What takes exactly as long is found again, or what comes before it.
    fastest(question, like.map_or(limit, |like| like.seconds.next_up().min(limit)))
}

/// [`search`] without a bound; slower, for those who want to check.
pub fn search_all(question: &Question, keep: usize) -> Found {
    run(question, Table::new(question, keep), false)
}

/// The same with the front of time, memory and money; with `keep` 0 nothing but the front is looked for.
pub fn search_front(question: &Question, keep: usize) -> Found {
    run(question, Table::with_front(question, keep), true)
}

fn run(question: &Question, table: Table, is_bounded: bool) -> Found {
    let shapes = if question.can_train() { question.shapes() } else { Vec::new() };
    let prices = Prices {
        table: RefCell::new(table),
        question,
        modes: question.modes(),
        is_bounded,
        ways: RefCell::default(),
        divisions: RefCell::default(),
    };
    if shapes.is_empty() {
        return prices.table.into_inner().found();
    }
    let walk = Walk { shapes, next: 0 };
    let result = Executor::new(prices, walk).ctrlc(false).run();
    let prices = result.expect("pricing has no error to return").problem.take_problem();
    prices.expect("the executor gives the problem back").table.into_inner().found()
}

/// Walks over all shapes.
struct Walk {
    shapes: Vec<Degrees>,
    next: usize,
}

type Progress = IterState<Degrees, (), (), (), (), f64>;

impl<O: CostFunction<Param = Degrees, Output = f64>> Solver<O, Progress> for Walk {
    fn name(&self) -> &str {
        "every layout"
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        state: Progress,
    ) -> Result<(Progress, Option<KV>), Error> {
        let shape = self.shapes[self.next];
        self.next += 1;
        let best = problem.cost(&shape)?;
        Ok((state.param(shape).cost(best), None))
    }

    fn terminate(&mut self, _: &Progress) -> TerminationStatus {
        if self.next < self.shapes.len() {
            TerminationStatus::NotTerminated
        } else {
            TerminationStatus::Terminated(TerminationReason::SolverConverged)
        }
    }
}

/// Layouts of a shape with their prices.
struct Prices<'a> {
    question: &'a Question,
    modes: Vec<(Recompute, u32)>,
    table: RefCell<Table>,
    is_bounded: bool,
    ways: RefCell<Ways>,
    divisions: RefCell<Divisions>,
}

impl CostFunction for Prices<'_> {
    type Param = Degrees;
    type Output = f64;

    /// Prices all layouts of a shape; the best so far.
    fn cost(&self, shape: &Degrees) -> Result<f64, Error> {
        let mut table = self.table.borrow_mut();
        let micro_batches = self.question.micro_batches(shape);
        for placed in self.question.placements(shape) {
            self.placement(&Placement::of(self.question, placed), &micro_batches, &mut table);
        }
        Ok(table.best())
    }
}

impl Prices<'_> {
    /// Prices all layouts of a placement.
    fn placement(&self, placement: &Placement<'_>, micro_batches: &[u32], table: &mut Table) {
        // Where only the fastest is kept, the engine is asked of what may be.
        if (table.has_axes() || !self.is_bounded) && !placement.may_run() {
            return;
        }
        let mut case = self.question.at(&placement.config);
        for micro_batch in micro_batches {
            let open = Config { micro_batch: *micro_batch, ..placement.config };
            case.config = open;
            // Larger ones need more: what did not fit before does not fit now. Known only where all layers may be computed again.
            if *micro_batch > 1
                && self.modes.contains(&(Recompute::Full, 1))
                && !placement.may_fit(&case, Ways::least(&self.ways, self.question, &case))
            {
                break;
            }
            let ways = Ways::of(&self.ways, self.question, &case, &self.modes);
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

    /// Whether layouts that take at least `bound` seconds, in this order of passes, may change anything.
    fn may_change(
        &self,
        case: &Case<'_>,
        shards: &[(ZeroStage, u32)],
        table: &Table,
        bound: (f64, Division),
    ) -> bool {
        let (seconds, division) = bound;
        table.may_gain(&case.config, shards, seconds)
            || table.may_better(seconds, || Peak::least(case, shards, division))
    }

    /// Prices what is left open: the first `schedules` of a placement and what replicas shard.
    fn leaves(
        &self,
        case: &mut Case<'_>,
        way: &Way,
        placement: &Placement<'_>,
        schedules: usize,
        table: &mut Table,
    ) {
        let (open, unit) = (case.config, &way.unit);
        for (passes, shards) in &placement.able()[..schedules] {
            (0..placement.shards.len() - shards.len()).for_each(|_| table.refuse());
            if shards.is_empty() {
                continue;
            }
            let (config, division) =
                self.question.divided(&passes.of(&open), unit, &mut self.divisions.borrow_mut());
            case.config = config;
            let step = Step::passes(case, unit, division);
            if self.is_bounded && !self.may_change(case, shards, table, (step.total(), division)) {
                table.skip(shards.len());
                continue;
            }
            for (zero, shard) in shards {
                let arrangement = Arrangement { zero: *zero, shard: *shard, ..config.arrangement };
                case.config = Config { arrangement, ..config };
                if !self.question.allows(&case.config) {
                    table.refuse();
                    continue;
                }
                let step =
                    if case.config.gathers_layers() { Step::passes(case, unit, division) } else { step };
                let seconds = step.ended(case, division).total();
                table.note(&case.config, seconds, || Peak::with(case, division).total());
            }
        }
    }
}
