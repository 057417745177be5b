//! The time in which rows count, and that at which fences begin.

use rusqlite::Connection;

/// Reads the microseconds since the machine started, suspend included.
pub(crate) fn now() -> i64 {
    i64::try_from(leasehold_machine::since_boot().as_micros()).unwrap_or(i64::MAX)
}

/// Reads by how many microseconds the wall clock is ahead of [`now`].
///
/// A database reads it once, so that fences and their bounds count by one clock that does not jump.
pub(crate) fn wall_ahead(connection: &Connection) -> rusqlite::Result<i64> {
    let wall = "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    Ok(connection.query_row(wall, [], |row| row.get::<_, i64>(0))?.saturating_sub(now()))
}
