//! The effects of the faults of a history on holders and on those that waited, and failures without any fault.
//!
//! Ground rules: a fault hits those that it is on, and a fault of the store everybody. One without an effect hits
//! nobody.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use leasehold_history::{BUSY, CANCELLED, Event, History, Operation, Stage};
use serde::{Deserialize, Serialize};

use crate::Fault;

/// The effects of faults on holders and on those that waited, beside losses and refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hits {
    /// The renewals that a fault was in the way of: it was on the holder or on the store, between the time at which the
    /// renewal was due and its confirmation.
    pub renewals: u64,
    /// The grants that were held by a process when it was killed.
    pub killed: u64,
    /// The acquisitions that were dropped on their way, where that is the fault (F20).
    pub dropped: u64,
}

impl Hits {
    /// Counts what a fault of the grid has hit in a history. `idle` are the labels of its rounds without an effect.
    pub fn of(history: &History, fault: Fault, idle: &BTreeSet<String>) -> Hits {
        match fault.get() {
            20 => Hits { dropped: dropped_acquisitions(history), ..Hits::default() },
            // A pooler, a crowd, or a store in memory: no holder is disturbed.
            19 | 23 | 28 => Hits::default(),
            _ => Hits {
                renewals: renewals_under_fault(history, idle),
                killed: killed_holders(history),
                dropped: 0,
            },
        }
    }

    /// Adds the numbers of another history.
    pub fn add(&mut self, other: &Hits) {
        self.renewals += other.renewals;
        self.killed += other.killed;
        self.dropped += other.dropped;
    }

    /// Returns the sum.
    pub fn all(&self) -> u64 {
        self.renewals + self.killed + self.dropped
    }
}

/// A fault, from its first to its last moment.
struct Span<'h> {
    label: &'h str,
    targets: &'h [u64],
    from: u64,
    until: u64,
}

impl Span<'_> {
    fn is_on(&self, process: u64) -> bool {
        self.targets.is_empty() || self.targets.contains(&process)
    }

    fn touches(&self, from: u64, until: u64) -> bool {
        self.from <= until && self.until >= from
    }
}

/// Returns the faults of a history.
fn faults(history: &History) -> Vec<Span<'_>> {
    let mut spans: Vec<Span> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for event in history.faults() {
        let label = event.values.label.as_deref().unwrap_or_default();
        let (targets, at) = (event.values.target.as_slice(), event.moment());
        match event.stage {
            Stage::Ok | Stage::Fail => {
                if let Some(found) = open.iter().position(|place| spans[*place].label == label) {
                    let span = &mut spans[open.swap_remove(found)];
                    span.until = at.max(span.from);
                }
            }
            stage => {
                if stage == Stage::Invoke {
                    open.push(spans.len());
                }
                let until = if stage == Stage::Invoke { u64::MAX } else { at };
                spans.push(Span { label, targets, from: at, until });
            }
        }
    }
    spans
}

/// Returns `true` for a round without an effect, and for what was noted of it.
fn is_idle(label: &str, idle: &BTreeSet<String>) -> bool {
    idle.contains(label.split_once(':').map_or(label, |(round, _)| round))
}

/// Counts the renewals that a fault was in the way of.
fn renewals_under_fault(history: &History, idle: &BTreeSet<String>) -> u64 {
    let mut faults = faults(history);
    // A suspend of the machine is not a fault of the grid.
    let is_planned = |label: &str| label.starts_with('F') || label.starts_with("pause");
    faults.retain(|fault| is_planned(fault.label) && !is_idle(fault.label, idle));
    // For each grant, when its next renewal is due.
    let mut due: HashMap<(&str, &str), u64> = HashMap::new();
    let mut hit = 0;
    for event in history.events().iter().filter(|event| event.stage == Stage::Ok) {
        if !matches!(event.operation, Operation::Acquire | Operation::Renew) {
            continue;
        }
        let (Some(key), Some(owner)) = (event.key.as_deref(), event.values.owner.as_deref()) else {
            continue;
        };
        let at = event.moment();
        // Of the time that is left: some stores take a part of the ttl off the validity.
        let left = event.values.valid_until.map_or(0, |end| end.saturating_sub(at));
        let before = due.insert((key, owner), at.saturating_add(left / RENEWED_AFTER));
        let (Some(due), Some(process)) = (before, event.process) else { continue };
        let is_hit = faults.iter().any(|fault| fault.is_on(process) && fault.touches(due.min(at), at));
        hit += u64::from(event.operation == Operation::Renew && is_hit);
    }
    hit
}

