//! The settings of a monitor.

use std::time::Duration;

/// The settings of a monitor.
#[derive(Clone, Debug)]
pub struct Options {
    /// The shortest time from one refresh to the next; see [`cost`](crate::cost) for what makes it longer.
    pub interval: Duration,
    /// The most locks that an overview keeps.
    pub limit: usize,
    /// Only locks whose names begin with this.
    pub prefix: Option<String>,
    /// The number of past holders that is kept of each followed lock.
    pub history: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { interval: Duration::from_secs(2), limit: 10_000, prefix: None, history: 100 }
    }
}
