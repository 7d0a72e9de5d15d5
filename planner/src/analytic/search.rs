//! Searches every layout of a cluster of equal devices, with a bound: the same optimum as pricing them all.

mod passes;
mod space;
mod table;

#[cfg(test)]
mod tests;

pub use passes::Passes;
pub(super) use space::divisors_of;
pub(crate) use space::whole;
pub use space::{Cluster, Question, RunsOn};
pub use table::{Axis, Choice, Found, GPIPE};

use super::{Case, Config, Degrees, Division, Peak, Step, Unit};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Recompute, ZeroStage};
use passes::Divisions;
use std::cell::RefCell;
use table::Table;

/// Searches all layouts that a question leaves open, keeping the best `keep`.
pub fn search(question: &Question, keep: usize) -> Found {
    run(question, Table::new(question, keep), true)
}

/// The fastest layout that fits, where one takes less than `limit` seconds. Nothing else is kept, so that it is found sooner.
pub fn fastest(question: &Question, limit: f64) -> Option<Choice> {
    run(question, Table::fastest(question, limit), true).best.into_iter().next()
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
        is_bounded,
        units: RefCell::default(),
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
    /// Units of the latest tensor, context and expert degrees.
    units: RefCell<Units>,
    divisions: RefCell<Divisions>,
}

/// What units of one tensor, context and expert degree differ in.
#[derive(Clone, Copy, PartialEq)]
struct Key {
    micro_batch: u32,
    sequence: bool,
    recompute: (Recompute, u32),
    fold: u32,
}

/// Units that differ in nothing that matters to them, each with the fastest exchange of keys and values.
#[derive(Default)]
struct Units {
    of: Option<[u32; 3]>,
    known: Vec<(Key, (ContextExchange, Unit))>,
}

impl CostFunction for Prices<'_> {
    type Param = Degrees;
    type Output = f64;

    /// Prices all layouts of a shape; the best so far.
    fn cost(&self, shape: &Degrees) -> Result<f64, Error> {
        let mut table = self.table.borrow_mut();
        for placed in self.question.placements(shape) {
            let shards = self.question.shards(&placed);
            if !self.question.may_run(&placed, &shards) {
                continue;
            }
            let mut case = self.question.at(&placed);
            for micro_batch in self.question.micro_batches(shape) {
                let schedules = self.question.schedules(&Config { micro_batch, ..placed });
                // Larger ones need more: what did not fit before does not fit now.
                if micro_batch > 1 && !self.may_fit(&case, &Config { micro_batch, ..placed }, &shards) {
                    break;
                }
                for sequence in self.question.sequence_modes(shape) {
                    for (recompute, recompute_every) in &self.modes {
                        let arrangement = Arrangement {
                            sequence: *sequence,
                            recompute: *recompute,
                            recompute_every: *recompute_every,
                            ..placed.arrangement
                        };
                        case.config = Config { arrangement, micro_batch, ..placed };
                        let Some((exchange, unit)) = self.unit(&case, shape) else { continue };
                        case.config.arrangement.context_exchange = exchange;
                        self.leaves(&mut case, &unit, &schedules, &shards, &mut table);
                    }
                }
            }
        }
        Ok(table.best())
    }
}

impl Prices<'_> {
    /// The unit of a case with the fastest exchange of keys and values; `None` where the engine has no exchange for it.
    fn unit(&self, case: &Case<'_>, shape: &Degrees) -> Option<(ContextExchange, Unit)> {
        let mut units = self.units.borrow_mut();
        let of = [shape.tensor, shape.context, shape.expert];
        if units.of != Some(of) {
            *units = Units { of: Some(of), known: Vec::new() };
        }
        let Config { arrangement, micro_batch, .. } = case.config;
        let key = Key {
            micro_batch,
            sequence: arrangement.sequence,
            recompute: (arrangement.recompute, arrangement.recompute_every),
            fold: arrangement.expert_fold,
        };
        if let Some((_, known)) = units.known.iter().find(|(known, _)| *known == key) {
            return Some(*known);
        }
        let with = |exchange: ContextExchange| {
            let arrangement = Arrangement { context_exchange: exchange, ..arrangement };
            (exchange, Unit::of(&Case { config: Config { arrangement, ..case.config }, ..*case }))
        };
        let all = self.question.exchanges(&case.config).into_iter().map(with);
        let found = all.min_by(|a, b| a.1.layer.total().total_cmp(&b.1.layer.total()))?;
        units.known.push((key, found));
        Some(found)
    }

    /// Whether a placement may fit where its backward computes all layers again, which needs least; known only where that is open.
    fn may_fit(&self, case: &Case<'_>, config: &Config, shards: &[(ZeroStage, u32)]) -> bool {
        if !self.modes.contains(&(Recompute::Full, 1)) {
            return true;
        }
        let is_split = config.degrees().tensor > 1 && self.question.pins.sequence != Some(false);
        let arrangement =
            Arrangement { recompute: Recompute::Full, sequence: is_split, ..config.arrangement };
        let case = Case { config: Config { arrangement, ..*config }, ..*case };
        // No end has fewer layers, whatever it counts as.
        let fewest = space::whole((case.model.layers / case.config.pipeline()).floor() - 2.0);
        let division = Division { first: fewest, last: fewest, second: 0, most: 0, most_at: 0 };
        Peak::least(&case, shards, division) <= self.question.cluster.memory
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

    /// Prices what is left open: schedule and what replicas shard.
    fn leaves(
        &self,
        case: &mut Case<'_>,
        unit: &Unit,
        schedules: &[Passes],
        shards: &[(ZeroStage, u32)],
        table: &mut Table,
    ) {
        let open = case.config;
        for passes in schedules {
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
