//! Hosts and strikes in the history. They belong to no trial: a bad host is also bad for the next one.

use super::{BoxError, History, now_ms, stored, unstored};
use crate::fact::{HostUpdate, LedgerError};
use crate::strikes::{FORGOTTEN_MS, Strike, StrikeCause};
use rusqlite::{Connection, Transaction, params};

/// Host that has answered a controller of this history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHost {
    /// Name of the host, as shown to users.
    pub name: String,
    /// Time of the host's last answer, in milliseconds since the Unix epoch.
    pub seen_ms: u64,
}

impl History {
    /// Lists all hosts that ever answered, by name.
    pub fn hosts(&self) -> Result<Vec<KnownHost>, LedgerError> {
        self.read("read hosts from", |database| {
            let mut select = database.prepare("SELECT name, seen_ms FROM host ORDER BY name")?;
            let rows = select
                .query_map([], |row| Ok(KnownHost { name: row.get(0)?, seen_ms: unstored(row.get(1)?) }))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Removes the strikes against `host`, and the strikes against other hosts for a broken connection to it;
    /// returns the number of strikes removed.
    pub fn forgive(&mut self, host: &str) -> Result<usize, LedgerError> {
        self.write("forgive a host in", |transaction| {
            Ok(transaction.execute("DELETE FROM strike WHERE host = ?1 OR partner = ?1", [host])?)
        })
    }
}

/// Returns all unexpired strikes, oldest first. Causes that only a newer dtrain knows are skipped.
pub(super) fn strikes(database: &Connection) -> Result<Vec<Strike>, BoxError> {
    let mut select = database.prepare_cached(
        "SELECT host, partner, cause, at_ms, detail FROM strike WHERE at_ms >= ?1 ORDER BY at_ms, id",
    )?;
    let since = now_ms().saturating_sub(stored(FORGOTTEN_MS));
    let mut rows = select.query([since])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(cause) = StrikeCause::parse(row.get_ref(2)?.as_str()?) else { continue };
        let (host, partner, at_ms, detail) = (row.get(0)?, row.get(1)?, unstored(row.get(3)?), row.get(4)?);
        found.push(Strike { host, partner, cause, at_ms, detail });
    }
    Ok(found)
}

/// Stores changes to hosts, and removes expired strikes.
pub(super) fn record_hosts(transaction: &Transaction<'_>, news: &HostUpdate) -> Result<(), BoxError> {
    let now = now_ms();
    for name in &news.answered {
        transaction
            .prepare_cached(
                "INSERT INTO host(name, seen_ms) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET seen_ms = excluded.seen_ms",
            )?
            .execute(params![name, now])?;
    }
    for Strike { host, partner, cause, at_ms, detail } in &news.strikes {
        transaction
            .prepare_cached(
                "INSERT INTO strike(host, partner, cause, at_ms, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![host, partner, cause.word(), stored(*at_ms), detail])?;
    }
    if !news.strikes.is_empty() {
        let since = now.saturating_sub(stored(FORGOTTEN_MS));
        transaction.execute("DELETE FROM strike WHERE at_ms < ?1", [since])?;
    }
    Ok(())
}
