//! What a trial shows while it runs: one stream that the progress display, `--json` and tests read alike.

use crate::Fact;
use crate::agent::STOP_GRACE_PERIOD;
use crate::machine::Blame;
use crate::strikes::ExcludedHost;
use dtrain_protocol::{AttemptId, Failure, Rank, StampedEvent, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One thing seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialEvent {
    /// Something accepted as true. It is seen after it was kept.
    Record(Fact),
    /// A rank said something. It is seen after it was kept, and never again.
    Event(StampedEvent),
    /// What the controller itself is about.
    Status(ControllerStatus),
}

/// What the controller is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerStatus {
    /// An agent is being started.
    Launching {
        /// The attempt.
        attempt: AttemptId,
        /// Ranks of the attempt.
        ranks: u32,
        /// Step of the checkpoint [default: all committed] it goes on from.
        from: Option<StepId>,
    },
    /// The agent answers; what it says from here on is live.
    Attached {
        /// The attempt.
        attempt: AttemptId,
        /// Process id of the agent.
        agent: u32,
    },
    /// Not all hosts answer; the attempt is launched on the others.
    HostsUnreachable {
        /// Hosts that answer.
        hosts: u32,
        /// Those that do not, each with why not.
        unreachable: Vec<String>,
    },
    /// Hosts that answer are left out of the attempt, for what is held against them.
    HostsExcluded {
        /// Which, why and until when.
        hosts: Vec<ExcludedHost>,
    },
    /// The hosts of the attempt cannot be asked. It may go on without its controller, which goes on asking.
    Unreachable {
        /// The attempt.
        attempt: AttemptId,
        /// Why they cannot.
        reason: String,
    },
    /// The hosts of the attempt could not be asked for too long: the one that led is given up, and the others go on.
    HostLost {
        /// The attempt.
        attempt: AttemptId,
        /// Why they cannot be asked.
        reason: String,
        /// For how many seconds that lasted.
        seconds: f64,
    },
    /// A host that was lost came back, and what it still ran of an earlier attempt was ended.
    Fenced {
        /// The host.
        host: String,
        /// The attempt that still ran there.
        attempt: AttemptId,
    },
    /// The user interrupted what was waited for: it is given up, or ended as soon as its hosts answer.
    Interrupted,
    /// Nothing of the attempt lives, and what it left behind cannot be read now; it is tried again.
    SpoolUnavailable {
        /// The attempt.
        attempt: AttemptId,
        /// Why it cannot.
        reason: String,
        /// After how many seconds its host is given up.
        seconds: f64,
    },
    /// The host that has what the attempt left behind was given up; what was not read by now is not known.
    SpoolLost {
        /// The attempt.
        attempt: AttemptId,
        /// Why it could not be read.
        reason: String,
    },
    /// The attempt was lost; the next follows after a pause.
    Backoff {
        /// The attempt that was lost.
        attempt: AttemptId,
        /// Length of the pause in seconds.
        seconds: f64,
        /// Attempts without progress so far that were lost by failures of the same kind, and how many are allowed.
        failures: (u32, u32),
        /// Which kind: each has a budget of its own.
        blame: Blame,
        /// Why it was lost.
        failure: Failure,
    },
    /// The ranks were asked to finish their step, save and stop.
    Stopping {
        /// The attempt.
        attempt: AttemptId,
        /// Seconds after which ranks of a foreign program that have not ended are killed; `None` for ranks of dtrain's own models,
        /// which are given up only once they have said nothing for long.
        killed_after_seconds: Option<f64>,
    },
    /// A foreign program reached its target, and its ranks were asked to stop.
    TargetReached {
        /// The attempt.
        attempt: AttemptId,
        /// Seconds after which ranks that have not ended are killed.
        killed_after_seconds: f64,
    },
    /// What is left of the attempt is being killed.
    Killing {
        /// The attempt.
        attempt: AttemptId,
    },
    /// All ranks saved, but the checkpoint could not be committed; training goes on.
    CommitFailed {
        /// Steps completed in it.
        step: StepId,
        /// Why not.
        reason: String,
    },
    /// The loss is far above what it was, several times in a row.
    LossSpike {
        /// Steps completed.
        step: StepId,
        /// The loss.
        loss: f64,
        /// The middle of those before.
        median: f64,
    },
    /// A rank computes longer than those that do the same work, which wait for it.
    Straggler {
        /// The rank.
        rank: Rank,
        /// Seconds that it computes in a step.
        seconds: f64,
        /// Seconds that the middle one of them does.
        median: f64,
    },
    /// A record of an attempt is damaged, or cannot be understood.
    SpoolRecordSkipped {
        /// Where in the spool, in bytes.
        offset: u64,
        /// Why not.
        reason: String,
    },
    /// The spool of an attempt is damaged before its end, so that the next record cannot be found; what follows is not read.
    SpoolDamaged {
        /// The file.
        spool: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
}

impl ControllerStatus {
    /// What is shown once the target of a foreign program is reached.
    pub(crate) fn target_reached(attempt: AttemptId) -> Self {
        Self::TargetReached { attempt, killed_after_seconds: STOP_GRACE_PERIOD.as_secs_f64() }
    }
}

impl TrialEvent {
    /// The attempt that it is about; `None` for what it does not name, such as the end of the trial.
    pub fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::Event(stamped) => Some(stamped.attempt),
            Self::Record(
                Fact::AttemptStarted { attempt, .. }
                | Fact::AttemptEnded { attempt, .. }
                | Fact::CheckpointCommitted { attempt, .. },
            )
            | Self::Status(
                ControllerStatus::Launching { attempt, .. }
                | ControllerStatus::Attached { attempt, .. }
                | ControllerStatus::Unreachable { attempt, .. }
                | ControllerStatus::HostLost { attempt, .. }
                | ControllerStatus::SpoolUnavailable { attempt, .. }
                | ControllerStatus::SpoolLost { attempt, .. }
                | ControllerStatus::Backoff { attempt, .. }
                | ControllerStatus::Stopping { attempt, .. }
                | ControllerStatus::TargetReached { attempt, .. }
                | ControllerStatus::Killing { attempt },
            ) => Some(*attempt),
            Self::Record(Fact::CheckpointRefused { .. } | Fact::TrialEnded { .. } | Fact::Resumed)
            | Self::Status(
                ControllerStatus::HostsUnreachable { .. }
                | ControllerStatus::Fenced { .. }
                | ControllerStatus::Interrupted
                | ControllerStatus::HostsExcluded { .. }
                | ControllerStatus::CommitFailed { .. }
                | ControllerStatus::LossSpike { .. }
                | ControllerStatus::Straggler { .. }
                | ControllerStatus::SpoolRecordSkipped { .. }
                | ControllerStatus::SpoolDamaged { .. },
            ) => None,
        }
    }

    /// Whether it is about the attempt that was named last, without naming it.
    pub fn is_of_the_same_attempt(&self) -> bool {
        matches!(
            self,
            Self::Status(
                ControllerStatus::CommitFailed { .. }
                    | ControllerStatus::LossSpike { .. }
                    | ControllerStatus::Straggler { .. }
                    | ControllerStatus::SpoolRecordSkipped { .. }
                    | ControllerStatus::SpoolDamaged { .. }
            )
        )
    }
}

/// Somebody who watches a trial.
pub trait Observer {
    /// Takes note of one thing seen. Called from the thread that drives the trial: it should return soon.
    fn observe(&mut self, seen: &TrialEvent);
}

impl<F: FnMut(&TrialEvent)> Observer for F {
    fn observe(&mut self, seen: &TrialEvent) {
        self(seen);
    }
}
