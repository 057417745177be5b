//! The report of a run: the judgement first, then its reasons.

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_history::{Event, Format, History, Invariant, Operation, Stage, Timeline, Verdict, Violation};
use serde::Serialize;

use crate::torture::Torture;

mod folder;
mod judge;

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
    /// `false` if the history could not be judged at all.
    #[serde(skip)]
    is_judged: bool,
}

/// The recording of a run, and what the checker says about it.
pub(crate) struct Recording {
    pub(crate) prefix: String,
    pub(crate) ran: Duration,
    pub(crate) was_stopped: bool,
    /// `true` if the run ended because there were enough events.
    pub(crate) was_full: bool,
    pub(crate) failures: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) history: History,
    /// The error says why the history could not be judged.
    pub(crate) verdict: Result<Verdict, String>,
}

impl Report {
    pub(crate) fn of(torture: Torture, recording: Recording) -> Report {
        let Recording { prefix, ran, was_stopped, was_full, failures, last_error, history, verdict } =
            recording;
        let plan = history.plan().map(|event| event.values.clone()).unwrap_or_default();
        let (verdict, problem) = match verdict {
            Ok(verdict) => (verdict, None),
            Err(problem) => (Verdict::default(), Some(problem)),
        };
        let mut report = Report {
            judgement: Judgement::Kept,
            findings: Vec::new(),
            store: plan.label.unwrap_or_default(),
            grade: plan.grade.unwrap_or_default(),
            prefix,
            seed: torture.plan.seed,
            ran_ms: ran.as_millis(),
            was_stopped: was_stopped || was_full,
            processes: torture.plan.processes,
            locks: torture.plan.locks.len(),
            faults: torture.faults.iter().map(ToString::to_string).collect(),
            verdict,
            history,
            is_judged: problem.is_none(),
        };
        if was_full {
            let text = format!(
                "the run was ended early, because {} events were recorded: a history is judged in memory",
                torture.most_events
            );
            report.find(Judgement::Kept, text);
        }
        match problem {
            Some(problem) => report.find(Judgement::Unjudged, problem),
            None => report.judge(failures, last_error),
        }
        report.conclude();
        report
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
            let state = self.state_of(*invariant);
            let _ = writeln!(out, "  {state:<10}{}", invariant.promise());
            let reasons = self.verdict.unjudged.iter().filter(|one| one.invariant == *invariant);
            for reason in reasons.filter(|_| state == UNJUDGED) {
                let _ = writeln!(out, "            {}", reason.why);
            }
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
                "kept, but the store forgot grants, or something removed them: what it protects is safe only behind \
                 fences"
                    .to_owned()
            }
            Judgement::Broken if self.is_doubtful() => {
                "BROKEN, or the store forgot grants: the history shows what must not happen".to_owned()
            }
            Judgement::Broken => "BROKEN: the history shows what must not happen".to_owned(),
            Judgement::Unjudged => "not judged: the run does not show enough".to_owned(),
        }
    }

    /// Returns the state of one promise as a word.
    fn state_of(&self, invariant: Invariant) -> &'static str {
        let violations = &self.verdict.violations;
        let mut of_it = violations.iter().filter(|violation| violation.invariant == invariant).peekable();
        let is_unjudged = self.verdict.unjudged.iter().any(|one| one.invariant == invariant);
        if self.broken().any(|violation| violation.invariant == invariant) {
            "BROKEN"
        } else if of_it.peek().is_some() && of_it.all(|violation| violation.explained.is_some()) {
            "by store"
        } else if !self.is_judged || is_unjudged || violations.iter().any(|one| one.invariant == invariant) {
            UNJUDGED
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

    /// Creates the folder of a report, for its owner alone. One that is there already has to be empty.
    ///
    /// # Errors
    /// `AlreadyExists` if it has something in it, or is not a directory; else those of the operating system.
    pub fn create_folder(folder: &Path) -> std::io::Result<()> {
        folder::create(folder)
    }

    /// Writes the report, the history, its picture and its exports into a new or empty folder. Nothing is written over,
    /// and no link is followed. The history comes before what is made of it, and the exports come last, so that a disk
    /// that becomes full takes the least.
    ///
    /// # Errors
    /// As [`Report::create_folder`], and if a file cannot be written, with its name.
    pub fn write_to(&self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        folder::create(folder)?;
        let mut files = folder::Files::of(folder);
        files.put("report.txt", |file| file.write_all(self.text().as_bytes()))?;
        files.put("verdict.json", |file| {
            serde_json::to_writer_pretty(&mut *file, self)?;
            file.write_all(b"\n")
        })?;
        files.put(HISTORY, |file| self.history.write(file))?;
        let title = format!("{}, seed {}: {}", self.store, self.seed, self.headline());
        let mut timeline = Timeline::new(title);
        let picture = timeline.svg(&self.history, &self.verdict);
        files.put("timeline.svg", |file| file.write_all(picture.as_bytes()))?;
        if let Some(window) = self.verdict.violations.first().and_then(window) {
            timeline.window = Some(window);
            let picture = timeline.svg(&self.history, &self.verdict);
            files.put("violation.svg", |file| file.write_all(picture.as_bytes()))?;
        }
        let exporter = self.history.exporter();
        for format in Format::ALL.iter().copied() {
            if !format.is_for_one_key() {
                let name = format!("history.{}", format.suffix());
                files.put(&name, |file| exporter.write(format, None, file))?;
                continue;
            }
            for key in exporter.keys() {
                let name = format!("{}.{}", key.rsplit('/').next().unwrap_or(key), format.suffix());
                files.put(&name, |file| exporter.write(format, Some(key), file))?;
            }
        }
        Ok(files.written)
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
    if let Some(why) = &violation.doubt {
        let _ = writeln!(out, "  of the store or of the library: {why}");
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
    Invariant::I8,
    Invariant::I9,
    Invariant::I10,
    Invariant::I11,
    Invariant::I12,
    Invariant::I13,
];
const SHOWN: usize = 5;
const UNJUDGED: &str = "unjudged";
/// The history's file.
pub const HISTORY: &str = "history.jsonl";
