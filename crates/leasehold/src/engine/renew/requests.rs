//! The requests to renew one claim: which are open, which count, and when the next one is sent.
//!
//! Ground rules: a confirmation covers all requests sent before it, so neither their failures nor their successes count
//! any more. The limit on open requests holds back no renewal of a lease that can still be kept.

use std::time::Duration;

use crate::engine::retry::jittered;
use crate::mutant::mutant;

/// The renewals of one claim since the last confirmed one.
#[derive(Debug, Default)]
pub(super) struct RenewalRequests {
    /// The requests without an answer, in the order of sending. Requests before a confirmed one are removed.
    open: Vec<u64>,
    /// The number of the last confirmed request.
    confirmed: u64,
    /// `true` while a confirmation is awaited: none has come since the last request was sent.
    pub(super) is_waiting: bool,
    /// Overdue checks and failed answers since the last confirmation; one request can count twice.
    pub(super) failures: u32,
}

impl RenewalRequests {
    /// Returns `true` if one more request may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    pub(super) fn send(&mut self, number: u64) {
        self.open.push(number);
        self.is_waiting = true;
    }

    /// Records the confirmation of request `number`, which covers all requests sent before it.
    pub(super) fn confirm(&mut self, number: u64) {
        if mutant!("a renewal that hangs is waited for") {
            self.open.retain(|open| *open != number);
            self.is_waiting = !self.open.is_empty();
            return;
        }
        self.open.retain(|open| *open > number);
        self.confirmed = number;
        self.is_waiting = false;
        self.failures = 0;
    }

    /// Returns `true` if a later request was confirmed, so that neither a success nor a failure of this
    /// one matters any more.
    pub(super) fn is_overtaken(&self, number: u64) -> bool {
        number < self.confirmed
    }

    /// Records the failure of request `number`. Returns `false` if a later confirmation makes it irrelevant.
    pub(super) fn fail(&mut self, number: u64) -> bool {
        self.open.retain(|open| *open != number);
        let counts = self.is_waiting;
        self.failures += u32::from(counts);
        self.is_waiting &= !self.open.is_empty();
        counts
    }

    /// Returns the pause before the next try: from a twentieth of the ttl, growing to a tenth, so that
    /// several tries fit into the remaining validity. While several requests are open it is not capped,
    /// so that their limit is never reached before the lease is over.
    pub(super) fn pause(&self, ttl: Duration) -> Duration {
        let ceiling = ttl / if self.failures < 2 { 20 } else { 10 };
        let most = if self.open.len() < UNCAPPED_FROM { RETRY_MAX } else { Duration::MAX };
        jittered(ceiling.clamp(RETRY_MIN, most))
    }
}

/// The number of open renewals of one claim from which they are spaced by the ttl alone.
const UNCAPPED_FROM: usize = 3;
/// The maximum number of open renewals of one claim. From `UNCAPPED_FROM` on the ttl alone spaces them, so
/// this limit never holds back a renewal of a lease that can still be kept.
const OPEN_MAX: usize = 24;
const RETRY_MIN: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_confirmation_clears_overdue_renewals() {
        let mut requests = RenewalRequests::default();
        for number in [4, 7, 9] {
            requests.send(number);
        }
        requests.failures = 2;
        requests.confirm(7);
        assert_eq!((requests.open.as_slice(), requests.is_waiting, requests.failures), (&[9][..], false, 0));
        assert!(!requests.fail(4) && !requests.fail(9), "a failure that was overtaken says nothing");
        assert!(requests.is_overtaken(4) && !requests.is_overtaken(7) && !requests.is_overtaken(9));
        requests.send(12);
        requests.send(15);
        assert!(requests.fail(12) && requests.is_waiting, "another one is open");
        assert_eq!(requests.open, [15]);
        assert!(requests.fail(15) && !requests.is_waiting, "there is nothing to wait for");
        assert_eq!((requests.open.len(), requests.failures), (0, 2));
    }

    #[test]
    fn the_limit_on_open_renewals_is_not_reached_within_a_lease() {
        for ttl in [100, 3_000, 30_000, 86_400_000].map(Duration::from_millis) {
            let (mut requests, mut passed) = (RenewalRequests::default(), Duration::ZERO);
            while requests.may_send() {
                requests.send(0);
                passed += requests.pause(ttl);
                requests.failures += 1;
            }
            assert!(passed >= ttl, "{ttl:?}: none is sent after {passed:?}");
            assert_eq!(requests.open.len(), OPEN_MAX);
        }
    }

    #[test]
    fn pauses_grow_with_the_failures_and_with_what_is_open() {
        let secs = Duration::from_secs;
        let longest = |ttl, failures, open| {
            let requests = RenewalRequests { failures, open: vec![0; open], ..RenewalRequests::default() };
            // Each is at least half of the longest.
            (0..100).map(|_| requests.pause(ttl)).max().unwrap()
        };
        for failures in [0, 1] {
            assert!(longest(secs(20), failures, 1) <= secs(1), "a twentieth");
        }
        assert!(longest(secs(20), 2, 1) > secs(1), "a tenth");
        assert!(longest(secs(200), 2, UNCAPPED_FROM - 1) <= RETRY_MAX);
        assert!(longest(secs(200), 2, UNCAPPED_FROM) > RETRY_MAX);
    }
}
