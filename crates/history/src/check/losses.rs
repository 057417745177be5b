//! I12 and I13: a loss is reported in time, and only if there is one. The answer to a release may report it, too.

use std::collections::HashMap;

use crate::check::Checker;
use crate::event::{Event, Operation, Stage};
use crate::report::{Excuse, Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{Fault, GrantLife, Stamps, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    let has_validity = view.grants.iter().any(|grant| grant.valid_until().is_some());
    if view.times.stamps == Stamps::Recorder || !has_validity {
        let why = match has_validity {
            true => "the ends of validity are those of clocks that are not trusted",
            false => "no grant says until when it is valid",
        };
        for invariant in [Invariant::I12, Invariant::I13] {
            report.unjudged(invariant, why);
        }
        return;
    }
    let claims = StoreClaims::of(view);
    for grant in &view.grants {
        unconfirmed(grant, report);
        reported_late(view, checker, grant, report);
        reported_falsely(view, checker, &claims, grant, report);
    }
    if !view.grants.iter().any(|grant| has_ended_by_itself(view, grant)) {
        report.untried(Invariant::I12, "no grant was lost, and none expired before its release");
    }
    if !view.grants.iter().any(|grant| grant.renewals().next().is_some()) {
        report.untried(Invariant::I13, "no grant was renewed");
    }
}

/// Returns `true` if the grant was lost, or if its validity ended under its holder.
fn has_ended_by_itself(view: &View<'_>, grant: &GrantLife<'_>) -> bool {
    let until = grant.valid_until().map(|(event, until)| view.times.shift(event, until));
    grant.lost.is_some() || until.is_some_and(|until| until < seen(view, grant).1)
}

/// Returns when the holder noticed that its grant was over, or released it; and when it could last have done so.
fn seen(view: &View<'_>, grant: &GrantLife<'_>) -> (Option<u64>, u64) {
    let release = grant.release.map(|release| release.invoke);
    let noticed = [release, grant.lost].into_iter().flatten().map(|event| view.times.at(event)).min();
    let dead = view.death_of(grant.process);
    (noticed, noticed.into_iter().chain(dead).min().unwrap_or(view.end))
}

/// I12: finds a validity that a failed renewal moved. Only an answer of the store may.
fn unconfirmed(grant: &GrantLife<'_>, report: &mut Report<'_, '_>) {
    let mut until = grant.got.values.valid_until;
    let mut last = grant.got;
    for event in grant.statements.iter().copied() {
        if event.stage != Stage::Ok && event.values.valid_until > until {
            let what = format!("a renewal without an answer extended the validity of {}", grant.name());
            report.violated(Invariant::I12, Some(grant.key), what, [last, event]);
        }
        until = event.values.valid_until.or(until);
        last = event;
    }
}

/// I12: finds a validity that ended while the holder ran and did not see it.
fn reported_late(view: &View<'_>, checker: &Checker, grant: &GrantLife<'_>, report: &mut Report<'_, '_>) {
    let Some((event, until)) = grant.valid_until() else { return };
    let until = view.times.shift(event, until);
    let (noticed, seen) = seen(view, grant);
    let late = seen.saturating_sub(until).saturating_sub(view.paused(grant.process, until, seen));
    if late <= nanos(checker.lateness) {
        return;
    }
    let what = match noticed {
        Some(_) => format!("{} saw its loss {} after the end of its validity", grant.name(), shown(late)),
        None => format!("{} never saw its loss, {} after the end of its validity", grant.name(), shown(late)),
    };
    report.violated(
        Invariant::I12,
        Some(grant.key),
        what,
        [grant.got, event].into_iter().chain(grant.release.map(|release| release.invoke)).chain(grant.lost),
    );
}

/// I13: finds a loss that was reported before the validity was over, or that a later renewal disproves. Causes of
/// users, such as a revocation, excuse it only where the checker is configured for them.
fn reported_falsely(
    view: &View<'_>,
    checker: &Checker,
    claims: &StoreClaims<'_>,
    grant: &GrantLife<'_>,
    report: &mut Report<'_, '_>,
) {
    let Some(reported) = LossReport::of(view, grant) else { return };
    let LossReport { lost, at, kept } = reported;
    let revived = grant.renewals().find(|event| event.index > lost.index && view.times.at(event) > at);
    if let Some(event) = revived {
        let what = format!("{} was renewed after its loss was reported", grant.name());
        report.violated(Invariant::I13, Some(grant.key), what, [lost, event]);
        return;
    }
    let Some((event, until)) = grant.valid_until() else { return };
    let stated = view.times.shift(event, until);
    let is_by_clock = is_expiry(lost);
    // What the store promises is counted by its clock, and that of the holder may be slow.
    let until = if is_by_clock { stated } else { stated.min(promised_until(view, grant)) };
    let early = until.saturating_sub(at);
    if early <= nanos(checker.lateness) {
        return;
    }
    let is_of_store = is_gone(lost) || is_end_of_session(lost);
    // The end of the validity is stated anew after a change of the clock, but not during a release.
    if !is_of_store && grant.lost.is_none() && view.faults_in(kept, at).next().is_some() {
        return;
    }
    if is_by_clock {
        let what = format!(
            "{} was reported as expired {} before the end of its validity",
            grant.name(),
            shown(early)
        );
        report.violated(Invariant::I13, Some(grant.key), what, [grant.got, event, lost]);
    } else if is_of_store {
        lost_without_a_fault(view, checker, claims, grant, (reported, event, until), report);
    } else if !checker.is_ended_by_users {
        let what = format!(
            "{} was reported as lost {} before the end of its validity, for a reason that nobody gave: {}",
            grant.name(),
            shown(early),
            lost.error.as_deref().unwrap_or_default()
        );
        report.violated(Invariant::I13, Some(grant.key), what, [grant.got, event, lost]);
    }
}

/// The report to a holder that its grant was lost: a loss, or the answer to its release.
#[derive(Clone, Copy)]
struct LossReport<'h> {
    lost: &'h Event,
    at: u64,
    /// The time before which the grant was not ended by its holder.
    kept: u64,
}

