//! The answer of a plan for dtrain's own worker on hosts that are known from data sheets.

use super::datasheet::{HELPS, confidence, link_assumptions, more};
use super::{Answer, Reason};
use crate::engine::{DTRAIN, Engine as _};
use crate::hardware::HostGroup;
use crate::planning::explain::unit;
use crate::what_if::WorkerPlan;
use dtrain_recipes::Seconds;

/// Share of a step from which on the exchange between ranks is a reason.
const TELLING: f64 = 0.1;

impl Answer {
    /// Returns the answer of a plan for dtrain's own worker on other hosts: that of a plan for hosts that are
    /// at hand, with what was assumed about the others and what the exchange between them costs.
    pub fn of_worker_plan(found: &WorkerPlan) -> Self {
        let mut answer = Self::of_plan(&found.plan);
        answer.assumptions.splice(0..0, link_assumptions(&found.assumptions));
        answer.confidence = confidence(DTRAIN.name(), &[found.group]);
        let place = usize::from(matches!(answer.reasons.first(), Some(Reason::Faster { .. })));
        answer.reasons.splice(place..place, exchange(found));
        let unit = unit(&found.plan);
        let help = found.advice.iter().filter(|advice| advice.speed >= HELPS);
        let help = help.map(|advice| format!("{}: {} {unit}/s", advice.change, more(advice.speed)));
        answer.improvements.splice(0..0, help.take(1));
        answer
    }
}

/// Returns what the exchange of gradients and weights costs; `None` if it is a small part of a step.
fn exchange(found: &WorkerPlan) -> Option<Reason> {
    let step = found.plan.best().price().step.0;
    let share = found.exchange_seconds / step;
    let words = || {
        format!(
            "exchanging gradients takes {} of a step ({:.0} %) over {}",
            Seconds(found.exchange_seconds),
            100.0 * share,
            link(&found.group)
        )
    };
    (share >= TELLING).then(|| Reason::Rule(words()))
}

/// Describes the slowest link between the GPUs of `group`.
fn link(group: &HostGroup) -> String {
    if group.devices == group.per_host {
        return group.link.class.words().to_owned();
    }
    let gbits = group.network.bandwidth * 8.0 / 1e9;
    let digits = if gbits < 10.0 { 1 } else { 0 };
    format!("a network of {gbits:.digits$} Gbit/s per GPU")
}
