//! I5 and I6: locks can be acquired again after a fault, and waits end.

use std::collections::HashMap;

use crate::check::Checker;
use crate::event::{Event, Operation};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, Fault, GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    let keys = view.requests_by_key();
    for call in view.calls.iter().filter(|call| call.invoke.operation == Operation::Acquire) {
        overstayed(view, checker, call, report);
    }
    if keys.is_empty() {
        for invariant in [Invariant::I5, Invariant::I6] {
            report.unjudged(invariant, "nothing was asked for");
        }
        return;
    }
    let held = view.grants_by_key();
    let mut longest = 0;
    for (key, calls) in keys {
        let lock = LockUse::of(view, key, &calls, held.get(key).map_or(&[][..], Vec::as_slice));
        longest = lock.longest().max(longest);
        starved(view, checker, &lock, report);
    }
    if longest <= nanos(checker.recovery) {
        let why = format!(
            "a lock has {} to recover, and none was in use without a fault that concerned it for longer than {}",
            shown(nanos(checker.recovery)),
            shown(longest / MILLISECOND * MILLISECOND)
        );
        report.unjudged(Invariant::I5, why);
    }
}

/// I6: finds a wait that ended after its limit, or not at all.
fn overstayed(view: &View<'_>, checker: &Checker, call: &Call<'_>, report: &mut Report<'_, '_>) {
    let Some(limit) = call.invoke.values.limit else { return };
    let process = call.invoke.process.unwrap_or(0);
    let ended = call.done.or(call.unknown);
    let from = view.times.at(call.invoke);
    // A process that was killed had to return by its limit as long as it lived.
    let until = ended.map(|end| view.times.at(end)).or(view.death_of(process)).unwrap_or(view.end);
    let waited = until.saturating_sub(from).saturating_sub(view.paused(process, from, until));
    if waited <= limit.saturating_add(nanos(checker.overstay)) {
        return;
    }
    let what = match ended {
        Some(_) => format!("a wait of at most {} returned after {}", shown(limit), shown(waited)),
        None => format!("a wait of at most {} had not returned after {}", shown(limit), shown(waited)),
    };
    report.violated(Invariant::I6, call.invoke.key.as_deref(), what, [call.invoke].into_iter().chain(ended));
}

