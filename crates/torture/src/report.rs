//! The report of a run: the judgement first, then its reasons.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_history::{Event, Format, History, Invariant, Operation, Stage, Timeline, Verdict, Violation};
use serde::Serialize;

use crate::rig::process::HUNG;
use crate::torture::Torture;

/// The judgement of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Judgement {
    /// Everything that could be judged was kept.
    Kept,
    /// The library kept its promises, but the store forgot grants that were valid.
    StoreForgot,
    /// A promise was broken.
    Broken,
    /// The run shows nothing, or not enough.
    Unjudged,
}

/// Something that a reader of a report has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// A sentence about it.
    pub what: String,
    /// The judgement that it leads to.
    pub leads_to: Judgement,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The judgement.
    pub judgement: Judgement,
    /// The reasons for it.
    pub findings: Vec<Finding>,
    /// The name of the store, and the grade of its fences.
    pub store: String,
    /// The grade of the fences.
    pub grade: String,
    /// The beginning of all names of the run.
    pub prefix: String,
    /// The seed.
    pub seed: u64,
    /// The time for which the workers ran, in milliseconds.
    pub ran_ms: u128,
    /// `true` if the run was ended before its time.
    pub was_stopped: bool,
    /// The processes.
    pub processes: usize,
    /// The locks.
    pub locks: usize,
    /// The kinds of faults.
    pub faults: Vec<String>,
    /// The verdict of the checker.
    pub verdict: Verdict,
    /// The history.
    #[serde(skip)]
    pub history: History,
}

impl Report {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn of(
        torture: Torture,
        ran: Duration,
        was_stopped: bool,
        prefix: String,
        failures: u64,
        last_error: Option<String>,
        history: History,
        verdict: Verdict,
    ) -> Report {
        let plan = history.plan().map(|event| event.values.clone()).unwrap_or_default();
        let mut report = Report {
            judgement: Judgement::Kept,
            findings: Vec::new(),
            store: plan.label.unwrap_or_default(),
            grade: plan.grade.unwrap_or_default(),
            prefix,
            seed: torture.plan.seed,
            ran_ms: ran.as_millis(),
            was_stopped,
            processes: torture.plan.processes,
            locks: torture.plan.locks.len(),
            faults: torture.faults.iter().map(ToString::to_string).collect(),
            verdict,
            history,
        };
        report.judge(failures, last_error);
        report
    }

    fn judge(&mut self, failures: u64, last_error: Option<String>) {
        let counts = self.verdict.counts;
        let blame = last_error.map(|error| format!(": {error}")).unwrap_or_default();
        let broken = self.broken().count();
        if broken > 0 {
            self.find(
                Judgement::Broken,
                format!("{} broken", many(broken as u64, "promise was", "promises were")),
            );
        }
        if counts.grants == 0 {
            self.find(Judgement::Unjudged, format!("nothing was acquired{blame}"));
        } else if failures > counts.grants {
            let text = format!("more acquisitions failed ({failures}) than succeeded{blame}");
            self.find(Judgement::Unjudged, text);
        }
        if self.grade == "none" {
            let text =
                "the store has no fences, so nothing can protect what a lock guards from a late holder";
            self.find(Judgement::Unjudged, text.to_owned());
        }
        let unexpected: Vec<String> = self
            .history
            .faults()
            .filter_map(|event| event.values.label.clone())
            .filter(|label| UNPLANNED.iter().any(|unplanned| label.starts_with(unplanned)))
            .collect();
        for label in unexpected {
            self.find(Judgement::Unjudged, format!("not a fault of the plan: {label}"));
        }
        let gone = self.forgotten();
        if gone > 0 {
            let text = format!(
                "the store forgot {} while valid: each holder noticed at its next renewal, and until then the store \
                 may have granted the lock again",
                many(gone, "grant", "grants")
            );
            self.find(Judgement::StoreForgot, text);
        }
        let worst = |report: &Report, judgement| report.findings.iter().any(|one| one.leads_to == judgement);
        self.judgement = [Judgement::Broken, Judgement::Unjudged, Judgement::StoreForgot]
            .into_iter()
            .find(|judgement| worst(self, *judgement))
            .unwrap_or(Judgement::Kept);
    }

