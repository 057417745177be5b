//! The judgement of a run: what the checker found, what disturbed the run, and what it shows too little of.

use std::collections::HashSet;

use leasehold_history::{Event, Invariant, Operation, Stage, Violation};

use super::{Finding, Judgement, Report, many};
use crate::rig::process::{HUNG, UNSTARTED};
use crate::rig::residue::CLAIMS;

impl Report {
    /// Adds the findings about a history that was judged.
    pub(super) fn judge(&mut self, failures: u64, last_error: Option<String>) {
        let counts = self.verdict.counts;
        let blame = last_error.map(|error| format!(": {error}")).unwrap_or_default();
        let broken = self.broken().count();
        if broken > 0 {
            let text = format!("{} broken", many(broken as u64, "promise was", "promises were"));
            self.find(Judgement::Broken, text);
        }
        if counts.grants == 0 {
            self.find(Judgement::Unjudged, format!("nothing was acquired{blame}"));
        } else if failures > counts.grants {
            let text = format!("more acquisitions failed ({failures}) than succeeded{blame}");
            self.find(Judgement::Unjudged, text);
        } else if failures > 0 {
            let text = format!("{} failed{blame}", many(failures, "acquisition", "acquisitions"));
            self.find(Judgement::Kept, text);
        }
        self.judge_releases();
        if let Some(why) = self.unasked() {
            let text = format!("the store did not say what is left in it: {why}");
            self.find(Judgement::Unjudged, text);
        }
        if self.grade == "none" {
            let text =
                "the store has no fences, so nothing can protect what a lock guards from a late holder";
            self.find(Judgement::Unjudged, text.to_owned());
        }
        for label in self.faults_like(UNPLANNED) {
            self.find(Judgement::Unjudged, format!("not a fault of the plan: {label}"));
        }
        let gone = self.forgotten();
        if gone > 0 {
            let text = format!(
                "{} gone from the store while valid: it forgot them or ended their sessions, or something removed \
                 them. Each holder noticed at its next renewal or release, and until then the store may have granted \
                 the lock again",
                many(gone, "grant was", "grants were")
            );
            self.find(Judgement::StoreForgot, text);
        }
    }

    /// Adds the finding about releases that failed otherwise than because the lock was lost: such a lock stays held
    /// until its lease is over.
    fn judge_releases(&mut self) {
        let of_release = |stage: Stage| {
            let is_one = move |event: &&Event| (event.operation, event.stage) == (Operation::Release, stage);
            self.history.events().iter().filter(is_one)
        };
        let released = of_release(Stage::Ok).count() as u64;
        let failed = of_release(Stage::Fail).chain(of_release(Stage::Info));
        let errors: Vec<&str> =
            failed.map(|event| event.error.as_deref().unwrap_or("no reason is given")).collect();
        let errors: Vec<&str> = errors.into_iter().filter(|error| !is_loss(error)).collect();
        let Some(last) = errors.last() else { return };
        let failed = errors.len() as u64;
        let (leads_to, text) = match failed > released {
            true => {
                let text = format!("more releases failed ({failed}) than succeeded: {last}");
                (Judgement::Unjudged, text)
            }
            false => (Judgement::Kept, format!("{} failed: {last}", many(failed, "release", "releases"))),
        };
        self.find(leads_to, text);
    }

    /// Takes the worst of what the findings lead to.
    pub(super) fn conclude(&mut self) {
        self.judgement = [Judgement::Broken, Judgement::Unjudged, Judgement::StoreForgot]
            .into_iter()
            .find(|judgement| self.findings.iter().any(|one| one.leads_to == *judgement))
            .unwrap_or(Judgement::Kept);
    }

    /// Returns why it is not known which claims are left in the store, if it is not.
    fn unasked(&self) -> Option<&str> {
        let unknown = |event: &&Event| event.operation == Operation::Residue && event.stage == Stage::Info;
        let mut unknown = self.history.events().iter().filter(unknown);
        unknown.find(|event| event.values.label.as_deref() == Some(CLAIMS))?.error.as_deref()
    }

    /// Returns the labels of the faults that begin with one of these words.
    fn faults_like(&self, words: &[&str]) -> Vec<String> {
        let labels = self.history.faults().filter_map(|event| event.values.label.clone());
        labels.filter(|label| words.iter().any(|word| label.starts_with(word))).collect()
    }

    pub(super) fn find(&mut self, leads_to: Judgement, what: String) {
        self.findings.push(Finding { what, leads_to });
    }

    /// Returns the violations that count: no fault of the store explains them, and neither may a worker that was
    /// killed from outside, or a machine that was suspended. Those excuse nothing of what the register accepted.
    /// A grant that the store forgot, as the library says, is a finding of its own.
    pub fn broken(&self) -> impl Iterator<Item = &Violation> {
        let is_disturbed = !self.faults_like(FROM_OUTSIDE).is_empty();
        let is_of_register =
            |invariant| matches!(invariant, Invariant::I1 | Invariant::I3 | Invariant::Linearizable);
        self.verdict.violations.iter().filter(move |violation| {
            let is_excused = violation.explained.is_some() || is_of_forgotten(violation);
            !is_excused && (!is_disturbed || is_of_register(violation.invariant))
        })
    }

