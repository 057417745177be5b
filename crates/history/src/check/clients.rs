//! I5 and I6 of each client and each process: nobody is left out while others are granted what it asks for.
//!
//! Ground rules: what a fault was on, or the store, explains a wait until it is over. A lawful wait is never blamed:
//! - A client as a whole has to be granted something in the time in which a lock has to recover and that of the longest
//!   hold of others. It is not blamed for shorter times, however often others are granted.
//! - A request that fails, and not because the lock was busy, shows that its process cannot ask. This needs no order.
//! - A process that is passed over is blamed only on a store that grants in the order of the requests, and then by many
//!   grants to later requests. Grants that were handed on inside of a process are none: the store did not choose there.
//!   A store without an order may grant the lock to any process that asks, and so is not judged by that.

use std::collections::BTreeMap;

use crate::check::Checker;
use crate::check::handover::FEWEST;
use crate::event::{BUSY, CANCELLED, Event, Mode, Operation, Stage};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    for client in &checker.clients {
        shut_out(view, checker, client, report);
    }
    let grants = view.grants_by_key();
    for (process, calls) in by_process(view) {
        let mut run = Run::default();
        for call in &calls {
            run.add(view, checker, process, call, &grants, report);
        }
        run.judge(checker, process, report);
        if checker.is_ordered {
            passed_over(view, checker, process, &calls, &grants, report);
        }
    }
}

/// The grants of each lock.
type Grants<'v, 'h> = BTreeMap<&'h str, Vec<&'v GrantLife<'h>>>;

/// Returns the acquisitions of each process, in their order.
fn by_process<'v, 'h>(view: &'v View<'h>) -> BTreeMap<u64, Vec<&'v Call<'h>>> {
    let mut processes: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
    for call in view.calls.iter().filter(|call| call.invoke.operation == Operation::Acquire) {
        if let Some(process) = call.invoke.process {
            processes.entry(process).or_default().push(call);
        }
    }
    processes
}

/// Returns when a request ended.
fn end_of(view: &View<'_>, call: &Call<'_>) -> u64 {
    call.done.or(call.unknown).map_or(view.end, |end| view.times.at(end))
}

/// Returns when the recording was about to end: nobody asks for anything then.
fn drained(view: &View<'_>) -> u64 {
    let drain = view.events.iter().find(|event| event.operation == Operation::Drain);
    drain.map_or(view.end, |drain| view.times.at(drain))
}

/// Returns the grants of the lock that a request is for, from one time to another.
fn between<'v, 'h>(
    grants: &'v Grants<'v, 'h>,
    call: &Call<'h>,
    from: u64,
    until: u64,
) -> &'v [&'v GrantLife<'h>] {
    let same = call.invoke.key.as_deref().and_then(|key| grants.get(key)).map_or(&[][..], Vec::as_slice);
    let after = same.partition_point(|grant| grant.from <= from);
    let before = same.partition_point(|grant| grant.from < until);
    &same[after.min(before)..before]
}

