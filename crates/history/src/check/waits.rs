//! I5 and I6: locks can be acquired again after a fault, and waits end.

use std::collections::BTreeMap;

use crate::check::Checker;
use crate::event::{Event, Operation};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in view.calls.iter().filter(|call| call.invoke.operation == Operation::Acquire) {
        if let Some(key) = call.invoke.key.as_deref() {
            keys.entry(key).or_default().push(call);
        }
        overstayed(view, checker, call, report);
    }
    if keys.is_empty() {
        for invariant in [Invariant::I5, Invariant::I6] {
            report.unjudged(invariant, "nothing was asked for");
        }
    }
    let held = view.grants_by_key();
    for (key, calls) in keys {
        let spans = held.get(key).map_or(&[][..], Vec::as_slice);
        let busy: Vec<(u64, u64)> = spans
            .iter()
            .map(|grant| {
                // Until its release is confirmed, the store may not have given it to others.
                let freed = grant.release.and_then(|release| release.done).map(|done| view.times.at(done));
                (grant.from, freed.unwrap_or(grant.until).max(grant.until))
            })
            .collect();
        starved(view, checker, key, &calls, busy, report);
    }
}

/// I6: finds a wait that ended after its limit, or not at all.
fn overstayed(view: &View<'_>, checker: &Checker, call: &Call<'_>, report: &mut Report<'_, '_>) {
    let Some(limit) = call.invoke.values.limit else { return };
    let process = call.invoke.process.unwrap_or(0);
    let ended = call.done.or(call.unknown);
    if ended.is_none() && view.death_of(process).is_some() {
        return;
    }
    let from = view.times.at(call.invoke);
    let until = ended.map_or(view.end, |end| view.times.at(end));
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

/// I5: finds the longest time for which a lock was wanted, not held, not granted, and no fault was at work.
/// A wait without a limit that never ends while the lock is free is found in the same way (I6).
fn starved(
    view: &View<'_>,
    checker: &Checker,
    key: &str,
    calls: &[&Call<'_>],
    mut busy: Vec<(u64, u64)>,
    report: &mut Report<'_, '_>,
) {
    for fault in &view.faults {
        busy.push((fault.from, fault.until));
    }
    // A grant, however short, shows that the lock could be acquired.
    busy.sort_unstable();
    let mut wanted: Vec<(u64, u64, &Event)> = calls
        .iter()
        .map(|call| {
            let process = call.invoke.process.unwrap_or(0);
            let ended = call.done.or(call.unknown).map(|end| view.times.at(end));
            let until = ended.or(view.death_of(process)).unwrap_or(view.end);
            (view.times.at(call.invoke), until, call.invoke)
        })
        .collect();
    wanted.sort_unstable_by_key(|(from, until, _)| (*from, *until));
    let bound = nanos(checker.recovery);
    for (from, until, event) in merged(&wanted) {
        let mut free_from = from;
        let gaps = busy.iter().filter(|(_, end)| *end > from).take_while(|(begin, _)| *begin < until);
        let mut worst = (0, from);
        for (begin, end) in gaps.copied().chain([(until, until)]) {
            worst = worst.max((begin.saturating_sub(free_from), free_from));
            free_from = free_from.max(end);
        }
        if worst.0 > bound {
            let what = format!(
                "{key} was wanted and not held for {}, and nobody was granted it; no fault was at work",
                shown(worst.0)
            );
            let never = calls.iter().find(|call| {
                call.done.is_none()
                    && call.unknown.is_none()
                    && call.invoke.values.limit.is_none()
                    && view.death_of(call.invoke.process.unwrap_or(0)).is_none()
                    && view.times.at(call.invoke) <= worst.1 + worst.0
            });
            report.violated(Invariant::I5, Some(key), what.clone(), [event]);
            if let Some(call) = never {
                let what = format!("a wait without a limit never returned, although {what}");
                report.violated(Invariant::I6, Some(key), what, [call.invoke]);
            }
        }
    }
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

/// A second between two tries still counts as wanting the lock.
const BETWEEN_TRIES: u64 = 1_000_000_000;
