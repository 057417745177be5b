//! The time that all processes of one machine share, and how to tell that it is the same.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine started, suspend included.
pub(crate) fn now() -> i64 {
    #[cfg(target_os = "linux")]
    let time = clock_gettime(ClockId::Boottime);
    #[cfg(not(target_os = "linux"))]
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000)
}

/// This run of the machine. Another one after a reboot, when nobody holds anything any more.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The time namespace of this process: two with different ones count different times.
pub(crate) fn namespace() -> String {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let words: Vec<&str> = offsets.split_whitespace().collect();
    // Offsets of zero are those of the first namespace, however they are written.
    let is_first = words
        .iter()
        .all(|word| matches!(*word, "monotonic" | "boottime") || word.trim_matches('0').is_empty());
    if is_first { String::new() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_and_names_this_boot() {
        let before = now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(now() >= before + 2_000);
        assert_eq!(boot(), boot());
    }
}
