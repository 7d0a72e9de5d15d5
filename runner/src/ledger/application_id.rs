//! Mark in a file's header by which a history is told from databases of other programs.

use super::BoxError;
use rusqlite::Connection;

/// `DTRN`: SQLite application id of a history.
pub(super) const APPLICATION_ID: i32 = 0x4454_524E;

/// Returns `Err` unless the file is a history.
pub(super) fn check_application_id(database: &Connection) -> Result<(), BoxError> {
    let id: i32 = database.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if id == APPLICATION_ID {
        Ok(())
    } else {
        Err("it is a database of another program; choose another file".into())
    }
}
