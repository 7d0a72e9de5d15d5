//! What goes into the machine and what comes out.

use crate::fact::{AttemptEnd, Fact, Verdict};
use dtrain_protocol::{AttemptId, Failure, ResumePoint, StampedEvent, StepId};
use std::path::PathBuf;

/// Milliseconds on the driver's own clock, which never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// So many milliseconds later.
    pub fn after(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

/// Something that happened. Told again, or told by an attempt that is not the open one, it changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialInput {
    /// The agent of an attempt is about to start so many ranks.
    Began {
        /// The attempt.
        attempt: AttemptId,
        /// Its ranks.
        ranks: u32,
    },
    /// A rank said something.
    Event(StampedEvent),
    /// The agent committed a checkpoint.
    Committed {
        /// The attempt.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
        /// The committed folder.
        folder: PathBuf,
    },
    /// The agent could not commit a checkpoint.
    CommitFailed {
        /// The attempt.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
    },
    /// The agent saw the end of every rank.
    Over {
        /// The attempt.
        attempt: AttemptId,
        /// How it ended.
        ended: AttemptEnd,
    },
    /// No process of the attempt lives, nor ever will, and all it left behind was told, but for what lies on a host that was given up.
    Gone {
        /// The attempt.
        attempt: AttemptId,
        /// The host that was given up, as a failure; it counts where the attempt told of no other.
        lost: Option<Failure>,
    },
    /// Hosts that can be asked have a committed checkpoint, and all files of it. Told only while the disks are looked at.
    Found {
        /// The attempt that wrote it.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
        /// The folder.
        folder: PathBuf,
    },
    /// The folder of a durable checkpoint is no longer there. Told only while the disks are looked at.
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// All disks that can be asked were.
    DiscoveryDone,
    /// The attempt could not be launched; none of its processes lives, nor ever will.
    LaunchFailed {
        /// The attempt.
        attempt: AttemptId,
        /// Why not.
        failure: Failure,
    },
    /// Time has passed.
    Tick,
    /// The user wants the trial to stop: once after its step, twice at once.
    Stop,
    /// The user wants the trial to go on.
    Resume,
}

impl TrialInput {
    /// Whether it is a result of the search for checkpoints.
    pub fn is_from_discovery(&self) -> bool {
        matches!(self, Self::Found { .. } | Self::Missing { .. } | Self::DiscoveryDone)
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialEffect {
    /// Keep this before anything that follows is done.
    Record(Fact),
    /// Ask all disks for checkpoints that [`super::TrialMachine::would_adopt`], say [`TrialInput::Found`] of each, oldest first, then
    /// [`TrialInput::DiscoveryDone`]; what an earlier search led to and was not said yet is not said any more. No attempt lives.
    Discover,
    /// Start the agent of an attempt.
    Launch {
        /// The attempt.
        attempt: AttemptId,
        /// Where it goes on from.
        from: Option<ResumePoint>,
    },
    /// Ask the ranks to finish their step, save and stop.
    SendStop {
        /// The attempt.
        attempt: AttemptId,
    },
    /// Kill the agent and the ranks, then say [`TrialInput::Gone`].
    Kill {
        /// The attempt.
        attempt: AttemptId,
    },
    /// Say [`TrialInput::Tick`] then.
    WakeAt(Millis),
    /// The trial is over.
    Done {
        /// How.
        verdict: Verdict,
    },
}