/// I5: finds a client that asks until the end, and has been granted nothing since the last fault on it or on the store,
/// for longer than a lock has to recover, while others were.
fn shut_out(view: &View<'_>, checker: &Checker, client: &[u64], report: &mut Report<'_, '_>) {
    let recovery = nanos(checker.recovery);
    let faults = view.faults.iter().filter(|fault| fault.is_on(client));
    let (calm, until) = (faults.map(|fault| fault.until).max().unwrap_or(0), drained(view));
    let is_its = |process: u64| client.contains(&process);
    let asks: Vec<&Call> = view
        .calls
        .iter()
        .filter(|call| call.invoke.operation == Operation::Acquire && call.invoke.process.is_some_and(is_its))
        .filter(|call| end_of(view, call) >= calm && view.times.at(call.invoke) < until)
        .collect();
    let (Some(first), Some(last)) = (asks.first(), asks.last()) else { return };
    let from = view.times.at(first.invoke).max(calm);
    let length = until.saturating_sub(from);
    let has_left = end_of(view, last).saturating_add(recovery) < until;
    let is_dead = client.iter().any(|process| view.death_of(*process).is_some());
    if length <= recovery || has_left || is_dead {
        return;
    }
    let is_held = |grant: &GrantLife<'_>| is_its(grant.process) && grant.until >= from && grant.from < until;
    // Where locks are held for long, or shared by many clients, one of these is lawfully granted nothing for as long.
    let to_others = || view.grants.iter().filter(|grant| grant.from < until && grant.until >= from);
    let longest =
        to_others().map(|grant| grant.until.min(until).saturating_sub(grant.from)).max().unwrap_or(0);
    let others = to_others().filter(|grant| grant.from >= from).count();
    let enough = FEWEST.max(checker.clients.len());
    if length <= recovery.saturating_add(longest) || others < enough || view.grants.iter().any(is_held) {
        return;
    }
    let what = format!(
        "a client was granted nothing for {} until the end, in {} tries, and others were granted {others} times; no \
         fault of it or of the store was at work",
        shown(length),
        asks.len()
    );
    let events = [last.invoke].into_iter().chain(last.done);
    report.violated(Invariant::I5, last.invoke.key.as_deref(), what, events);
}

/// Requests of a process that failed, one after the other.
#[derive(Default)]
struct Run<'h> {
    from: u64,
    until: u64,
    tries: usize,
    /// The grants of the same locks to others meanwhile.
    others: usize,
    key: Option<&'h str>,
    events: Vec<&'h Event>,
}

impl<'h> Run<'h> {
    fn add(
        &mut self,
        view: &View<'h>,
        checker: &Checker,
        process: u64,
        call: &Call<'h>,
        grants: &Grants<'_, 'h>,
        report: &mut Report<'_, '_>,
    ) {
        let Some(failed) = call.done.filter(|done| is_failure(done)) else {
            // A dropped request shows nothing, and neither does one that is open.
            if call.done.is_some_and(|done| done.error.as_deref() != Some(CANCELLED)) {
                self.judge(checker, process, report);
                *self = Run::default();
            }
            return;
        };
        let (from, until) = (view.times.at(call.invoke), view.times.at(failed));
        let begun = if self.tries == 0 { from } else { self.until };
        if view.faults_in(begun, until).any(|fault| fault.is_on(&[process])) {
            self.judge(checker, process, report);
            *self = Run::default();
            return;
        }
        if self.tries == 0 {
            (self.from, self.key, self.events) =
                (from, call.invoke.key.as_deref(), vec![call.invoke, failed]);
        }
        self.others += between(grants, call, begun, until).len();
        (self.tries, self.until) = (self.tries + 1, until);
        self.events.truncate(2);
        self.events.push(failed);
    }

    /// I5: finds a process of which every request fails for longer than a lock has to recover, while others are granted
    /// the same locks. No fault of it or of the store was at work.
    fn judge(&self, checker: &Checker, process: u64, report: &mut Report<'_, '_>) {
        let length = self.until.saturating_sub(self.from);
        if self.tries < FEWEST || self.others < FEWEST || length <= nanos(checker.recovery) {
            return;
        }
        let what = format!(
            "all {} requests of process {process} failed for {}, and others were granted these locks {} times; no fault \
             of it or of the store was at work",
            self.tries,
            shown(length),
            self.others
        );
        report.violated(Invariant::I5, self.key, what, self.events.iter().copied());
    }
}

/// Returns `true` for a request that failed, and not because the lock was busy or its caller left.
fn is_failure(done: &Event) -> bool {
    done.stage == Stage::Fail
        && done.error.as_deref().is_some_and(|error| error != BUSY && error != CANCELLED)
}

