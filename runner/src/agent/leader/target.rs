//! When a script has reached its target, by the figures of the lowest rank that reports the metric, and what follows.

use super::rank_state::RankState;
use super::{AttemptEffect, Leader};
use crate::agent::SpoolRecord;
use crate::reporters::Reporters;
use dtrain_protocol::{Event, Rank, StampedEvent, StepId, StopReason};

/// What the ranks have reported of the metric of a target.
#[derive(Debug, Default)]
pub(super) struct TargetWatch {
    reporters: Reporters,
    /// The lowest rank that reports the metric, and the first step at which it did.
    first: Option<(Rank, StepId)>,
    /// Whether that rank has reached the target, while a lower rank may still begin to report.
    is_held: bool,
}

impl Leader {
    /// Whether an event of a script says that its target is reached. The ranks of dtrain's own models know it themselves.
    ///
    /// A rank above 0 is believed once it reports a second step, or all lower ranks have ended: a lower one may be slower to
    /// begin.
    pub(super) fn reaches_target(&mut self, said: &StampedEvent) -> bool {
        let Some(target) = self.settings.first.until.target.as_ref().filter(|_| self.are_foreign()) else {
            return false;
        };
        let results = self.target.reporters.results(said);
        let name = target.metric.name();
        let Some(value) = results.into_iter().find(|(found, _)| found == name).map(|(_, value)| value) else {
            return false;
        };
        let is_reached = target.is_reached(name, value);
        let step = step_of_event(&said.event).unwrap_or(StepId(0));
        let watch = &mut self.target;
        let (rank, first) = *watch.first.get_or_insert((said.rank, step));
        if rank != said.rank {
            (watch.first, watch.is_held) = (Some((said.rank, step)), false);
        }
        watch.is_held |= is_reached;
        let is_second = rank == said.rank && step > first;
        watch.is_held && (is_second || self.has_held_target())
    }

    /// Whether the target is reached by a rank below which no other one can begin to report.
    pub(super) fn has_held_target(&self) -> bool {
        let Some((rank, _)) = self.target.first.filter(|_| self.target.is_held) else { return false };
        self.ranks[..rank.0 as usize].iter().all(RankState::is_over)
    }

    /// Asks the ranks to stop, and records once that they are asked: they may take long.
    pub(super) fn stop_at_target(&mut self) {
        let was_stopping = self.stopping.is_some();
        self.stop(StopReason::Target);
        if self.stopping.is_some() && !was_stopping {
            let attempt = self.settings.attempt;
            self.effects.push(AttemptEffect::Spool(SpoolRecord::TargetReached { attempt }));
        }
    }
}

fn step_of_event(event: &Event) -> Option<StepId> {
    match event {
        Event::Step(figures) => Some(figures.step),
        Event::Validated { step, .. } | Event::Metrics { step, .. } => Some(*step),
        _ => None,
    }
}
