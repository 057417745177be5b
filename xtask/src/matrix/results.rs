//! The findings of the matrix, in a committed file, and the texts that are printed from them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::versions::{SERVERS, VERSIONS};

/// The file, from the root.
pub(crate) const FILE: &str = "docs/versions.json";

/// The findings of all versions, by name.
#[derive(Debug, Default)]
pub(crate) struct Results {
    by_version: BTreeMap<String, Outcome>,
}

/// The findings of one version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The version that the server reports.
    pub(crate) says: String,
    /// The day, as `2026-11-25`.
    pub(crate) day: String,
    /// `true` if all tests ran, and not the laws of safety alone.
    pub(crate) whole: bool,
    pub(crate) passed: u64,
    /// Tests that did not run because something else than this server is missing, or cannot do it.
    pub(crate) skipped: u64,
    /// Tests that failed, without those that are known to.
    pub(crate) failed: Vec<String>,
    /// Tests that are known to fail, with the reason.
    pub(crate) known: BTreeMap<String, String>,
}

impl Outcome {
    pub(crate) fn new() -> Outcome {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
        Outcome { day: day(seconds / 86_400), ..Outcome::default() }
    }

    /// Adds what a test program printed.
    pub(crate) fn add(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
                self.failed.push(test.to_owned());
            }
            if let Some(rest) = line.strip_prefix("test result: ") {
                let passed = rest.split_once(" passed").and_then(|(before, _)| before.rsplit(' ').next());
                self.passed += passed.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
            }
            if line.starts_with("LEASEHOLD-SKIPPED ") {
                self.skipped += 1;
            }
        }
    }

    /// Returns the line of a failure for a program that has no result, or that failed although none of its tests did,
    /// such as one that was ended at its limit.
    pub(crate) fn failed_as_a_whole(program: &str, success: bool, text: &str) -> Option<String> {
        let has_result = text.lines().any(|line| line.starts_with("test result:"));
        let has_failure = text.lines().any(|line| line.starts_with("test ") && line.ends_with(" ... FAILED"));
        (!has_result || !success && !has_failure).then(|| format!("\ntest {program} ... FAILED\n"))
    }

    /// Sets failures apart that have a known reason.
    pub(crate) fn set_apart(&mut self, known: impl Fn(&str) -> Option<&'static str>) {
        for test in std::mem::take(&mut self.failed) {
            match known(&test) {
                Some(why) => drop(self.known.insert(test, why.to_owned())),
                None => self.failed.push(test),
            }
        }
    }

    /// Returns how many tests passed that ran: for libtest a skipped test has passed as well.
    pub(crate) fn ran(&self) -> u64 {
        self.passed.saturating_sub(self.skipped)
    }

    /// Returns `true` if the outcome is one of this server: it said its version, and a test ran on it.
    fn is_of_a_server(&self) -> bool {
        self.ran() > 0 && !self.says.is_empty()
    }

    pub(crate) fn words(&self) -> String {
        let ran = self.ran();
        let mut words = format!("{ran} passed, {} skipped, {} failed", self.skipped, self.failed.len());
        if !self.known.is_empty() {
            words += &format!(", {} known to differ", self.known.len());
        }
        words
    }

    fn to_json(&self) -> Value {
        json!({
            "says": self.says, "day": self.day, "whole": self.whole, "passed": self.passed, "skipped": self.skipped,
            "failed": self.failed, "known": self.known,
        })
    }

    fn from_json(value: &Value) -> Option<Outcome> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let failed = value["failed"].as_array()?.iter().filter_map(Value::as_str).map(str::to_owned);
        let known = value["known"].as_object()?.iter();
        let known = known.filter_map(|(test, why)| Some((test.clone(), why.as_str()?.to_owned())));
        Some(Outcome {
            says: text("says")?,
            day: text("day")?,
            whole: value["whole"].as_bool()?,
            passed: value["passed"].as_u64()?,
            skipped: value["skipped"].as_u64()?,
            failed: failed.collect(),
            known: known.collect(),
        })
    }
}

impl Results {
    /// Reads the committed file; one that does not exist yet is empty.
    pub(crate) fn read(root: &Path) -> Result<Results, String> {
        let Ok(text) = std::fs::read_to_string(root.join(FILE)) else { return Ok(Results::default()) };
        let broken = || format!("{FILE}: is damaged: restore it with git, or remove it");
        let object: Map<String, Value> = serde_json::from_str(&text).map_err(|_| broken())?;
        let one = |(name, value): (&String, &Value)| Some((name.clone(), Outcome::from_json(value)?));
        let by_version: Option<_> = object.iter().map(one).collect();
        Ok(Results { by_version: by_version.ok_or_else(broken)? })
    }

    /// Puts an outcome in the place of an older one. That of a part of the tests does not replace one of all, unless it
    /// has a failure that the other did not see.
    pub(crate) fn put(&mut self, name: &str, outcome: Outcome) {
        let keeps = |old: &Outcome| old.whole && !outcome.whole && outcome.failed.is_empty();
        if !self.by_version.get(name).is_some_and(keeps) {
            self.by_version.insert(name.to_owned(), outcome);
        }
    }

