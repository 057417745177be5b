//! The number of test programs that run side by side.
//!
//! Most of them wait for a server, a lease or a failover most of the time, and a few calculate. No fixed number keeps
//! the cores busy with both kinds: so the cores are looked at, and one more program begins while they are idle.

use std::time::{Duration, Instant};

/// Decides when the next program begins.
#[derive(Debug)]
pub(super) struct Pace {
    cores: usize,
    last: Look,
}

/// The use of the cores at one moment.
#[derive(Debug)]
struct Look {
    at: Instant,
    /// `None` where the system does not say it.
    usage: Option<Usage>,
}

/// The time of all cores since the machine was started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    /// Without the time in which a core waited for a disk: a machine that swaps has no room for more programs.
    idle: u64,
    all: u64,
}

impl Pace {
    pub(super) fn new(cores: usize) -> Pace {
        Pace { cores, last: Look::now() }
    }

    /// Returns `true` if another program may begin beside so many.
    pub(super) fn admits(&mut self, running: usize) -> bool {
        if running < self.cores * ALWAYS {
            return true;
        }
        if running >= self.cores * MOST || self.last.at.elapsed() < PAUSE {
            return false;
        }
        let before = std::mem::replace(&mut self.last, Look::now()).usage;
        before.zip(self.last.usage).is_some_and(|(before, now)| now.is_idle_since(before))
    }
}

impl Look {
    fn now() -> Look {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Look { at: Instant::now(), usage: Usage::parse(&stat) }
    }
}

impl Usage {
    /// Reads the line of all cores: user, nice, system, idle, waiting for a disk, and more.
    fn parse(stat: &str) -> Option<Usage> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        // The last two columns, of guests, are in the first two already.
        let all = ticks.iter().take(8).sum();
        Some(Usage { idle: *ticks.get(3)?, all })
    }

    fn is_idle_since(self, before: Usage) -> bool {
        let (idle, all) = (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        idle * 100 > all * IDLE_PERCENT
    }
}

/// The programs for each core that run even if the cores are busy.
const ALWAYS: usize = 2;
/// The most for each core: each has servers, which take memory.
const MOST: usize = 3;
/// The idle part of all cores from which on there is room for another program.
const IDLE_PERCENT: u64 = 15;
/// The time between two looks: a program that has just begun starts its servers first, and then shows what it needs.
const PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";

    #[test]
    fn idle_time_is_read_from_the_line_of_all_cores() {
        assert_eq!(Usage::parse(STAT), Some(Usage { idle: 800, all: 1000 }));
        for damaged in ["", "cpu0 1 2 3 4 5 6 7 8 9 0", "cpu  1 2 3", "cpu  1 2 x 4 5"] {
            assert_eq!(Usage::parse(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn idle_cores_are_those_that_did_nothing_since_the_last_look() {
        let before = Usage { idle: 850, all: 1000 };
        assert!(Usage { idle: 890, all: 1200 }.is_idle_since(before));
        assert!(!Usage { idle: 880, all: 1200 }.is_idle_since(before));
        assert!(!before.is_idle_since(before));
    }

    #[test]
    fn more_than_a_few_begin_only_while_cores_are_idle() {
        let long_ago = |usage| Look { at: Instant::now().checked_sub(PAUSE).unwrap(), usage };
        // Since the start of the machine all cores were idle, or none was.
        let (idle, busy) = (Usage { idle: 0, all: 0 }, Usage { idle: u64::MAX, all: 0 });
        let mut pace = Pace::new(2);
        assert!(pace.admits(0) && pace.admits(3));
        for usage in [Some(busy), None] {
            pace.last = long_ago(usage);
            assert!(!pace.admits(4) && pace.admits(3));
        }
        pace.last = long_ago(Some(idle));
        assert!(!pace.admits(6), "servers take memory");
        if Look::now().usage.is_some_and(|now| now.is_idle_since(idle)) {
            assert!(pace.admits(4));
            assert!(!pace.admits(4), "the one that has just begun does not show what it needs yet");
        }
    }
}
