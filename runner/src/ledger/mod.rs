//! The ledger on disk: one SQLite file with every trial, its records and its points.
//!
//! Only controllers and readers open it; ranks and agents never do. It stores records and answers queries; it
//! does not decide what becomes a record, and does not check whether a process lives.

mod application_id;
mod bundle;
mod check;
mod chunk;
mod columns;
pub mod completion;
mod condition_error;
mod create;
mod derived_trials;
mod error;
mod figures;
mod file_identity;
mod file_system;
mod filter;
mod hosts;
mod interned;
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
mod throughput;
mod typical_step;
mod upgrade;
mod writer;

pub use bundle::{ImportError, MergeReport, WriteBundleError};
pub use condition_error::ConditionError;
pub use create::{ExpectedPerformance, NewTrial, Parent, TrialName, TrialParameter, ValueSource, flatten};
pub use derived_trials::DerivedTrial;
pub(crate) use figures::key_of;
pub use figures::{Summary, is_own_series, points_of, summary_of};
pub use file_system::FileSystemKind;
pub use filter::{Condition, Filter, Pagination, Relation, Sort};
pub use hosts::KnownHost;
pub use list::TrialRow;
pub use lookup::LookupError;
pub use names::KnownNames;
pub use noise_scale::NoiseScale;
pub use points::MetricSample;
pub use rates::{StepTimeObservation, host_digest};
pub use show::{Attempt, Checkpoint, Note, TrialDetails, TrialOutline};
pub use state::{TrialActivity, TrialStatus};
pub use study::StudyTrialRow;
pub use throughput::MedianWithSpread;
pub use typical_step::TypicalStep;

use crate::fact::LedgerError;
use error::{Corruption, ledger_error};
use file_identity::OpenedFiles;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};

/// Cause of an error inside the ledger.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// History of all trials: an open `history.db`.
///
/// Every write is one durable transaction (write-ahead log, `synchronous=FULL`; a commit costs about one
/// flush of the disk). Any number of processes may write and read at the same time.
#[derive(Debug)]
pub struct History {
    database: Connection,
    path: PathBuf,
    access: Access,
    presence: OpenedFiles,
    known: Option<writer::CachedFacts>,
}

/// Access that this program has to the history file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// Reading and writing are allowed.
    Write,
    /// Reading only: the caller asked for no more.
    Read,
    /// Reading only: the file has this newer version, which only a newer dtrain may write.
    Newer(String),
}

impl History {
    /// Opens the history at `path` for reading and writing; creates the file and its folder if needed.
    ///
    /// `Err` names the obstacle: a network file system, a foreign file, a newer major version.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::writer(path, open::Sharing::Shared))
    }

    /// Opens an existing history for reading only; never waits for a writer.
    ///
    /// If the folder is not writable, or the disk is full, a snapshot of the history is read.
    pub fn open_read_only(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::reader(path))
    }

    /// Opens an existing history for exclusive writing, on a disk without room for the files that programs
    /// share: no other program can use it meanwhile.
    pub fn open_alone(path: &Path) -> Result<Self, LedgerError> {
        Self::of(path, open::writer(path, open::Sharing::Alone))
    }

    fn of(path: &Path, opened: Result<open::OpenDatabase, BoxError>) -> Result<Self, LedgerError> {
        let open::OpenDatabase { database, access, presence } =
            opened.map_err(|source| ledger_error("open", path, source))?;
        Ok(Self { database, path: path.to_path_buf(), access, presence, known: None })
    }

    /// Returns the path of the history file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state folder that contains the history.
    fn root(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Returns `true` if writes are refused because the file is newer or was opened for reading.
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
            // A commit to a removed file is lost, so it only counts if the file is still there afterwards.
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

    /// Runs the queries of `work` on one snapshot of the database.
    fn read<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, BoxError>,
    ) -> Result<T, LedgerError> {
        let snapshot = || -> Result<T, BoxError> {
            let transaction = self.database.unchecked_transaction()?;
            let answer = work(&transaction);
            // Report a removed or replaced file before any result of the query.
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

/// Returns this host's clock in milliseconds since the Unix epoch; for display, never for order.
fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Converts a count to the signed integer that SQLite stores.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a stored integer back to a count; the inverse of [`stored`].
fn unstored(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests;
