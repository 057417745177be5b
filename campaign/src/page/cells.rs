//! The sum of all results about one cell.
//!
//! Ground rules: no run is left out because it is bad. Each seed counts once, by its worst outcome, and a bad outcome
//! counts until the cell is run again with newer code; then it is listed as superseded.

use std::cmp::Reverse;

use super::explained::remains;
use crate::seen::Seen;
use crate::{CellOutcome, Expected, Fault, Record, Results, Store, expected};

/// One cell, over all its runs.
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
    /// `false` if some of the results are from before renewals were counted.
    pub(super) knows_renewals: bool,
    /// `false` if hits were counted by the older rule in some of the results.
    pub(super) knows_hits: bool,
    /// The runs that count, each seed once.
    pub(super) runs: Vec<Record>,
    /// The histories of older code, which no longer count for the outcome.
    pub(super) older_histories: u64,
    pub(super) older_grants: u64,
    /// The runs whose outcome was not expected, before the newest code was run.
    pub(super) superseded: Vec<Record>,
}

impl Summary {
    fn of(store: Store, fault: Fault, results: &Results) -> Summary {
        let all: Vec<&Record> =
            results.of(store, fault).filter(|record| record.outcome != CellOutcome::NotRun).collect();
        let is_kept = |run: &&Record| !run.expected && remains(store, fault, run.outcome);
        let begin = if all.iter().any(is_kept) { 0 } else { begin_of_newest(&all) };
        let (older, counted) = all.split_at(begin);
        // Tests are not histories.
        let older_histories = older.iter().filter(|run| run.outcome != CellOutcome::Passed);
        let mut summary = Summary {
            store,
            fault,
            promise: expected(store, fault),
            outcome: None,
            expected: true,
            histories: 0,
            faults: 0,
            seen: Seen::default(),
            knows_renewals: true,
            knows_hits: true,
            runs: Vec::new(),
            older_histories: older_histories.clone().map(|run| run.histories).sum(),
            older_grants: older_histories.map(|run| run.seen.grants).sum(),
            superseded: older.iter().filter(|run| !run.expected).map(|run| (*run).clone()).collect(),
        };
        for run in counted {
            let worst = summary.outcome.map_or(run.outcome, |outcome| outcome.worse(run.outcome));
            summary.outcome = Some(worst);
            summary.expected &= run.expected;
        }
        for run in each_seed_once(counted) {
            summary.histories += run.histories;
            summary.faults += run.faults;
            summary.seen.add(&run.seen);
            let knows_hits = run.seen.hits.is_some();
            summary.knows_hits &= knows_hits;
            summary.knows_renewals &= knows_hits || run.seen.renewals_under_fault.is_some();
            summary.runs.push(run.clone());
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

    /// Returns what the faults did to holders, where the cell held.
    pub(super) fn hit(&self) -> Hit {
        if self.seen.all_hits() > 0 {
            return Hit::Something;
        }
        match self.seen.renewals_under_fault {
            Some(1..) => Hit::ByOlderRule,
            _ if !self.knows_renewals => Hit::Unknown,
            _ if !self.knows_hits => Hit::NothingByOlderRule,
            _ => Hit::Nothing,
        }
    }

    /// Returns how many histories were judged by older rules; see the bounds on the page.
    pub(super) fn histories_by_older_rules(&self) -> u64 {
        self.histories_of(|run| run.seen.hits.is_none())
    }

    /// Returns how many histories were judged before the unjudged invariants were named.
    pub(super) fn histories_by_oldest_rules(&self) -> u64 {
        self.histories_of(|run| run.unjudged.is_none())
    }

    /// Returns how many histories are of mutexes alone.
    pub(super) fn histories_of_mutexes(&self) -> u64 {
        self.histories_of(Record::is_of_mutexes_alone)
    }

    /// Sums the histories of some runs. A test is not a history.
    fn histories_of(&self, is_it: fn(&Record) -> bool) -> u64 {
        let runs = self.runs.iter().filter(|run| run.outcome != CellOutcome::Passed && is_it(run));
        runs.map(|run| run.histories).sum()
    }

    /// Returns the text of the grid.
    pub(super) fn word(&self) -> String {
        let text = match self.outcome {
            None if self.promise.is_run() => "".to_owned(),
            None => self.promise.word().to_owned(),
            Some(CellOutcome::Held) => {
                let allowed = if matches!(self.promise, Expected::Holds) { "" } else { "allowed, " };
                format!("{allowed}held {}{}", self.histories, self.hit().suffix())
            }
            Some(outcome @ (CellOutcome::Timing | CellOutcome::Fences)) => {
                format!("{outcome}, {}", self.histories)
            }
            Some(outcome) => outcome.to_string(),
        };
        if self.expected { text } else { format!("**{text}**") }
    }
}

/// The effect of faults on holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hit {
    Something,
    Nothing,
    /// Neither losses nor refusals, but renewals while there was a fault, on whomever it was.
    ByOlderRule,
    /// Nothing of that. Whether a holder was killed, or an acquisition dropped, was not counted.
    NothingByOlderRule,
    /// Neither losses nor refusals, and renewals were not counted.
    Unknown,
}

impl Hit {
    fn suffix(self) -> &'static str {
        match self {
            Hit::Something => "",
            Hit::Nothing => ", nothing hit",
            Hit::ByOlderRule => ", hits by the older rule",
            Hit::NothingByOlderRule => ", nothing hit by the older rule",
            Hit::Unknown => ", hits unknown",
        }
    }
}