/// Counts the grants that a process held when it was killed.
fn killed_holders(history: &History) -> u64 {
    let mut held: HashMap<(&str, &str), (u64, Option<u64>)> = HashMap::new();
    let mut killed = 0;
    for event in history.events() {
        let grant = event.key.as_deref().zip(event.values.owner.as_deref());
        match (event.operation, event.stage, grant) {
            (Operation::Acquire | Operation::Renew | Operation::Restate, Stage::Ok, Some(grant)) => {
                held.insert(grant, (event.process.unwrap_or(u64::MAX), event.values.valid_until));
            }
            (Operation::Lost, _, Some(grant)) => drop(held.remove(&grant)),
            // The release of a count that is not the last one leaves the grant.
            (Operation::Release, Stage::Ok | Stage::Fail | Stage::Info, Some(grant))
                if event.values.count.unwrap_or(0) == 0 =>
            {
                held.remove(&grant);
            }
            (Operation::Fault, Stage::Info, _) if is_kill(event) => {
                let at = event.moment();
                let is_its = |(process, valid): &(u64, Option<u64>)| {
                    event.values.target.contains(process) && valid.is_none_or(|end| end > at)
                };
                killed += held.values().filter(|held| is_its(held)).count() as u64;
                held.retain(|_, (process, _)| !event.values.target.contains(process));
            }
            _ => {}
        }
    }
    killed
}

fn is_kill(event: &Event) -> bool {
    event.values.label.as_deref().is_some_and(|label| label.starts_with("kill"))
}

fn dropped_acquisitions(history: &History) -> u64 {
    let is_dropped =
        |event: &&Event| event.operation == Operation::Acquire && event.error.as_deref() == Some(CANCELLED);
    history.events().iter().filter(is_dropped).count() as u64
}

/// Counts the acquisitions that failed, or whose outcome is unknown, although no fault was on their process or on the
/// store, nor had been for the time in which clients have to be back.
pub(crate) fn failures_without_fault(history: &History, recovery: Duration) -> u64 {
    let faults = faults(history);
    let recovery = u64::try_from(recovery.as_nanos()).unwrap_or(u64::MAX);
    let mut asked: HashMap<u64, u64> = HashMap::new();
    let mut failed = 0;
    for event in history.events().iter().filter(|event| event.operation == Operation::Acquire) {
        let Some(process) = event.process else { continue };
        let is_failure = match event.stage {
            Stage::Invoke => {
                asked.insert(process, event.moment());
                false
            }
            Stage::Ok => false,
            Stage::Fail => !matches!(event.error.as_deref(), Some(BUSY | CANCELLED)),
            Stage::Info => true,
        };
        let Some(from) = asked.get(&process).filter(|_| is_failure) else { continue };
        let (from, until) = (from.saturating_sub(recovery), event.moment());
        let is_explained = faults.iter().any(|fault| fault.is_on(process) && fault.touches(from, until));
        failed += u64::from(!is_explained);
    }
    failed
}

/// A renewal is due after this part of the lease.
const RENEWED_AFTER: u64 = 3;

#[cfg(test)]
mod tests {
    use leasehold_history::Values;

    use super::*;

    const MS: u64 = 1_000_000;

    /// An event about the grant `a` of a process, at a time in milliseconds.
    fn of_grant(at: u64, process: u64, stage: Stage, operation: Operation, until: u64) -> Event {
        let mut values = Values::default();
        values.owner = Some("a".to_owned());
        values.valid_until = (until > 0).then_some(until * MS);
        Event::new(stage, operation).by(process).on("job").with(values).at(at * MS)
    }

    fn got(at: u64, process: u64) -> Event {
        of_grant(at, process, Stage::Ok, Operation::Acquire, at + 900)
    }

    fn renewed(at: u64, process: u64) -> Event {
        of_grant(at, process, Stage::Ok, Operation::Renew, at + 900)
    }

    fn fault(at: u64, stage: Stage, label: &str, target: &[u64]) -> Event {
        let mut values = Values::default();
        (values.label, values.target) = (Some(label.to_owned()), target.to_vec());
        Event::new(stage, Operation::Fault).with(values).at(at * MS)
    }

    /// A history with leases of 900 ms, so that a renewal is due after 300.
    fn history(events: Vec<Event>) -> History {
        let mut values = Values::default();
        values.ttl = Some(900 * MS);
        let plan = Event::new(Stage::Info, Operation::Plan).with(values).at(0);
        History::new([vec![plan], events].concat())
    }

    fn hits(number: u8, events: Vec<Event>) -> Hits {
        Hits::of(&history(events), Fault::number(number), &BTreeSet::new())
    }

