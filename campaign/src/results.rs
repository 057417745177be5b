//! The results of cells: one line of JSON for each run of a cell, in one file of the repository.
//!
//! Ground rules: lines are added to the file, and none is ever changed or removed.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::seen::Seen;
use crate::{Fault, Outcome as Attempt, Store, json_lines};

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was violated.
    Held,
    /// Two holders were valid at one time.
    Timing,
    /// A fence was not above those before it, and the register refused what it had to.
    Fences,
    /// The protected register accepted what it must not.
    Unsafe,
    /// A wait, a loss or a release was not as promised.
    Late,
    /// The store refused to lock in these surroundings.
    Refused,
    /// The test program that is this cell passed.
    Passed,
    /// It could not be run here, for the reason of the note.
    NotRun,
    /// The history shows nothing, for the reason of the note.
    NotJudged,
    /// The campaign itself failed, or the cell was not over in time.
    Failed,
}

impl Outcome {
    /// Returns the word of the grid.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Held => "held",
            Outcome::Timing => "timing broken",
            Outcome::Fences => "fences fell",
            Outcome::Unsafe => "UNSAFE",
            Outcome::Late => "LATE",
            Outcome::Refused => "refused",
            Outcome::Passed => "passed",
            Outcome::NotRun => "not run",
            Outcome::NotJudged => "NOT JUDGED",
            Outcome::Failed => "FAILED",
        }
    }

    /// Returns the worse of two outcomes.
    #[must_use]
    pub fn worse(self, other: Outcome) -> Outcome {
        if other.rank() > self.rank() { other } else { self }
    }

    /// Returns how bad it is.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Outcome::NotRun => 0,
            Outcome::Held | Outcome::Passed | Outcome::Refused => 1,
            Outcome::Timing => 2,
            Outcome::Fences => 3,
            Outcome::NotJudged => 4,
            Outcome::Late => 5,
            Outcome::Failed => 6,
            Outcome::Unsafe => 7,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One run of a cell: some histories with seeds that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The word of the store.
    pub store: String,
    /// The fault, as `F1`.
    pub fault: String,
    /// The worst outcome of the histories.
    pub outcome: Outcome,
    /// `true` if every history had the expected outcome.
    pub expected: bool,
    /// The first seed.
    pub seed: u64,
    /// The histories.
    pub histories: u64,
    /// The time of one history in seconds.
    pub seconds: u64,
    /// `true` if a dozen locks changed hands quickly beside the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dense: bool,
    /// The number of times that the fault had an effect in all of them.
    pub faults: u64,
    /// The number of times that it was tried, and had none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_effect: u64,
    /// The effect of these faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<Did>,
    /// The numbers of all of them.
    pub seen: Seen,
    /// The invariants that some of the histories could not show. None in results from before they were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unjudged: Option<Vec<String>>,
    /// The kinds of the locks beside the dense ones. None in results from when all of them were mutexes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<Vec<String>>,
    /// The version of the server.
    pub version: String,
    /// The machine.
    pub machine: String,
    /// The day.
    pub date: String,
    /// The code of leasehold: its commit, or its version and the day. None in the first results.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The reason, or the first thing that was not expected.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The effect of faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Did {
    /// The deed of the first of them, as a clause.
    pub first: String,
    /// The processes, connections, sessions or keys that all of them did it to.
    pub things: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    /// Returns the version of the server, without what it answered besides.
    pub fn server(&self) -> &str {
        self.version.lines().next().unwrap_or_default()
    }

    /// Returns `true` if only mutexes were taken.
    pub fn is_of_mutexes_alone(&self) -> bool {
        let is_mutex = |kind: &String| kind == leasehold_torture::LockKind::Mutex.word();
        self.locks.iter().flatten().all(is_mutex)
    }

    /// Returns `true` if the record is of this cell.
    pub fn is_of(&self, store: Store, fault: Fault) -> bool {
        self.store == store.word() && self.fault == fault.to_string()
    }
}

/// The results of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results(Vec<Record>);

impl Results {
    /// The file in the repository.
    pub const FILE: &str = "docs/campaign/results.jsonl";

    /// Reads a file of results; none if it does not exist.
    ///
    /// # Errors
    /// If a line is not a result, with its number.
    pub fn read(file: &Path) -> Attempt<Results> {
        Ok(Results(json_lines::read(file)?))
    }

    /// Reads results from JSON Lines.
    ///
    /// # Errors
    /// If a line is not a result, with its number.
    pub fn parse(text: &str) -> Attempt<Results> {
        Ok(Results(json_lines::parse(text)?))
    }

    /// Adds one result to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(file: &Path, record: &Record) -> Attempt {
        json_lines::append(file, record)
    }

    /// Returns all results.
    pub fn all(&self) -> &[Record] {
        &self.0
    }

    /// Returns the results of one cell.
    pub fn of(&self, store: Store, fault: Fault) -> impl Iterator<Item = &Record> {
        self.0.iter().filter(move |record| record.is_of(store, fault))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(store: Store, fault: u8, outcome: Outcome, expected: bool) -> Record {
        Record {
            store: store.word().to_owned(),
            fault: Fault::number(fault).to_string(),
            outcome,
            expected,
            seed: 1,
            histories: 2,
            seconds: 15,
            dense: false,
            faults: 10,
            without_effect: 0,
            did: None,
            seen: Seen { grants: 1_000, losses: 3, ..Seen::default() },
            unjudged: None,
            locks: None,
            version: "Redis 7.0.15".to_owned(),
            machine: "2 cores, Debian".to_owned(),
            date: "2026-01-31".to_owned(),
            code: String::new(),
            note: String::new(),
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join("results.jsonl");
        assert_eq!(Results::read(&file).unwrap(), Results::default());
        let records =
            [record(Store::Redis, 1, Outcome::Held, true), record(Store::Etcd, 3, Outcome::Timing, true)];
        for record in &records {
            Results::append(&file, record).unwrap();
        }
        let read = Results::read(&file).unwrap();
        assert_eq!(read.all(), records);
        assert_eq!(read.of(Store::Etcd, Fault::number(3)).count(), 1);
        assert!(Results::parse("{}").unwrap_err().to_string().contains("line 1"));
    }
}