/// Returns where the runs with the newest code begin: with the first run of the code that came last. A run of code that
/// was not committed makes nothing newer, and neither does one of code that was run before.
fn begin_of_newest(runs: &[&Record]) -> usize {
    let is_new = |place: &usize| {
        let code = runs[*place].code.as_str();
        let is_known = runs[..*place].iter().any(|run| run.code == code);
        !code.is_empty() && !code.ends_with('+') && !is_known
    };
    (0..runs.len()).rev().find(is_new).unwrap_or(0)
}

/// Returns runs that share no seed: of two that do, the worse one, then the later one.
fn each_seed_once<'r>(runs: &[&'r Record]) -> Vec<&'r Record> {
    let mut places: Vec<usize> = (0..runs.len()).collect();
    places.sort_by_key(|place| Reverse((!runs[*place].expected, runs[*place].outcome.rank(), *place)));
    let mut chosen: Vec<&Record> = Vec::new();
    for run in places.into_iter().map(|place| runs[place]) {
        let seeds = |run: &Record| run.seed..run.seed + run.histories.max(1);
        let overlaps =
            |other: &&Record| seeds(run).start < seeds(other).end && seeds(other).start < seeds(run).end;
        if !chosen.iter().any(overlaps) {
            chosen.push(run);
        }
    }
    chosen.sort_by_key(|run| run.seed);
    chosen
}

