//! What we accept as true and keep, and the place it is kept in.

use crate::strikes::Strike;
use dtrain_protocol::{AttemptId, Failure, Rank, StampedEvent, StepId, StopReason, TrialId};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;

/// Something true about a trial. The facts of a trial, in order, are enough to go on with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// An attempt is about to be launched. Recorded before it happens.
    AttemptStarted {
        /// The attempt.
        attempt: AttemptId,
        /// The checkpoint it goes on from.
        from: Option<StepId>,
    },
    /// Every rank of the attempt saved, and the agent committed.
    CheckpointCommitted {
        /// The attempt that wrote it.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
        /// The committed folder.
        folder: PathBuf,
    },
    /// A committed checkpoint was found unreadable and is no longer counted.
    CheckpointRefused {
        /// Steps completed in it.
        step: StepId,
        /// The folder.
        folder: PathBuf,
        /// Tensor, file and offset.
        reason: String,
    },
    /// The attempt is over and none of its processes lives.
    AttemptEnded {
        /// The attempt.
        attempt: AttemptId,
        /// How.
        ended: AttemptEnd,
    },
    /// The trial is over.
    TrialEnded {
        /// How.
        verdict: Verdict,
    },
    /// A stopped or failed trial is taken up again on the user's word.
    Resumed,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// All ranks did what they were told.
    Finished(StopReason),
    /// A rank, the agent or the link to it was lost.
    Lost(Failure),
    /// It could not be launched.
    NotLaunched(#[serde(deserialize_with = "failure_or_reason")] Failure),
}

/// Reads why an attempt was not launched. Earlier versions wrote the words alone.
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

/// How a trial ended. Out of memory and divergence are results, not errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It reached its end: steps, time or target.
    Completed(StopReason),
    /// A search ended it early.
    Pruned,
    /// Memory ran out.
    OutOfMemory,
    /// Loss or gradient became infinite or not a number.
    Diverged,
    /// It failed more often than it may.
    Failed(Failure),
    /// The user stopped it; it can be resumed.
    Stopped,
}

/// One batch of news about a trial, kept in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialUpdate {
    /// Facts, in order.
    pub facts: Vec<Fact>,
    /// Events whose figures are kept as metric points, in order.
    pub events: Vec<StampedEvent>,
    /// Figures that no rank tells, such as the load of the host. Points at or before the newest kept one of
    /// their series change nothing.
    pub points: Vec<MetricPoint>,
    /// How far the attempt's spool is contained in what was kept so far, in bytes.
    pub offset: Option<(AttemptId, u64)>,
    /// What is new of hosts.
    pub hosts: HostUpdate,
}

/// What is new of hosts: of all trials, and kept when they are gone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUpdate {
    /// Hosts that answered just now.
    pub answered: Vec<String>,
    /// What is held against hosts from now on.
    pub strikes: Vec<Strike>,
}

/// One figure at one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricPoint {
    /// The attempt.
    pub attempt: AttemptId,
    /// The rank it is about; 0 for what is about the host.
    pub rank: Rank,
    /// What it measures, such as `valid.loss`.
    pub key: String,
    /// Steps completed; for figures of the host, seconds since the Unix epoch.
    pub step: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The figure; may be infinite or not a number.
    pub value: f64,
}

/// Between two moments of an attempt nobody trains for longer, in milliseconds: the clock was set, or the machine slept.
const LONGEST: u64 = 600_000;

/// Milliseconds of training between two moments of an attempt, by a clock that may have been set; both since the epoch.
pub(crate) fn training_ms_between(before: u64, after: u64) -> u64 {
    after.checked_sub(before).filter(|passed| *passed <= LONGEST).unwrap_or(0)
}

/// The place facts are kept in. When a call returns `Ok`, what it was given survives a power cut.
pub trait Ledger {
    /// Keeps one batch, whole or not at all. Events and facts already kept change nothing.
    fn record(&mut self, trial: &TrialId, news: &TrialUpdate) -> Result<(), LedgerError>;

    /// All facts of a trial, in order.
    fn facts(&self, trial: &TrialId) -> Result<Vec<Fact>, LedgerError>;

    /// How long each attempt trained, in milliseconds, as far as the figures of its steps tell.
    fn trained_ms(&self, trial: &TrialId) -> Result<Vec<(AttemptId, u64)>, LedgerError>;

    /// How far the attempt's spool is kept, in bytes; 0 when nothing is.
    fn offset(&self, trial: &TrialId, attempt: AttemptId) -> Result<u64, LedgerError>;

    /// What is still held against hosts, by any trial, oldest first.
    fn strikes(&self) -> Result<Vec<Strike>, LedgerError>;
}

/// The ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} the history at {}", path.display())]
pub struct LedgerError {
    /// What was tried, such as `write to`.
    pub doing: &'static str,
    /// The database.
    pub path: PathBuf,
    /// Why not.
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