    pub(crate) fn write(&self, root: &Path) -> Result<(), String> {
        let object: Map<String, Value> =
            self.by_version.iter().map(|(name, outcome)| (name.clone(), outcome.to_json())).collect();
        let text = serde_json::to_string_pretty(&object).map_err(|error| error.to_string())?;
        std::fs::write(root.join(FILE), text + "\n").map_err(|error| format!("{FILE}: {error}"))
    }

    /// Returns a table for a terminal of these versions.
    pub(crate) fn table(&self, names: impl Iterator<Item = String>) -> String {
        let mut text = String::new();
        for name in names {
            let Some(outcome) = self.by_version.get(&name) else { continue };
            text += &format!("{name:<20} {:<28} {}\n", outcome.says, outcome.words());
        }
        text
    }

    /// Returns the page of the book.
    pub(crate) fn page(&self) -> String {
        let mut text = PAGE_HEAD.to_owned();
        for server in SERVERS {
            let names = self.names_of(server.name);
            if names.is_empty() {
                continue;
            }
            text += &format!("\n## {}\n\n", server.title);
            text += "| version | name here | day | ran | passed | skipped | failed |\n";
            text += "|---|---|---|---|---|---|---|\n";
            for name in &names {
                let it = &self.by_version[name];
                let ran = it.ran();
                let failed = it.failed.len() + it.known.len();
                text += &format!(
                    "| {} | `{name}` | {} | {} | {ran} | {} | {failed} |\n",
                    it.says,
                    it.day,
                    if it.whole { "all tests" } else { "laws of safety" },
                    it.skipped
                );
            }
            text += &self.differences(&names);
        }
        text
    }

    /// Lists what failed, with the reason where it is known.
    fn differences(&self, names: &[String]) -> String {
        let mut text = String::new();
        for name in names {
            let it = &self.by_version[name];
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            it.known.values().for_each(|why| *reasons.entry(why).or_default() += 1);
            for (why, count) in reasons {
                text += &format!("- `{name}`, {count} tests: {why}.\n");
            }
            for test in &it.failed {
                text += &format!("- `{name}`, `{test}`: failed.\n");
            }
        }
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Returns the lines of the README: for each server the versions on which tests ran, and none failed without a reason.
    pub(crate) fn requirements(&self) -> String {
        let mut parts = Vec::new();
        for server in SERVERS {
            let names = self.names_of(server.name).into_iter();
            let is_tested = |it: &Outcome| it.is_of_a_server() && it.failed.is_empty();
            let passed = names.filter(|name| is_tested(&self.by_version[name]));
            let mut versions: BTreeMap<String, Vec<Vec<u64>>> = BTreeMap::new();
            for name in passed {
                let (kind, version) = split(&self.by_version[&name].says);
                versions.entry(kind).or_default().push(version);
            }
            for (kind, mut found) in versions {
                found.sort();
                found.dedup();
                let dotted = |version: &Vec<u64>| {
                    version.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
                };
                let list = found.iter().map(dotted).collect::<Vec<_>>().join(", ");
                parts.push(format!("{kind} {list}"));
            }
        }
        format!("- **Servers**: [tested](docs/book/src/versions.md) on {}.\n", parts.join("; "))
    }

    /// Returns the versions of a server that have an outcome, the oldest first.
    fn names_of(&self, server: &str) -> Vec<String> {
        let is_of = |name: &&String| {
            let fetched = VERSIONS.iter().find(|version| version.name == **name);
            fetched.map_or_else(|| **name == format!("{server}-installed"), |it| it.server.name == server)
        };
        let mut names: Vec<String> = self.by_version.keys().filter(is_of).cloned().collect();
        names.sort_by_key(|name| split(&self.by_version[name].says));
        names
    }
}

/// Splits what a server says into its kind and its version, without what a packager adds behind a `-`.
fn split(says: &str) -> (String, Vec<u64>) {
    let words: Vec<&str> = says.split_whitespace().collect();
    let number = words.iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).copied();
    let number = number.unwrap_or_default().split('-').next().unwrap_or_default();
    let numbers = number.split(|c: char| !c.is_ascii_digit());
    let version: Vec<u64> = numbers.map_while(|part| part.parse().ok()).collect();
    let kind = match words.first().copied().unwrap_or_default() {
        "mariadbd" => "MariaDB",
        "mysqld" => "MySQL",
        "postgres" | "psql" => "PostgreSQL",
        "zookeeper" => "ZooKeeper",
        other => other,
    };
    (kind.to_owned(), version)
}

/// Returns the date of a day since 1970, as the proleptic Gregorian calendar has it.
fn day(days: u64) -> String {
    // Years of 400 have 146,097 days, and those of four begin in March here, so that leap days are last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{date:02}")
}

