//! What a micro-batch costs in each way to compute it, whatever the stages and replicas.

use super::space::Question;
use crate::analytic::layer::Layers;
use crate::analytic::memory::Shared;
use crate::analytic::{Case, Config, Unit};
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::Recompute;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A way to compute a micro-batch, with its fastest exchange of keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    sequence: bool,
    pub(super) recompute: (Recompute, u32),
    exchange: ContextExchange,
    pub(super) unit: Unit,
    /// Seconds in all stages together, at least.
    pub(super) seconds: f64,
    /// What forwards keep.
    pub(super) kept: Shared,
}

impl Way {
    /// A layout that computes in this way.
    pub(super) fn of(&self, open: &Config) -> Config {
        let (recompute, recompute_every) = self.recompute;
        let arrangement = Arrangement {
            sequence: self.sequence,
            recompute,
            recompute_every,
            context_exchange: self.exchange,
            ..open.arrangement
        };
        Config { arrangement, ..*open }
    }
}

/// Ways of the latest tensor, context and expert degrees, by what experts are folded over and micro-batch.
#[derive(Default)]
pub(super) struct Ways {
    of: Option<[u32; 3]>,
    known: BTreeMap<(u32, u32), Rc<[Way]>>,
    /// What is kept where a backward computes all layers again.
    least: BTreeMap<(u32, u32), Shared>,
}

impl Ways {
    /// The ways to compute the micro-batch of a case; none where the engine has no exchange of keys and values for it.
    pub(super) fn of(
        ways: &RefCell<Self>,
        question: &Question,
        case: &Case<'_>,
        modes: &[(Recompute, u32)],
    ) -> Rc<[Way]> {
        let mut ways = ways.borrow_mut();
        let key = ways.key(case);
        Rc::clone(ways.known.entry(key).or_insert_with(|| all(question, case, modes)))
    }

    /// The layout of a case that keeps least for its backward, and what that is. Cheap beside [`Ways::of`], which prices.
    pub(super) fn least(ways: &RefCell<Self>, question: &Question, case: &Case<'_>) -> (Config, Shared) {
        let mut ways = ways.borrow_mut();
        let key = ways.key(case);
        let sequence = question.sequence_modes(&case.config.degrees()).contains(&true);
        let arrangement = Arrangement {
            sequence,
            recompute: Recompute::Full,
            recompute_every: 1,
            ..case.config.arrangement
        };
        let config = Config { arrangement, ..case.config };
        (config, *ways.least.entry(key).or_insert_with(|| Shared::of(&Case { config, ..*case })))
    }

    /// What is known is forgotten at other degrees.
    fn key(&mut self, case: &Case<'_>) -> (u32, u32) {
        let degrees = case.config.degrees();
        let of = Some([degrees.tensor, degrees.context, degrees.expert]);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        (case.config.arrangement.expert_fold, case.config.micro_batch)
    }
}

fn all(question: &Question, case: &Case<'_>, modes: &[(Recompute, u32)]) -> Rc<[Way]> {
    let exchanges = question.exchanges(&case.config);
    let (mut all, mut known) = (Vec::new(), None::<Layers>);
    for sequence in question.sequence_modes(&case.config.degrees()) {
        let mut units = |exchange: &ContextExchange| {
            let arrangement =
                Arrangement { sequence: *sequence, context_exchange: *exchange, ..case.config.arrangement };
            let case = Case { config: Config { arrangement, ..case.config }, ..*case };
            let layers = known.map_or_else(|| Layers::of(&case), |known| known.exchanging(&case));
            known = Some(layers);
            (*exchange, Unit::each(&case, layers, modes))
        };
        let units: Vec<(ContextExchange, Vec<Unit>)> = exchanges.iter().map(&mut units).collect();
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
            let kept = Shared::of(&Case { config: Config { arrangement, ..case.config }, ..*case });
            let seconds = unit.least(&question.model);
            all.push(Way { sequence: *sequence, recompute: *recompute, exchange, unit, seconds, kept });
        }
    }
    all.into()
}
