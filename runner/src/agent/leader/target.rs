//! Target detection: stops a foreign program when the lowest rank that reports the metric has reached its
//! target.

use super::rank_state::RankState;
use super::{AttemptEffect, Leader};
use crate::reporters::Reporters;
use crate::spool::SpoolRecord;
use dtrain_protocol::{Event, Rank, StampedEvent, StepId, StopReason};

/// Reports of the target's metric by the ranks so far.
#[derive(Debug, Default)]
pub(super) struct TargetWatch {
    reporters: Reporters,
    /// The lowest rank that reports the metric, and the step of its first report.
    first: Option<(Rank, StepId)>,
    /// True if the rank in `first` has reached the target, while a lower rank may still start to report.
    is_held: bool,
}

impl Leader {
    /// Returns `true` if an event of a foreign program reaches its target. dtrain's own models detect that
    /// themselves.
    ///
    /// A rank above 0 counts only at its second step, or once all lower ranks have ended: a lower rank may be
    /// slower to start.
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

    /// Returns `true` if the target was reached by a rank below which no other can start to report.
    pub(super) fn has_held_target(&self) -> bool {
        let Some((rank, _)) = self.target.first.filter(|_| self.target.is_held) else { return false };
        self.ranks[..rank.0 as usize].iter().all(RankState::is_over)
    }

    /// Asks the ranks to stop because the target was reached. Asks only once, as stopping may take long.
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