impl<'h> LossReport<'h> {
    fn of(view: &View<'h>, grant: &GrantLife<'h>) -> Option<LossReport<'h>> {
        let lost = grant.lost.or_else(|| refused(grant).filter(|refused| is_report_of_loss(refused)))?;
        let at = view.times.at(lost);
        let release = grant.release.filter(|_| grant.lost.is_none());
        Some(LossReport { lost, at, kept: release.map_or(at, |release| view.times.at(release.invoke)) })
    }
}

/// I13: finds a grant of which its holder says that the store no longer knew it, although no fault of the store was at
/// work since it was granted, or that its session ended, without any fault. The store may have forgotten it by itself,
/// unless somebody who waited was granted the lock no earlier than at the end of the validity.
fn lost_without_a_fault(
    view: &View<'_>,
    checker: &Checker,
    claims: &StoreClaims<'_>,
    grant: &GrantLife<'_>,
    (reported, confirmed, until): (LossReport<'_>, &Event, u64),
    report: &mut Report<'_, '_>,
) {
    let LossReport { lost, at, kept } = reported;
    // A session ends with its network or its client as well.
    let is_session = checker.is_held_by_connection || is_end_of_session(lost);
    let may_end_it = |fault: &Fault<'_>| fault.is_of_store() || is_session;
    let (begun, known) = claims.span(view, grant);
    if view.faults_in(begun, at).any(may_end_it) {
        return;
    }
    // That the store gave it to another is true then, and I4 or I2 is broken. The other may have known of it first.
    let counted = counted_by_store(grant);
    let is_of_claim = |other: &GrantLife<'_>| {
        other.got.index == grant.got.index || counted.is_some() && counted_by_store(other) == counted
    };
    let is_taken = |other: &GrantLife<'_>| {
        let is_later = other.from >= known || counted.is_some() && counted_by_store(other) > counted;
        other.key == grant.key && is_later && (begun..=kept).contains(&other.from) && !is_of_claim(other)
    };
    if view.grants.iter().any(is_taken) {
        return;
    }
    let what = format!(
        "{} was reported as lost to the store {} before the end of its validity, and no fault of the store was recorded",
        grant.name(),
        shown(until.saturating_sub(at))
    );
    let refused = kept_until_the_end(view, checker, grant, kept, until);
    let mut excuse = Excuse::default();
    if refused.is_none() {
        let text = format!(
            "the store ended {} or no longer knew it, as its holder said, and no fault of the store was recorded",
            grant.name()
        );
        excuse.doubt = Some(text);
    }
    let shown_by = [grant.got, confirmed, lost].into_iter().chain(refused);
    report.violated_because(Invariant::I13, Some(grant.key), what, excuse, shown_by);
}

