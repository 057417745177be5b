//! The time namespace of this process.

use std::fs;

/// Names the time namespace of this process by its offsets; empty for the first one.
///
/// Two processes of one kernel with different names read different times since boot.
pub fn time_namespace() -> String {
    named_by(&fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default())
}

fn named_by(offsets: &str) -> String {
    let fields: Vec<&str> = offsets.split_whitespace().collect();
    // Offsets of zero are those of the first namespace, however they are written.
    let is_first = fields
        .iter()
        .all(|field| matches!(*field, "monotonic" | "boottime") || field.trim_matches('0').is_empty());
    if is_first { String::new() } else { fields.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_offsets_are_the_first_namespace() {
        assert_eq!(named_by(""), "");
        assert_eq!(named_by("monotonic           0         0\nboottime            0         0\n"), "");
        assert_eq!(named_by("monotonic 0 0\nboottime 86400 0\n"), "monotonic 0 0 boottime 86400 0");
    }
}
