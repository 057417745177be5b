//! The calls to others that a waiter is notified of, and the moment at which it checks them.
//!
//! Live waiters answer within milliseconds, and the other waiters are notified of that, too: as long as
//! nobody died, nobody looks. If a call stays unanswered, all waiters that know of it look at slightly
//! different times. The first that calls more of the queue is heard by the others, which then wait
//! again.

use std::collections::HashSet;
use std::time::Duration;

use crate::{CALL_GRACE, CHALLENGE_AFTER, Moment, PROBE_AFTER, PROBED_PER_SILENT, SILENT_AFTER};

/// The unanswered calls to others of which a waiter was notified since it last looked.
#[derive(Clone, Debug, Default)]
pub struct CallWatch {
    unanswered: HashSet<u32>,
    /// The number of claims called since all calls were answered.
    called: usize,
    first: Option<Moment>,
    last: Option<Moment>,
    /// The moment to look because something became free for which nobody was called.
    unused: Option<Moment>,
    last_unused: Option<Moment>,
}

impl CallWatch {
    /// Forgets all calls, for a waiter that looks now and sees which claims are called.
    pub fn look(&mut self) {
        *self = CallWatch { last_unused: self.last_unused, ..CallWatch::default() };
    }

    /// Notes that something became free at `now` for which nobody was called. One in front that cannot use
    /// it may be dead, and is challenged by a look; those that live are not challenged for each release.
    pub fn freed(&mut self, now: Moment) {
        if self.unused.is_none() {
            self.unused = Some(self.last_unused.map_or(now, |last| now.max(last.after(CHALLENGE_AFTER))));
            self.last_unused = self.unused;
        }
    }

    /// Records the claims that were called at `now`, and the one that has answered.
    pub fn hear(&mut self, called: &[u32], answered: Option<u32>, now: Moment) {
        if let Some(answered) = answered {
            self.unanswered.remove(&answered);
        }
        if self.unanswered.is_empty() {
            (self.called, self.first, self.last) = (0, None, None);
        }
        if called.is_empty() {
            return;
        }
        // Somebody else has looked at what became free.
        self.unused = None;
        self.unanswered.extend(called);
        self.called = self.called.saturating_add(called.len());
        self.first = self.first.or(Some(now));
        self.last = Some(now);
    }

    /// Returns when to look: because of what became free, when a look calls more of the queue, or when the
    /// first that was called is passed over. `None` where nothing became free and all have answered.
    pub fn look_at(&self) -> Option<Moment> {
        [self.unused, self.unanswered_at()].into_iter().flatten().min()
    }

    fn unanswered_at(&self) -> Option<Moment> {
        let (first, last) = (self.first?, self.last?);
        let passed_over = first.after(CALL_GRACE);
        let silent = self.unanswered.len();
        if self.called == 1 {
            return Some(first.after(PROBE_AFTER));
        }
        // What is called for those that are silent may have been called already.
        if silent < PROBED_PER_SILENT && silent.saturating_mul(PROBED_PER_SILENT) <= self.called {
            return Some(passed_over);
        }
        let silent_at = if first == last { PROBE_AFTER } else { SILENT_AFTER };
        Some(last.after(silent_at).min(passed_over))
    }
}

/// Delays a look of one that has so many waiters before it, where several look because of one moment.
///
/// The others hear what the first look found. So few look at once, no matter which of them live, and the
/// last of a long line is late by a fraction of what a call may take.
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
    fn nobody_looks_after_one_that_answers() {
        let mut watch = CallWatch::default();
        watch.hear(&[7], None, at(0));
        assert_eq!(watch.look_at(), Some(at(250)));
        watch.hear(&[], Some(9), at(1));
        assert_eq!(watch.look_at(), Some(at(250)), "another has answered");
        watch.hear(&[], Some(7), at(2));
        assert_eq!(watch.look_at(), None);
        watch.hear(&[8], Some(7), at(3));
        assert_eq!(watch.look_at(), Some(at(253)));
    }

    #[test]
    fn one_looks_again_only_where_more_of_the_line_is_called() {
        let mut watch = CallWatch::default();
        let others: Vec<u32> = (1..32).collect();
        watch.hear(&[0], None, at(0));
        watch.hear(&others, None, at(250));
        assert_eq!(watch.look_at(), Some(at(650)), "all of them are silent");
        for other in &others {
            watch.hear(&[], Some(*other), at(251));
        }
        assert_eq!(watch.look_at(), Some(at(1_000)), "the first alone is dead");
        watch.hear(&[40], None, at(1_001));
        assert_eq!(watch.look_at(), Some(at(1_000)));
    }

    #[test]
    fn what_nobody_uses_is_looked_at_soon_and_not_often() {
        let mut watch = CallWatch::default();
        watch.freed(at(0));
        assert_eq!(watch.look_at(), Some(at(0)));
        watch.look();
        assert_eq!(watch.look_at(), None);
        watch.freed(at(10));
        watch.freed(at(20));
        assert_eq!(watch.look_at(), Some(at(4_000)));
        watch.hear(&[3], None, at(30));
        assert_eq!(watch.look_at(), Some(at(280)), "another has looked, and challenged somebody");
    }

    #[test]
    fn a_long_line_is_spread_over_little_time() {
        assert_eq!(stagger(0), Duration::ZERO);
        assert!(stagger(1) >= Duration::from_millis(5) && stagger(3) > stagger(2));
        assert!(stagger(10_000) < Duration::from_millis(70));
    }
}
