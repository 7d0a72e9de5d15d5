//! The ledger on disk: one SQLite file with every trial, what happened to it and what it measured.
//!
//! Only controllers and readers open it; ranks and agents never do. It keeps what it is told and answers
//! questions; it does not decide what a fact is, and it does not look whether a process lives.

mod bundle;
mod check;
mod chunk;
pub mod completion;
mod create;
mod derived_trials;
mod error;
mod figures;
mod file_identity;
mod file_system;
mod filter;
mod hosts;
mod list;
mod lookup;
mod migrate;
mod names;
mod noise_scale;
mod open;
mod open_points;
mod point_log;
mod points;
mod rates;
mod relocate;
mod running_summary;
mod show;
mod snapshot;
mod state;
mod study;
mod typical_step;
mod upgrade;
mod writer;

pub use bundle::{ImportError, MergeReport, WriteBundleError};
pub use create::{ExpectedPerformance, NewTrial, Parent, TrialName, TrialParameter, ValueSource, flatten};
pub use derived_trials::DerivedTrial;
pub(crate) use figures::key_of;
pub use figures::{MedianWithSpread, Summary, is_own_series, points_of, summary_of};
pub use file_system::FileSystemKind;
pub use filter::{Condition, ConditionError, Filter, Pagination, Relation, Sort};
pub use hosts::KnownHost;
pub use list::TrialRow;
pub use lookup::LookupError;
pub use names::KnownNames;
pub use noise_scale::NoiseScale;
pub use points::MetricSample;
pub use rates::{StepTimeObservation, host_digest};
pub use show::{Attempt, Checkpoint, Note, TrialDetails, TrialOutline};
pub use state::TrialStatus;
pub use study::StudyTrialRow;
pub use typical_step::TypicalStep;

use crate::fact::LedgerError;
use error::{Corruption, ledger_error};
use file_identity::OpenedFiles;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};

/// Why something inside the ledger failed.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The history of all trials: an open `history.db`.
///
/// Every writing call is one durable transaction (write-ahead log, `synchronous=FULL`; a commit costs about
/// one flush of the disk). Any number of processes may write and read at the same time.
#[derive(Debug)]
pub struct History {
    database: Connection,
    path: PathBuf,
    access: Access,
    presence: OpenedFiles,
    known: Option<writer::CachedFacts>,
}

/// What this program may do with the file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// Everything.
    Write,
    /// It was opened for reading.
    Read,
    /// The file is of this newer version, which only a newer dtrain may write.
    Newer(String),
}

impl History {
    /// Opens the history at `path` for reading and writing; makes it, and its folder, where there is none.
    ///
    /// An `Err` names what stands in the way: a network file system, a foreign file, a newer major version.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::writer(path, open::Sharing::Shared))
    }

    /// Opens an existing history for reading only; never waits for a writer.
    ///
    /// Where the folder cannot be written, or has no room, the history is read as it is at this moment.
    pub fn open_read_only(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::reader(path))
    }

    /// Opens an existing history for writing where the disk has no room for what programs share of it: no other program can use
    /// it meanwhile.
    pub fn open_alone(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::writer(path, open::Sharing::Alone))
    }

    fn of(path: &Path, opened: Result<open::OpenDatabase, BoxError>) -> Result<Self, LedgerError> {
        let open::OpenDatabase { database, access, presence } =
            opened.map_err(|source| ledger_error("open", path, source))?;
        Ok(Self { database, path: path.to_path_buf(), access, presence, known: None })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state folder that it lies in.
    fn root(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Whether every write is refused, because the file is newer or was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.access != Access::Write
    }

    /// Runs `work` in one immediate transaction: all of it is durable afterwards, or none.
    fn write<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, LedgerError> {
        let attempt = match &self.access {
            // What is committed to a file that is gone is lost, so that it counts only when the file is there afterwards.
            Access::Write => self
                .presence
                .check()
                .and_then(|()| transact(&mut self.database, work))
                .and_then(|answer| self.presence.check().map(|()| answer)),
            Access::Read => Err("it was opened for reading only".into()),
            Access::Newer(version) => Err(open::too_new(version).into()),
        };
        attempt.map_err(|source| ledger_error(doing, &self.path, source))
    }

    /// Runs `work` on one snapshot.
    fn read<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, BoxError>,
    ) -> Result<T, LedgerError> {
        let snapshot = || -> Result<T, BoxError> {
            let transaction = self.database.unchecked_transaction()?;
            let answer = work(&transaction);
            // Whatever was found, it is the file that counts.
            self.presence.check()?;
            answer
        };
        snapshot().map_err(|source| ledger_error(doing, &self.path, source))
    }
}

fn transact<T>(
    database: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let answer = work(&transaction)?;
    transaction.commit()?;
    Ok(answer)
}

/// Milliseconds since the Unix epoch by this host's clock; for display, never for order.
fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A count as SQLite stores it: its integers are signed.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stored number that was written by [`stored`].
fn unstored(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests;