/// Returns the request of somebody who waited for the lock while its holder said that the claim was gone, for a time in
/// which locks are handed over, and to whom the store did not give it before the end of the validity: it knew the claim.
fn kept_until_the_end<'h>(
    view: &View<'h>,
    checker: &Checker,
    grant: &GrantLife<'h>,
    lost: u64,
    until: u64,
) -> Option<&'h Event> {
    let is_other = |other: &&GrantLife<'h>| other.key == grant.key && other.got.index != grant.got.index;
    let later = || view.grants.iter().filter(is_other).filter(|other| other.from >= lost);
    let next = later().min_by_key(|other| other.from).filter(|next| next.from >= until)?;
    let waited = until.saturating_sub(view.times.at(next.asked).max(lost));
    (waited >= nanos(checker.handover)).then_some(next.asked)
}

/// Returns the end of the last lease that the store has confirmed, counted from the confirmation. By the clock of a
/// holder that runs as the store's does, the validity ends before.
fn promised_until(view: &View<'_>, grant: &GrantLife<'_>) -> u64 {
    let Some(ttl) = grant.asked.values.ttl else { return u64::MAX };
    let confirmed = grant.renewals().last().unwrap_or(grant.got);
    view.times.at(confirmed).saturating_add(ttl).saturating_add(added(view, grant))
}

/// Returns the time that the store adds to the ttl that was asked for, as the description of the recording says.
pub(super) fn added(view: &View<'_>, grant: &GrantLife<'_>) -> u64 {
    let described = view.events.first().filter(|event| event.operation == Operation::Plan);
    let given = described.and_then(|plan| plan.values.ttl).unwrap_or(0);
    given.saturating_sub(grant.asked.values.ttl.unwrap_or(given))
}

/// Returns `true` if the loss is one by the clock, and not one that the store or the user caused.
fn is_expiry(lost: &Event) -> bool {
    lost.error.as_deref().is_none_or(|cause| cause.contains("ran out") || cause.contains("expired"))
}

/// The grants that the store had forgotten while they were valid, as their holders said, with the first grant of each.
///
/// A grant that is handed on inside of a process is the same one for the store: its fences differ in `sub` only. That
/// it was forgotten shows when the last of its holders renews or releases it.
pub(super) struct ForgottenGrants<'v, 'h>(HashMap<(&'h str, u64, u64), &'v GrantLife<'h>>);

impl<'v, 'h> ForgottenGrants<'v, 'h> {
    pub(super) fn of(view: &'v View<'h>) -> ForgottenGrants<'v, 'h> {
        let shown = view.grants.iter().filter(|grant| forgotten(grant).is_some());
        let mut first: HashMap<_, &'v GrantLife<'h>> =
            shown.filter_map(|grant| Some((counted_by_store(grant)?, grant))).collect();
        for grant in &view.grants {
            if let Some(first) = counted_by_store(grant).and_then(|counted| first.get_mut(&counted))
                && grant.from < first.from
            {
                *first = grant;
            }
        }
        ForgottenGrants(first)
    }

    /// Returns the part of the store in another grant beside this one, if this one's holder says that the store had
    /// forgotten it. Its word alone proves nothing: the library may have removed the grant, or made up the answer.
    /// Only a fault of the store does, from the beginning of this grant to that of the other.
    pub(super) fn excuse(
        &self,
        view: &View<'h>,
        grant: &GrantLife<'h>,
        other: &GrantLife<'h>,
    ) -> Option<Excuse> {
        let first = counted_by_store(grant).and_then(|grant| self.0.get(&grant).copied());
        let first = first.or_else(|| forgotten(grant).map(|_| grant))?;
        let begun = granted_after(view, first);
        if begun > other.from {
            return None;
        }
        let fault = view.faults_in(begun, other.from).find(|fault| fault.is_of_store());
        let mut excuse = Excuse::default();
        match fault {
            Some(fault) => {
                let text = format!(
                    "the store no longer knew {}, as it said later, and the fault {:?} was at work before",
                    grant.name(),
                    fault.label
                );
                excuse.explained = Some(text);
            }
            None => {
                let text = format!(
                    "the store no longer knew {}, as its holder said later, and no fault of the store was recorded",
                    grant.name()
                );
                excuse.doubt = Some(text);
            }
        }
        Some(excuse)
    }
}

/// The claims of the store, each from the time before which it cannot have been granted to that at which its first holder
/// knew of it. A grant that is handed on inside of a process belongs to the claim of the first one.
pub(super) struct StoreClaims<'h>(HashMap<(&'h str, u64, u64), (u64, u64)>);

