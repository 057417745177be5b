//! The calls of other waiters that a waiter is notified of, and the moment at which it checks them.
//!
//! Live waiters answer within milliseconds, and the other waiters are notified of that, too: as long as all
//! live, no waiter checks. If a call stays unanswered, all waiters that know of it check at slightly
//! different times. The others are notified when the first of them calls more of the queue, and wait
//! again.

use std::collections::HashSet;
use std::time::Duration;

use crate::{CALL_GRACE, CHALLENGE_AFTER, Moment, PROBE_AFTER, PROBED_PER_SILENT, SILENT_AFTER};

/// The unanswered calls of other waiters that a waiter was notified of since its last check.
#[derive(Clone, Debug, Default)]
pub struct CallWatch {
    unanswered: HashSet<u32>,
    /// The number of claims called since all calls were answered.
    called: usize,
    first_call: Option<Moment>,
    last_call: Option<Moment>,
    /// The moment to check because capacity became free for which no waiter was called.
    unused: Option<Moment>,
    last_unused: Option<Moment>,
}

impl CallWatch {
    /// Forgets all calls, for a waiter that checks now and sees which claims are called.
    pub fn checked(&mut self) {
        *self = CallWatch { last_unused: self.last_unused, ..CallWatch::default() };
    }

    /// Records that capacity became free at `now` for which no waiter was called. A waiter in front that
    /// cannot use it may be dead, and is challenged by a check; live waiters are not challenged for each
    /// release.
    pub fn freed(&mut self, now: Moment) {
        if self.unused.is_none() {
            self.unused = Some(self.last_unused.map_or(now, |last| now.max(last.after(CHALLENGE_AFTER))));
            self.last_unused = self.unused;
        }
    }

    /// Records the claims that were called at `now`, and the one that has answered.
    pub fn record(&mut self, called: &[u32], answered: Option<u32>, now: Moment) {
        if let Some(answered) = answered {
            self.unanswered.remove(&answered);
        }
        if self.unanswered.is_empty() {
            (self.called, self.first_call, self.last_call) = (0, None, None);
        }
        if called.is_empty() {
            return;
        }
        // Another waiter has checked what became free.
        self.unused = None;
        self.unanswered.extend(called);
        self.called = self.called.saturating_add(called.len());
        self.first_call = self.first_call.or(Some(now));
        self.last_call = Some(now);
    }

    /// Returns when to check: because of what became free, when a check calls more of the queue, or when the
    /// first that was called is passed over. `None` where nothing became free and all have answered.
    pub fn check_at(&self) -> Option<Moment> {
        [self.unused, self.unanswered_at()].into_iter().flatten().min()
    }

    fn unanswered_at(&self) -> Option<Moment> {
        let (first_call, last_call) = (self.first_call?, self.last_call?);
        let passed_over = first_call.after(CALL_GRACE);
        let silent = self.unanswered.len();
        if self.called == 1 {
            return Some(first_call.after(PROBE_AFTER));
        }
        // The waiters to call instead of the silent ones may have been called already.
        if silent < PROBED_PER_SILENT && silent.saturating_mul(PROBED_PER_SILENT) <= self.called {
            return Some(passed_over);
        }
        let silent_at = if first_call == last_call { PROBE_AFTER } else { SILENT_AFTER };
        Some(last_call.after(silent_at).min(passed_over))
    }
}

/// Returns the delay of a check by a waiter with `behind` others before it, if several check at the same
/// moment.
///
/// The others are notified of what the first check found. So few check at once, no matter which of them live,
/// and the last of a long queue is late by a fraction of what a call may take.
pub fn stagger(behind: u32) -> Duration {
    STEP.mul_f64(f64::from(behind).ln_1p() / std::f64::consts::LN_2)
}

/// The delay of a waiter that has twice as many before it.
const STEP: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(1_000 + ms)
    }

    #[test]
    fn answered_call_needs_no_further_check() {
        let mut watch = CallWatch::default();
        watch.record(&[7], None, at(0));
        assert_eq!(watch.check_at(), Some(at(250)));
        watch.record(&[], Some(9), at(1));
        assert_eq!(watch.check_at(), Some(at(250)), "another has answered");
        watch.record(&[], Some(7), at(2));
        assert_eq!(watch.check_at(), None);
        watch.record(&[8], Some(7), at(3));
        assert_eq!(watch.check_at(), Some(at(253)));
    }

    #[test]
    fn next_check_is_due_only_if_more_waiters_are_called() {
        let mut watch = CallWatch::default();
        let others: Vec<u32> = (1..32).collect();
        watch.record(&[0], None, at(0));
        watch.record(&others, None, at(250));
        assert_eq!(watch.check_at(), Some(at(650)), "all of them are silent");
        for other in &others {
            watch.record(&[], Some(*other), at(251));
        }
        assert_eq!(watch.check_at(), Some(at(1_000)), "the first alone is dead");
        watch.record(&[40], None, at(1_001));
        assert_eq!(watch.check_at(), Some(at(1_000)));
    }

    #[test]
    fn more_are_called_until_each_silent_one_has_enough() {
        let mut watch = CallWatch::default();
        watch.record(&[0], None, at(0));
        let others: Vec<u32> = (1..33).collect();
        watch.record(&others, None, at(250));
        for other in &others[1..] {
            watch.record(&[], Some(*other), at(251));
        }
        // Two are silent, and 33 were called, which are enough for one.
        assert_eq!(watch.check_at(), Some(at(650)));
        let more: Vec<u32> = (33..64).collect();
        watch.record(&more, None, at(400));
        for other in &more {
            watch.record(&[], Some(*other), at(401));
        }
        assert_eq!(watch.check_at(), Some(at(1_000)), "64 are enough for two");
    }

    #[test]
    fn all_of_the_queue_is_called_for_as_many_silent_ones() {
        let mut watch = CallWatch::default();
        watch.record(&[0], None, at(0));
        let others: Vec<u32> = (1..32 * 32).collect();
        watch.record(&others, None, at(250));
        for other in &others[31..] {
            watch.record(&[], Some(*other), at(251));
        }
        // 1,024 would be enough for 32 of them, but for so many all are called.
        assert_eq!(watch.check_at(), Some(at(650)));
        watch.record(&[], Some(others[30]), at(252));
        assert_eq!(watch.check_at(), Some(at(1_000)));
    }

    #[test]
    fn unused_capacity_is_checked_at_once_but_not_often() {
        let mut watch = CallWatch::default();
        watch.freed(at(0));
        assert_eq!(watch.check_at(), Some(at(0)));
        watch.checked();
        assert_eq!(watch.check_at(), None);
        watch.freed(at(10));
        watch.freed(at(20));
        assert_eq!(watch.check_at(), Some(at(4_000)));
        watch.record(&[3], None, at(30));
        assert_eq!(watch.check_at(), Some(at(280)), "another has looked, and challenged somebody");
        watch.record(&[], Some(3), at(40));
        assert_eq!(watch.check_at(), None, "what became free was checked");
    }

    #[test]
    fn stagger_of_a_long_queue_is_short() {
        assert_eq!(stagger(0), Duration::ZERO);
        assert!(stagger(1) >= Duration::from_millis(5) && stagger(3) > stagger(2));
        assert!(stagger(10_000) < Duration::from_millis(70));
    }
}