/// I6: finds a process that waits for longer than a lock has to recover, is granted nothing, and is passed over by many
/// that asked later: for all locks that it asks for, or for one of them.
fn passed_over<'h>(
    view: &View<'h>,
    checker: &Checker,
    process: u64,
    calls: &[&Call<'h>],
    grants: &Grants<'_, 'h>,
    report: &mut Report<'_, '_>,
) {
    let mut keys: Vec<&str> = calls.iter().filter_map(|call| call.invoke.key.as_deref()).collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.len() == 1 {
        keys.clear();
    }
    for key in [None].into_iter().chain(keys.into_iter().map(Some)) {
        let asked = calls.iter().filter(|call| key.is_none() || call.invoke.key.as_deref() == key);
        if let Some((what, events)) = longest_wait(view, checker, process, asked.copied(), grants) {
            report.violated(Invariant::I6, events[0].key.as_deref(), what, events);
            // The process waits in vain for every lock.
            if key.is_none() {
                return;
            }
        }
    }
}

/// Returns the first run of waits in vain that is too long, with its first and its last request.
fn longest_wait<'v, 'h: 'v>(
    view: &View<'h>,
    checker: &Checker,
    process: u64,
    calls: impl Iterator<Item = &'v Call<'h>>,
    grants: &Grants<'_, 'h>,
) -> Option<(String, Vec<&'h Event>)> {
    let mut wait = Wait::default();
    for call in calls {
        let (from, until) = (view.times.at(call.invoke), end_of(view, call));
        let is_disturbed =
            view.faults_in(wait.until.unwrap_or(from), until).any(|fault| fault.is_on(&[process]));
        if is_disturbed {
            wait = Wait::default();
            continue;
        }
        wait.until = Some(until);
        if call.done.is_some_and(|done| done.error.as_deref() == Some(CANCELLED)) {
            continue;
        }
        if call.succeeded() {
            wait = Wait::default();
            continue;
        }
        wait.waited = wait.waited.saturating_add(until.saturating_sub(from));
        wait.events.get_or_insert((call.invoke, call.invoke)).1 = call.invoke;
        let mode = call.invoke.values.mode.unwrap_or(Mode::Exclusive);
        let later = between(grants, call, from, until).iter().filter_map(|grant| {
            let asked = view.times.at(grant.asked);
            (asked > from && is_chance(grant, mode)).then(|| grant.from.saturating_sub(asked))
        });
        wait.overtakers.extend(later);
        if wait.is_too_long(checker) {
            let what = format!(
                "process {process} waited for {} in all and was granted nothing, and {} that asked later were granted what it \
                 wanted; no fault of it or of the store was at work",
                shown(wait.waited),
                wait.overtakers.len()
            );
            let (first, last) = wait.events?;
            return Some((what, vec![first, last]));
        }
    }
    None
}

/// Waits of a process, one after the other, of which none ended with a grant.
#[derive(Default)]
struct Wait<'h> {
    waited: u64,
    until: Option<u64>,
    /// The time for which each of those waited that passed it over.
    overtakers: Vec<u64>,
    events: Option<(&'h Event, &'h Event)>,
}

impl Wait<'_> {
    /// Returns `true` if the process waits, in all, for longer than a lock has to recover, and ten times as long as nine of
    /// ten waits of the many that passed it over: where everybody waits, a queue inside of its client may be longer than that of others.
    fn is_too_long(&mut self, checker: &Checker) -> bool {
        if self.waited <= nanos(checker.recovery) || self.overtakers.len() <= MOST_OVERTAKERS {
            return false;
        }
        self.overtakers.sort_unstable();
        let usual = self.overtakers[self.overtakers.len() * 9 / 10];
        self.waited > usual.saturating_mul(LONGER)
    }
}

/// Returns `true` if a process that waits for this share could have been granted it in place of the other: that was
/// granted as much, and not by a hand-off inside of its process.
fn is_chance(grant: &GrantLife<'_>, wanted: Mode) -> bool {
    let is_as_much = grant.mode == Mode::Exclusive || grant.mode == wanted;
    is_as_much && grant.got.values.fence.is_none_or(|fence| fence.sub == 0)
}

/// So many may pass a waiter over: some are on their way to the store at one time, and wait in clients.
const MOST_OVERTAKERS: usize = 100;
/// A wait in vain is so many times as long as that of others.
const LONGER: u64 = 10;
