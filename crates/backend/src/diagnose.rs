//! Checks that several kinds of stores share: servers that elect a leader, versions, and logins.
//!
//! The checks of stores with cells, of SQL databases and of stores with sessions are in the modules `diagnose`
//! of `cell`, `sql` and `session`.

use leasehold_core::{Finding, Severity};

/// Returns the finding about servers that elect a leader among them: how many the URL names, and how many
/// answer.
///
/// `silent` are the servers of the URL that do not answer, as they are shown. `voters` is the number of
/// servers that have a vote.
pub fn servers_finding(named: usize, silent: &[String], voters: usize) -> Finding {
    let finding = |severity, found: String| Finding::new("servers", severity, found);
    if !silent.is_empty() {
        let found = format!(
            "{} of {named} servers that the URL names do not answer: {}",
            silent.len(),
            silent.join(", ")
        );
        return finding(Severity::Risk, found)
            .meaning("locks stop where one more than the quorum can spare is lost")
            .advice("see to those servers, or name the right ones");
    }
    if named < voters {
        return finding(Severity::Notice, format!("the URL names {named} of {voters} servers"))
            .meaning("when those are down, this client stops although the other servers still work")
            .advice("name all of them");
    }
    if voters == 1 {
        return finding(Severity::Notice, "the store is one server".to_owned())
            .meaning("while it is down nothing can be locked or renewed, and a lost disk loses all locks")
            .advice("use three servers where locks matter");
    }
    finding(Severity::Good, format!("all {named} servers answer"))
        .meaning(format!("{} may be lost at the same time", voters.saturating_sub(1) / 2))
}

/// Returns the finding about the clock of a store whose leader counts the time of `what`, which is leases or
/// sessions.
pub fn leader_clock_finding(what: &str) -> Finding {
    Finding::new("clock", Severity::Good, format!("{what} are counted by the leader's running clock"))
        .meaning("steps of a wall clock end no lock; only clocks that run at different rates could")
}

/// Returns the different versions that the servers reported, in order.
///
/// # Errors
/// The finding that no server reported its version.
pub fn different_versions<'a>(reported: impl Iterator<Item = &'a str>) -> Result<Vec<&'a str>, Finding> {
    let mut versions: Vec<&str> = reported.collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.is_empty() {
        return Err(Finding::new("version", Severity::Unknown, "no server reported its version"));
    }
    Ok(versions)
}

/// Returns the finding that this client needs no login, with the way to a login of its own.
pub fn open_access_finding(advice: &str) -> Finding {
    Finding::new("access", Severity::Notice, "no login is asked for")
        .meaning("anyone who reaches the server can break every lock")
        .advice(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_silent_few_or_not_named_are_found() {
        let silent = ["b:1".to_owned()];
        for (named, silent, voters, severity, found) in [
            (3, &silent[..], 3, Severity::Risk, "1 of 3 servers that the URL names do not answer: b:1"),
            (1, &[], 3, Severity::Notice, "names 1 of 3"),
            (1, &[], 1, Severity::Notice, "one server"),
            (3, &[], 3, Severity::Good, "all 3 servers answer"),
            // One of them is an observer.
            (4, &[], 3, Severity::Good, "all 4 servers answer"),
        ] {
            let finding = servers_finding(named, silent, voters);
            assert_eq!(finding.severity, severity, "{finding:?}");
            assert!(finding.found.contains(found), "{finding:?}");
        }
        assert!(servers_finding(5, &[], 5).meaning.starts_with("2 may be lost"));
    }

    #[test]
    fn each_version_is_named_once() {
        assert_eq!(different_versions(["3.9", "3.8", "3.9"].into_iter()), Ok(vec!["3.8", "3.9"]));
        assert_eq!(different_versions([].into_iter()).unwrap_err().severity, Severity::Unknown);
    }
}
