//! I5 and I6 between the faults: a lock that was released goes to one who waits for it, and waits are woken.
//!
//! Ground rules: both are judged over all hand-overs and waits of a history, because a machine that is busy delays one of
//! them for as long as a defect does. What a defect does, it does nearly every time.

use crate::check::Checker;
use crate::event::Event;
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    let calls = view.requests_by_key();
    let bound = nanos(checker.handover);
    let mut found = Handovers::default();
    for (key, grants) in view.grants_by_key() {
        let calls = calls.get(key).map_or(&[][..], Vec::as_slice);
        found.add(view, bound, &grants, &Patient::of(view, calls, bound));
    }
    found.judge(bound, report);
    let mut waits: Vec<Wait> = view.grants.iter().filter_map(|grant| Wait::of(view, grant, bound)).collect();
    waits.sort_by_key(|wait| wait.is_early);
    judge_waits(&waits, report);
}

/// The times until which somebody is patient enough to show that a lock that is released is not handed over.
pub(super) struct Patient<'h>(Vec<(u64, u64, &'h Event)>);

impl<'h> Patient<'h> {
    pub(super) fn of(view: &View<'h>, calls: &[&Call<'h>], bound: u64) -> Patient<'h> {
        let mut spans: Vec<(u64, u64, &Event)> = calls
            .iter()
            .map(|call| {
                let from = view.times.at(call.invoke);
                let ended = call.done.or(call.unknown).map(|end| view.times.at(end));
                let process = call.invoke.process.unwrap_or(0);
                let until = ended.or(view.death_of(process)).unwrap_or(view.end);
                let limit = call.invoke.values.limit.map_or(u64::MAX, |limit| from.saturating_add(limit));
                // One that is not granted shows nothing unless it waited for so long.
                let until = if call.succeeded() { until } else { until.saturating_sub(bound) };
                (from, until.min(limit.saturating_sub(bound)), call.invoke)
            })
            .collect();
        spans.sort_unstable_by_key(|(from, until, _)| (*from, *until));
        // Each has the latest end so far, and the one that waits until then.
        let mut last: Option<(u64, &Event)> = None;
        for (_, until, waiter) in &mut spans {
            match last {
                Some(longer) if longer.0 >= *until => (*until, *waiter) = longer,
                _ => last = Some((*until, *waiter)),
            }
        }
        Patient(spans)
    }

    /// Returns `true` if somebody waits at a time, and would wait for the bound from then on.
    fn waits_at(&self, at: u64) -> bool {
        self.waiting_at(at).is_some()
    }

    /// Returns the request of the one who waits at a time.
    fn waiting_at(&self, at: u64) -> Option<&'h Event> {
        let begun = self.0.partition_point(|(from, ..)| *from < at);
        let (_, until, waiter) = self.0.get(begun.checked_sub(1)?)?;
        (*until > at).then_some(*waiter)
    }

    /// Returns the first time from `at` on at which somebody waits, with the request of that one.
    pub(super) fn first_from(&self, at: u64) -> Option<(u64, &'h Event)> {
        let begun = self.0.partition_point(|(from, ..)| *from < at);
        let mut later = self.0[begun..].iter().filter(|(from, until, _)| until > from);
        self.waiting_at(at)
            .map(|waiter| (at, waiter))
            .or_else(|| later.next().map(|(from, _, waiter)| (*from, *waiter)))
    }
}

/// The hand-overs of all locks: releases that were confirmed while somebody waited, and nobody else held.
#[derive(Default)]
struct Handovers<'h> {
    all: usize,
    /// The late ones: how late, the lock, the release, and the next grant.
    late: Vec<(u64, &'h str, &'h Event, Option<&'h Event>)>,
}