/// The use of one lock over the time of a history.
struct LockUse<'v, 'h> {
    key: &'h str,
    calls: &'v [&'v Call<'h>],
    /// The spans in which it was wanted, each with its first request.
    wanted: Vec<(u64, u64, &'h Event)>,
    /// The spans in which it was held, each with its grant. A grant, however short, shows that it could be acquired.
    held: Vec<(u64, u64, &'h Event)>,
    /// The spans of the faults that may delay a grant of it.
    faults: Vec<(u64, u64)>,
}

impl<'v, 'h> LockUse<'v, 'h> {
    fn of(
        view: &View<'h>,
        key: &'h str,
        calls: &'v [&'v Call<'h>],
        grants: &[&GrantLife<'h>],
    ) -> LockUse<'v, 'h> {
        let mut concerned = Concerned::default();
        let mut wanted: Vec<(u64, u64, &Event)> = Vec::with_capacity(calls.len());
        for call in calls {
            let process = call.invoke.process.unwrap_or(0);
            let ended = call.done.or(call.unknown).map(|end| view.times.at(end));
            let (from, until) =
                (view.times.at(call.invoke), ended.or(view.death_of(process)).unwrap_or(view.end));
            wanted.push((from, until, call.invoke));
            concerned.add(process, from, until);
        }
        let mut held: Vec<(u64, u64, &Event)> = Vec::with_capacity(grants.len());
        for grant in grants {
            // Until its release is confirmed, the store may not have given it to others.
            let freed = grant.release.and_then(|release| release.done).map(|done| view.times.at(done));
            let until = freed.unwrap_or(grant.until).max(grant.until);
            held.push((grant.from, until, grant.got));
            concerned.add(grant.process, grant.from, until);
        }
        concerned.sort();
        let faults = view.faults.iter().filter(|fault| concerned.are_hit_by(fault));
        let faults = faults.map(|fault| (fault.from, fault.until)).collect();
        for spans in [&mut wanted, &mut held] {
            spans.sort_unstable_by_key(|(from, until, _)| (*from, *until));
        }
        LockUse { key, calls, wanted, held, faults }
    }

    /// Returns the longest time for which the lock was wanted or held, and no fault concerned it: if it could not
    /// have been acquired any more, that would have been seen for so long.
    fn longest(&self) -> u64 {
        let mut used = [&self.wanted[..], &self.held[..]].concat();
        used.sort_unstable_by_key(|(from, until, _)| (*from, *until));
        let mut faults = self.faults.clone();
        faults.sort_unstable();
        merged(&used).into_iter().map(|(from, until, _)| gap(from, until, &faults).0).max().unwrap_or(0)
    }
}

/// The processes that waited for a lock or held it, with the spans of each.
#[derive(Default)]
struct Concerned(HashMap<u64, Vec<(u64, u64)>>);

impl Concerned {
    fn add(&mut self, process: u64, from: u64, until: u64) {
        self.0.entry(process).or_default().push((from, until));
    }

    /// Sorts the spans, and lets the end of each be the last end so far.
    fn sort(&mut self) {
        for spans in self.0.values_mut() {
            spans.sort_unstable();
            let mut last = 0;
            for (_, until) in spans {
                last = last.max(*until);
                *until = last;
            }
        }
    }

    /// Returns `true` for a fault of the store, or of one of these processes while it waited or held.
    fn are_hit_by(&self, fault: &Fault<'_>) -> bool {
        let is_hit = |process: &u64| {
            let Some(spans) = self.0.get(process) else { return false };
            let begun = spans.partition_point(|(from, _)| *from <= fault.until);
            begun > 0 && spans[begun - 1].1 >= fault.from
        };
        fault.targets.is_empty() || fault.targets.iter().any(is_hit)
    }
}

/// I5: finds the longest time for which a lock was wanted, not held, not granted, and no fault of it was at work.
/// A wait without a limit that never ends while the lock is free is found in the same way (I6).
fn starved(view: &View<'_>, checker: &Checker, lock: &LockUse<'_, '_>, report: &mut Report<'_, '_>) {
    let mut busy = lock.faults.clone();
    busy.extend(lock.held.iter().map(|(from, until, _)| (*from, *until)));
    busy.sort_unstable();
    let bound = nanos(checker.recovery);
    for (from, until, event) in merged(&lock.wanted) {
        let (length, begun) = gap(from, until, &busy);
        if length <= bound {
            continue;
        }
        let what = format!(
            "{} was wanted and not held for {}, and nobody was granted it; no fault of it was at work",
            lock.key,
            shown(length)
        );
        let never = lock.calls.iter().find(|call| {
            call.done.is_none()
                && call.unknown.is_none()
                && call.invoke.values.limit.is_none()
                && view.death_of(call.invoke.process.unwrap_or(0)).is_none()
                && view.times.at(call.invoke) <= begun + length
        });
        report.violated(Invariant::I5, Some(lock.key), what.clone(), [event]);
        if let Some(call) = never {
            let what = format!("a wait without a limit never returned, although {what}");
            report.violated(Invariant::I6, Some(lock.key), what, [call.invoke]);
        }
    }
}

/// Returns the longest gap between sorted spans from one time to another, and where it begins.
fn gap(from: u64, until: u64, spans: &[(u64, u64)]) -> (u64, u64) {
    let mut free_from = from;
    let mut worst = (0, from);
    let within = spans.iter().filter(|(_, end)| *end > from).take_while(|(begin, _)| *begin < until);
    for (begin, end) in within.copied().chain([(until, until)]) {
        worst = worst.max((begin.saturating_sub(free_from), free_from));
        free_from = free_from.max(end);
    }
    worst
}

/// Merges spans that overlap, or that a short pause separates: the next try of the same task.
fn merged<'h>(spans: &[(u64, u64, &'h Event)]) -> Vec<(u64, u64, &'h Event)> {
    let mut merged: Vec<(u64, u64, &Event)> = Vec::new();
    for (from, until, event) in spans.iter().copied() {
        match merged.last_mut() {
            Some(last) if from <= last.1.saturating_add(BETWEEN_TRIES) => last.1 = until.max(last.1),
            _ => merged.push((from, until, event)),
        }
    }
    merged
}

/// Two seconds between two tries still count as wanting the lock: on a busy machine the next one may be late.
const BETWEEN_TRIES: u64 = 2_000_000_000;
const MILLISECOND: u64 = 1_000_000;
