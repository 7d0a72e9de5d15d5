//! Records of a trial (`Fact`), and the interface of the ledger that stores them.

use crate::strikes::Strike;
use dtrain_protocol::{AttemptId, Failure, Rank, StampedEvent, StepId, StopReason, TrialId};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;

/// Record of a fact about a trial. The records of a trial, in order, are enough to resume it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// An attempt is about to be launched; recorded before it happens.
    AttemptStarted {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Step of the checkpoint that the attempt resumes from; `None` if it starts anew.
        from: Option<StepId>,
    },
    /// Every rank of the attempt saved, and the agent committed the checkpoint.
    CheckpointCommitted {
        /// Attempt that wrote the checkpoint.
        attempt: AttemptId,
        /// Training steps completed in the checkpoint.
        step: StepId,
        /// Path of the checkpoint's folder.
        folder: PathBuf,
    },
    /// A committed checkpoint turned out to be unreadable and no longer counts.
    CheckpointRefused {
        /// Training steps completed in the checkpoint.
        step: StepId,
        /// Path of the checkpoint's folder.
        folder: PathBuf,
        /// Tensor, file and offset of the damage.
        reason: String,
    },
    /// The attempt is over and none of its processes lives.
    AttemptEnded {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Result of the attempt.
        ended: AttemptEnd,
    },
    /// The trial is over.
    TrialEnded {
        /// Result of the trial.
        verdict: Verdict,
    },
    /// The user resumed a stopped or failed trial.
    Resumed,
}

impl Fact {
    /// Returns the failure by which an attempt was lost or not launched, if the fact records that.
    pub fn loss(&self) -> Option<&Failure> {
        match self {
            Self::AttemptEnded {
                ended: AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure),
                ..
            } => Some(failure),
            _ => None,
        }
    }
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// All ranks of the attempt ended as planned.
    Finished(StopReason),
    /// The attempt lost a rank, an agent or the connection to it.
    Lost(Failure),
    /// The launch of the attempt failed.
    NotLaunched(#[serde(deserialize_with = "failure_or_reason")] Failure),
}

/// Reads the reason of a failed launch, which earlier versions stored as text only.
fn failure_or_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Failure, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum StoredFailure {
        Reason(String),
        Failure(Failure),
    }
    Ok(match StoredFailure::deserialize(from)? {
        StoredFailure::Reason(reason) => Failure::Other(reason),
        StoredFailure::Failure(failure) => failure,
    })
}

/// Result of a trial. Out of memory and divergence are results, not errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Training reached its limit of steps or time, or its target.
    Completed(StopReason),
    /// A search ended the trial early.
    Pruned,
    /// Memory ran out.
    OutOfMemory,
    /// Loss or gradient became infinite or not a number.
    Diverged,
    /// The trial failed more often than allowed.
    Failed(Failure),
    /// The user stopped the trial; it can be resumed.
    Stopped,
}

/// Batch of changes to a trial, stored in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialUpdate {
    /// New records, in order.
    pub facts: Vec<Fact>,
    /// Events whose figures are stored as points, in order.
    pub events: Vec<StampedEvent>,
    /// Points from the controller, such as the load of the host. A point at or before the newest stored one
    /// of its series is ignored.
    pub points: Vec<MetricPoint>,
    /// Attempt, and the number of bytes of its spool that are in the history once this batch is stored.
    pub offset: Option<(AttemptId, u64)>,
    /// Changes to hosts that are stored with this batch.
    pub hosts: HostUpdate,
}

/// Changes to hosts. They belong to no trial, and stay when trials are deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUpdate {
    /// Names of the hosts that answered just now.
    pub answered: Vec<String>,
    /// New strikes against hosts.
    pub strikes: Vec<Strike>,
}

/// Point of a series: the value of one figure at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricPoint {
    /// Number of the attempt that measured the point.
    pub attempt: AttemptId,
    /// Rank that the point belongs to; 0 for figures of the host.
    pub rank: Rank,
    /// Key of the series, such as `valid.loss`.
    pub key: String,
    /// Steps completed at the point; for figures of the host, seconds since the Unix epoch.
    pub step: u64,
    /// Time of the point, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Value of the figure; may be infinite or NaN.
    pub value: f64,
}

/// Longest gap between two events, in milliseconds, that counts as training; after a longer one the clock was
/// set, or the machine slept.
const LONGEST: u64 = 600_000;

/// Returns the milliseconds of training between two events of an attempt, given their times since the Unix
/// epoch by a clock that may have been set.
pub(crate) fn training_ms_between(before: u64, after: u64) -> u64 {
    after.checked_sub(before).filter(|passed| *passed <= LONGEST).unwrap_or(0)
}

/// Store of records and points. Once a call has returned `Ok`, the stored data survives a power cut.
pub trait Ledger {
    /// Stores one batch of changes atomically. Events and records that are already stored are ignored.
    fn record(&mut self, trial: &TrialId, news: &TrialUpdate) -> Result<(), LedgerError>;

    /// Returns all records of a trial, in order.
    fn facts(&self, trial: &TrialId) -> Result<Vec<Fact>, LedgerError>;

    /// Returns the milliseconds that each attempt of a trial trained, as far as its step figures show.
    fn trained_ms(&self, trial: &TrialId) -> Result<Vec<(AttemptId, u64)>, LedgerError>;

    /// Returns the number of bytes of an attempt's spool that are stored; 0 if none.
    fn offset(&self, trial: &TrialId, attempt: AttemptId) -> Result<u64, LedgerError>;

    /// Returns the unexpired strikes against hosts, by any trial, oldest first.
    fn strikes(&self) -> Result<Vec<Strike>, LedgerError>;
}

/// Error of reading or writing the ledger.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} the history at {}", path.display())]
pub struct LedgerError {
    /// Operation that failed, such as `write to`.
    pub doing: &'static str,
    /// Path of the database.
    pub path: PathBuf,
    /// Cause of the failure.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_an_attempt_was_not_launched_is_read_as_every_version_wrote_it() {
        let old: AttemptEnd =
            serde_json::from_str(r#"{"not_launched":"no such host"}"#).expect("version 1.0");
        assert_eq!(old, AttemptEnd::NotLaunched(Failure::Other("no such host".into())));
        let failure = Failure::Infrastructure { host: Some("a".into()), detail: "no route".into() };
        let new = AttemptEnd::NotLaunched(failure);
        let json = serde_json::to_string(&new).expect("JSON");
        assert_eq!(serde_json::from_str::<AttemptEnd>(&json).expect("its own"), new);
    }
}
