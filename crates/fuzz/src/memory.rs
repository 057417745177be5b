//! The most memory that this process has used, where the system says it.

use std::fs;

/// Returns the peak of the memory in use, 0 where it is not known.
pub(crate) fn peak() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}