const PAGE_HEAD: &str = "\
<!-- Written by `cargo xtask docs` from docs/versions.json, which `cargo xtask matrix` writes. Do not edit. -->

# Versions of servers

The tests of a store ran on each of these versions of its server: all of them, its laws and its faults, or the laws
of safety and of other processes alone.
A test is skipped where the server cannot do what it needs, or where something else is missing.
`cargo xtask servers` fetches the versions that are not installed, and `cargo xtask matrix` repeats the runs.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_tests_does_not_replace_all_of_them() {
        let mut results = Results::default();
        results.put("redis-6.2", Outcome { whole: true, ..outcome("Redis server 6.2.14", &[]) });
        results.put("redis-6.2", outcome("Redis server 6.2.14", &[]));
        assert!(results.by_version["redis-6.2"].whole);
        results.put("redis-6.2", outcome("Redis server 6.2.14", &["laws::one"]));
        assert!(!results.by_version["redis-6.2"].whole);
    }

    fn outcome(says: &str, failed: &[&str]) -> Outcome {
        let failed = failed.iter().map(ToString::to_string).collect();
        Outcome { says: says.to_owned(), passed: 3, skipped: 1, failed, ..Outcome::new() }
    }

    #[test]
    fn version_is_without_the_number_of_a_package() {
        for (says, kind, version) in [
            ("mysqld Ver 9.7.4-2", "MySQL", [9, 7, 4].as_slice()),
            ("mariadbd Ver 10.11.19-MariaDB-0+deb12u1", "MariaDB", &[10, 11, 19]),
            ("postgres (PostgreSQL) 12.22", "PostgreSQL", &[12, 22]),
        ] {
            assert_eq!(split(says), (kind.to_owned(), version.to_vec()));
        }
    }

    #[test]
    fn days_are_dates() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(11_016), "2000-02-29");
        assert_eq!(day(20_782), "2026-11-25");
    }

    #[test]
    fn what_tests_print_is_counted() {
        let mut outcome = Outcome::new();
        outcome.add("test a::b ... ok\ntest a::c ... FAILED\nLEASEHOLD-SKIPPED a::d no server\n");
        outcome.add("test result: FAILED. 2 passed; 1 failed; 0 ignored");
        assert_eq!((outcome.passed, outcome.skipped, outcome.failed.len()), (2, 1, 1));
        outcome.set_apart(|test| (test == "a::c").then_some("older servers cannot"));
        assert_eq!(outcome.words(), "1 passed, 1 skipped, 0 failed, 1 known to differ");
    }

    #[test]
    fn results_are_read_back_and_printed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        let mut results = Results::default();
        results.put("valkey-9.1", outcome("Valkey server 9.1.2", &[]));
        results.put("redis-installed", outcome("Redis server 7.0.15", &[]));
        results.put("redis-6.2", outcome("Redis server 6.2.14", &["laws::one"]));
        results.write(folder.path()).unwrap();
        let results = Results::read(folder.path()).unwrap();
        assert_eq!(results.names_of("redis"), ["redis-6.2", "redis-installed", "valkey-9.1"]);
        let page = results.page();
        assert!(page.contains("| Redis server 7.0.15 | `redis-installed` |"), "{page}");
        assert!(page.contains("- `redis-6.2`, `laws::one`: failed."), "{page}");
        let lines = results.requirements();
        assert!(lines.contains("on Redis 7.0.15; Valkey 9.1.2.\n"), "{lines}");
    }

    #[test]
    fn version_whose_tests_were_skipped_is_not_tested() {
        let mut results = Results::default();
        results.put("redis-installed", outcome("Redis server 7.0.15", &[]));
        let skipped = Outcome { passed: 3, skipped: 3, ..outcome("Redis server 6.2.14", &[]) };
        results.put("redis-6.2", skipped);
        results.put("memcached-installed", outcome("", &[]));
        let lines = results.requirements();
        assert!(lines.ends_with("on Redis 7.0.15.\n"), "{lines}");
    }

    #[test]
    fn program_that_fails_without_a_test_is_a_failure() {
        let failed = |success, text| Outcome::failed_as_a_whole("conformance", success, text);
        let passed = "test a ... ok\ntest result: ok. 1 passed; 0 failed";
        assert_eq!(failed(true, passed), None);
        for (success, text) in [(false, passed), (false, "killed"), (true, "killed")] {
            let line = failed(success, text).unwrap();
            let mut outcome = Outcome::new();
            outcome.add(&line);
            assert_eq!(outcome.failed, ["conformance"]);
        }
        let one = "test a ... FAILED\ntest result: FAILED. 0 passed; 1 failed";
        assert_eq!(failed(false, one), None);
    }

    #[test]
    fn damaged_results_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Results::read(folder.path()).is_ok());
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        std::fs::write(folder.path().join(FILE), "{\"redis-6.2\": {}}").unwrap();
        assert!(Results::read(folder.path()).unwrap_err().contains("damaged"));
    }
}