impl<'h> Handovers<'h> {
    fn add(&mut self, view: &View<'h>, bound: u64, grants: &[&GrantLife<'h>], patient: &Patient<'_>) {
        let freed = |grant: &GrantLife<'h>| {
            let done = grant.release.filter(Call::succeeded).and_then(|release| release.done)?;
            Some((view.times.at(done), done))
        };
        let mut held = 0;
        for (place, grant) in grants.iter().enumerate() {
            let before = held;
            held = held.max(freed(grant).map_or(grant.until, |(at, _)| at));
            let Some((at, done)) = freed(grant) else { continue };
            let later = &grants[place + 1..];
            let next = later.iter().find(|next| next.from >= at);
            let mut meanwhile = later.iter().take_while(|other| other.from < at);
            let is_held =
                before > at || meanwhile.any(|other| freed(other).map_or(other.until, |(at, _)| at) > at);
            if is_held || !patient.waits_at(at) {
                continue;
            }
            let end = next.map_or(view.end, |next| next.from);
            let is_disturbed = view.faults_in(at, end.min(at.saturating_add(bound))).next().is_some();
            // At the end of a recording nobody waits for long.
            if is_disturbed || next.is_none() && end - at <= bound {
                continue;
            }
            self.all += 1;
            if end - at > bound {
                self.late.push((end - at, grant.key, done, next.map(|next| next.got)));
            }
        }
    }

    fn judge(mut self, bound: u64, report: &mut Report<'_, '_>) {
        if self.all < FEWEST {
            let why = format!(
                "{} locks were released while somebody waited and no fault was at work, and {FEWEST} are needed",
                self.all
            );
            report.untried(Invariant::I6, &why);
            return;
        }
        if self.late.len() < FEWEST || self.late.len() * MOST_LATE < self.all {
            return;
        }
        self.late.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
        let Some((longest, key, release, next)) = self.late.first().copied() else { return };
        let what = format!(
            "{} of {} locks that were released while somebody waited were not granted to anybody within {}, {key} for {}; \
             no fault was at work",
            self.late.len(),
            self.all,
            shown(bound),
            shown(longest)
        );
        report.violated(Invariant::I5, Some(key), what, [release].into_iter().chain(next));
    }
}

/// A wait that the store ended by a grant.
struct Wait<'h> {
    key: &'h str,
    asked: &'h Event,
    got: &'h Event,
    /// `true` if it ended before the last tenth of its limit, in which a caller asks a last time by itself.
    is_early: bool,
}

impl<'h> Wait<'h> {
    /// Returns the wait of a grant, if it was long enough to have been woken, if no holder of the same process handed the
    /// lock on, and if no fault was at work: a holder that is stopped keeps the others waiting, and so does its lease.
    fn of(view: &View<'h>, grant: &GrantLife<'h>, bound: u64) -> Option<Wait<'h>> {
        let limit = grant.asked.values.limit.filter(|limit| *limit >= bound)?;
        let asked_at = view.times.at(grant.asked);
        let waited = grant.from.saturating_sub(asked_at);
        let is_handed_on = grant.got.values.fence.is_some_and(|fence| fence.sub > 0);
        let is_disturbed = view.faults_in(asked_at, grant.from).next().is_some();
        let is_wait = waited >= limit / 10 && !is_handed_on && !is_disturbed;
        let is_early = waited < limit - limit / 10;
        is_wait.then_some(Wait { key: grant.key, asked: grant.asked, got: grant.got, is_early })
    }
}

/// I6: finds a history in which waits are granted when their limit is over, and hardly ever before.
fn judge_waits(waits: &[Wait<'_>], report: &mut Report<'_, '_>) {
    let late = waits.iter().filter(|wait| !wait.is_early).count();
    if late < FEWEST || late * 2 <= waits.len() {
        return;
    }
    let Some(first) = waits.first() else { return };
    let what = format!(
        "{late} of {} waits that ended with a grant had it in the last tenth of their limit: nothing woke them before",
        waits.len()
    );
    report.violated(Invariant::I6, Some(first.key), what, [first.asked, first.got]);
}

/// The fewest hand-overs or waits by which a history is judged.
pub(super) const FEWEST: usize = 4;
/// One of so many hand-overs may be late.
pub(super) const MOST_LATE: usize = 4;
