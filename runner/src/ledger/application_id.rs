//! SQLite application id of a history, which tells it from databases of other programs.

use super::BoxError;
use rusqlite::Connection;

/// `DTRN`, the SQLite application id of a history.
pub(super) const APPLICATION_ID: i32 = 0x4454_524E;

/// Checks that a database is a history by its application id; otherwise returns `Err`.
pub(super) fn check_application_id(database: &Connection) -> Result<(), BoxError> {
    let id: i32 = database.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if id == APPLICATION_ID {
        Ok(())
    } else {
        Err("it is a database of another program; choose another file".into())
    }
}