    /// Process 1 is granted the lock at 1 s, and renews it after a fault from 1.25 to 1.35 s.
    fn under(target: &[u64]) -> Vec<Event> {
        vec![
            got(1_000, 1),
            fault(1_250, Stage::Invoke, "F8 round 0", target),
            fault(1_350, Stage::Ok, "F8 round 0", target),
            renewed(1_360, 1),
        ]
    }

    #[test]
    fn a_fault_on_others_hits_no_renewal() {
        assert_eq!(hits(8, under(&[2])).renewals, 0);
        assert_eq!(hits(8, under(&[1, 2])).renewals, 1);
        assert_eq!(hits(8, under(&[])).renewals, 1, "a fault of the store is on everybody");
    }

    #[test]
    fn a_renewal_is_hit_from_when_it_is_due_until_its_confirmation() {
        let with = |from: u64, until: u64| {
            let edge = |at, stage| fault(at, stage, "F11 round 0", &[1]);
            let mut events = vec![got(1_000, 1), renewed(1_310, 1), renewed(1_900, 1)];
            events.extend([edge(from, Stage::Invoke), edge(until, Stage::Ok)]);
            events.sort_by_key(|event| event.received);
            hits(11, events).renewals
        };
        assert_eq!(with(1_050, 1_200), 0, "it is over before a renewal is due");
        assert_eq!(with(1_290, 1_305), 1);
        assert_eq!(with(1_400, 1_600), 0);
        // The renewal that is due at 1.61 s comes at 1.9 s: nothing was answered before.
        assert_eq!(with(1_400, 1_850), 1);
        assert_eq!(with(1_920, 1_950), 0, "it was confirmed before");
        assert_eq!(with(1_200, 1_800), 2);
    }

    #[test]
    fn a_round_without_an_effect_hits_nobody() {
        let idle = BTreeSet::from(["F8 round 0".to_owned()]);
        assert_eq!(Hits::of(&history(under(&[1])), Fault::number(8), &idle), Hits::default());
    }

    #[test]
    fn crowds_and_dropped_acquisitions_disturb_no_holder() {
        assert_eq!(hits(23, under(&[1])), Hits::default());
        let dropped =
            Event::new(Stage::Fail, Operation::Acquire).by(2).on("job").because(CANCELLED).at(1_500 * MS);
        let events = [under(&[1]), vec![dropped]].concat();
        assert_eq!(hits(20, events.clone()), Hits { dropped: 1, ..Hits::default() });
        assert_eq!(hits(8, events).dropped, 0, "now and then one is dropped under every fault");
    }

    #[test]
    fn a_process_that_is_killed_is_hit_if_it_holds() {
        let kill = || fault(1_500, Stage::Info, "kill worker 0", &[1, 3]);
        let killed = |events: Vec<Event>| hits(4, events).killed;
        assert_eq!(killed(vec![got(1_000, 1), kill()]), 1);
        assert_eq!(killed(vec![got(1_000, 2), kill()]), 0, "another one held");
        assert_eq!(killed(vec![got(500, 1), kill()]), 0, "its lease was over");
        let ended =
            |stage, operation| killed(vec![got(1_000, 1), of_grant(1_400, 1, stage, operation, 0), kill()]);
        assert_eq!(ended(Stage::Ok, Operation::Release), 0);
        assert_eq!(ended(Stage::Ok, Operation::Lost), 0);
        assert_eq!(ended(Stage::Invoke, Operation::Release), 1);
    }

    #[test]
    fn failures_count_where_no_fault_explains_them() {
        let ask = |at: u64| Event::new(Stage::Invoke, Operation::Acquire).by(1).on("job").at(at * MS);
        let end = |at: u64, stage, error: &str| {
            Event::new(stage, Operation::Acquire).by(1).on("job").because(error).at(at * MS)
        };
        let failures =
            |events: Vec<Event>| failures_without_fault(&history(events), Duration::from_millis(500));
        let of = |stage, error: &str| failures(vec![ask(2_000), end(2_100, stage, error)]);
        assert_eq!(of(Stage::Fail, "unavailable"), 1);
        assert_eq!(of(Stage::Info, "no answer"), 1);
        assert_eq!((of(Stage::Fail, BUSY), of(Stage::Fail, CANCELLED)), (0, 0));
        let after = |target: &[u64], over: u64| {
            let edge = |at, stage| fault(at, stage, "F8 round 0", target);
            let fault = [edge(1_000, Stage::Invoke), edge(over, Stage::Ok)];
            failures([fault.to_vec(), vec![ask(2_000), end(2_100, Stage::Fail, "unavailable")]].concat())
        };
        assert_eq!((after(&[1], 1_600), after(&[], 1_600)), (0, 0));
        assert_eq!((after(&[2], 1_600), after(&[1], 1_400)), (1, 1));
    }
}
