//! Searches every layout of a cluster of equal devices, with a bound: the same optimum as pricing them all.

mod space;
mod table;

#[cfg(test)]
mod tests;

pub(super) use space::divisors_of;
pub(crate) use space::whole;
pub use space::{Cluster, Question, Shape};
pub use table::{Axis, Choice, Found, GPIPE};

use super::step::least;
use super::{Again, Case, Peak, Step, Unit};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use dtrain_recipes::{PipelineSchedule, ZeroStage};
use std::cell::RefCell;
use table::Table;

/// Searches all layouts that a question leaves open, keeping the best `keep`.
pub fn search(question: &Question, keep: usize) -> Found {
    run(question, Table::new(question, keep), true)
}

/// The same without a bound; slower, for those who want to check.
pub fn search_all(question: &Question, keep: usize) -> Found {
    run(question, Table::new(question, keep), false)
}

/// The same with the front of time, memory and money; with `keep` 0 nothing but the front is looked for.
pub fn search_front(question: &Question, keep: usize) -> Found {
    run(question, Table::with_front(question, keep), true)
}

fn run(question: &Question, table: Table, is_bounded: bool) -> Found {
    let shapes = question.shapes();
    let prices = Prices {
        table: RefCell::new(table),
        question,
        modes: question.modes(),
        zeros: question.zeros(),
        is_bounded,
        units: RefCell::default(),
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
    shapes: Vec<Shape>,
    next: usize,
}

type Progress = IterState<Shape, (), (), (), (), f64>;

impl<O: CostFunction<Param = Shape, Output = f64>> Solver<O, Progress> for Walk {
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
    modes: Vec<Again>,
    zeros: Vec<ZeroStage>,
    table: RefCell<Table>,
    is_bounded: bool,
    /// Units of the latest tensor, context and expert degrees, by micro-batch, sequence and what is computed again.
    units: RefCell<Units>,
}

/// Units that differ in nothing that matters to them.
#[derive(Default)]
struct Units {
    of: Option<[u32; 3]>,
    known: Vec<((u32, bool, Again), Unit)>,
}

impl CostFunction for Prices<'_> {
    type Param = Shape;
    type Output = f64;

    /// Prices all layouts of a shape; the best so far.
    fn cost(&self, shape: &Shape) -> Result<f64, Error> {
        let mut table = self.table.borrow_mut();
        let mut case = self.question.case(shape);
        for micro in self.question.micro_batches(shape) {
            case.cut.micro = micro.into();
            for is_sequence_parallel in self.question.sequence_modes(shape) {
                case.cut.is_sequence_parallel = *is_sequence_parallel;
                for again in &self.modes {
                    case.cut.again = *again;
                    let unit = self.unit(&case, shape, micro);
                    self.leaves(&mut case, &unit, shape, &mut table);
                }
            }
        }
        Ok(table.best())
    }
}

impl Prices<'_> {
    /// The unit of a case.
    fn unit(&self, case: &Case<'_>, shape: &Shape, micro: u32) -> Unit {
        let mut units = self.units.borrow_mut();
        let of = [shape.tensor, shape.context, shape.expert];
        if units.of != Some(of) {
            *units = Units { of: Some(of), known: Vec::new() };
        }
        let key = (micro, case.cut.is_sequence_parallel, case.cut.again);
        if let Some((_, unit)) = units.known.iter().find(|(known, _)| *known == key) {
            return *unit;
        }
        let unit = Unit::of(case);
        units.known.push((key, unit));
        unit
    }

    /// Whether layouts that take at least `bound` seconds, in these orders of passes, may change anything.
    fn may_change(
        &self,
        case: &mut Case<'_>,
        schedules: &[(PipelineSchedule, f64)],
        table: &Table,
        bound: f64,
    ) -> bool {
        let cut = case.cut;
        table.may_gain(&cut, schedules, &self.zeros, bound)
            || table.may_better(bound, || {
                // No order of passes keeps fewer micro-batches alive.
                (case.cut.schedule, case.cut.chunks) = (PipelineSchedule::OneForwardOneBackward, 1.0);
                let bytes = self.zeros.iter().map(|zero| {
                    case.cut.zero = *zero;
                    Peak::of(case).total()
                });
                bytes.fold(f64::INFINITY, f64::min)
            })
    }

    /// Prices what is left open: schedule and what replicas shard.
    fn leaves(&self, case: &mut Case<'_>, unit: &Unit, shape: &Shape, table: &mut Table) {
        let schedules = self.question.schedules(shape, &case.cut);
        if self.is_bounded && !self.may_change(case, &schedules, table, least(case, unit)) {
            table.skip(schedules.len() * self.zeros.len());
            return;
        }
        for (schedule, chunks) in schedules {
            (case.cut.schedule, case.cut.chunks) = (schedule, chunks);
            for zero in &self.zeros {
                case.cut.zero = *zero;
                let seconds = Step::with(case, unit).total();
                table.note(&case.cut, seconds, || Peak::of(case).total());
            }
        }
    }
}
