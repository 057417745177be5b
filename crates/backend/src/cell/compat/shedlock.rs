//! ShedLock's table: a row a lock, whose `lock_until` is the end of the lock that is held.
//!
//! Ground rules: the statements are those of ShedLock, by the clock of the database. A row is changed only
//! where it is free, or where its `locked_by` is that of the claim; none is ever deleted, as ShedLock's
//! users do not expect it. What differs between databases is a [`ShedTable`]; everything else is written
//! here, once.

mod backend;
mod owner;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Durability, Failure, Finding, Liveness, Profile, Resource, Severity};

use crate::cell::wait::timing::{BATCH_MAX, MAX_TTL, MIN_TTL};

pub use backend::ShedBackend;

/// One table `shedlock(name, lock_until, locked_at, locked_by)` of a database.
///
/// "Now" is the clock of the database when the statement runs. What lost a race against another transaction
/// did nothing, and is sent again by the table itself.
///
/// # Errors
/// Every method fails with a [`Failure`] that says whether it may have taken effect.
#[async_trait]
pub trait ShedTable: Debug + Send + Sync + 'static {
    /// Returns the promises of locks in this table: [`shed_profile`] of the database. Constant for its
    /// life.
    fn profile(&self) -> &Profile;

    /// Returns how much its columns carry. Constant for its life.
    fn widths(&self) -> Widths;

    /// Takes a row that is not there, whose `lock_until` is not later than now, or that is this holder's
    /// own already: a repeated request takes what an earlier one took, and does not shorten it.
    async fn take(&self, hold: &RowRequest) -> Result<Taken, Failure>;

    /// Moves `lock_until` to now and the ttl, never back, where `locked_by` is the holder's and the row is
    /// still held. Answers in order whether it was.
    async fn extend(&self, holds: &[RowRequest]) -> Vec<Result<bool, Failure>>;

    /// Sets `lock_until` to now where `locked_by` is this and the row is still held. Answers in order
    /// whether it was.
    async fn free(&self, ends: &[End]) -> Vec<Result<bool, Failure>>;

    /// Returns the rows of these names that are held, in order.
    async fn held_rows(&self, names: &[String]) -> Vec<Result<Option<Row>, Failure>>;

    /// Rows that are held, whose name begins with `prefix` and comes behind `after`, in the order of the
    /// names' bytes.
    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Row>, Failure>;

    /// Examines which settings of this database help or harm these locks.
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        _ = ttl;
        Vec::new()
    }
}

/// The number of characters that the columns `name` and `locked_by` carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// The width of `name`; ShedLock's documentation has 64.
    pub name: usize,
    /// The width of `locked_by`; ShedLock's documentation has 255.
    pub locked_by: usize,
}

impl Widths {
    /// The least that this dialect can use: a name with its digest, and a holder with its id.
    pub const MIN: Widths = Widths { name: 64, locked_by: 64 };
}

/// A request for a row: its owner, and for how long.
#[derive(Clone, Debug)]
pub struct RowRequest {
    /// The row.
    pub name: String,
    /// The content of `locked_by`.
    pub by: String,
    /// The time to hold from now on.
    pub ttl: Duration,
}

/// A request to end a hold.
#[derive(Clone, Debug)]
pub struct End {
    /// The row.
    pub name: String,
    /// The content of `locked_by`.
    pub by: String,
    /// The `locked_at` of the hold to end, in microseconds since 1970 by the database's clock; any where it
    /// is `None`.
    pub since: Option<i64>,
}

/// A row that is held.
#[derive(Clone, Debug)]
pub struct Row {
    /// The row's name.
    pub name: String,
    /// `locked_by`.
    pub by: String,
    /// `locked_at`, in microseconds since 1970 by the database's clock.
    pub since: i64,
    /// The time until `lock_until`.
    pub left: Duration,
}

/// The answer to [`ShedTable::take`].
#[derive(Clone, Debug)]
pub enum Taken {
    /// The row is held now.
    Yes,
    /// Another one holds it; the row, where the same answer could carry it.
    No(Option<Row>),
}

/// Returns the promises of locks in ShedLock's table: one holder, the first that asks, and no fence.
pub fn shed_profile(name: &'static str, durability: Durability) -> Profile {
    // No fences: the other programs that write this table make none, and a counter of ours would not change
    // while they hold. No note: an id leaves no room in the narrowest column.
    Profile::new(name, Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
        .durability(durability)
        .granularity(Duration::from_millis(1))
        .renew_batch_max(BATCH_MAX)
}

/// Returns the finding about the clocks of all writers of the table: so many rows were locked later than
/// the database's clock is now.
pub fn writer_clocks_finding(ahead: Result<i64, Failure>) -> Finding {
    match ahead {
        Ok(0) => Finding::new("clock", Severity::Good, "no row is from the future")
            .meaning("all writers of the table seem to use the server's clock, in UTC"),
        Ok(ahead) => {
            let found = format!("{ahead} rows were locked later than the server's clock is now");
            Finding::new("clock", Severity::Risk, found)
                .meaning("a program writes the table by its own clock, or in another time zone: its locks last too long, and ours may look free to it")
                .advice("configure usingDbTime() in every ShedLock provider that uses this table")
        }
        Err(failure) => Finding::new("clock", Severity::Unknown, failure.to_string())
            .meaning("could not check whether all clients use the clock of the database")
            .advice("run it again when the server answers"),
    }
}

/// Returns the row of a resource: its name, or, where that is longer than the column, the head of it with a
/// digest.
fn row_name(resource: &Resource, widths: Widths) -> String {
    if resource.as_str().chars().count() <= widths.name {
        return resource.as_str().to_owned();
    }
    resource.escaped(|byte| byte.is_ascii_graphic(), widths.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_itself_where_it_fits_and_has_a_digest_where_not() {
        let name = |text: &str| row_name(&Resource::new(text).unwrap(), Widths::MIN);
        assert_eq!(name("nightly report ü"), "nightly report ü");
        let wide = "ü".repeat(64);
        assert_eq!(name(&wide), wide, "characters count, and not bytes");
        let (one, two) = (name(&"x".repeat(65)), name(&"x".repeat(66)));
        assert!(one != two && one.len() <= 64 && one.contains('~'), "{one} {two}");
    }
}
