//! The contents of the rows of a table.

use std::time::Duration;

use leasehold_backend::cell::Cell;
use leasehold_backend::sql::{resource_of, unsigned};
use leasehold_core::{Failure, Fence, Resource};
use tokio_postgres::Row;

use crate::net::dial::read;

/// Returns the resource of a row.
pub(crate) fn named(row: &Row) -> Result<Resource, Failure> {
    resource_of(read(row, 0)?)
}

/// Reads claims, version, epoch, seq, age, the present epoch and the server's clock, from the column `at` on.
pub(crate) fn cell(row: &Row, at: usize) -> Result<Cell, Failure> {
    let fence = fence(row, at + 2)?;
    let age = u64::try_from(read::<i64>(row, at + 4)?).unwrap_or_default();
    let (epoch, now) = (unsigned(read(row, at + 5)?), unsigned(read(row, at + 6)?));
    Ok(Cell {
        text: read(row, at)?,
        version: unsigned(read(row, at + 1)?),
        fence,
        floor: Fence { epoch: epoch.max(fence.epoch), seq: fence.seq.max(now), ..fence },
        age: Some(Duration::from_micros(age)),
    })
}

pub(crate) fn fence(row: &Row, at: usize) -> Result<Fence, Failure> {
    Ok(Fence { epoch: unsigned(read(row, at)?), seq: unsigned(read(row, at + 1)?), sub: 0 })
}

/// Returns the first text that comes after all that begin with `prefix`, byte by byte.
pub(crate) fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let mut after = (u32::from(last) + 1..=u32::from(char::MAX)).filter_map(char::from_u32);
        if let Some(next) = after.next() {
            end.push(next);
            return end;
        }
    }
    // No name is as long as this one.
    char::MAX.to_string().repeat(Resource::MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        for prefix in ["", "a", "é", "a\u{10ffff}", "\u{d7ff}"] {
            let end = end_of(prefix);
            assert!(format!("{prefix}\u{10ffff}zz") < end, "{prefix:?}");
        }
        assert_eq!(end_of("a/"), "a0");
        assert_eq!(end_of("a\u{10ffff}"), "b");
    }
}
