//! The part of turso's interface that `cubecl-environment` calls, over rusqlite.
//!
//! CubeCL keeps compiled kernels in a database and opens it with turso, an SQLite in Rust: a hundred crates for one table. This program
//! links SQLite anyway, for the history of trials, so `[patch.crates-io]` in the workspace's root puts this crate in turso's place.
//!
//! Only the names and signatures are turso's. Statements run when they are called, and the futures are ready at once.
//! The file has a rollback journal instead of a write-ahead log, which needs memory that the processes share: the folder of the
//! cache may lie on a network file system.

use rusqlite::types::FromSql;
use rusqlite::{OpenFlags, Params};
use std::fmt;
use std::future::{Ready, ready};
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

/// How a transaction begins.
pub mod transaction {
    /// As SQLite names them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TransactionBehavior {
        /// The first write takes the lock.
        Deferred,
        /// The lock is taken at once.
        Immediate,
    }
}

/// Why a statement failed.
#[derive(Debug)]
pub enum Error {
    /// Another process holds the lock.
    Busy(String),
    /// Another process wrote since this transaction began. Never made here: there is no write-ahead log.
    BusySnapshot(String),
    /// A file could not be used.
    IoError(std::io::ErrorKind, &'static str),
    /// Anything else, in SQLite's words.
    Error(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(words) | Self::BusySnapshot(words) | Self::Error(words) => f.write_str(words),
            Self::IoError(kind, deed) => write!(f, "{deed}: {kind}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let is_busy = matches!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
        );
        if is_busy { Self::Busy(error.to_string()) } else { Self::Error(error.to_string()) }
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Where a database is, and how it is opened.
#[derive(Clone, Debug)]
pub struct Builder {
    path: PathBuf,
    is_read_only: bool,
}

impl Builder {
    /// A file of this machine.
    pub fn new_local(path: &str) -> Self {
        Self { path: path.into(), is_read_only: false }
    }

    /// Whether nothing may be written.
    #[must_use]
    pub fn read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Several processes may always use a file here.
    #[must_use]
    pub fn experimental_multiprocess_wal(self, _: bool) -> Self {
        self
    }

    /// `VACUUM` always works here.
    #[must_use]
    pub fn experimental_vacuum(self, _: bool) -> Self {
        self
    }

    /// The database, which is opened once to see that it can be.
    pub fn build(self) -> Ready<Result<Database>> {
        let database = Database(self);
        ready(database.connect().map(|_| database))
    }
}

/// A database, of which each connection is a handle of its own.
#[derive(Clone, Debug)]
pub struct Database(Builder);

impl Database {
    /// Another connection.
    pub fn connect(&self) -> Result<Connection> {
        let flags = if self.0.is_read_only {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        } else {
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
        };
        let connection = rusqlite::Connection::open_with_flags(&self.0.path, flags)?;
        // A file that is no database is found now, while the caller can still go without one.
        connection.query_row("PRAGMA schema_version", (), |_| Ok(()))?;
        Ok(Connection(connection))
    }
}

/// A connection to a database.
#[derive(Debug)]
pub struct Connection(rusqlite::Connection);

impl Connection {
    /// How long a statement waits for the lock of another process.
    pub fn busy_timeout(&self, limit: Duration) -> Result<()> {
        Ok(self.0.busy_timeout(limit)?)
    }

    /// Runs a statement; the number of rows that it changed.
    pub fn execute(&self, sql: &str, parameters: impl Params) -> Ready<Result<u64>> {
        ready(self.0.execute(sql, parameters).map(|rows| rows as u64).map_err(Error::from))
    }

    /// The rows that a statement finds.
    pub fn query(&self, sql: &str, parameters: impl Params) -> Ready<Result<Rows>> {
        ready(self.rows(sql, parameters).map_err(Error::from))
    }

    /// Runs `PRAGMA`, and shows each row that it answers.
    pub fn pragma_query(&self, pragma: &str, mut show: impl FnMut(&Row) -> Result<()>) -> Ready<Result<()>> {
        let rows = self.rows(&format!("PRAGMA {pragma}"), ()).map_err(Error::from);
        ready(rows.and_then(|mut rows| rows.0.try_for_each(|row| show(&row))))
    }

    /// Begins a transaction, which is undone unless it is committed.
    pub fn transaction_with_behavior(
        &mut self,
        behavior: transaction::TransactionBehavior,
    ) -> Ready<Result<Transaction<'_>>> {
        let begin = match behavior {
            transaction::TransactionBehavior::Deferred => "BEGIN DEFERRED",
            transaction::TransactionBehavior::Immediate => "BEGIN IMMEDIATE",
        };
        let begun = self.0.execute_batch(begin).map_err(Error::from);
        ready(begun.map(|()| Transaction { connection: self, is_open: true }))
    }

    fn rows(&self, sql: &str, parameters: impl Params) -> rusqlite::Result<Rows> {
        let mut statement = self.0.prepare(sql)?;
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect::<Result<_, _>>();
        let rows = statement.query_map(parameters, |values| row(values).map(Row))?;
        Ok(Rows(rows.collect::<Result<Vec<_>, _>>()?.into_iter()))
    }
}

/// A transaction on a connection.
#[derive(Debug)]
pub struct Transaction<'c> {
    connection: &'c Connection,
    is_open: bool,
}

impl Transaction<'_> {
    /// Makes everything since the begin last.
    pub fn commit(mut self) -> Ready<Result<()>> {
        let done = self.connection.0.execute_batch("COMMIT").map_err(Error::from);
        self.is_open = done.is_err();
        ready(done)
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // Without an undo the connection could begin no other; closing it undoes as well.
            drop(self.connection.0.execute_batch("ROLLBACK"));
        }
    }
}