    /// Returns `true` if all violations that count may be those of a store that forgot grants.
    pub(super) fn is_doubtful(&self) -> bool {
        self.broken().all(|violation| violation.doubt.is_some())
    }

    /// Returns how many valid grants the store had forgotten, as it said at their renewal or release, with all whose
    /// violations it excuses: also those of sessions that it ended.
    fn forgotten(&self) -> u64 {
        let is_it = |event: &&Event| {
            matches!((event.operation, event.stage), (Operation::Lost, _) | (Operation::Release, Stage::Fail))
                && event.error.as_deref().is_some_and(|cause| cause.contains("no longer knows"))
        };
        let said = self.history.events().iter().filter(is_it);
        let is_grant = |event: &&Event| (event.operation, event.stage) == (Operation::Acquire, Stage::Ok);
        let excused = self.verdict.violations.iter().filter(|violation| is_of_forgotten(violation));
        let excused = excused.filter_map(|violation| violation.slice.iter().find(is_grant));
        let grants = said.chain(excused).map(|event| (&event.key, &event.values.owner));
        grants.collect::<HashSet<_>>().len() as u64
    }
}

/// Returns `true` if the store may have forgotten or ended a grant that was valid, as the library says.
fn is_of_forgotten(violation: &Violation) -> bool {
    violation.invariant == Invariant::I13 && violation.doubt.is_some()
}

/// Returns `true` if the error of a release says that the lock was lost.
fn is_loss(error: &str) -> bool {
    error.contains("the lock was lost")
}

