//! The processor time of a test program, which says what it costs on a machine that others use as well.

use std::time::Duration;

/// Returns the time that a process and those of its descendants that it or they waited for have spent on processors;
/// `None` where the kernel does not say.
pub(super) fn time_of(process: u32) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Duration> {
    // The name of the program is in parentheses, and may have some of its own. Its state follows.
    let (_, rest) = stat.rsplit_once(") ")?;
    let ticks: Option<Vec<u64>> = rest.split(' ').skip(11).take(4).map(|field| field.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() == 4)?;
    Some(TICK * u32::try_from(ticks.iter().sum::<u64>()).ok()?)
}

/// The unit of the kernel's answer, on every architecture of Linux that Rust supports well.
const TICK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_and_that_of_children_is_summed() {
        let stat = "42 (a (strange) name) S 1 42 42 0 -1 4194304 100 200 0 0 7 8 100 200 20 0 1 0 5 6 7";
        assert_eq!(parse(stat), Some(TICK * 315));
        assert_eq!(parse("42 (cut) S 1 42"), None);
        assert_eq!(parse(""), None);
        assert!(time_of(std::process::id()).is_some());
    }
}
