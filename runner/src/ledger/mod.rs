//! The ledger on disk: one SQLite file with every trial, what happened to it and what it measured.
//!
//! Only controllers and readers open it; ranks and agents never do. It keeps what it is told and answers
//! questions; it does not decide what a fact is, and it does not look whether a process lives.

mod bundle;
mod children;
mod chunk;
mod create;
mod figures;
mod filter;
mod fold;
pub mod glance;
mod ground;
mod hosts;
mod keep;
mod list;
mod live;
mod log;
mod lookup;
mod migrate;
mod names;
mod noise;
mod open;
mod points;
mod rates;
mod show;
mod state;
mod study;

pub use bundle::{ExportError, ImportError, Merged};
pub use children::Child;
pub use create::{Created, NewTrial, Param, Parent, Predicted, Source, flatten};
pub(crate) use figures::key_of;
pub use figures::{Measured, Summary, is_own_series, points_of, summary_of};
pub use filter::{Condition, ConditionError, Filter, Page, Relation, Sort};
pub use ground::Ground;
pub use hosts::KnownHost;
pub use list::TrialRow;
pub use lookup::LookupError;
pub use names::Names;
pub use noise::NoiseScale;
pub use points::Sample;
pub use rates::{Observation, host_digest};
pub use show::{Attempt, Checkpoint, Note, Trial, TrialOutline};
pub use state::Status;
pub use study::Tried;

use crate::fact::LedgerError;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use std::path::{Path, PathBuf};

/// Why something inside the ledger failed.
type Fault = Box<dyn std::error::Error + Send + Sync>;

/// The history of all trials: an open `history.db`.
///
/// Every writing call is one durable transaction (write-ahead log, `synchronous=FULL`; a commit costs about
/// one flush of the disk). Any number of processes may write and read at the same time.
#[derive(Debug)]
pub struct History {
    database: Connection,
    path: PathBuf,
    access: Access,
    known: Option<keep::Known>,
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
        let (database, access) = open::writer(path).map_err(|source| fault("open", path, source))?;
        Ok(Self { database, path: path.to_path_buf(), access, known: None })
    }

    /// Opens an existing history for reading only; never waits for a writer.
    pub fn open_read_only(path: &Path) -> Result<Self, LedgerError> {
        let (database, access) = open::reader(path).map_err(|source| fault("open", path, source))?;
        Ok(Self { database, path: path.to_path_buf(), access, known: None })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file; `Err` when something in it is not as it was written.
    pub fn check(&self) -> Result<(), LedgerError> {
        self.read("check", |database| {
            let found: String = database.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if found != "ok" {
                return Err(damaged(&self.path, found.trim()));
            }
            live::check(database)
        })
    }

    /// Whether every write is refused, because the file is newer or was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.access != Access::Write
    }

    /// Runs `work` in one immediate transaction: all of it is durable afterwards, or none.
    fn write<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let attempt = match &self.access {
            Access::Write => transact(&mut self.database, work),
            Access::Read => Err("it was opened for reading only".into()),
            Access::Newer(version) => Err(open::too_new(version).into()),
        };
        attempt.map_err(|source| fault(doing, &self.path, source))
    }

    /// Runs `work` on one snapshot.
    fn read<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, LedgerError> {
        let snapshot = || -> Result<T, Fault> {
            let transaction = self.database.unchecked_transaction()?;
            work(&transaction)
        };
        snapshot().map_err(|source| fault(doing, &self.path, source))
    }
}

fn transact<T>(
    database: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let answer = work(&transaction)?;
    transaction.commit()?;
    Ok(answer)
}

fn fault(doing: &'static str, path: &Path, source: Fault) -> LedgerError {
    let source = if is_damage(&*source) { damaged(path, &source.to_string()) } else { source };
    LedgerError { doing, path: path.to_path_buf(), source }
}

/// Stored bytes are not as they were written.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not as it was written")]
struct Damage(&'static str);

/// Whether the file is not as it was written.
fn is_damage(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    if error.is::<Damage>() {
        return true;
    }
    let code = error.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn damaged(path: &Path, found: &str) -> Fault {
    let path = path.display();
    format!(
        "the file is damaged ({found}); move {path}, {path}-wal and {path}-shm aside, and the next command \
        creates a new history. \
         Plans, spools and checkpoints of all trials stay below trials/"
    )
    .into()
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
