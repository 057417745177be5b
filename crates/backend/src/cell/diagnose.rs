//! Checks that all stores with cells share.

use std::time::Duration;

use leasehold_core::{Finding, Severity};

/// Returns the finding about the store's clock, by which leases end: a clock that was set back shows in
/// cells whose origin lies ahead of it.
pub fn server_clock_finding(from_the_future: u64, ttl: Duration) -> Finding {
    if from_the_future > 0 {
        let found = format!("{from_the_future} rows were written later than the server's clock is now");
        return Finding::new("clock", Severity::Risk, found)
            .meaning("the clock was set back: leases that ran then last longer than their ttl")
            .advice("let the clock be slewed and not set, for instance by chrony");
    }
    let meaning =
        format!("a clock that is set forward by {ttl:?} would end a lease early; none was set back");
    Finding::new("clock", Severity::Good, "no row is from the future").meaning(meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_was_set_back_is_a_risk() {
        let found = [0, 1, 2].map(|rows| server_clock_finding(rows, Duration::from_secs(30)).severity);
        assert_eq!(found, [Severity::Good, Severity::Risk, Severity::Risk]);
    }
}
