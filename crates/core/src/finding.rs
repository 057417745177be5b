//! The findings of an examination of a store, for a person who decides whether to rely on it.

use std::fmt;

/// One thing that was found, what it means for locks, and what to do about it.
///
/// ```
/// use leasehold_core::{Finding, Severity};
/// let finding = Finding::new("eviction", Severity::Risk, "maxmemory-policy is allkeys-lru")
///     .meaning("under memory pressure the server may forget who holds a lock")
///     .advice("set maxmemory-policy to noeviction");
/// assert_eq!(finding.severity, Severity::Risk);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The subject of the finding, in one or two words with hyphens. Stable, because scripts choose by it.
    pub topic: &'static str,
    /// The severity of the finding.
    pub severity: Severity,
    /// The observation. Without passwords.
    pub found: String,
    /// The consequence for a lock.
    pub meaning: String,
    /// The advice; empty where there is nothing to do.
    pub advice: String,
}

impl Finding {
    /// Returns a finding of which only the facts are known yet.
    pub fn new(topic: &'static str, severity: Severity, found: impl Into<String>) -> Finding {
        Finding { topic, severity, found: found.into(), meaning: String::new(), advice: String::new() }
    }

    /// Sets the consequence for a lock.
    #[must_use]
    pub fn meaning(mut self, meaning: impl Into<String>) -> Finding {
        self.meaning = meaning.into();
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }
}

/// The severity of a finding, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The setting is as it should be.
    Good,
    /// The setting works, and is worth knowing.
    Notice,
    /// The setting could not be found out. What is not known is not relied upon.
    Unknown,
    /// A fault that is to be expected one day will break a promise that people count on.
    Risk,
    /// Locks do not work, or do not exclude each other.
    Broken,
}

impl Severity {
    /// Returns its stable name, in small letters.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Good => "good",
            Severity::Notice => "notice",
            Severity::Unknown => "unknown",
            Severity::Risk => "risk",
            Severity::Broken => "broken",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_it_means_and_what_to_do() {
        let finding =
            Finding::new("keys", Severity::Risk, "keys may go").meaning("two may hold").advice("keep them");
        assert_eq!((&*finding.meaning, &*finding.advice), ("two may hold", "keep them"));
    }

    #[test]
    fn severities_are_ordered_from_good_to_broken() {
        use Severity::{Broken, Good, Notice, Risk, Unknown};
        let worst = [Notice, Risk, Good, Unknown].into_iter().max();
        assert_eq!(worst, Some(Risk));
        assert!(Good < Notice && Notice < Unknown && Unknown < Risk && Risk < Broken);
    }
}
