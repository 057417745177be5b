//! Which locks need a person's attention, and why.
//!
//! Ground rules: pure code. Nothing is reported of what is not known: a lock that was not looked at has no
//! age, and a look that is too old says nothing about a lease.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::{Deadlock, Resource};
use leasehold_monitor::LockRow;

/// One reason to look at a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reason {
    /// It is part of a deadlock.
    Deadlocked,
    /// Its lease was not renewed when it should have been.
    NotRenewed,
    /// A claim has waited for so long.
    LongWait(Duration),
    /// So many claims wait.
    LongQueue(usize),
    /// Claims wait although nothing holds it.
    NobodyHolds,
}

/// The weight of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Warn,
    Bad,
}

impl Reason {
    pub(super) fn weight(self) -> Weight {
        match self {
            Reason::Deadlocked | Reason::NotRenewed => Weight::Bad,
            Reason::LongWait(waited) if waited >= VERY_LONG_WAIT => Weight::Bad,
            _ => Weight::Warn,
        }
    }
}

/// A lock and the reasons to look at it, the weightiest first.
#[derive(Debug)]
pub(super) struct Concern<'a> {
    pub(super) row: &'a LockRow,
    pub(super) reasons: Vec<Reason>,
}

/// Finds the locks that need attention, the most pressing first. `left` returns the part of a lock's lease
/// that is left, if it is known.
pub(super) fn concerns<'a>(
    rows: &'a [LockRow],
    deadlocks: &[Deadlock],
    now_ms: u64,
    left: impl Fn(&LockRow) -> Option<f64>,
) -> Vec<Concern<'a>> {
    let stuck = deadlocked(deadlocks);
    let mut found: Vec<Concern<'a>> = rows
        .iter()
        .map(|row| Concern { row, reasons: reasons(row, stuck.contains(&row.name), now_ms, left(row)) })
        .filter(|concern| !concern.reasons.is_empty())
        .collect();
    let waited = |concern: &Concern<'_>| concern.row.waiting_since_unix_ms().unwrap_or(u64::MAX);
    found.sort_by_key(|concern| {
        let weight = concern.reasons.iter().map(|reason| reason.weight()).max();
        (std::cmp::Reverse((weight, concern.reasons.contains(&Reason::Deadlocked))), waited(concern))
    });
    found
}

/// Returns the locks that are part of a deadlock.
pub(super) fn deadlocked(deadlocks: &[Deadlock]) -> HashSet<&Resource> {
    let waits = deadlocks.iter().flat_map(|deadlock| &deadlock.waits);
    waits.flat_map(|wait| wait.holds.iter().chain([&wait.resource])).collect()
}

/// Returns the reasons to look at one lock, the weightiest first.
pub(super) fn reasons(row: &LockRow, is_deadlocked: bool, now_ms: u64, left: Option<f64>) -> Vec<Reason> {
    let since = row.waiting_since_unix_ms();
    let waited = since.map(|since| Duration::from_millis(now_ms.saturating_sub(since))).unwrap_or_default();
    let waiting = usize::try_from(row.waiting).unwrap_or(usize::MAX);
    let mut reasons = Vec::new();
    let mut add = |holds: bool, reason: Reason| reasons.extend(holds.then_some(reason));
    add(is_deadlocked, Reason::Deadlocked);
    add(left.is_some_and(|left| left < NOT_RENEWED), Reason::NotRenewed);
    add(waited >= LONG_WAIT, Reason::LongWait(waited));
    add(row.holders == 0 && waiting > 0 && waited >= SHORT_WAIT, Reason::NobodyHolds);
    add(waiting >= LONG_QUEUE, Reason::LongQueue(waiting));
    reasons
}

/// A holder renews after a third of its ttl, and has a second chance: with less than this left, both have
/// failed.
pub(super) const NOT_RENEWED: f64 = 0.34;
const LONG_WAIT: Duration = Duration::from_secs(60);
const VERY_LONG_WAIT: Duration = Duration::from_secs(600);
/// A free lock is granted to its first waiter within two seconds, even if dead claims are before it.
const SHORT_WAIT: Duration = Duration::from_secs(10);
const LONG_QUEUE: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::ClaimId;
    use leasehold::{ClaimInfo, DeadlockedWait, ResourceSummary, Share, Snapshot, SnapshotVersion};
    use leasehold_monitor::LockDetail;
    use std::sync::Arc;

    const NOW: u64 = 1_000_000_000;

    fn row(name: &str, holders: u32, waited: &[u64]) -> LockRow {
        let resource = Resource::new(name).unwrap();
        let claim = |since: u64| {
            ClaimInfo::new(ClaimId::from_bytes([1; 16]), Share::MUTEX).since_unix_ms(Some(since))
        };
        let snapshot = Snapshot::new(resource.clone(), SnapshotVersion::new("1"))
            .holders((0..holders).map(|_| claim(NOW)).collect())
            .waiting(waited.iter().map(|seconds| claim(NOW - seconds * 1_000)).collect());
        let waiting = u32::try_from(waited.len()).unwrap();
        let summary = ResourceSummary::new(resource, holders, waiting);
        LockRow::new(summary).detail(Some(LockDetail::new(Arc::new(snapshot), NOW)))
    }

    #[test]
    fn quiet_lock_needs_nothing() {
        assert_eq!(reasons(&row("a", 1, &[]), false, NOW, Some(0.9)), []);
        assert_eq!(reasons(&row("a", 1, &[3, 2]), false, NOW, None), []);
        assert_eq!(reasons(&row("a", 0, &[1]), false, NOW, None), [], "its waiter is about to take it");
    }

    #[test]
    fn each_reason_is_found() {
        assert_eq!(reasons(&row("a", 1, &[]), true, NOW, None), [Reason::Deadlocked]);
        assert_eq!(reasons(&row("a", 1, &[]), false, NOW, Some(0.2)), [Reason::NotRenewed]);
        assert_eq!(
            reasons(&row("a", 1, &[90, 1]), false, NOW, None),
            [Reason::LongWait(Duration::from_secs(90))]
        );
        assert_eq!(reasons(&row("a", 0, &[20]), false, NOW, None), [Reason::NobodyHolds]);
        assert_eq!(reasons(&row("a", 1, &[1; 12]), false, NOW, None), [Reason::LongQueue(12)]);
    }

    #[test]
    fn most_pressing_is_first() {
        let rows = [
            row("calm", 1, &[]),
            row("queue", 1, &[5; 12]),
            row("wait", 1, &[70]),
            row("longer", 1, &[700]),
            row("stuck", 1, &[2]),
        ];
        let wait = DeadlockedWait::new(
            ClaimId::from_bytes([2; 16]),
            "n",
            Resource::new("stuck").unwrap(),
            Share::MUTEX,
        );
        let found = concerns(&rows, &[Deadlock::new(vec![wait])], NOW, |_| None);
        let names: Vec<&str> = found.iter().map(|concern| concern.row.name.as_str()).collect();
        assert_eq!(names, ["stuck", "longer", "wait", "queue"]);
    }
}
