//! The leader's state of one rank, on any host.

use super::super::messages::RankExit;
use crate::control_protocol::STOP_GRACE_MS;
use dtrain_protocol::{Assignment, Event, Failure, Rank, StepId, StopReason};

/// The leader's state of one rank.
#[derive(Clone, Debug)]
pub(super) struct RankState {
    /// Exit of the rank's process, once it has ended.
    pub(super) exit: Option<RankExit>,
    /// True if all output of the rank was read.
    is_output_closed: bool,
    /// The last lines of a foreign program's output.
    last: Vec<String>,
    /// The reason why the rank stopped, once it reported that it had finished.
    pub(super) finished: Option<StopReason>,
    /// True if the rank reported a failure.
    pub(super) has_failed: bool,
    /// True if the leader had the rank killed.
    pub(super) was_killed: bool,
    /// The reason why the rank's last required save failed; `None` if it succeeded.
    pub(super) unsaved: Option<String>,
    /// Number of the rank's events so far.
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

    /// Returns `true` if the rank's process has ended and all its output was read.
    pub(super) fn is_over(&self) -> bool {
        self.exit.is_some() && self.is_output_closed
    }

    pub(super) fn close_output(&mut self, last: Vec<String>) {
        (self.is_output_closed, self.last) = (true, last);
    }

    /// Marks the rank as lost with its host; returns `true` if it was still running.
    pub(super) fn lose(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        self.exit.get_or_insert(RankExit { code: None, signal: Some(9) });
        (self.is_output_closed, self.has_failed) = (true, true);
        true
    }

    /// Returns the event for the end of a process whose rank did not report one itself.
    pub(super) fn closing_event(&self, rank: Rank, stopping: Option<StopReason>) -> Option<Event> {
        let exit = self.exit.filter(|_| self.is_over() && self.finished.is_none() && !self.has_failed)?;
        let RankExit { code, signal } = exit;
        let finished = |reason| Event::Finished { step: StepId(0), reason };
        Some(match (self.is_foreign, code, stopping) {
            (true, _, Some(reason)) => finished(reason),
            (true, Some(0), None) => finished(StopReason::Complete),
            // It did not follow the order to stop.
            (false, _, Some(reason)) if self.was_killed => finished(reason),
            // It was killed because of another failure; its own exit explains nothing.
            _ if self.was_killed => {
                let detail = "it did not exit and was killed".into();
                Event::Failed(Failure::PeerLost { peer: Some(rank), detail })
            }
            (true, ..) => Event::Failed(foreign_failure(code, signal, self.last.clone())),
            (false, ..) => Event::Failed(Failure::Exited { code, signal }),
        })
    }
}

/// Returns the time in which the foreign programs of an attempt must end when they are asked to. A training
/// engine finishes its step and saves a checkpoint, for as long as ranks wait for each other.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limits are minutes")]
pub(super) fn stop_grace_ms(first: &Assignment) -> u64 {
    let limit = first.engine.as_ref().map_or(0, |_| (first.waits.idle_seconds * 1000.0) as u64);
    limit.max(STOP_GRACE_MS)
}

/// Beginning of the last line of a program that ran out of memory, as dtrain's programs for engines print it.
const OUT_OF_MEMORY: &str = "out of memory: ";

/// Returns the failure of a foreign program that ended with `code` or `signal` after it printed `last`.
fn foreign_failure(code: Option<i32>, signal: Option<i32>, last: Vec<String>) -> Failure {
    match last.last().and_then(|line| line.strip_prefix(OUT_OF_MEMORY)) {
        Some(detail) => Failure::OutOfMemory { detail: detail.to_owned() },
        None => Failure::Command { code, signal, last },
    }
}