/// The beginnings of labels of faults that no plan has.
const UNPLANNED: &[&str] = &["exit", "suspend", HUNG, UNSTARTED];
/// The beginnings of labels of faults that disturb a run from outside.
const FROM_OUTSIDE: &[&str] = &["exit", "suspend"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_history::{Checker, FenceValue, History, Values};

    use super::super::Recording;
    use super::*;
    use crate::plan::Plan;
    use crate::torture::Torture;

    const GONE: &str = "the server no longer knows the claim";

    fn event(at: u64, process: u64, stage: Stage, operation: Operation, values: Values) -> Event {
        Event::new(stage, operation).by(process).on("job").at(at * 1_000_000).with(values)
    }

    fn grant(at: u64, process: u64, fence: u64) -> [Event; 2] {
        let mut values = Values::default();
        (values.owner, values.fence) = (Some(format!("c{process}")), Some(FenceValue::new(0, fence, 0)));
        values.valid_until = Some(10_000_000_000);
        [
            event(at, process, Stage::Invoke, Operation::Acquire, Values::default()),
            event(at + 1, process, Stage::Ok, Operation::Acquire, values),
        ]
    }

    fn over(at: u64, process: u64, operation: Operation, cause: &str) -> Event {
        let mut values = Values::default();
        values.owner = Some(format!("c{process}"));
        let event = event(at, process, Stage::Ok, operation, values);
        if cause.is_empty() { event } else { event.because(cause) }
    }

    fn fault(at: u64, label: &str) -> Event {
        let mut values = Values::default();
        (values.label, values.target) = (Some(label.to_owned()), vec![9]);
        if label.starts_with("server") || label.starts_with("suspend") {
            values.target.clear();
        }
        Event::new(Stage::Info, Operation::Fault).at(at * 1_000_000).with(values)
    }

    /// A first grant that ends by a loss, beside a second one that comes at `second`.
    fn report(second: u64, cause: &str, more: &[Event]) -> Report {
        let mut events = [grant(1, 1, 5), grant(second, 2, 6)].concat();
        events.extend([over(100, 1, Operation::Lost, cause), over(400, 2, Operation::Lost, GONE)]);
        events.extend(more.iter().cloned());
        events.sort_by_key(|event| event.received);
        recorded(Ok(()), History::new(events))
    }

    /// Nothing is known that ends the session of a process which runs.
    #[test]
    fn session_that_ends_in_the_middle_of_a_hold_is_not_kept() {
        let cause = "the session with the server ended";
        let mut events = [grant(1, 1, 5), grant(200, 2, 6)].concat();
        events.extend([over(100, 1, Operation::Lost, cause), over(400, 2, Operation::Lost, cause)]);
        events.sort_by_key(|event| event.received);
        let ended = recorded(Ok(()), History::new(events));
        assert_eq!(ended.judgement, Judgement::StoreForgot, "{}", ended.text());
        assert!(ended.text().contains("2 grants were gone from the store while valid"), "{}", ended.text());
    }

    /// So many grants, of which the releases of the first ones have no effect.
    fn released(grants: u64, unreleased: u64, stage: Stage) -> Report {
        let turn = |turn: u64| {
            let (at, process) = (turn * 20_000, turn + 1);
            let mut invoke = over(at + 10, process, Operation::Release, "");
            invoke.stage = Stage::Invoke;
            let error = if turn < unreleased { "permission denied" } else { "" };
            let mut answer = over(at + 11, process, Operation::Release, error);
            answer.stage = if turn < unreleased { stage } else { Stage::Ok };
            let mut events = grant(at, process, turn + 1).to_vec();
            events[1].values.valid_until = Some((at + 10_000) * 1_000_000);
            events.extend([invoke, answer]);
            events
        };
        recorded(Ok(()), History::new((0..grants).flat_map(turn)))
    }

    #[test]
    fn releases_that_fail_are_reported() {
        for stage in [Stage::Fail, Stage::Info] {
            let most = released(5, 5, stage);
            assert_eq!(most.judgement, Judgement::Broken, "{}", most.text());
            let text = "more releases failed (5) than succeeded: permission denied";
            assert!(most.text().contains(text), "{}", most.text());
        }
        let few = released(8, 2, Stage::Info);
        assert_eq!(few.judgement, Judgement::Kept, "{}", few.text());
        assert!(few.text().contains("2 releases failed: permission denied"), "{}", few.text());
        assert!(!released(8, 0, Stage::Info).text().contains("failed"));
    }

    fn recorded(state: Result<(), String>, history: History) -> Report {
        let verdict = state.map(|()| Checker::new().check(&history));
        let recording = Recording {
            prefix: "leasehold-torture/x/".to_owned(),
            ran: Duration::from_secs(1),
            was_stopped: false,
            was_full: false,
            failures: 0,
            last_error: None,
            history,
            verdict,
        };
        Report::of(Torture::new(Plan::new("file:///nowhere")), recording)
    }

    #[test]
    fn the_word_of_the_library_does_not_make_the_store_guilty() {
        let kept = report(200, GONE, &[]);
        assert_eq!(kept.judgement, Judgement::StoreForgot, "{}", kept.text());
        let doubtful = report(50, GONE, &[]);
        assert_eq!(doubtful.judgement, Judgement::Broken, "{}", doubtful.text());
        assert!(doubtful.headline().starts_with("BROKEN, or the store forgot grants"), "{}", doubtful.text());
        let broken = report(50, "the lock was revoked", &[]);
        assert_eq!(broken.judgement, Judgement::Broken);
        assert!(broken.headline().starts_with("BROKEN: "), "{}", broken.text());
        // A fault that was recorded does.
        let explained = report(50, GONE, &[fault(20, "server wiped")]);
        assert_eq!(explained.judgement, Judgement::StoreForgot, "{}", explained.text());
    }

    #[test]
    fn disturbances_excuse_all_but_the_register() {
        for label in ["exit of worker 3", "suspend of the machine for 9s"] {
            let disturbed = report(50, "the lock was revoked", &[fault(500, label)]);
            assert_eq!(disturbed.judgement, Judgement::Unjudged, "{}", disturbed.text());
            assert!(!disturbed.text().contains("BROKEN"), "{}", disturbed.text());
            let served = |fence| {
                let mut values = Values::default();
                (values.fence, values.val) = (Some(FenceValue::new(0, fence, 0)), Some(0));
                Event::new(Stage::Ok, Operation::ServedRead).on("job").with(values).at(300_000_000)
            };
            let stale = report(50, GONE, &[fault(500, label), served(6), served(5)]);
            assert_eq!(stale.judgement, Judgement::Broken, "{}", stale.text());
        }
        // A kill of the plan disturbs nothing.
        let planned = report(50, "the lock was revoked", &[fault(500, "kill worker 3")]);
        assert_eq!(planned.judgement, Judgement::Broken, "{}", planned.text());
    }

    #[test]
    fn store_that_does_not_say_what_is_left_is_not_judged() {
        let mut values = Values::default();
        values.label = Some(CLAIMS.to_owned());
        let unasked = Event::new(Stage::Info, Operation::Residue).at(500_000_000).with(values);
        let report = report(200, GONE, &[unasked.because("connection refused")]);
        assert_eq!(report.judgement, Judgement::Unjudged, "{}", report.text());
        assert!(report.text().contains("what is left in it: connection refused"), "{}", report.text());
    }

    #[test]
    fn a_checker_that_fails_shows_nothing_as_kept() {
        let history = report(200, GONE, &[]).history;
        let report = recorded(Err("the checker failed: panic".to_owned()), history);
        assert_eq!(report.judgement, Judgement::Unjudged);
        let text = report.text();
        assert!(text.contains("the checker failed: panic") && !text.contains("  kept"), "{text}");
    }
}
