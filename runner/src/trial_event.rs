//! Events of a running trial: one stream for the progress display, `--json` and tests.

use crate::Fact;
use crate::control_protocol::STOP_GRACE_PERIOD;
use crate::machine::{Blame, Growth};
use crate::strikes::ExcludedHost;
use dtrain_protocol::{AttemptId, Failure, Rank, StampedEvent, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One event of a running trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialEvent {
    /// A new record, shown once it is stored.
    Record(Fact),
    /// An event of a rank, shown once it is stored.
    Event(StampedEvent),
    /// A status change of the controller.
    Status(ControllerStatus),
}

/// Status of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerStatus {
    /// An agent is being started.
    Launching {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of ranks in the attempt.
        ranks: u32,
        /// Step of the checkpoint that the attempt resumes from; `None` if it starts anew.
        from: Option<StepId>,
    },
    /// The agent answers; its events from here on are live.
    Attached {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Process id of the agent.
        agent: u32,
    },
    /// Not all hosts answer; the attempt is launched on the others.
    HostsUnreachable {
        /// Number of the hosts that answer.
        hosts: u32,
        /// Unreachable hosts, each with the reason.
        unreachable: Vec<String>,
    },
    /// Hosts are left out of the attempt because of their strikes.
    HostsExcluded {
        /// Excluded hosts, each with the cause and the end of its exclusion.
        hosts: Vec<ExcludedHost>,
    },
    /// The hosts of the attempt are unreachable. It may continue there; the controller keeps asking.
    Unreachable {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last try to reach the hosts.
        reason: String,
        /// True if other hosts say that the ranks train; false if that is unknown.
        is_at_work: bool,
    },
    /// The hosts of the attempt were unreachable for too long: the leader is given up, and the attempt goes
    /// on without it.
    HostLost {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last try to reach the hosts.
        reason: String,
        /// Seconds that passed without an answer.
        seconds: f64,
    },
    /// A lost host came back, and its processes of an earlier attempt were ended (fencing).
    Fenced {
        /// Name of the host that came back.
        host: String,
        /// Number of the earlier attempt, whose processes still ran on the host.
        attempt: AttemptId,
    },
    /// A lost host does not answer at the end of the trial, so it is unknown whether it still runs a part of it.
    Unfenced {
        /// Name of the host.
        host: String,
    },
    /// Hosts that answer take part from now on: the attempt saves and ends, and the next one uses them too.
    Growing {
        /// Names of the hosts that are added.
        added: Vec<String>,
        /// Number of hosts until now, and from now on.
        hosts: (u32, u32),
        /// What the change brings.
        growth: Growth,
    },
    /// Hosts that answer stay idle, because a restart with them would not pay.
    NotGrowing {
        /// Names of the idle hosts.
        idle: Vec<String>,
        /// Number of hosts now, and with the idle ones.
        hosts: (u32, u32),
        /// What the change would bring.
        growth: Growth,
    },
    /// Hosts are drained: the attempt saves and ends, and the next one does not use them.
    Draining {
        /// Names of the drained hosts.
        hosts: Vec<String>,
    },
    /// All hosts of the attempt are drained, and no other answers: it continues on them.
    AllDrained {
        /// Names of the drained hosts.
        hosts: Vec<String>,
    },
    /// The user interrupted a wait: the operation is given up, or ended as soon as its hosts answer.
    Interrupted,
    /// The attempt is gone, but its spool cannot be read now; the controller tries again.
    SpoolUnavailable {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last try to read the spool.
        reason: String,
        /// Seconds after which the host with the spool is given up.
        seconds: f64,
    },
    /// The host with the rest of the spool was given up; unread events are lost.
    SpoolLost {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Error of the last try to read the spool.
        reason: String,
    },
    /// The attempt was lost; the next one follows after a backoff.
    Backoff {
        /// Number of the attempt that was lost.
        attempt: AttemptId,
        /// Length of the backoff in seconds.
        seconds: f64,
        /// Number of consecutive attempts without progress lost to failures of this kind, and the number
        /// allowed.
        failures: (u32, u32),
        /// Kind of the failure; each has a budget of its own.
        blame: Blame,
        /// Failure that lost the attempt.
        failure: Failure,
    },
    /// The ranks were asked to finish their step, save and stop.
    Stopping {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Seconds after which the ranks of a foreign program are killed; `None` for dtrain's own models,
        /// which are given up only after a long silence.
        killed_after_seconds: Option<f64>,
    },
    /// A foreign program reached its target, and its ranks were asked to stop.
    TargetReached {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Seconds after which the ranks are killed.
        killed_after_seconds: f64,
    },
    /// The rest of the attempt is being killed.
    Killing {
        /// Number of the attempt.
        attempt: AttemptId,
    },
    /// All ranks saved, but the checkpoint could not be committed; training continues.
    CommitFailed {
        /// Training steps completed in the checkpoint.
        step: StepId,
        /// Cause of the failure.
        reason: String,
    },
    /// Loss spike: several losses in a row far above the median of recent ones.
    LossSpike {
        /// Training steps completed when the loss was measured.
        step: StepId,
        /// Training loss at that step.
        loss: f64,
        /// Median of the recent losses before the spike.
        median: f64,
    },
    /// A rank computes longer than others with equal work, which wait for it.
    Straggler {
        /// Rank that is slower than the others.
        rank: Rank,
        /// Seconds that the slow rank computes per step.
        seconds: f64,
        /// Seconds that the median rank of the group computes per step.
        median: f64,
    },
    /// A record in a spool was skipped because it is damaged or unknown.
    SpoolRecordSkipped {
        /// Offset of the record in the spool, in bytes.
        offset: u64,
        /// Reason why the record was skipped.
        reason: String,
    },
    /// A spool is damaged so that the next record cannot be found; the rest is not read.
    SpoolDamaged {
        /// Path of the spool.
        spool: PathBuf,
        /// Offset of the damage in the spool, in bytes.
        offset: u64,
        /// Description of the damage.
        reason: String,
    },
}

impl ControllerStatus {
    /// Returns the status for a foreign program that reached its target.
    pub(crate) fn target_reached(attempt: AttemptId) -> Self {
        Self::TargetReached { attempt, killed_after_seconds: STOP_GRACE_PERIOD.as_secs_f64() }
    }
}

impl TrialEvent {
    /// Returns the number of the attempt that the event is about; `None` if it names none, such as the end of
    /// the trial.
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
                | ControllerStatus::Unfenced { .. }
                | ControllerStatus::Interrupted
                | ControllerStatus::Growing { .. }
                | ControllerStatus::NotGrowing { .. }
                | ControllerStatus::Draining { .. }
                | ControllerStatus::AllDrained { .. }
                | ControllerStatus::HostsExcluded { .. }
                | ControllerStatus::CommitFailed { .. }
                | ControllerStatus::LossSpike { .. }
                | ControllerStatus::Straggler { .. }
                | ControllerStatus::SpoolRecordSkipped { .. }
                | ControllerStatus::SpoolDamaged { .. },
            ) => None,
        }
    }

    /// Returns `true` if the event concerns the attempt that was named last, without naming it.
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

/// Observer of a running trial.
pub trait Observer {
    /// Handles one event of the trial. Called in the thread that drives the trial, so it should return soon.
    fn observe(&mut self, seen: &TrialEvent);
}

impl<F: FnMut(&TrialEvent)> Observer for F {
    fn observe(&mut self, seen: &TrialEvent) {
        self(seen);
    }
}