impl<'h> StoreClaims<'h> {
    pub(super) fn of(view: &View<'h>) -> StoreClaims<'h> {
        let mut claims: HashMap<_, (u64, u64)> = HashMap::new();
        for grant in &view.grants {
            let Some(counted) = counted_by_store(grant) else { continue };
            let claim = claims.entry(counted).or_insert((u64::MAX, u64::MAX));
            *claim = (granted_after(view, grant).min(claim.0), grant.from.min(claim.1));
        }
        StoreClaims(claims)
    }

    /// Returns the time before which the claim of a grant cannot have been granted, and that at which its first holder knew
    /// of it.
    pub(super) fn span(&self, view: &View<'_>, grant: &GrantLife<'h>) -> (u64, u64) {
        let known = counted_by_store(grant).and_then(|counted| self.0.get(&counted).copied());
        known.unwrap_or_else(|| (granted_after(view, grant), grant.from))
    }

    /// Returns a fault of the store or of a network that was at work after the earlier of two claims was granted, and
    /// before the holder of the later one knew of it. One of some processes counts only if it was on the holder of the
    /// earlier claim: the others see a lock that is free, or they do not.
    pub(super) fn fault_between(
        &self,
        view: &View<'h>,
        one: &GrantLife<'h>,
        other: &GrantLife<'h>,
    ) -> Option<String> {
        let ((begun, known), (other_begun, other_known)) = (self.span(view, one), self.span(view, other));
        let mut faults = view.faults_in(begun.min(other_begun), known.max(other_known));
        let is_on_the_earlier = |fault: &Fault<'_>| {
            let may_be_first =
                [(begun <= other_known).then_some(one), (other_begun <= known).then_some(other)];
            may_be_first.into_iter().flatten().any(|holder| fault.targets.contains(&holder.process))
        };
        let is_reason = |fault: &&Fault<'_>| {
            fault.is_outside_of_processes() && (fault.targets.is_empty() || is_on_the_earlier(fault))
        };
        faults.find(is_reason).map(|fault| fault.label.to_owned())
    }
}

/// Returns a time before which the store cannot have granted this.
///
/// The holder may learn of its grant late, when the store has forgotten it and another holder has the lock. The validity
/// counts from the request that was granted, which may be the last of many requests of a wait.
fn granted_after(view: &View<'_>, grant: &GrantLife<'_>) -> u64 {
    let asked = view.times.at(grant.asked);
    // A validity that is no ttl, or was renewed already, says less than the answer does.
    let requested = requested_at(view, grant);
    requested.map_or(asked, |requested| requested.min(view.times.at(grant.got)).max(asked))
}

/// Returns the time from which the validity of a grant counts, if that can be told.
pub(super) fn requested_at(view: &View<'_>, grant: &GrantLife<'_>) -> Option<u64> {
    let (got, ttl) = (grant.got, grant.asked.values.ttl);
    // The recorder's times and those of a process are not compared.
    let times = got.values.valid_until.zip(ttl).filter(|_| view.times.stamps != Stamps::Recorder);
    times.map(|(until, ttl)| view.times.shift(got, until.saturating_sub(ttl)))
}

/// Returns the lock, and the part of the fence that the store counts.
fn counted_by_store<'h>(grant: &GrantLife<'h>) -> Option<(&'h str, u64, u64)> {
    let fence = grant.got.values.fence?;
    Some((grant.key, fence.epoch, fence.seq))
}

/// Returns the event that shows that the store did not know the grant any more: its loss, or the answer to its release.
pub(super) fn forgotten<'h>(grant: &GrantLife<'h>) -> Option<&'h Event> {
    [grant.lost, refused(grant)].into_iter().flatten().find(|event| is_gone(event))
}

/// Returns the answer to the release of a grant, if it failed.
fn refused<'h>(grant: &GrantLife<'h>) -> Option<&'h Event> {
    grant.release.and_then(|release| release.done).filter(|done| done.stage == Stage::Fail)
}

/// Returns `true` if the answer to a release says that the grant was lost.
pub(super) fn is_report_of_loss(answer: &Event) -> bool {
    let says_so = answer.error.as_deref().is_some_and(|error| error.contains("lost"));
    says_so || answer.error.is_some() && is_expiry(answer) || is_gone(answer)
}

/// Returns `true` if the session that held the grant ended, as its holder says.
fn is_end_of_session(lost: &Event) -> bool {
    lost.error.as_deref().is_some_and(|cause| cause.contains("session"))
}

/// Returns `true` if the store no longer knew the grant, as its holder says.
fn is_gone(event: &Event) -> bool {
    let cause = event.error.as_deref().unwrap_or_default();
    cause.contains("gone") || cause.contains("no longer knows")
}
