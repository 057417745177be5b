//! The difference between the clocks of servers. Pure: it sends nothing.

use std::time::{Duration, SystemTime};

use leasehold_core::{Finding, Severity};

/// The lead of a server's clock over this machine's, in microseconds: at least and at most, by how long
/// its answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset {
    least: i64,
    most: i64,
}

impl Offset {
    /// Compares what a server answered with the time before the question and after the answer; for
    /// display only.
    pub(super) fn measured(before: SystemTime, after: SystemTime, server: Duration) -> Option<Offset> {
        let micros = |time: Duration| i64::try_from(time.as_micros()).ok();
        let here = |time: SystemTime| micros(time.duration_since(SystemTime::UNIX_EPOCH).ok()?);
        let server = micros(server)?;
        Some(Offset { least: server - here(after)?, most: server - here(before)? })
    }

    /// Returns how far the clock is from this machine's at least.
    pub(super) fn distance(self) -> Duration {
        self.from(Offset { least: 0, most: 0 })
    }

    /// Returns how far the two clocks are from each other at least.
    fn from(self, other: Offset) -> Duration {
        let micros = (self.least - other.most).max(other.least - self.most);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Judges the clocks of several servers, which carry leases to each other.
pub(super) fn judge(clocks: &[(String, Offset)]) -> Option<Finding> {
    let pairs =
        clocks.iter().enumerate().flat_map(|(n, one)| clocks[n + 1..].iter().map(move |other| (one, other)));
    let (apart, one, other) =
        pairs.map(|((one, a), (other, b))| (a.from(*b), one, other)).max_by_key(|(apart, ..)| *apart)?;
    if apart < Duration::from_secs(1) {
        return Some(Finding::new("clocks", Severity::Good, "the servers' clocks agree with each other"));
    }
    let found = format!("the clocks of {one} and {other} are {apart:.0?} apart at least");
    let finding = Finding::new("clocks", Severity::Risk, found)
        .meaning(
            "a lease ends at a time of the clock of the server that granted it, and goes to another by a failover or the move of a \
             slot: there it ends earlier or later by as much, and where it ends before its next renewal, a second holder may follow",
        )
        .advice("let all follow the same time service");
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(least_ms: i64, most_ms: i64) -> Offset {
        Offset { least: least_ms * 1000, most: most_ms * 1000 }
    }

    #[test]
    fn an_answer_that_took_long_says_little() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let measured = |before, after, server| {
            Offset::measured(at(before), at(after), Duration::from_millis(server)).unwrap().distance()
        };
        assert_eq!(measured(1_000, 1_500, 1_200), Duration::ZERO);
        assert_eq!(measured(1_000, 1_500, 3_000), Duration::from_millis(1_500));
        assert_eq!(measured(5_000, 9_000, 3_000), Duration::from_millis(2_000));
    }

    #[test]
    fn servers_are_compared_with_each_other_and_not_with_us() {
        let named = |offsets: &[Offset]| -> Vec<(String, Offset)> {
            offsets.iter().enumerate().map(|(n, offset)| (format!("s{n}"), *offset)).collect()
        };
        let severity = |offsets: &[Offset]| judge(&named(offsets)).map(|finding| finding.severity);
        assert_eq!(severity(&[]), None);
        assert_eq!(severity(&[offset(9_000, 9_100)]), None);
        assert_eq!(severity(&[offset(9_000, 9_100), offset(9_500, 9_900)]), Some(Severity::Good));
        let apart = [offset(-20, 30), offset(0, 5), offset(1_600, 1_700)];
        let finding = judge(&named(&apart)).unwrap();
        assert_eq!(finding.severity, Severity::Risk);
        assert!(finding.found.contains("s1 and s2") && finding.found.contains("2s"), "{}", finding.found);
    }
}
