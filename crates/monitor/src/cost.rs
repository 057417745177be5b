//! The cost of a refresh for the store, and its bounds.
//!
//! One refresh is one listing, and up to [`looks_in`] looks at single locks. The pause between two refreshes is the
//! longest of these times, see [`pause_after`]:
//!
//! - the interval of the options;
//! - nine times as long as the listing took, so listing takes up a tenth of the time at most;
//! - half a millisecond for each lock of the listing, so 10,000 locks are listed every five seconds at most.
//!
//! A minute is the longest pause. After a refresh that failed, the pause is as long as the refresh took, and twice as
//! long after each further failure, up to eight times: a short outage is seen to end soon, and a store that is slow to
//! fail is soon asked seldom.
//!
//! The whole listing is one call of [`Client::list`](leasehold::Client::list), because a page of its own would cost
//! some stores as much as the whole. What that call and a look cost:
//!
//! | store | one listing of n locks | one look |
//! |---|---|---|
//! | `mem:` | a walk through the names under one mutex | a read under the same mutex |
//! | `file:` | one read of the directory; for each lock, one read of its ledger and one probe for each claim | the same for one lock |
//! | `redis:` and its cluster | one `SCAN` of all keys of the database on each server, in steps of bounded size; a counting script for each 500 locks | one script, read-only |
//! | `redlock:` | one `SCAN` of all keys on each server | one script on each server |
//! | `etcd:` | a range over the keys, without values, 2,000 in a page | one range, and a question for the time left of each lease, up to 64 |
//! | `zk:` | one `sync`, one list of children, and one more list of children for each lock | one list of children, and one read for each claim |
//! | `postgres:`, `mysql:`, `sqlite:` | one indexed query for each 500 rows | one query of one row |
//! | the same with locks of connections | one query of the server's list of locks | the same query |
//! | `memcached:` | one dump of the names of all items on each server; a multi-get for each 500 locks | one get |
//!
//! Deadlocks are searched every ten seconds at most, and only if some wait is announced. A search reads the
//! announcements (one look, or 32 on a store without shared locks) and the queues in question.

use std::time::Duration;

/// Returns the pause after a refresh whose listing took so long and has so many locks.
pub fn pause_after(interval: Duration, listing: Duration, locks: usize) -> Duration {
    interval.max(least_pause(listing, locks)).min(LONGEST_PAUSE)
}

/// Returns the pause that is kept even if a refresh is requested earlier.
pub(crate) fn least_pause(listing: Duration, locks: usize) -> Duration {
    let for_locks = PAUSE_PER_LOCK.saturating_mul(u32::try_from(locks).unwrap_or(u32::MAX));
    (listing * IDLE_PARTS).max(for_locks).max(SHORTEST_PAUSE).min(LONGEST_PAUSE)
}

/// Returns the time that counts for a listing after a refresh that failed after so long, as the last of so many in a
/// row. The pause after the first is as long as it took.
pub(crate) fn after_failure(took: Duration, failures: u32) -> Duration {
    let parts = 1 << failures.saturating_sub(1).min(MOST_DOUBLINGS);
    took * parts / IDLE_PARTS
}

/// Returns the number of locks that are looked at in a refresh, if the pause after it is so long: fifty for each
/// second.
pub fn looks_in(pause: Duration) -> usize {
    let looks = pause.as_millis() * LOOKS_PER_SECOND / 1000;
    usize::try_from(looks).unwrap_or(usize::MAX).clamp(LEAST_LOOKS, MOST_LOOKS)
}

/// Returns what a listing costs a store of this kind, for people. The name is that of the store's
/// [`Profile`](leasehold::Profile).
pub fn of_listing(store: &str) -> &'static str {
    match store {
        "file" => "one read of the directory, and one read of a ledger for each lock",
        "redis" => "one SCAN of all keys on each server, and one script for each 500 locks",
        "redlock" => "one SCAN of all keys on each server",
        "etcd" => "one range over the keys, 2,000 in a page",
        "zk" => "one list of children, and one more for each lock",
        "postgres" | "mysql" | "sqlite" => "one query for each 500 locks",
        "memcached" => "one dump of all names on each server, and one multi-get for each 500 locks",
        _ => "one listing",
    }
}

const IDLE_PARTS: u32 = 9;
/// Three make the pause about as long as after a listing that succeeded.
const MOST_DOUBLINGS: u32 = 3;
const PAUSE_PER_LOCK: Duration = Duration::from_micros(500);
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const LOOKS_PER_SECOND: u128 = 50;
/// A screen of rows is always looked at.
const LEAST_LOOKS: usize = 50;
const MOST_LOOKS: usize = 1_000;