    fn find(&mut self, leads_to: Judgement, what: String) {
        self.findings.push(Finding { what, leads_to });
    }

    /// Returns the violations that the store does not explain.
    pub fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.verdict.violations.iter().filter(|violation| violation.explained.is_none())
    }

    /// Returns how many valid grants the store had forgotten, as it said at their renewal or release.
    fn forgotten(&self) -> u64 {
        let is_it = |event: &&Event| {
            matches!((event.operation, event.stage), (Operation::Lost, _) | (Operation::Release, Stage::Fail))
                && event.error.as_deref().is_some_and(|cause| cause.contains("no longer knows"))
        };
        let grants =
            self.history.events().iter().filter(is_it).map(|event| (&event.key, &event.values.owner));
        grants.collect::<HashSet<_>>().len() as u64
    }

    /// Returns the report for people: the judgement comes first.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let counts = &self.verdict.counts;
        let _ = writeln!(out, "{}", self.headline());
        for finding in &self.findings {
            let _ = writeln!(out, "  {}", finding.what);
        }
        let stopped = if self.was_stopped { ", ended early" } else { "" };
        let faults = if self.faults.is_empty() { "none".to_owned() } else { self.faults.join(", ") };
        let ran = Duration::from_millis(u64::try_from(self.ran_ms).unwrap_or(u64::MAX));
        let _ = writeln!(out);
        let _ = writeln!(out, "  store     {}, fences: {}", self.store, self.grade);
        let _ = writeln!(out, "  names     {}", self.prefix);
        let _ = writeln!(
            out,
            "  run       {ran:.1?}{stopped}, {} processes, {} locks",
            self.processes, self.locks
        );
        let _ = writeln!(out, "  faults    {faults}: {} in all, seed {}", counts.faults, self.seed);
        let _ = writeln!(
            out,
            "  locks     {} grants, {} renewals, {} losses, {} unknown outcomes",
            counts.grants, counts.renewals, counts.losses, counts.unknown
        );
        let _ = writeln!(
            out,
            "  register  {} writes accepted, {} stale ones refused",
            counts.writes, counts.refusals
        );
        let _ = writeln!(out, "  left      {}", self.left());
        let _ = writeln!(out);
        for invariant in INVARIANTS {
            let _ = writeln!(out, "  {:<10}{}", self.state_of(*invariant), invariant.promise());
        }
        for violation in self.verdict.violations.iter().take(SHOWN) {
            shown(&mut out, violation);
        }
        out
    }

    /// Returns the first line of the report.
    pub fn headline(&self) -> String {
        let counts = &self.verdict.counts;
        match self.judgement {
            Judgement::Kept => format!(
                "kept: every promise that could be judged was kept, in {} under {}",
                many(counts.grants, "grant", "grants"),
                many(counts.faults, "fault", "faults")
            ),
            Judgement::StoreForgot => {
                "kept, but the store forgot grants: what it protects is safe only behind \
                                       fences"
                    .to_owned()
            }
            Judgement::Broken => "BROKEN: the history shows what must not happen".to_owned(),
            Judgement::Unjudged => "not judged: the run does not show enough".to_owned(),
        }
    }

    /// Returns the state of one promise as a word.
    fn state_of(&self, invariant: Invariant) -> &'static str {
        let of_it = || self.verdict.violations.iter().filter(|violation| violation.invariant == invariant);
        if of_it().any(|violation| violation.explained.is_none()) {
            "BROKEN"
        } else if of_it().next().is_some() {
            "by store"
        } else if self.verdict.unjudged.iter().any(|one| one.invariant == invariant) {
            "unjudged"
        } else {
            "kept"
        }
    }

    /// Returns what was left in the store, in words.
    fn left(&self) -> String {
        let events = || self.history.events().iter().filter(|event| event.operation == Operation::Residue);
        let count = |stage: Stage| {
            events().filter(|event| event.stage == stage).filter_map(|event| event.values.count).sum::<u64>()
        };
        let is_unknown = events().any(|event| event.stage == Stage::Info) || events().next().is_none();
        match (count(Stage::Fail), is_unknown) {
            (0, true) => "not known: the store could not be asked".to_owned(),
            (0, false) => match count(Stage::Ok) {
                0 => "no claims".to_owned(),
                names => format!("no claims; {} removed by a sweep", many(names, "name was", "names were")),
            },
            (left, _) => format!("{} that should not be there", many(left, "claim", "claims")),
        }
    }

    /// Writes the report, the history, its picture and its exports into a folder, which is created if missing.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write_to(&self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder)?;
        let mut written = Vec::new();
        let mut put = |name: String, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text)?;
            written.push(path);
            std::io::Result::Ok(())
        };
        put("report.txt".to_owned(), self.text())?;
        put(HISTORY.to_owned(), self.history.to_text())?;
        put("verdict.json".to_owned(), serde_json::to_string_pretty(self)? + "\n")?;
        let title = format!("{}, seed {}: {}", self.store, self.seed, self.headline());
        let mut timeline = Timeline::new(title);
        put("timeline.svg".to_owned(), timeline.svg(&self.history, &self.verdict))?;
        if let Some(window) = self.verdict.violations.first().and_then(window) {
            timeline.window = Some(window);
            put("violation.svg".to_owned(), timeline.svg(&self.history, &self.verdict))?;
        }
        for format in Format::ALL {
            if !format.is_for_one_key() {
                put(format!("history.{}", format.suffix()), self.history.export(*format, None))?;
                continue;
            }
            for key in self.history.keys() {
                let name = key.rsplit('/').next().unwrap_or(key);
                put(format!("{name}.{}", format.suffix()), self.history.export(*format, Some(key)))?;
            }
        }
        Ok(written)
    }
}

