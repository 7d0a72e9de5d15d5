//! Status of a trial, derived from its records and from living processes.

use crate::fact::{Fact, Verdict};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Status of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialStatus {
    /// The trial was recorded but never launched.
    Created,
    /// The trial was launched and has not ended, and a controller supervises an attempt.
    Running,
    /// The trial was launched and has not ended, and its controller waits before the next attempt.
    Waiting,
    /// The trial was launched and has not ended. An attempt may run, and no controller supervises it.
    Unattended,
    /// The trial was launched and has not ended, but no process works on it: it can be resumed.
    Lost,
    /// Training reached its end.
    Completed,
    /// A search ended the trial early.
    Pruned,
    /// The trial ran out of memory.
    OutOfMemory,
    /// The loss or the gradient became infinite or NaN.
    Diverged,
    /// The trial failed more often than allowed.
    Failed,
    /// The user stopped the trial; it can be resumed.
    Stopped,
}

/// What works on a trial that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialActivity {
    /// No agent and no controller.
    None,
    /// A controller that supervises an attempt.
    Running,
    /// A controller, between two attempts.
    Waiting,
    /// An agent without a controller.
    Unattended,
}

impl TrialStatus {
    /// Returns `true` if an agent or a controller works on the trial.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Running | Self::Waiting | Self::Unattended)
    }

    /// All statuses, in the order of a trial's life.
    pub const ALL: [Self; 11] = [
        Self::Created,
        Self::Running,
        Self::Waiting,
        Self::Unattended,
        Self::Lost,
        Self::Completed,
        Self::Pruned,
        Self::OutOfMemory,
        Self::Diverged,
        Self::Failed,
        Self::Stopped,
    ];

    /// Returns the word for the status, as shown to users.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Unattended => "unattended",
            Self::Lost => "lost",
            Self::Completed => "completed",
            Self::Pruned => "pruned",
            Self::OutOfMemory => "out of memory",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for TrialStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for TrialStatus {
    type Err = String;

    /// Parses the word for a status, with spaces, `-` or `_` between its parts, or the shorter word that a
    /// list shows.
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.replace(['-', '_'], " ").to_lowercase();
        let plain = match plain.as_str() {
            "done" => Self::Completed.word(),
            "no memory" => Self::OutOfMemory.word(),
            word => word,
        };
        Self::ALL.into_iter().find(|status| status.word() == plain).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|status| status.word().replace(' ', "-")).collect();
            format!("`{text}` is not a status; expected one of {}", words.join(", "))
        })
    }
}

/// State of a trial according to its records alone; stored in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The trial was created but has no attempt yet.
    Created,
    /// The trial was launched and has not ended: it is running or lost.
    Open,
    /// The trial ended with this status.
    Ended(TrialStatus),
}

impl State {
    /// Returns the word by which the state is stored.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Open => "open",
            Self::Ended(TrialStatus::OutOfMemory) => "out_of_memory",
            Self::Ended(status) => status.word(),
        }
    }

    /// Parses the word by which a state is stored; `None` if it is unknown.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "created" => Some(Self::Created),
            "open" => Some(Self::Open),
            other => other.parse().ok().map(Self::Ended),
        }
    }

    /// Returns the state of a trial after the record `fact`.
    pub(super) fn after(self, fact: &Fact) -> Self {
        match fact {
            Fact::AttemptStarted { .. } | Fact::Resumed => Self::Open,
            Fact::TrialEnded { verdict } => Self::Ended(ended(verdict)),
            Fact::CheckpointCommitted { .. } | Fact::CheckpointRefused { .. } | Fact::AttemptEnded { .. } => {
                self
            }
        }
    }

    /// Returns the status of a trial in this state; `activity` tells what works on it.
    pub(super) fn status(self, activity: impl FnOnce() -> TrialActivity) -> TrialStatus {
        match self {
            Self::Created => TrialStatus::Created,
            Self::Open => match activity() {
                TrialActivity::None => TrialStatus::Lost,
                TrialActivity::Running => TrialStatus::Running,
                TrialActivity::Waiting => TrialStatus::Waiting,
                TrialActivity::Unattended => TrialStatus::Unattended,
            },
            Self::Ended(status) => status,
        }
    }
}

fn ended(verdict: &Verdict) -> TrialStatus {
    match verdict {
        Verdict::Completed(_) => TrialStatus::Completed,
        Verdict::Pruned => TrialStatus::Pruned,
        Verdict::OutOfMemory => TrialStatus::OutOfMemory,
        Verdict::Diverged => TrialStatus::Diverged,
        Verdict::Failed(_) => TrialStatus::Failed,
        Verdict::Stopped => TrialStatus::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_states_are_read_back() {
        for status in TrialStatus::ALL {
            assert_eq!(status.word().parse(), Ok(status));
            assert_eq!(status.word().replace(' ', "-").parse(), Ok(status));
        }
        assert_eq!("done".parse(), Ok(TrialStatus::Completed));
        assert_eq!("no memory".parse(), Ok(TrialStatus::OutOfMemory));
        for state in [
            State::Created,
            State::Open,
            State::Ended(TrialStatus::OutOfMemory),
            State::Ended(TrialStatus::Failed),
        ] {
            assert_eq!(State::parse(state.word()), Some(state));
        }
        assert!("ok".parse::<TrialStatus>().expect_err("no status").contains("out-of-memory"));
    }
}
