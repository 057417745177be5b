//! The rules of a client that decide how much it sends: beats, batches and pauses.
//!
//! Each constant is one of the code, which a comment names. A test compares
//! them with its text, so that a change there is noticed here.

use crate::capacity::dice::Dice;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;

/// The part of the ttl after which a lease is renewed: `Tuning::renew_at` in `crates/leasehold/src/engine/mod.rs`.
pub const RENEW_AT: f64 = 1.0 / 3.0;
/// The assumed drift, as a part of the ttl: `Tuning::drift` in `crates/leasehold/src/engine/mod.rs`.
pub const DRIFT: f64 = 0.01;
/// The margin for the loss signal: `SIGNAL_MARGIN` in `crates/leasehold/src/engine/lease/term.rs`.
pub const SIGNAL_MARGIN: u64 = 2 * MS;
/// The shortest pause before a renewal is tried again: `RETRY_MIN` in `engine/renew/requests.rs`.
pub const RETRY_MIN: u64 = 5 * MS;
/// The longest, while fewer than [`UNCAPPED_FROM`] are open: `RETRY_MAX` in `engine/renew/requests.rs`.
pub const RETRY_MAX: u64 = 2 * SECOND;
/// The number of open renewals from which the ttl alone spaces them: `engine/renew/requests.rs`.
pub const UNCAPPED_FROM: usize = 3;
/// The most open renewals of one claim: `OPEN_MAX` in `engine/renew/requests.rs`.
pub const OPEN_MAX: usize = 24;

/// The pauses of a claim that polls: `FIRST_POLL`, `HEAD_POLL`, `LAST_POLL` (which is `SILENT_AFTER`) and
/// `TICK` in `crates/backend/src/cell/wait/timing.rs`.
pub const FIRST_POLL: u64 = 25 * MS;
/// The longest pause of the next in the queue.
pub const HEAD_POLL: u64 = 100 * MS;
/// The longest pause of the others.
pub const LAST_POLL: u64 = 400 * MS;
/// The time that is added to a pause that ends with another's lease.
pub const TICK: u64 = 2 * MS;

/// The longest time between two looks of a waiter that is notified: `REFRESH`, a third of `PLACE_TTL`, in
/// `cell/wait/timing.rs` and `backends/redis/src/backend/acquire.rs`.
pub const REFRESH: u64 = 20 * SECOND;
/// Waiters due within this time are looked at together: `GLANCE_AHEAD` in `backends/redis/src/wait/keepalive.rs`.
pub const GLANCE_AHEAD: u64 = 2 * SECOND;
/// The most waiters of one look: `GLANCE_MAX` in `backends/redis/src/wait/keepalive.rs`.
pub const GLANCE_MAX: u64 = 250;

/// Returns the beat to which renewals are rounded down: `next_due` in `engine/renew/renewer_task.rs`.
pub fn beat(ttl: u64) -> u64 {
    (ttl / 30).clamp(MS, SECOND)
}

/// Returns when a lease that was confirmed as of `asked_at` is renewed next: `next_due` in
/// `engine/renew/renewer_task.rs`. `phase` is by how much this process counts its beats later than others.
pub fn next_due(asked_at: u64, ttl: u64, renew_at: f64, phase: u64) -> u64 {
    let (due, beat) = (asked_at + (ttl as f64 * renew_at).round() as u64, beat(ttl));
    // A renewal is never due before the first beat, because `renew_at` is more than a thirtieth.
    (due - phase) / beat * beat + phase
}

/// Returns the number of beats between two renewals of a lease.
pub fn beats(ttl: u64, renew_at: f64) -> u64 {
    (((ttl as f64 * renew_at).round() as u64) / beat(ttl)).max(1)
}

/// Returns the part of a ttl on which a holder relies: `Term::of` in `engine/lease/term.rs`.
pub fn relied_on(ttl: u64, granularity: u64) -> u64 {
    ((ttl as f64 * (1.0 - DRIFT)) as u64).saturating_sub(granularity + SIGNAL_MARGIN)
}

/// Returns the longest pause before the next try of a renewal: `RenewalRequests::pause` in
/// `engine/renew/requests.rs`. The actual one is between half of it and all of it.
pub fn retry_pause(ttl: u64, failures: u32, open: usize) -> u64 {
    let ceiling = ttl / if failures < 2 { 20 } else { 10 };
    ceiling.clamp(RETRY_MIN, if open < UNCAPPED_FROM { RETRY_MAX } else { u64::MAX })
}