/// The rows of a query.
#[derive(Debug)]
pub struct Rows(std::vec::IntoIter<Row>);

impl Rows {
    /// The next row.
    #[expect(clippy::should_implement_trait, reason = "the name is turso's")]
    pub fn next(&mut self) -> Ready<Result<Option<Row>>> {
        ready(Ok(self.0.next()))
    }
}

/// One row.
#[derive(Debug)]
pub struct Row(Vec<rusqlite::types::Value>);

impl Row {
    /// The value of a column.
    pub fn get<T: FromSql>(&self, column: usize) -> Result<T> {
        let value =
            self.0.get(column).ok_or_else(|| Error::Error(format!("a row has no column {column}")))?;
        T::column_result(value.into()).map_err(|error| Error::Error(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::transaction::TransactionBehavior;
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a future waits"),
        }
    }

    fn file(name: &str) -> String {
        let path = std::env::temp_dir().join(format!("turso-{}-{name}.db", std::process::id()));
        drop(std::fs::remove_file(&path));
        path.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn values_come_back_and_a_transaction_that_is_dropped_leaves_nothing() {
        let path = file("values");
        let database = now(Builder::new_local(&path).experimental_multiprocess_wal(true).build()).unwrap();
        let mut connection = database.connect().unwrap();
        connection.busy_timeout(Duration::from_secs(1)).unwrap();
        now(connection.pragma_query("synchronous = NORMAL", |_| Ok(()))).unwrap();
        now(connection.execute("CREATE TABLE entries (key BLOB, count INTEGER)", ())).unwrap();
        let insert = "INSERT INTO entries VALUES (?1, ?2)";
        for is_kept in [false, true] {
            let transaction =
                now(connection.transaction_with_behavior(TransactionBehavior::Immediate)).unwrap();
            assert_eq!(now(transaction.execute(insert, (vec![1u8, 2], 7i64))).unwrap(), 1);
            if is_kept {
                now(transaction.commit()).unwrap();
            }
        }
        let other = now(Builder::new_local(&path).read_only(true).build()).unwrap().connect().unwrap();
        let mut rows = now(other.query("SELECT key, count FROM entries WHERE count = ?1", (7i64,))).unwrap();
        let row = now(rows.next()).unwrap().expect("one row");
        assert_eq!((row.get::<Vec<u8>>(0).unwrap(), row.get::<i64>(1).unwrap()), (vec![1, 2], 7));
        assert!(now(rows.next()).unwrap().is_none(), "the first transaction was dropped");
        assert!(now(other.execute(insert, (vec![3u8], 1i64))).is_err(), "it was opened to be read");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_lock_of_another_connection_is_busy_and_a_file_of_another_kind_an_error() {
        let path = file("busy");
        let database = now(Builder::new_local(&path).build()).unwrap();
        let (mut first, mut second) = (database.connect().unwrap(), database.connect().unwrap());
        second.busy_timeout(Duration::from_millis(1)).unwrap();
        let held = now(first.transaction_with_behavior(TransactionBehavior::Immediate)).unwrap();
        let refused = now(second.transaction_with_behavior(TransactionBehavior::Immediate));
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        drop(held);
        std::fs::write(&path, "not a database, but longer than the header of one: ".repeat(4)).unwrap();
        assert!(matches!(now(Builder::new_local(&path).build()), Err(Error::Error(_))));
        std::fs::remove_file(&path).unwrap();
    }
}
