//! I5: a release that ends nothing keeps the lock from others until its lease is over.
//!
//! Ground rules: only releases of grants that were valid count, and only where no fault was at work since the grant. An
//! answer that is missing shows little by itself, because a store that is busy may owe it. What a defect does, it does
//! nearly every time.

use crate::check::Checker;
use crate::check::handover::{FEWEST, MOST_LATE};
use crate::check::losses::{StoreClaims, is_report_of_loss};
use crate::event::Event;
use crate::report::{Report, nanos};
use crate::verdict::Invariant;
use crate::view::{GrantLife, Stamps, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    if view.times.stamps == Stamps::Recorder {
        // The ends of validity are those of clocks that are not trusted.
        return;
    }
    let claims = StoreClaims::of(view);
    let released = view.grants.iter().filter_map(|grant| Released::of(view, checker, &claims, grant));
    let released: Vec<Released> = released.collect();
    let refused: Vec<&Released> = released.iter().filter(|released| released.is_refused).collect();
    for Released { grant, invoke, answer, .. } in &refused {
        let what = format!(
            "the release of {} failed while it was valid and no fault was at work: {}",
            grant.name(),
            reason(answer)
        );
        report.violated(Invariant::I5, Some(grant.key), what, [grant.got, *invoke, *answer]);
    }
    let unended: Vec<&Released> = released.iter().filter(|released| released.is_unended).collect();
    if !refused.is_empty() || unended.len() < FEWEST || unended.len() * MOST_LATE < released.len() {
        return;
    }
    let Some(Released { grant, invoke, answer, .. }) = unended.first() else { return };
    let what = format!(
        "{} of {} releases of valid locks were not confirmed, and no fault was at work: {}",
        unended.len(),
        released.len(),
        reason(answer)
    );
    report.violated(Invariant::I5, Some(grant.key), what, [grant.got, *invoke, *answer]);
}

/// The release of a grant that was valid, which nothing disturbed.
struct Released<'v, 'h> {
    grant: &'v GrantLife<'h>,
    invoke: &'h Event,
    answer: &'h Event,
    /// It failed before the grant was over.
    is_refused: bool,
    /// It did not succeed.
    is_unended: bool,
}

impl<'v, 'h> Released<'v, 'h> {
    fn of(
        view: &View<'h>,
        checker: &Checker,
        claims: &StoreClaims<'h>,
        grant: &'v GrantLife<'h>,
    ) -> Option<Released<'v, 'h>> {
        let release = grant.release.filter(|_| grant.lost.is_none())?;
        let answer = release.done.or(release.unknown)?;
        let until = grant.valid_until().map(|(event, until)| view.times.shift(event, until));
        let is_over_at = |at: u64| until.is_some_and(|until| until <= at);
        let (asked, answered) = (view.times.at(release.invoke), view.times.at(answer));
        let (begun, _) = claims.span(view, grant);
        let is_disturbed = view.faults_in(begun, answered).any(|fault| fault.is_on(&[grant.process]));
        let is_a_loss = release.done.is_some_and(is_report_of_loss);
        if is_over_at(asked.saturating_add(nanos(checker.lateness))) || is_disturbed || is_a_loss {
            return None;
        }
        let is_unended = !release.succeeded();
        let is_refused = is_unended && release.done.is_some() && !is_over_at(answered);
        Some(Released { grant, invoke: release.invoke, answer, is_refused, is_unended })
    }
}

fn reason(answer: &Event) -> &str {
    answer.error.as_deref().unwrap_or("it is not said why")
}
