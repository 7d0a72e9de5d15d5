//! Promises of the trial's state machine, and the test hook that breaks them.

use super::TrialMachine;

/// A promise that a test breaks on purpose, to prove that the simulator notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    OneLiveAttempt,
    RecordBeforeLaunch,
    StaleChangesNothing,
    EveryRankSaved,
    AgentCommitted,
    EndsOnce,
    NewestCheckpoint,
    RefusedIsForgotten,
    RefusedStaysRefused,
    FoundIsAdopted,
}

impl TrialMachine {
    /// Returns `true` if a test asked for `promise` to be broken.
    pub(super) fn breaks(&self, promise: Promise) -> bool {
        #[cfg(test)]
        return self.broken == Some(promise);
        #[cfg(not(test))]
        return match promise {
            Promise::OneLiveAttempt
            | Promise::RecordBeforeLaunch
            | Promise::StaleChangesNothing
            | Promise::EveryRankSaved
            | Promise::AgentCommitted
            | Promise::EndsOnce
            | Promise::NewestCheckpoint
            | Promise::RefusedIsForgotten
            | Promise::RefusedStaysRefused
            | Promise::FoundIsAdopted => false,
        };
    }
}
