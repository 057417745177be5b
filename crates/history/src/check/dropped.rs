//! I10: an acquisition that its caller drops leaves nothing behind.
//!
//! Ground rules: a claim that is left shows as a lock that somebody waits for, that has no known holder, and that
//! nobody is granted. This is judged over all such times that follow a dropped acquisition, as hand-overs are: a busy
//! machine delays one of them for as long as a defect does. A time that a fault, a killed process or a request of
//! unknown outcome may explain is left out. A claim that is found at the end counts if only a dropped acquisition can
//! have left it.

use crate::check::Checker;
use crate::check::handover::{FEWEST, MOST_LATE, Patient};
use crate::event::{CANCELLED, Event, Operation, Stage};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Call, GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    let grants = view.grants_by_key();
    let (mut after, mut others) = (Waits::default(), Waits::default());
    let mut has_dropped = false;
    for (key, calls) in view.requests_by_key() {
        let grants = grants.get(key).map_or(&[][..], Vec::as_slice);
        let lock = Lock::of(view, checker, key, &calls, grants);
        has_dropped |= !lock.dropped.is_empty();
        lock.add_waits(&mut after, &mut others);
        left_at_the_end(view, &calls, grants, &lock, report);
    }
    if !has_dropped {
        report.unjudged(Invariant::I10, "no acquisition was dropped on its way");
        return;
    }
    judge(checker, after, &others, report);
}

/// Finds claims that are left at the end, and that only a dropped acquisition can have left.
fn left_at_the_end(
    view: &View<'_>,
    calls: &[&Call<'_>],
    grants: &[&GrantLife<'_>],
    lock: &Lock<'_, '_>,
    report: &mut Report<'_, '_>,
) {
    let Some((_, dropped)) = lock.dropped.first() else { return };
    let is_left = |event: &&Event| {
        let is_its = event.key.as_deref() == Some(lock.key);
        event.operation == Operation::Residue && event.stage == Stage::Fail && is_its
    };
    let others_ended = calls.iter().all(|call| call.succeeded() || is_dropped(call))
        && grants.iter().all(|grant| grant.release.is_some_and(|release| release.succeeded()));
    if let Some(left) = view.events.iter().find(is_left).filter(|_| others_ended) {
        let what = format!(
            "a claim of {} is left, where every acquisition was released, except those that were dropped",
            lock.key
        );
        report.violated(Invariant::I10, Some(lock.key), what, [*dropped, left]);
    }
}

fn judge(checker: &Checker, mut after: Waits<'_>, others: &Waits<'_>, report: &mut Report<'_, '_>) {
    let bound = nanos(checker.handover);
    if others.are_mostly_late() {
        let why = "locks were granted late also where no acquisition had been dropped";
        report.untried(Invariant::I10, why);
        return;
    }
    after.late.sort_by_key(|late| std::cmp::Reverse(late.length));
    let longest = after.late.first().copied();
    let is_for_ever = longest.is_some_and(|late| late.is_for_ever);
    if let Some(late) = longest.filter(|_| is_for_ever || after.are_mostly_late()) {
        let what = format!(
            "{} of {} locks that were free and waited for after an acquisition of them was dropped were not granted to \
             anybody within {}, {} for {}; no fault was at work",
            after.late.len(),
            after.all,
            shown(bound),
            late.key,
            shown(late.length)
        );
        let events = late.dropped.into_iter().chain([late.waiter]).chain(late.next);
        report.violated(Invariant::I10, Some(late.key), what, events);
        return;
    }
    if after.all < FEWEST {
        let why = format!(
            "{} locks were free and waited for after an acquisition of them was dropped, and no fault was at work; \
             {FEWEST} are needed",
            after.all
        );
        report.untried(Invariant::I10, &why);
    }
}

/// Times for which a lock was free and waited for, until a grant.
#[derive(Default)]
struct Waits<'h> {
    all: usize,
    late: Vec<Late<'h>>,
}

/// A lock that nobody was granted in time.
#[derive(Clone, Copy)]
struct Late<'h> {
    length: u64,
    key: &'h str,
    /// The last acquisition that was dropped before.
    dropped: Option<&'h Event>,
    waiter: &'h Event,
    next: Option<&'h Event>,
    /// It lasted for longer than any claim of a dead process stays.
    is_for_ever: bool,
}

impl Waits<'_> {
    fn are_mostly_late(&self) -> bool {
        self.late.len() >= FEWEST && self.late.len() * MOST_LATE >= self.all
    }
}

