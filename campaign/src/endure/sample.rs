//! One sample: what the processes use, on average, and what the store keeps.

use serde::{Deserialize, Serialize};

/// The use of everything at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Seconds since the beginning.
    pub seconds: f64,
    /// Processes that were counted.
    pub processes: u32,
    /// Acquisitions of all processes so far.
    pub acquired: u64,
    /// Attempts that failed so far, because of faults.
    pub failed: u64,
    /// Resident memory of a process in KiB, on average.
    pub memory_kib: f64,
    /// Open descriptors of a process, on average.
    pub descriptors: f64,
    /// Threads of a process, on average.
    pub threads: f64,
    /// Tasks of the runtime of a process, on average.
    pub tasks: f64,
    /// Keys, items, rows, nodes or files of the store, if it answered.
    pub residents: Option<u64>,
}

/// The use of one process, as its `/proc` entry says; none if it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) memory_kib: u64,
    pub(super) descriptors: u64,
    pub(super) threads: u64,
}

impl Usage {
    pub(super) fn of(process: u32) -> Option<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.count();
        Some(Usage {
            memory_kib: field("VmRSS:")?,
            descriptors: descriptors as u64,
            threads: field("Threads:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.memory_kib > 100 && usage.descriptors >= 3 && usage.threads >= 1, "{usage:?}");
        assert_eq!(Usage::of(u32::MAX), None);
    }
}
