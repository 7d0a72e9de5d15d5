//! What the leader knows of one rank, wherever it runs.

use super::super::messages::RankExit;
use dtrain_protocol::{Event, Failure, Rank, StepId, StopReason};

/// A rank.
#[derive(Clone, Debug)]
pub(super) struct RankState {
    /// How its process ended.
    pub(super) exit: Option<RankExit>,
    /// Whether all it said was heard.
    is_output_closed: bool,
    /// The last lines that a foreign program printed.
    last: Vec<String>,
    /// Why it stopped, once it said that it did all it was asked.
    pub(super) finished: Option<StopReason>,
    /// Whether it said why it cannot go on.
    pub(super) has_failed: bool,
    /// Whether the leader had it killed.
    pub(super) was_killed: bool,
    /// Why it could not save the last time it had to.
    pub(super) unsaved: Option<String>,
    /// Events it said so far.
    sequence: u64,
    is_foreign: bool,
}

impl RankState {
    pub(super) fn new(is_foreign: bool) -> Self {
        Self {
            exit: None,
            is_output_closed: false,
            last: Vec::new(),
            finished: None,
            has_failed: false,
            was_killed: false,
            unsaved: None,
            sequence: 0,
            is_foreign,
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// Whether it has ended and all it said was heard.
    pub(super) fn is_over(&self) -> bool {
        self.exit.is_some() && self.is_output_closed
    }

    pub(super) fn close_output(&mut self, last: Vec<String>) {
        (self.is_output_closed, self.last) = (true, last);
    }

    /// Its host is lost; whether it was still at work.
    pub(super) fn lose(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        self.exit.get_or_insert(RankExit { code: None, signal: Some(9) });
        (self.is_output_closed, self.has_failed) = (true, true);
        true
    }

    /// What the end of the process says, once it is over, when the rank itself said nothing.
    pub(super) fn closing_event(&self, rank: Rank, stopping: Option<StopReason>) -> Option<Event> {
        let exit = self.exit.filter(|_| self.is_over() && self.finished.is_none() && !self.has_failed)?;
        let RankExit { code, signal } = exit;
        let finished = |reason| Event::Finished { step: StepId(0), reason };
        Some(match (self.is_foreign, code, stopping) {
            (true, _, Some(reason)) => finished(reason),
            (true, Some(0), None) => finished(StopReason::Complete),
            // It did not answer the order to stop.
            (false, _, Some(reason)) if self.was_killed => finished(reason),
            // Its end is what was done about another failure, and explains nothing.
            _ if self.was_killed => {
                let detail = "it did not exit and was killed".into();
                Event::Failed(Failure::PeerLost { peer: Some(rank), detail })
            }
            (true, ..) => Event::Failed(Failure::Command { code, signal, last: self.last.clone() }),
            (false, ..) => Event::Failed(Failure::Exited { code, signal }),
        })
    }
}