/// Returns a time between half of `pause` and all of it: `jittered` in `crates/core/src/backoff.rs`.
pub fn jittered(pause: u64, dice: &mut Dice) -> u64 {
    pause / 2 + dice.below(pause / 2 + 1)
}

/// Returns three to four quarters of `pause`: `spread` in `crates/core/src/backoff.rs`, where the part
/// follows from the id of the claim.
pub fn spread(pause: u64, dice: &mut Dice) -> u64 {
    pause * 3 / 4 + dice.below(pause / 4 + 1)
}

/// Returns when a claim polls next that has polled `round` times, with so many waiters before it:
/// `pause_in_queue` in `crates/backend/src/cell/wait/polling.rs`.
pub fn poll_pause(round: u32, before: u64, dice: &mut Dice) -> u64 {
    let doubled = (FIRST_POLL << round.min(16)).min(LAST_POLL);
    spread(doubled, dice).min(HEAD_POLL * (before + 1) + TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_beats_divide_the_time_between_two_renewals() {
        for ttl in [3, 9, 20, 30].map(|seconds| seconds * SECOND) {
            assert_eq!(beats(ttl, RENEW_AT), 10, "{ttl}");
        }
        assert_eq!((beat(300 * SECOND), beats(300 * SECOND, RENEW_AT)), (SECOND, 100));
    }

    #[test]
    fn capacity_renewal_is_on_a_beat_and_not_late() {
        let mut dice = Dice::new(1);
        for ttl in [3, 9, 20, 30, 100].map(|seconds| seconds * SECOND) {
            for _ in 0..1_000 {
                let (asked_at, phase) = (dice.below(100 * SECOND), dice.below(beat(ttl)));
                let due = next_due(asked_at, ttl, RENEW_AT, phase);
                let wanted = asked_at + (ttl as f64 * RENEW_AT).round() as u64;
                assert_eq!((due + beat(ttl) - phase) % beat(ttl), 0, "{ttl} {asked_at} {phase}");
                assert!(due <= wanted && wanted < due + beat(ttl), "{ttl} {asked_at} {phase}");
            }
        }
    }

    /// Returns the value of a constant in a source of the engine.
    fn has(path: &str, text: &str) {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let source = std::fs::read_to_string(root.join(path)).unwrap();
        assert!(source.contains(text), "{path} has no `{text}` any more: adapt the model and its page");
    }

    #[test]
    fn capacity_rules_are_those_of_the_code() {
        let requests = "crates/leasehold/src/engine/renew/requests.rs";
        has(requests, "let ceiling = ttl / if self.failures < 2 { 20 } else { 10 };");
        let renewer = "crates/leasehold/src/engine/renew/renewer_task.rs";
        has(
            renewer,
            "let beat = u64::try_from((ttl / 30).as_nanos()).unwrap_or(u64::MAX).clamp(1_000_000, 1_000_000_000);",
        );
        has(renewer, "Moment::from_nanos(due.as_nanos() / beat * beat)");
        has(requests, "const RETRY_MIN: Duration = Duration::from_millis(5);");
        has(requests, "const RETRY_MAX: Duration = Duration::from_secs(2);");
        has(requests, "const UNCAPPED_FROM: usize = 3;");
        has(requests, "const OPEN_MAX: usize = 24;");
        has("crates/leasehold/src/engine/mod.rs", "renew_at: 1.0 / 3.0,");
        has("crates/leasehold/src/engine/mod.rs", "drift: 0.01,");
        let lease = "crates/leasehold/src/engine/lease/term.rs";
        has(lease, "const SIGNAL_MARGIN: Duration = Duration::from_millis(2);");
        has(lease, "kept.saturating_sub(profile.granularity).saturating_sub(SIGNAL_MARGIN)");
        let timing = "crates/backend/src/cell/wait/timing.rs";
        has(timing, "FIRST_POLL: Duration = Duration::from_millis(25);");
        has(timing, "HEAD_POLL: Duration = Duration::from_millis(100);");
        has(timing, "LAST_POLL: Duration = SILENT_AFTER;");
        has(timing, "PLACE_TTL: Duration = Duration::from_secs(60);");
        has("crates/core/src/ledger.rs", "SILENT_AFTER: Duration = Duration::from_millis(400);");
        has("crates/core/src/backoff.rs", "pause * 3 / 4 + part_of(pause / 4, mixed)");
        let keepalive = "backends/redis/src/wait/keepalive.rs";
        has(keepalive, "const GLANCE_AHEAD: Duration = Duration::from_secs(2);");
        has(keepalive, "const GLANCE_MAX: usize = 250;");
    }
}