/// The waits for one lock, and the acquisitions of it that were dropped.
struct Lock<'v, 'h> {
    view: &'v View<'h>,
    checker: &'v Checker,
    key: &'h str,
    patient: Patient<'h>,
    /// The times for which no holder is known, each with the next grant.
    free: Vec<(u64, u64, Option<&'h Event>)>,
    /// The ends of dropped acquisitions, in order.
    dropped: Vec<(u64, &'h Event)>,
    /// For each of them, the time from which one that asked later had the lock, so that nothing is in its way.
    windows: Vec<(u64, u64)>,
    /// The times for which a claim may be in the store that no event ends.
    doubts: Vec<(u64, u64)>,
}

impl<'v, 'h> Lock<'v, 'h> {
    fn of(
        view: &'v View<'h>,
        checker: &'v Checker,
        key: &'h str,
        calls: &[&Call<'h>],
        grants: &[&GrantLife<'h>],
    ) -> Self {
        let ends = calls.iter().filter(|call| is_dropped(call)).filter_map(|call| call.done);
        let mut dropped: Vec<(u64, &Event)> = ends.map(|end| (view.times.at(end), end)).collect();
        dropped.sort_by_key(|(at, end)| (*at, end.index));
        let windows = dropped.iter().map(|(at, _)| {
            let later = grants.iter().filter(|grant| view.times.at(grant.asked) > *at);
            (*at, later.map(|grant| grant.from).min().unwrap_or(view.end))
        });
        let stays = nanos(checker.recovery);
        let unknown = calls.iter().filter(|call| call.done.is_none()).filter_map(|call| {
            let dead = view.death_of(call.invoke.process.unwrap_or(0));
            let end = call.unknown.map(|end| view.times.at(end)).or(dead)?;
            Some((view.times.at(call.invoke), end.saturating_add(stays)))
        });
        let unended = grants.iter().filter(|grant| freed(view, grant).is_none());
        let unended = unended.map(|grant| (grant.from, end_of(view, grant).saturating_add(stays)));
        let doubts = unknown.chain(unended).collect();
        let (windows, free) = (windows.collect(), free(view, grants));
        Lock {
            view,
            checker,
            key,
            patient: Patient::of(view, calls, nanos(checker.handover)),
            free,
            dropped,
            windows,
            doubts,
        }
    }

    /// Adds each time for which the lock was free and waited for: those after a dropped acquisition, and the others.
    fn add_waits(&self, after: &mut Waits<'h>, others: &mut Waits<'h>) {
        for (from, until, next) in self.free.iter().copied() {
            let window = self.windows.iter().find(|(begin, end)| *begin < until && *end >= from);
            let (waits, begun) = match window {
                Some((begin, _)) => (&mut *after, from.max(*begin)),
                None => (&mut *others, from),
            };
            self.add(waits, begun, until, next);
        }
    }

    fn add(&self, waits: &mut Waits<'h>, from: u64, until: u64, next: Option<&'h Event>) {
        let bound = nanos(self.checker.handover);
        let Some((at, waiter)) = self.patient.first_from(from).filter(|(at, _)| *at < until) else { return };
        let length = until - at;
        let is_disturbed = |for_at_most: u64| {
            let end = until.min(at.saturating_add(for_at_most));
            self.view.faults_in(at, end).next().is_some()
                || self.doubts.iter().any(|(begin, over)| *begin <= end && *over >= at)
        };
        // At the end of a recording nobody waits for long.
        if is_disturbed(bound) || next.is_none() && length <= bound {
            return;
        }
        waits.all += 1;
        if length > bound {
            let recovery = nanos(self.checker.recovery);
            let is_for_ever = length > recovery && !is_disturbed(recovery);
            let dropped = self.dropped.iter().rev().find(|(end, _)| *end <= at).map(|(_, end)| *end);
            waits.late.push(Late { length, key: self.key, dropped, waiter, next, is_for_ever });
        }
    }
}

/// Returns `true` for an acquisition that its caller dropped.
fn is_dropped(call: &Call<'_>) -> bool {
    let is_it = |done: &Event| done.stage == Stage::Fail && done.error.as_deref() == Some(CANCELLED);
    call.invoke.operation == Operation::Acquire && call.done.is_some_and(is_it)
}

/// Returns when the store confirmed the release of a grant.
fn freed(view: &View<'_>, grant: &GrantLife<'_>) -> Option<u64> {
    grant.release.filter(Call::succeeded)?.done.map(|done| view.times.at(done))
}

/// Returns when a grant was over for the store as well, as far as its holder knows.
fn end_of(view: &View<'_>, grant: &GrantLife<'_>) -> u64 {
    let valid = grant.valid_until().map_or(0, |(event, until)| view.times.shift(event, until));
    freed(view, grant).unwrap_or_else(|| grant.until.max(valid))
}

/// Returns the times for which no holder of a lock is known, each with the grant that ends it.
fn free<'h>(view: &View<'h>, grants: &[&GrantLife<'h>]) -> Vec<(u64, u64, Option<&'h Event>)> {
    let (mut free, mut held) = (Vec::new(), 0);
    for grant in grants {
        if grant.from > held {
            free.push((held, grant.from, Some(grant.got)));
        }
        held = held.max(end_of(view, grant));
    }
    if view.end > held {
        free.push((held, view.end, None));
    }
    free
}
