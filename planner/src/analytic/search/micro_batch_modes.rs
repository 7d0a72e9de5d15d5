//! Costs of a micro-batch by recompute mode and sequence parallelism, which do not depend on stages and
//! replicas.

use super::space::SearchProblem;
use crate::analytic::layer::LayerTimesByKind;
use crate::analytic::memory::LayerMemory;
use crate::analytic::{MicroBatchTimes, StepConfig, StepInputs};
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::Recompute;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Recompute mode and sequence parallelism of a micro-batch, with the fastest context exchange and the costs
/// of all three.
#[derive(Clone, Copy, Debug)]
pub(super) struct MicroBatchMode {
    sequence: bool,
    pub(super) recompute: (Recompute, u32),
    exchange: ContextExchange,
    pub(super) unit: MicroBatchTimes,
    /// Lower bound on the seconds of one micro-batch in all stages together.
    pub(super) seconds: f64,
    /// Memory of the activations saved in the mode.
    pub(super) kept: LayerMemory,
}

impl MicroBatchMode {
    /// Returns the layout `open` with the recompute mode, sequence parallelism and context exchange of
    /// this mode.
    pub(super) fn of(&self, open: &StepConfig) -> StepConfig {
        let (recompute, recompute_every) = self.recompute;
        let arrangement = Arrangement {
            sequence: self.sequence,
            recompute,
            recompute_every,
            context_exchange: self.exchange,
            ..open.arrangement
        };
        StepConfig { arrangement, ..*open }
    }
}

/// Cache of micro-batch modes for the latest tensor, context and expert degrees, by expert fold and
/// micro-batch.
#[derive(Default)]
pub(super) struct MicroBatchModeCache {
    of: Option<[u32; 3]>,
    known: BTreeMap<(u32, u32), Rc<[MicroBatchMode]>>,
    /// Activation memory of the mode that saves least, under full recomputation.
    least: BTreeMap<(u32, u32), LayerMemory>,
}

impl MicroBatchModeCache {
    /// Returns the modes of the micro-batch of `case`; none if the engine lacks a context exchange for it.
    pub(super) fn of(
        ways: &RefCell<Self>,
        problem: &SearchProblem,
        case: &StepInputs<'_>,
        modes: &[(Recompute, u32)],
    ) -> Rc<[MicroBatchMode]> {
        let mut ways = ways.borrow_mut();
        let key = ways.key(case);
        Rc::clone(ways.known.entry(key).or_insert_with(|| all(problem, case, modes)))
    }

    /// Returns the layout with the fewest saved activations, and their memory. Cheaper than
    /// [`MicroBatchModeCache::of`], which prices modes.
    pub(super) fn lower_bound(
        ways: &RefCell<Self>,
        problem: &SearchProblem,
        case: &StepInputs<'_>,
    ) -> (StepConfig, LayerMemory) {
        let mut ways = ways.borrow_mut();
        let key = ways.key(case);
        let sequence = problem.sequence_modes(&case.config.degrees()).contains(&true);
        let arrangement = Arrangement {
            sequence,
            recompute: Recompute::Full,
            recompute_every: 1,
            ..case.config.arrangement
        };
        let config = StepConfig { arrangement, ..case.config };
        (config, *ways.least.entry(key).or_insert_with(|| LayerMemory::of(&StepInputs { config, ..*case })))
    }

    /// Returns the cache key of `case`; clears the cache if the degrees have changed.
    fn key(&mut self, case: &StepInputs<'_>) -> (u32, u32) {
        let degrees = case.config.degrees();
        let of = Some([degrees.tensor, degrees.context, degrees.expert]);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        (case.config.arrangement.expert_fold, case.config.micro_batch)
    }
}

fn all(problem: &SearchProblem, case: &StepInputs<'_>, modes: &[(Recompute, u32)]) -> Rc<[MicroBatchMode]> {
    let exchanges = problem.exchanges(&case.config);
    let (mut all, mut known) = (Vec::new(), None::<LayerTimesByKind>);
    for sequence in problem.sequence_modes(&case.config.degrees()) {
        let mut units = |exchange: &ContextExchange| {
            let arrangement =
                Arrangement { sequence: *sequence, context_exchange: *exchange, ..case.config.arrangement };
            let case = StepInputs { config: StepConfig { arrangement, ..case.config }, ..*case };
            let layers =
                known.map_or_else(|| LayerTimesByKind::of(&case), |known| known.with_exchange(&case));
            known = Some(layers);
            (*exchange, MicroBatchTimes::each(&case, layers, modes))
        };
        let units: Vec<(ContextExchange, Vec<MicroBatchTimes>)> = exchanges.iter().map(&mut units).collect();
        for (index, recompute) in modes.iter().enumerate() {
            let of_mode = units.iter().map(|(exchange, units)| (*exchange, units[index]));
            let fastest = of_mode.min_by(|a, b| a.1.layer.total().total_cmp(&b.1.layer.total()));
            let Some((exchange, unit)) = fastest else { continue };
            let arrangement = Arrangement {
                sequence: *sequence,
                recompute: recompute.0,
                recompute_every: recompute.1,
                ..case.config.arrangement
            };
            let kept =
                LayerMemory::of(&StepInputs { config: StepConfig { arrangement, ..case.config }, ..*case });
            let seconds = unit.lower_bound(&problem.model);
            all.push(MicroBatchMode {
                sequence: *sequence,
                recompute: *recompute,
                exchange,
                unit,
                seconds,
                kept,
            });
        }
    }
    all.into()
}
