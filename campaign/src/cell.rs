//! One cell: a store under a fault, for some histories, each recorded, judged and written.

mod elsewhere;
mod history;
mod targets;

use std::path::PathBuf;
use std::time::Duration;

use crate::judge::judge;
use crate::results::{Did, Outcome as Found, Record};
use crate::seen::Seen;
use crate::{Expected, Fault, Machine, Store, existing, expected};

/// A store under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The store.
    pub store: Store,
    /// The fault.
    pub fault: Fault,
}

/// The way in which a cell is run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed of the first history; the next ones follow it.
    pub seed: u64,
    /// The histories.
    pub histories: u64,
    /// The time for which faults happen in one history.
    pub length: Duration,
    /// `true` if a dozen locks beside the others change hands as quickly as they can.
    pub is_dense: bool,
    /// The folder for histories; none are kept without it.
    pub folder: Option<PathBuf>,
    /// The program of the workers, where it is not this program itself.
    pub program: Option<leasehold_torture::Program>,
    /// The time that the judgement adds to each bound, because the machine does something else as well; none in a
    /// campaign, whose page prints the bounds.
    pub allowance: Duration,
}

impl Run {
    /// Creates a run of one history of this length.
    pub fn of(seed: u64, length: Duration) -> Run {
        Run {
            seed,
            histories: 1,
            length,
            is_dense: false,
            folder: None,
            program: None,
            allowance: Duration::ZERO,
        }
    }
}

/// The outcome of one history.
struct Findings {
    outcome: Found,
    expected: bool,
    seen: Seen,
    faults: u64,
    without_effect: u64,
    did: Option<Did>,
    unjudged: Option<Vec<String>>,
    locks: Option<Vec<String>>,
    version: String,
    note: String,
}

impl Findings {
    fn not_run(why: impl Into<String>) -> Findings {
        Findings::without_history(Found::NotRun, true, why)
    }

    fn without_history(outcome: Found, expected: bool, note: impl Into<String>) -> Findings {
        Findings {
            outcome,
            expected,
            seen: Seen::default(),
            faults: 0,
            without_effect: 0,
            did: None,
            unjudged: None,
            locks: None,
            version: String::new(),
            note: note.into(),
        }
    }
}

impl Cell {
    /// Creates a cell.
    pub fn new(store: Store, fault: Fault) -> Cell {
        Cell { store, fault }
    }

    /// Returns all cells of these stores and faults, in the order of the grid.
    pub fn all(stores: &[Store], faults: &[Fault]) -> Vec<Cell> {
        let of = |fault: &Fault| stores.iter().map(|store| Cell::new(*store, *fault)).collect::<Vec<_>>();
        faults.iter().flat_map(of).collect()
    }

    /// Returns what is expected of it.
    pub fn expected(&self) -> Expected {
        expected(self.store, self.fault)
    }

    /// Runs it, and never for ever.
    pub async fn run(&self, run: &Run) -> Record {
        let mut record = self.record(run);
        if let Some(why) = self.expected().reason().filter(|_| !self.expected().is_run()) {
            record.fold(Findings::not_run(why));
            return record;
        }
        if let Some(existing) = existing(self.store, self.fault) {
            (record.seconds, record.dense) = (0, false);
            record.fold(elsewhere::run(existing).await);
            return record;
        }
        for number in 0..run.histories {
            let findings = Box::pin(history::findings_of(self, run, run.seed + number)).await;
            let continues = !matches!(findings.outcome, Found::NotRun | Found::Failed | Found::Refused);
            record.fold(findings);
            if !continues {
                break;
            }
        }
        record
    }

    fn record(&self, run: &Run) -> Record {
        let machine = Machine::here();
        Record {
            store: self.store.word().to_owned(),
            fault: self.fault.to_string(),
            outcome: Found::Held,
            expected: true,
            seed: run.seed,
            histories: 0,
            seconds: run.length.as_secs(),
            dense: run.is_dense,
            faults: 0,
            without_effect: 0,
            did: None,
            seen: Seen::default(),
            unjudged: None,
            locks: None,
            version: String::new(),
            machine: machine.name,
            date: machine.date,
            code: machine.code,
            note: String::new(),
        }
    }
}

impl Record {
    /// Adds one history; the record says the worst of all.
    fn fold(&mut self, findings: Findings) {
        let is_first = self.histories == 0;
        if !matches!(findings.outcome, Found::NotRun | Found::Refused | Found::Failed) {
            self.histories += 1;
        }
        self.outcome = if is_first { findings.outcome } else { self.outcome.worse(findings.outcome) };
        if self.note.is_empty() || self.expected && !findings.expected {
            self.note = findings.note;
        }
        self.expected &= findings.expected;
        self.faults += findings.faults;
        self.without_effect += findings.without_effect;
        if let Some(did) = findings.did {
            self.did.get_or_insert(Did { first: did.first, things: 0 }).things += did.things;
        }
        self.seen.add(&findings.seen);
        if let Some(unjudged) = findings.unjudged {
            let all = self.unjudged.get_or_insert_default();
            all.extend(unjudged);
            all.sort();
            all.dedup();
        }
        self.locks = findings.locks.or(self.locks.take());
        if !findings.version.is_empty() {
            self.version = findings.version;
        }
    }
}

/// Judges what was seen of a history, with what keeps it from showing anything.
fn judged(expected: Expected, seen: Seen, gaps: &[String]) -> Findings {
    let (outcome, is_expected) = judge(expected, &seen, gaps);
    Findings { seen, ..Findings::without_history(outcome, is_expected, "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_history_is_the_outcome_and_keeps_its_note() {
        let cell = Cell::new(Store::Redis, Fault::number(1));
        let mut record = cell.record(&Run::of(5, Duration::from_secs(15)));
        let seen = Seen { grants: 10, ..Seen::default() };
        let did = Some(Did { first: "a worker is stopped".to_owned(), things: 2 });
        let held = || Findings { faults: 2, did: did.clone(), ..judged(Expected::Holds, seen, &[]) };
        record.fold(Findings { version: "Redis 7".to_owned(), ..held() });
        let broken = judged(Expected::Holds, Seen { timing: 1, ..seen }, &[]);
        record.fold(Findings { faults: 3, note: "two at once".to_owned(), ..broken });
        record.fold(held());
        assert_eq!((record.outcome, record.expected, record.histories), (Found::Timing, false, 3));
        assert_eq!((record.faults, record.seen.grants), (7, 30));
        assert_eq!(record.did.as_ref().map(|did| did.things), Some(4));
        assert_eq!((record.note.as_str(), record.version.as_str()), ("two at once", "Redis 7"));
    }

    #[test]
    fn a_history_without_grants_is_no_success() {
        let mut record =
            Cell::new(Store::Redis, Fault::number(1)).record(&Run::of(5, Duration::from_secs(15)));
        record.fold(judged(Expected::Holds, Seen::default(), &["nothing was granted".to_owned()]));
        assert_eq!((record.outcome, record.expected, record.histories), (Found::NotJudged, false, 1));
    }

    #[tokio::test]
    async fn a_cell_that_cannot_happen_is_not_run_and_says_why() {
        let cell = Cell::new(Store::File, Fault::number(6));
        let record = cell.run(&Run::of(1, Duration::from_secs(1))).await;
        assert_eq!((record.outcome, record.histories, record.expected), (Found::NotRun, 0, true));
        assert!(record.note.contains("no server"), "{record:?}");
    }
}
