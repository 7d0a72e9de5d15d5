//! Texts and names that are stored once, for all trials that share them.

use super::BoxError;
use rusqlite::{OptionalExtension, Transaction};

/// Stores a text once under its hash; returns the hash.
pub(super) fn insert_text(
    transaction: &Transaction<'_>,
    table: &str,
    column: &str,
    text: &str,
) -> Result<String, BoxError> {
    let hash = digest(text);
    transaction
        .execute(&format!("INSERT OR IGNORE INTO {table}(hash, {column}) VALUES (?1, ?2)"), [&hash, text])?;
    Ok(hash)
}

/// Returns the first 32 hex digits of a text's blake3.
pub(super) fn digest(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(32);
    hex
}

/// Returns the row number of the key `name`; inserts a new key.
pub(super) fn key_id(database: &rusqlite::Connection, name: &str) -> Result<i64, BoxError> {
    let known = database
        .prepare_cached("SELECT id FROM key WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(id);
    }
    database.prepare_cached("INSERT INTO key(name) VALUES (?1)")?.execute([name])?;
    Ok(database.last_insert_rowid())
}
