//! I8, I9 and I11: what a release answers, and whose grant it ends.

use std::collections::HashMap;

use crate::check::Checker;
use crate::check::losses::forgotten;
use crate::event::{Event, Operation, Stage};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    counted(view, report);
    strays(view, report);
    for grant in &view.grants {
        after_loss(view, checker, grant, report);
    }
    taken_away(view, report);
    if !view.grants.iter().any(|grant| is_released_late(view, grant)) {
        report.untried(Invariant::I11, "no release came after a loss or after the end of a validity");
    }
    if view.grants.is_empty() {
        for invariant in [Invariant::I9, Invariant::I11] {
            report.unjudged(invariant, "nothing was granted");
        }
    }
}

/// A lock, and the owner of a grant or the process that has it.
type Counted<'h> = (&'h str, Result<&'h str, u64>);

/// I8: follows the counts of each owner, or of each process where owners are not named.
fn counted(view: &View<'_>, report: &mut Report<'_, '_>) {
    let mut counts: HashMap<Counted, (u64, &Event)> = HashMap::new();
    let mut is_counted = false;
    for event in view.events {
        let (Some(key), Some(process)) = (event.key.as_deref(), event.process) else { continue };
        let place = (key, event.values.owner.as_deref().ok_or(process));
        if event.operation == Operation::Lost {
            // Nothing is left to release, and the next grant begins anew.
            counts.remove(&place);
            continue;
        }
        if event.stage != Stage::Ok {
            continue;
        }
        let known = counts.get(&place).copied();
        let before = known.map_or(0, |(count, _)| count);
        let now = event.values.count;
        is_counted |= now.is_some();
        let expected = match event.operation {
            Operation::Acquire => before + 1,
            Operation::Release if before == 0 => {
                // Of a grant that this history does not show nothing is known.
                if let Some((_, last)) = known {
                    let what = "a second release of the same grant succeeded".to_owned();
                    report.violated(Invariant::I8, Some(key), what, [last, event]);
                }
                continue;
            }
            Operation::Release => before - 1,
            _ => continue,
        };
        if let Some(now) = now.filter(|now| *now != expected) {
            let what = format!(
                "after a {} the count is {now}, and {expected} is what was acquired and not released",
                event.operation.word()
            );
            report.violated(
                Invariant::I8,
                Some(key),
                what,
                known.map(|(_, last)| last).into_iter().chain([event]),
            );
        }
        // Without counts, each release is the last.
        let left = now.unwrap_or(if event.operation == Operation::Acquire { 1 } else { 0 });
        counts.insert(place, (left, event));
    }
    if !is_counted {
        report.unjudged(Invariant::I8, "no event has a count; only double releases were looked for");
    }
}

/// I9: finds renewals and releases of grants that their process does not have.
fn strays(view: &View<'_>, report: &mut Report<'_, '_>) {
    let done: HashMap<u64, &Call> = view.calls.iter().map(|call| (call.invoke.index, call)).collect();
    for event in view.strays.iter().copied() {
        let key = event.key.as_deref();
        let owner = event.values.owner.as_deref().unwrap_or("without a name");
        match event.operation {
            Operation::Renew if event.stage == Stage::Ok => {
                let what = format!("a renewal extended the grant {owner}, which its process does not have");
                report.violated(Invariant::I9, key, what, [event]);
            }
            Operation::Release => {
                let Some(call) = done.get(&event.index).filter(|call| call.succeeded()) else { continue };
                let what = format!("a release ended the grant {owner}, which its process does not have");
                report.violated(Invariant::I9, key, what, [event].into_iter().chain(call.done));
            }
            _ => {}
        }
    }
    for call in view.calls.iter().filter(|call| call.invoke.operation == Operation::Release) {
        let Some(done) = call.done.filter(|done| done.stage == Stage::Ok) else { continue };
        let (asked, ended) = (&call.invoke.values.owner, &done.values.owner);
        if let (Some(asked), Some(ended)) = (asked, ended)
            && asked != ended
        {
            let what = format!("the release of {asked} ended {ended}");
            report.violated(Invariant::I9, call.invoke.key.as_deref(), what, [call.invoke, done]);
        }
    }
}

/// Returns `true` if the holder tried to release the grant after it was over.
fn is_released_late(view: &View<'_>, grant: &GrantLife<'_>) -> bool {
    let Some(release) = grant.release else { return false };
    let at = view.times.at(release.invoke);
    let over = grant.valid_until().map(|(event, until)| view.times.shift(event, until));
    let lost = grant.lost.map(|lost| view.times.at(lost));
    over.into_iter().chain(lost).any(|over| over < at)
}

/// I11: finds a release that succeeded after its holder had lost the lock.
fn after_loss(view: &View<'_>, checker: &Checker, grant: &GrantLife<'_>, report: &mut Report<'_, '_>) {
    let Some(release) = grant.release.filter(Call::succeeded) else { return };
    let at = view.times.at(release.invoke);
    let shown_by = |cause: Option<&'_ Event>| {
        [Some(grant.got), cause, Some(release.invoke), release.done].into_iter().flatten().cloned().collect()
    };
    let mut violated = |what: String, events: Vec<Event>| {
        report.violated(Invariant::I11, Some(grant.key), what, &events);
    };
    if let Some(lost) = grant.lost.filter(|lost| view.times.at(lost) < at) {
        violated(
            format!("a release of {} succeeded after its loss was reported", grant.name()),
            shown_by(Some(lost)),
        );
        return;
    }
    let Some((event, until)) = grant.valid_until() else { return };
    let until = view.times.shift(event, until);
    if at > until.saturating_add(nanos(checker.lateness)) {
        let what = format!(
            "a release of {} succeeded {} after the end of its validity",
            grant.name(),
            shown(at - until)
        );
        violated(what, shown_by(Some(event)));
    }
}

/// I9: finds grants that the store had forgotten when they were renewed, each while a release of a process that no
/// longer held the lock was under way. If one of them has no such release, the store forgets by itself, and a release
/// is not to blame for the others.
fn taken_away(view: &View<'_>, report: &mut Report<'_, '_>) {
    let mut found = Vec::new();
    for (key, grants) in view.grants_by_key() {
        let late: Vec<(&GrantLife, Call)> = grants
            .iter()
            .filter_map(|grant| Some((*grant, grant.release?)))
            .filter(|(grant, release)| view.times.at(release.invoke) > grant.until || grant.lost.is_some())
            .collect();
        for victim in grants {
            let Some(lost) = forgotten(victim) else { continue };
            let at = view.times.at(lost);
            let is_late = |(other, release): &&(&GrantLife, Call)| {
                let begun = view.times.at(release.invoke);
                let done = release.done.map_or(view.end, |done| view.times.at(done));
                other.process != victim.process && done >= victim.from && begun <= at
            };
            let on_store = view.faults_in(victim.from, at).any(|fault| fault.targets.is_empty());
            match late.iter().find(is_late).filter(|_| !on_store) {
                Some((other, release)) => found.push((key, victim, *other, *release, lost)),
                None => {
                    let why = "the store forgot grants by itself, so that late releases are not to blame";
                    report.unjudged(Invariant::I9, why);
                    return;
                }
            }
        }
    }
    for (key, victim, other, release, lost) in found {
        let what = format!(
            "{} was gone from the store while it was valid, after a late release of {}",
            victim.name(),
            other.name()
        );
        let events = [victim.got, other.got, release.invoke, lost];
        report.violated(Invariant::I9, Some(key), what, events);
    }
}
