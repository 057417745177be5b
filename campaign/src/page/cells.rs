//! The sum of all results about one cell.

use std::collections::BTreeMap;

use crate::seen::Seen;
use crate::{CellOutcome, Expected, Fault, Record, Results, Store, expected};

/// One cell, over all its runs. Of two runs with one seed the later one counts.
pub(super) struct Summary {
    pub(super) store: Store,
    pub(super) fault: Fault,
    pub(super) promise: Expected,
    /// The worst outcome; none without a run.
    pub(super) outcome: Option<CellOutcome>,
    pub(super) expected: bool,
    pub(super) histories: u64,
    pub(super) faults: u64,
    pub(super) seen: Seen,
    pub(super) runs: Vec<Record>,
}

impl Summary {
    fn of(store: Store, fault: Fault, results: &Results) -> Summary {
        let mut by_seed = BTreeMap::new();
        for record in results.of(store, fault).filter(|record| record.outcome != CellOutcome::NotRun) {
            by_seed.insert(record.seed, record.clone());
        }
        let mut summary = Summary {
            store,
            fault,
            promise: expected(store, fault),
            outcome: None,
            expected: true,
            histories: 0,
            faults: 0,
            seen: Seen::default(),
            runs: Vec::new(),
        };
        for (_, record) in by_seed {
            summary.outcome =
                Some(summary.outcome.map_or(record.outcome, |outcome| outcome.worse(record.outcome)));
            summary.expected &= record.expected;
            summary.histories += record.histories;
            summary.faults += record.faults;
            summary.seen.add(&record.seen);
            summary.runs.push(record);
        }
        if summary.outcome == Some(CellOutcome::Passed) {
            // They are tests, and neither histories nor faults.
            (summary.histories, summary.faults) = (0, 0);
        }
        summary
    }

    pub(super) fn was_run(&self) -> bool {
        self.outcome.is_some()
    }

    /// Returns the text of the grid.
    pub(super) fn word(&self) -> String {
        let text = match self.outcome {
            None if self.promise.is_run() => "".to_owned(),
            None => self.promise.word().to_owned(),
            Some(CellOutcome::Held) if matches!(self.promise, Expected::Holds) => {
                format!("held {}", self.histories)
            }
            Some(CellOutcome::Held) => format!("allowed, held {}", self.histories),
            Some(outcome @ (CellOutcome::Timing | CellOutcome::Fences)) => {
                format!("{outcome}, {}", self.histories)
            }
            Some(outcome) => outcome.to_string(),
        };
        if self.expected { text } else { format!("**{text}**") }
    }
}

/// Returns every cell, in the order of the grid.
pub(super) fn summaries(results: &Results) -> Vec<Summary> {
    let of = |fault| Store::ALL.map(|store| Summary::of(store, fault, results));
    Fault::all().flat_map(of).collect()
}
