//! The meaning of a server's version for its promises.
//!
//! Ground rules: the weakest server decides, since any of them may lead. One that does not say its
//! version decides nothing: it is most likely down, and of the version of the others.

use leasehold_core::{Durability, FenceGrade, Severity};

/// A bug of released servers that can break a promise, and the first version of each branch without it.
///
/// Branches above the last that is named never had it.
#[derive(Debug)]
pub(crate) struct KnownBug {
    /// The effect of the bug.
    pub(crate) what: &'static str,
    /// Its meaning for a lock.
    pub(crate) meaning: &'static str,
    pub(crate) severity: Severity,
    /// The versions without it, as minor and patch of version 3, the oldest branch first.
    fixed_in: &'static [(u32, u32)],
}

/// A leader that was paused for longer than a lease revokes it when it resumes, although its successor
/// extended it: a claim can be taken from a holder that did everything right.
pub(crate) const REVOKES_WRONGLY: KnownBug = KnownBug {
    what: "a leader that was paused for longer than a lease can revoke it when it resumes",
    meaning: "a lock can be taken from a holder that renewed it in time; the holder learns of it at its next renewal",
    severity: Severity::Risk,
    fixed_in: &[(4, 31), (5, 13)],
};

/// If the last revision deleted something and is compacted away, a crash before the compaction is
/// finished makes the server begin again at a lower revision.
pub(crate) const REVISIONS_FALL: KnownBug = KnownBug {
    what: "a crash within a compaction can take the revision back",
    meaning: "a fence can be given twice, or be lower than the one before",
    severity: Severity::Risk,
    fixed_in: &[(4, 32), (5, 14)],
};

/// A watch that begins at the very revision of a compaction does not see what was deleted in it.
pub(crate) const DELETES_UNSEEN: KnownBug = KnownBug {
    what: "a watch can miss what was deleted at the revision of a compaction",
    meaning: "a waiter that was not notified looks again after 3 s, 24 s and more; other clients of etcd may wait for ever",
    severity: Severity::Notice,
    fixed_in: &[(4, 36), (5, 18)],
};

/// Changes that were applied while a server crashed may be missing on that server only.
pub(crate) const DATA_DIVERGE: KnownBug = KnownBug {
    what: "a server that crashed under load can continue with different data from the rest of the cluster",
    meaning: "two servers can answer differently who holds a lock",
    severity: Severity::Risk,
    fixed_in: &[(4, 0), (5, 3)],
};

/// A server that was paused over a change of leader can answer a read that needs a quorum with what was
/// there before (etcd issue 20418, and the race between the index of a read and a change of leader).
pub(crate) const READS_STALE: KnownBug = KnownBug {
    what: "a server that was paused while another leader was elected can answer with old data",
    meaning: "a renewal can be confirmed by an old answer: where a pause, an election and a late answer fall together, a lock can be granted beside a holder that still counts on it",
    severity: Severity::Risk,
    fixed_in: &[(4, 42), (5, 28), (6, 9)],
};

/// A keep-alive can be answered with yes although the lease was revoked (etcd issue 20590).
pub(crate) const RENEWS_REVOKED: KnownBug = KnownBug {
    what: "a lease that was revoked can be reported as renewed",
    meaning: "nothing for locks, whose keys are read with each keep-alive; a waiter may learn later that it has to be queued again",
    severity: Severity::Notice,
    fixed_in: &[(4, 38), (5, 23), (6, 5)],
};

/// A server whose database is full refuses transactions that only read or delete, and a renewal is one.
pub(crate) const REFUSES_ALL_IF_FULL: KnownBug = KnownBug {
    what: "a server whose database is full refuses requests that write nothing",
    meaning: "held locks can be neither renewed nor released while the database is full",
    severity: Severity::Notice,
    fixed_in: &[(4, 20), (5, 7)],
};

/// All of them, the worst first.
pub(crate) const KNOWN_BUGS: [&KnownBug; 7] = [
    &DATA_DIVERGE,
    &REVISIONS_FALL,
    &REVOKES_WRONGLY,
    &READS_STALE,
    &REFUSES_ALL_IF_FULL,
    &RENEWS_REVOKED,
    &DELETES_UNSEEN,
];

