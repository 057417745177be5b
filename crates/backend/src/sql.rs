//! The common parts of SQL databases, whether they keep cells as rows or locks in sessions: connections, numbers,
//! names, answers, promises and checks.

mod connections;
mod diagnose;
mod idle_connections;

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::{
    Durability, Effect, Failure, FailureKind, FenceGrade, Liveness, LockSupport, Note, Profile, QueueOrder,
    Resource, WaitMode,
};

pub use connections::{dial_in_turn, permit};
pub use diagnose::{Rights, privileges_finding, unexamined_finding, user_for_locks};
pub use idle_connections::{ConnectionLimits, IdleConnections};

use crate::cell::{Cell, MAX_TTL, MIN_TTL, PLACE_TTL};
use crate::url::sql::SqlOptions;

/// The most claims that one request renews: a few milliseconds of the server's time.
const RENEW_BATCH_MAX: usize = 500;

/// Returns the promises of leases in the rows of a database whose fences have this grade.
pub fn lease_profile(name: &'static str, order: QueueOrder, grade: FenceGrade) -> Profile {
    Profile::new(name, Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
        .admission(LockSupport::Counted)
        .order(order)
        .fencing(grade)
        .durability(durability(grade))
        .place_ttl(if order == QueueOrder::Fifo { PLACE_TTL } else { Duration::ZERO })
        .granularity(Duration::from_millis(1))
        .renew_batch_max(RENEW_BATCH_MAX)
        .note_max(Note::MAX_BYTES)
}

/// Returns the promises of locks that connections to a database hold, without those that depend on the database: fences
/// and shared locks.
pub fn session_profile(name: &'static str, options: &SqlOptions, waiting: WaitMode) -> Profile {
    Profile::new(name, Liveness::Heartbeat { valid: options.silence })
        .waiting(waiting)
        .durability(Durability::LostOnFailover)
        .place_ttl(options.server_timeout())
        .renew_batch_max(RENEW_BATCH_MAX)
        .note_max(Note::MAX_BYTES)
}

/// Returns what can take a grant away where fences have this grade.
pub fn durability(grade: FenceGrade) -> Durability {
    match grade {
        FenceGrade::Strict => Durability::Strict,
        _ => Durability::LostOnFailover,
    }
}

/// Returns a number as databases count, with a sign. Numbers of the tables never need the last bit.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a number that [`signed`] wrote.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Returns a time in microseconds, rounded up. A sum of a few of them is still a number.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// Returns the resource of a row.
///
/// # Errors
/// `Foreign` for a name that no resource can have.
pub fn resource_of(name: &str) -> Result<Resource, Failure> {
    Resource::new(name).map_err(|error| {
        let text = format!("the table has a row that is not ours: {error}");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    })
}

/// Returns the answer to each of `count` requests that were sent as one.
pub fn each<T>(count: usize, answer: Result<Vec<T>, Failure>) -> Vec<Result<T, Failure>> {
    match answer {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(failure) => (0..count).map(|_| Err(failure.clone())).collect(),
    }
}

/// Returns the cells of these resources, in order, of those that were found.
pub fn cells_of(
    at: &[&Resource],
    found: Result<HashMap<String, Cell>, Failure>,
) -> Vec<Result<Option<Cell>, Failure>> {
    each(at.len(), found.map(|mut found| at.iter().map(|at| found.remove(at.as_str())).collect()))
}

/// Returns the failure of a table that this client is too old for.
pub fn too_new(table: &str) -> Failure {
    let text = format!("the lock table {table} was made for a newer leasehold: update this one");
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_can_be_added() {
        assert_eq!(micros(Duration::from_nanos(1_001)), 2);
        assert!(micros(Duration::MAX).checked_add(micros(Duration::MAX)).is_some());
        assert_eq!(unsigned(signed(7)), 7);
    }

    #[test]
    fn each_request_has_the_failure_of_all() {
        let answers = each::<u8>(2, Err(Failure::unanswered("no")));
        assert!(answers.len() == 2 && answers.iter().all(Result::is_err));
        assert_eq!(resource_of("a\nb").unwrap_err().kind, FailureKind::Foreign);
    }
}
