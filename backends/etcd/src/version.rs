//! What a server's version says about its promises.
//!
//! Ground rules: the weakest server decides, since any of them may lead. One that does not say its version decides nothing: it is
//! most likely down, and of the version of the others.

use leasehold_core::{Grade, Safety, Severity};

/// A fault of released servers that can cost a promise, and the first version of each line without it.
///
/// Lines above the last that is named never had it.
#[derive(Debug)]
pub(crate) struct Flaw {
    /// What happens.
    pub(crate) what: &'static str,
    /// What that means for a lock.
    pub(crate) meaning: &'static str,
    pub(crate) severity: Severity,
    /// As minor and patch of version 3, the older line first.
    mended_in: [(u32, u32); 2],
}

/// A leader that was paused for longer than a lease revokes it when it goes on, although its successor extended it: a
/// claim can be taken from a holder that did everything right.
pub(crate) const REVOKES_WRONGLY: Flaw = Flaw {
    what: "a leader that was paused for longer than a lease can revoke it when it goes on",
    meaning: "a lock can be taken from a holder that renewed it in time; the holder learns of it at its next renewal",
    severity: Severity::Risk,
    mended_in: [(4, 31), (5, 13)],
};

/// Where the last revision deleted something and is compacted away, a crash before the compaction is finished makes
/// the server begin again at a lower revision.
pub(crate) const REVISIONS_FALL: Flaw = Flaw {
    what: "a crash within a compaction can take the revision back",
    meaning: "a fence can be given twice, or be lower than the one before",
    severity: Severity::Risk,
    mended_in: [(4, 32), (5, 14)],
};

/// A watch that begins at the very revision of a compaction does not see what was deleted in it.
pub(crate) const DELETES_UNSEEN: Flaw = Flaw {
    what: "a watch can miss what was deleted at the revision of a compaction",
    meaning: "a waiter that was not told looks again after 3 s, 24 s and more; other clients of etcd may wait for ever",
    severity: Severity::Notice,
    mended_in: [(4, 36), (5, 18)],
};

/// What was applied while a server crashed may be missing on that server only.
pub(crate) const DATA_DIVERGE: Flaw = Flaw {
    what: "a server that crashed under load can go on with other data than the rest of the cluster",
    meaning: "two servers can answer differently who holds a lock",
    severity: Severity::Risk,
    mended_in: [(4, 0), (5, 3)],
};

/// All of them, the worst first.
pub(crate) const FLAWS: [&Flaw; 4] = [&DATA_DIVERGE, &REVISIONS_FALL, &REVOKES_WRONGLY, &DELETES_UNSEEN];

impl Flaw {
    /// Whether a server of this version has it. One whose version cannot be read has every fault.
    pub(crate) fn is_in(&self, version: &str) -> bool {
        let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
        let (major, minor, patch) = (parts.next().flatten(), parts.next().flatten(), parts.next().flatten());
        let (Some(major), Some(minor)) = (major, minor) else { return true };
        if major != 3 {
            return major < 3;
        }
        match self.mended_in.iter().find(|(line, _)| *line == minor) {
            Some((_, first)) => patch.is_none_or(|patch| patch < *first),
            None => minor < self.mended_in[0].0,
        }
    }

    /// The first versions without it, for a person.
    pub(crate) fn mended(&self) -> String {
        let [(old, old_patch), (new, new_patch)] = self.mended_in;
        if old_patch == 0 {
            return format!("3.{new}.{new_patch}");
        }
        format!("3.{old}.{old_patch}, 3.{new}.{new_patch}")
    }

    /// Whether any of these servers has it, or none says its version.
    fn is_among(&self, versions: &[Option<String>]) -> bool {
        let mut known = versions.iter().flatten().peekable();
        known.peek().is_none() || known.any(|version| self.is_in(version))
    }
}

/// What can take a claim away on these servers; `None` stands for one that did not say its version.
pub(crate) fn safety(versions: &[Option<String>]) -> Safety {
    let weak = REVOKES_WRONGLY.is_among(versions) || DATA_DIVERGE.is_among(versions);
    if weak { Safety::LostOnFailover } else { Safety::Strict }
}

/// Whether a watch tells everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watches {
    Whole,
    /// A delete at the revision of a compaction may be left out: whoever waits has to look again now and then.
    MayMiss,
}

pub(crate) fn watches(versions: &[Option<String>]) -> Watches {
    if DELETES_UNSEEN.is_among(versions) { Watches::MayMiss } else { Watches::Whole }
}

/// How far their fences, which are revisions, can be trusted.
pub(crate) fn fencing(versions: &[Option<String>]) -> Grade {
    let weak = REVISIONS_FALL.is_among(versions) || DATA_DIVERGE.is_among(versions);
    if weak { Grade::BestEffort } else { Grade::Strict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(versions: &[&str]) -> Vec<Option<String>> {
        versions.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn servers_with_known_losses_are_not_called_strict() {
        let of = |versions: &[&str]| (safety(&said(versions)), fencing(&said(versions)));
        let sound = (Safety::Strict, Grade::Strict);
        let (weak, torn) = ((Safety::LostOnFailover, Grade::BestEffort), (Safety::Strict, Grade::BestEffort));
        for version in
            ["3.4.32", "3.4.35", "3.5.14", "3.5.21", "3.6.0", "3.6.0-rc.1", "3.7.0-alpha.0", "4.0.0"]
        {
            assert_eq!(of(&[version]), sound, "{version}");
        }
        for version in ["3.4.31", "3.5.13"] {
            assert_eq!(of(&[version]), torn, "{version}");
        }
        for version in ["3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.3.27", "2.3.8", "", "unknown"] {
            assert_eq!(of(&[version]), weak, "{version}");
        }
        assert_eq!(of(&["3.5.14", "3.5.1", "3.5.14"]), weak, "the weakest counts");
        let silent = [Some("3.6.1".to_owned()), None];
        assert_eq!((safety(&silent), fencing(&silent)), sound);
        assert_eq!((safety(&[None, None]), fencing(&[None, None])), weak);
    }

    #[test]
    fn each_flaw_is_told_for_the_versions_that_have_it() {
        let flaws = |version| FLAWS.iter().filter(|flaw| flaw.is_in(version)).count();
        assert_eq!((flaws("3.4.23"), flaws("3.4.35"), flaws("3.4.36")), (3, 1, 0));
        assert_eq!((flaws("3.5.2"), flaws("3.5.3"), flaws("3.5.17"), flaws("3.5.18")), (4, 3, 1, 0));
        assert_eq!(flaws("3.6.0"), 0);
    }
}