impl KnownBug {
    /// Returns `true` if a server of this version has it. One whose version cannot be read has every
    /// bug.
    pub(crate) fn is_in(&self, version: &str) -> bool {
        let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
        let (major, minor, patch) = (parts.next().flatten(), parts.next().flatten(), parts.next().flatten());
        let (Some(major), Some(minor)) = (major, minor) else { return true };
        if major != 3 {
            return major < 3;
        }
        match self.fixed_in.iter().find(|(branch, _)| *branch == minor) {
            Some((_, first)) => patch.is_none_or(|patch| patch < *first),
            // Branches below the first that is named are not maintained any more.
            None => self.fixed_in.first().is_some_and(|(first, _)| minor < *first),
        }
    }

    /// Returns the first versions without it, for a person.
    pub(crate) fn fixed_versions(&self) -> String {
        // A branch that never had it needs no version to be named.
        let versions = self.fixed_in.iter().filter(|(_, patch)| *patch > 0);
        versions.map(|(minor, patch)| format!("3.{minor}.{patch}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns `true` if any of these servers has it, or none says its version.
    fn is_among(&self, versions: &[Option<String>]) -> bool {
        let mut known = versions.iter().flatten().peekable();
        known.peek().is_none() || known.any(|version| self.is_in(version))
    }
}

/// Returns what can take a claim away on these servers; `None` means one that did not say its version.
pub(crate) fn durability(versions: &[Option<String>]) -> Durability {
    let weak = [&REVOKES_WRONGLY, &DATA_DIVERGE, &READS_STALE].iter().any(|bug| bug.is_among(versions));
    if weak { Durability::LostOnFailover } else { Durability::Strict }
}

/// The completeness of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watches {
    Complete,
    /// A delete at the revision of a compaction may be left out: waiters have to look again now and
    /// then.
    MayMiss,
}

pub(crate) fn watches(versions: &[Option<String>]) -> Watches {
    if DELETES_UNSEEN.is_among(versions) { Watches::MayMiss } else { Watches::Complete }
}

/// Returns how far their fences, which are revisions, can be trusted.
pub(crate) fn fencing(versions: &[Option<String>]) -> FenceGrade {
    let weak = REVISIONS_FALL.is_among(versions) || DATA_DIVERGE.is_among(versions);
    if weak { FenceGrade::BestEffort } else { FenceGrade::Strict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(versions: &[&str]) -> Vec<Option<String>> {
        versions.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn servers_with_known_losses_are_not_called_strict() {
        let of = |versions: &[&str]| (durability(&reported(versions)), fencing(&reported(versions)));
        let sound = (Durability::Strict, FenceGrade::Strict);
        let stale = (Durability::LostOnFailover, FenceGrade::Strict);
        let weak = (Durability::LostOnFailover, FenceGrade::BestEffort);
        for version in ["3.4.42", "3.4.44", "3.5.28", "3.6.9", "3.7.0-alpha.0", "4.0.0"] {
            assert_eq!(of(&[version]), sound, "{version}");
        }
        for version in ["3.4.32", "3.4.41", "3.5.14", "3.5.27", "3.6.0", "3.6.0-rc.1", "3.6.8"] {
            assert_eq!(of(&[version]), stale, "{version}");
        }
        for version in
            ["3.4.31", "3.5.13", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.3.27", "2.3.8", "", "unknown"]
        {
            assert_eq!(of(&[version]), weak, "{version}");
        }
        assert_eq!(of(&["3.5.28", "3.5.1", "3.5.28"]), weak, "the weakest counts");
        let silent = [Some("3.6.9".to_owned()), None];
        assert_eq!((durability(&silent), fencing(&silent)), sound);
        assert_eq!((durability(&[None, None]), fencing(&[None, None])), weak);
    }

    #[test]
    fn known_bugs_are_reported_for_the_affected_versions() {
        let bugs = |version: &str| KNOWN_BUGS.iter().filter(|bug| bug.is_in(version)).count();
        let counts = |versions: &[&str]| versions.iter().map(|version| bugs(version)).collect::<Vec<_>>();
        assert_eq!(counts(&["3.4.23", "3.4.35", "3.4.36", "3.4.38", "3.4.42"]), [5, 3, 2, 1, 0]);
        assert_eq!(counts(&["3.5.2", "3.5.3", "3.5.17", "3.5.18", "3.5.23", "3.5.28"]), [7, 6, 3, 2, 1, 0]);
        assert_eq!(counts(&["3.6.0", "3.6.5", "3.6.9", "3.7.0"]), [2, 1, 0, 0]);
        assert_eq!(READS_STALE.fixed_versions(), "3.4.42, 3.5.28, 3.6.9");
        assert_eq!(DATA_DIVERGE.fixed_versions(), "3.5.3");
    }
}
