//! The inputs and effects of the state machine of a trial.

use crate::fact::{AttemptEnd, Fact, Verdict};
use dtrain_protocol::{AttemptId, Failure, ResumePoint, StampedEvent, StepId};
use std::path::PathBuf;

/// A time in milliseconds on the driver's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the time that is `milliseconds` later.
    pub fn after(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

/// One input to the state machine. A repeated input, or one of an attempt that is not open, has no effect.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialInput {
    /// The agent is about to start the ranks of an attempt.
    Began {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of ranks in the attempt.
        ranks: u32,
    },
    /// An event of a rank.
    Event(StampedEvent),
    /// The agent committed a checkpoint.
    Committed {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// Path of the committed checkpoint's folder.
        folder: PathBuf,
    },
    /// The agent could not commit a checkpoint.
    CommitFailed {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of completed steps in the checkpoint.
        step: StepId,
    },
    /// The agent saw every rank end.
    Over {
        /// Number of the attempt.
        attempt: AttemptId,
        /// The result of the attempt.
        ended: AttemptEnd,
    },
    /// No process of the attempt is alive or will start, and its whole spool was read, except on a host that
    /// was given up.
    Gone {
        /// Number of the attempt.
        attempt: AttemptId,
        /// The host that was given up, as a failure. Counts only if the attempt reported no other failure.
        lost: Option<Failure>,
    },
    /// The reachable hosts have all files of a committed checkpoint. Sent only while disks are searched.
    Found {
        /// The attempt that wrote the checkpoint.
        attempt: AttemptId,
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// Path of the checkpoint folder.
        folder: PathBuf,
    },
    /// The folder of a durable checkpoint no longer exists. Sent only while disks are searched.
    Missing {
        /// Path of the missing folder.
        folder: PathBuf,
    },
    /// All reachable disks were searched.
    DiscoveryDone,
    /// The attempt could not be launched; none of its processes is alive or will start.
    LaunchFailed {
        /// Number of the attempt.
        attempt: AttemptId,
        /// The reason why the launch failed.
        failure: Failure,
    },
    /// A timer tick: deadlines are checked.
    Tick,
    /// The user asks to stop: the first time after the current step, the second time immediately.
    Stop,
    /// The user asks to resume the trial.
    Resume,
}

impl TrialInput {
    /// Returns `true` if the input is a result of the search for checkpoints.
    pub fn is_from_discovery(&self) -> bool {
        matches!(self, Self::Found { .. } | Self::Missing { .. } | Self::DiscoveryDone)
    }
}

/// One action for the driver to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialEffect {
    /// Write this fact durably before the effects that follow.
    Record(Fact),
    /// Search all disks for checkpoints that [`super::TrialMachine::would_adopt`] accepts; answer with
    /// [`TrialInput::Found`] for each, oldest first, then [`TrialInput::DiscoveryDone`]. Pending answers of
    /// an earlier search are dropped. No attempt is alive.
    Discover,
    /// Start the agent of an attempt.
    Launch {
        /// Number of the attempt.
        attempt: AttemptId,
        /// The checkpoint to resume from; `None` starts from step 0.
        from: Option<ResumePoint>,
    },
    /// Ask the ranks to finish their step, save and stop.
    SendStop {
        /// Number of the attempt.
        attempt: AttemptId,
    },
    /// Kill the agent and the ranks, then answer with [`TrialInput::Gone`].
    Kill {
        /// Number of the attempt.
        attempt: AttemptId,
    },
    /// Answer with [`TrialInput::Tick`] at this time.
    WakeAt(Millis),
    /// The trial is over.
    Done {
        /// The verdict of the trial.
        verdict: Verdict,
    },
}
