//! The contents of the rows of a table.

use std::time::Duration;

use leasehold_backend::cell::Cell;
use leasehold_core::Fence;
use rusqlite::Row;

use crate::sql::time;

/// Returns the cell in the columns from `first` on: claims, version, seq, origin. The next fence is at least
/// `low`.
pub(crate) fn cell(row: &Row<'_>, first: usize, low: i64) -> rusqlite::Result<Cell> {
    let (version, seq, origin): (i64, i64, i64) =
        (row.get(first + 1)?, row.get(first + 2)?, row.get(first + 3)?);
    let age = u64::try_from(time::now().saturating_sub(origin)).unwrap_or(0);
    Ok(Cell {
        text: row.get(first)?,
        version: version.unsigned_abs(),
        fence: fence(seq),
        floor: fence(seq.max(low - 1)),
        age: Some(Duration::from_micros(age)),
    })
}

pub(crate) fn fence(seq: i64) -> Fence {
    Fence::new(0, seq.unsigned_abs(), 0)
}
