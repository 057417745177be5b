//! I2: fences are unique, and greater than that of every grant that was completed before the acquisition began.
//!
//! Exclusive grants are in an order even if their requests overlap: a holder that is sure of its grant was granted the
//! lock after all holders that were sure of theirs before. Their fences rise in that order, too.

use std::collections::HashMap;

use crate::check::losses::{ForgottenGrants, requested_at};
use crate::event::{FenceValue, Mode};
use crate::report::Report;
use crate::verdict::Invariant;
use crate::view::{GrantLife, View};

pub(super) fn check(view: &View<'_>, report: &mut Report<'_, '_>) {
    let mut has_fences = false;
    let forgotten = ForgottenGrants::of(view);
    for (key, grants) in view.grants_by_key() {
        let fenced: Vec<(FenceValue, &GrantLife)> =
            grants.into_iter().filter_map(|grant| Some((grant.got.values.fence?, grant))).collect();
        has_fences |= !fenced.is_empty();
        unique(key, &fenced, report);
        rising(view, key, &fenced, &forgotten, report);
    }
    if !has_fences {
        report.unjudged(Invariant::I2, "no grant had a fence");
    }
}

fn unique(key: &str, grants: &[(FenceValue, &GrantLife<'_>)], report: &mut Report<'_, '_>) {
    let mut seen: HashMap<FenceValue, &GrantLife> = HashMap::new();
    for (fence, grant) in grants {
        if let Some(first) = seen.insert(*fence, grant) {
            let what = format!("two grants have the fence {fence}: {} and {}", first.name(), grant.name());
            report.violated(Invariant::I2, Some(key), what, [first.asked, first.got, grant.asked, grant.got]);
        }
    }
}

/// Finds a grant with a lower fence than one that comes before it: one that was completed before the request, or an
/// exclusive one that had ended when this one, exclusive too, began.
fn rising<'h>(
    view: &View<'h>,
    key: &str,
    grants: &[(FenceValue, &GrantLife<'h>)],
    forgotten: &ForgottenGrants<'_, 'h>,
    report: &mut Report<'_, '_>,
) {
    let is_sure = |grant: &GrantLife<'_>| grant.mode == Mode::Exclusive && grant.until > grant.from;
    // At one time, requests come before completions: such grants overlap.
    let by_request = highest_before(grants, |grant| {
        Some(((view.times.at(grant.asked), false), (view.times.at(grant.got), true)))
    });
    // At one time, ends come before beginnings: such grants follow each other.
    let by_hold =
        highest_before(grants, |grant| is_sure(grant).then_some(((grant.from, true), (grant.until, false))));
    for (place, (fence, grant)) in grants.iter().enumerate() {
        // Equal ones have been found already.
        let is_higher =
            |before: Option<usize>| before.map(|before| grants[before]).filter(|(low, _)| fence < low);
        // Such a grant is that of a claim which its process holds beside others, and has its fence from before.
        let is_passed_on = grant.mode != Mode::Exclusive && fence.sub > 0;
        let by_request = if is_passed_on { None } else { is_higher(by_request[place]) };
        let (found, how) = match (by_request, is_higher(by_hold[place])) {
            (Some(earlier), _) => (earlier, "was asked for later"),
            (None, Some(earlier)) => (earlier, "held later"),
            (None, None) => continue,
        };
        let (low, earlier) = found;
        let what = format!(
            "the fence went back from {low} of {} to {fence} of {}, which {how}",
            earlier.name(),
            grant.name()
        );
        // A store that forgets must not give lower fences. Only a grant may have its fence from before that was handed
        // on, or that was requested before the other was completed, and whose holder learns of it after the other's.
        // Without the time of that request, nothing says that it was not granted afterwards.
        let may_be_older = fence.sub > 0 || (by_request.is_none() && requested_at(view, grant).is_some());
        let excuse = may_be_older.then(|| forgotten.excuse(view, grant, earlier)).flatten();
        let events = [earlier.got, grant.asked, grant.got];
        report.violated_because(Invariant::I2, Some(key), what, excuse.unwrap_or_default(), events);
    }
}

/// A time, and the order at that time.
type Instant = (u64, bool);

/// Returns for each grant the one with the highest fence among those that are over before it begins. `span` gives the
/// beginning and the end that count; grants without them are left out.
fn highest_before<'h>(
    grants: &[(FenceValue, &GrantLife<'h>)],
    span: impl Fn(&GrantLife<'h>) -> Option<(Instant, Instant)>,
) -> Vec<Option<usize>> {
    let mut steps: Vec<(Instant, bool, usize)> = Vec::with_capacity(grants.len() * 2);
    for (place, (_, grant)) in grants.iter().enumerate() {
        if let Some((begin, end)) = span(grant) {
            steps.extend([(begin, false, place), (end, true, place)]);
        }
    }
    steps.sort_unstable();
    let mut highest: Option<usize> = None;
    let mut before = vec![None; grants.len()];
    for (_, is_end, place) in steps {
        if !is_end {
            before[place] = highest;
        } else if highest.is_none_or(|highest| grants[highest].0 < grants[place].0) {
            highest = Some(place);
        }
    }
    before
}