/// Returns every cell, in the order of the grid.
pub(super) fn summaries(results: &Results) -> Vec<Summary> {
    let of = |fault| Store::ALL.map(|store| Summary::of(store, fault, results));
    Fault::all().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::record;
    use crate::seen::Hits;

    fn run(outcome: CellOutcome, code: &str, seed: u64) -> Record {
        let code = code.to_owned();
        Record { code, seed, ..record(Store::Redis, 1, outcome, outcome == CellOutcome::Held) }
    }

    fn summary(runs: &[Record]) -> Summary {
        let lines: Vec<String> = runs.iter().map(|run| serde_json::to_string(run).unwrap()).collect();
        Summary::of(Store::Redis, Fault::number(1), &Results::parse(&lines.join("\n")).unwrap())
    }

    use CellOutcome::{Held, Late};

    #[test]
    fn the_worst_outcome_counts_until_newer_code_is_run() {
        let old = [run(Late, "", 1), run(Held, "", 1)];
        let of_old = summary(&old);
        assert_eq!((of_old.outcome, of_old.expected, of_old.histories), (Some(Late), false, 2));
        assert_eq!(of_old.runs, [old[0].clone()]);
        // Changes that nobody can look up make nothing better.
        let changed = summary(&[old[0].clone(), run(Held, "aaaa+", 1)]);
        assert_eq!((changed.outcome, changed.superseded.len()), (Some(Late), 0));
        let newer = summary(&[old[0].clone(), run(Held, "aaaa", 1)]);
        assert_eq!((newer.outcome, newer.expected, newer.superseded.len()), (Some(Held), true, 1));
        assert_eq!((newer.histories, newer.older_histories, of_old.older_histories), (2, 2, 0));
        // Neither does the older code again.
        let back = [run(Held, "aaaa", 1), run(Late, "bbbb", 1), run(Held, "aaaa", 1), run(Held, "bbbb", 1)];
        assert_eq!(summary(&back).outcome, Some(Late));
    }

    #[test]
    fn a_failure_that_the_store_still_has_is_not_superseded_by_luck() {
        let of = |outcome, code: &str| Record {
            code: code.to_owned(),
            ..record(Store::MariaDbGetLock, 11, outcome, outcome == Held)
        };
        let lines =
            [of(CellOutcome::Timing, ""), of(Held, "aaaa")].map(|run| serde_json::to_string(&run).unwrap());
        let results = Results::parse(&lines.join("\n")).unwrap();
        let summary = Summary::of(Store::MariaDbGetLock, Fault::number(11), &results);
        assert_eq!((summary.expected, summary.word().as_str()), (false, "**timing broken, 2**"));
    }

    #[test]
    fn seeds_count_once() {
        // Each has two histories: those of the first and of the second share a seed.
        let all = [run(Held, "", 1), run(Held, "", 2), run(Held, "", 4)];
        let of_all = summary(&all);
        assert_eq!((of_all.histories, of_all.runs.len()), (4, 2));
        assert_eq!(of_all.runs, all[1..]);
    }

    #[test]
    fn a_cell_in_which_nothing_was_hit_says_so() {
        let with = |change: fn(&mut Seen)| {
            let mut run = run(Held, "", 1);
            run.seen = Seen { grants: 9, ..Seen::default() };
            change(&mut run.seen);
            summary(&[run]).word()
        };
        assert_eq!(with(|_| {}), "held 2, hits unknown");
        let older = |seen: &mut Seen| seen.renewals_under_fault = Some(0);
        assert_eq!(with(older), "held 2, nothing hit by the older rule");
        assert_eq!(with(|seen| seen.hits = Some(Hits::default())), "held 2, nothing hit");
        let hits = |seen: &mut Seen| seen.hits = Some(Hits { killed: 1, ..Hits::default() });
        assert_eq!(with(hits), "held 2");
        assert_eq!(with(|seen| seen.losses = 1), "held 2");
    }

    /// That rule counted any renewal under any fault.
    #[test]
    fn hits_of_the_older_rule_are_not_those_of_this_one() {
        let with = |losses: u64, newer: Option<Hits>| {
            let mut older = run(Held, "", 1);
            older.seen = Seen { grants: 9, losses, renewals_under_fault: Some(4), ..Seen::default() };
            let mut all = vec![older];
            if newer.is_some() {
                let mut run = run(Held, "", 7);
                run.seen = Seen { grants: 9, hits: newer, ..Seen::default() };
                all.push(run);
            }
            summary(&all).word()
        };
        assert_eq!(with(0, None), "held 2, hits by the older rule");
        assert_eq!(with(1, None), "held 2");
        assert_eq!(with(0, Some(Hits::default())), "held 4, hits by the older rule");
        assert_eq!(with(0, Some(Hits { renewals: 1, ..Hits::default() })), "held 4");
    }

    #[test]
    fn results_say_which_locks_they_are_of() {
        let with = |locks: Option<&[&str]>| {
            let mut run = run(Held, "", 1);
            run.locks = locks.map(|locks| locks.iter().map(|&kind| kind.to_owned()).collect());
            summary(&[run]).histories_of_mutexes()
        };
        assert_eq!((with(None), with(Some(&["mutex"])), with(Some(&["mutex", "rwlock"]))), (2, 2, 0));
    }
}