/// Returns the time around a violation.
fn window(violation: &Violation) -> Option<(u64, u64)> {
    let times = || violation.slice.iter().map(Event::moment);
    let (first, last) = (times().min()?, times().max()?);
    let margin = (last - first) / 4 + 100_000_000;
    Some((first.saturating_sub(margin), last + margin))
}

fn shown(out: &mut String, violation: &Violation) {
    let _ = writeln!(out, "\n{} ({}): {}", violation.invariant, violation.class, violation.what);
    if let Some(why) = &violation.explained {
        let _ = writeln!(out, "  not of the library: {why}");
    }
    let first = violation.slice.first().map_or(0, |event| event.moment());
    for event in &violation.slice {
        let at = Duration::from_nanos(event.moment().saturating_sub(first));
        let who = event.process.map_or_else(|| "-".to_owned(), |process| process.to_string());
        let error = event.error.as_deref().map(|error| format!("  {error}")).unwrap_or_default();
        let values = serde_json::to_string(&event.values).unwrap_or_default();
        let (stage, operation) = (event.stage.word(), event.operation.word());
        let _ = writeln!(out, "  {at:>10.3?}  process {who:<4} {stage:<6} {operation:<12} {values}{error}");
    }
}

fn many(count: u64, one: &str, several: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {several}") }
}

/// Worst first.
const INVARIANTS: &[Invariant] = &[
    Invariant::I1,
    Invariant::I2,
    Invariant::I3,
    Invariant::Linearizable,
    Invariant::I4,
    Invariant::I5,
    Invariant::I6,
    Invariant::I7,
    Invariant::I9,
    Invariant::I11,
    Invariant::I12,
    Invariant::I13,
];
const SHOWN: usize = 5;
/// The beginnings of labels of faults that no plan has.
const UNPLANNED: &[&str] = &["exit", "suspend", HUNG];
/// The history's file; a folder that has one is not written to again.
pub const HISTORY: &str = "history.jsonl";
