//! I2: fences are unique, and greater than that of every grant that was completed before the acquisition began.
//!
//! Exclusive grants are in an order even if their requests overlap: a holder that is sure of its grant was granted the
//! lock after all holders that were sure of theirs before. Their fences rise in that order, too.

use std::collections::HashMap;

use crate::check::losses::ForgottenGrants;
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
        in_order(key, &fenced, &forgotten, report);
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

/// Finds an exclusive grant with a lower fence than an exclusive grant that had ended when this one came.
fn in_order<'h>(
    key: &str,
    grants: &[(FenceValue, &GrantLife<'h>)],
    forgotten: &ForgottenGrants<'h>,
    report: &mut Report<'_, '_>,
) {
    let sure = |grant: &GrantLife<'_>| grant.mode == Mode::Exclusive && grant.until > grant.from;
    // The grants are in the order in which their holders learnt of them.
    let mut highest: Option<(FenceValue, &GrantLife)> = None;
    for (fence, grant) in grants.iter().filter(|(_, grant)| sure(grant)) {
        if let Some((low, earlier)) =
            highest.filter(|(low, earlier)| fence < low && earlier.until <= grant.from)
        {
            // The other rule has found it already if the request came later.
            let is_new = earlier.got.index > grant.asked.index;
            if is_new {
                let what = format!(
                    "the fence went back from {low} of {} to {fence} of {}, which held later",
                    earlier.name(),
                    grant.name()
                );
                let explained = forgotten.explains(grant);
                let events = [earlier.got, grant.asked, grant.got];
                report.violated_because(Invariant::I2, Some(key), what, explained, events);
            }
        }
        if highest.is_none_or(|(highest, _)| highest < *fence) {
            highest = Some((*fence, grant));
        }
    }
}

/// Sweeps over invocations and completions in the order of time, with the highest fence so far.
fn rising<'h>(
    view: &View<'h>,
    key: &str,
    grants: &[(FenceValue, &GrantLife<'h>)],
    forgotten: &ForgottenGrants<'h>,
    report: &mut Report<'_, '_>,
) {
    // At one time, invocations come first: such grants overlap.
    let mut steps: Vec<(u64, bool, usize)> = Vec::with_capacity(grants.len() * 2);
    for (place, (_, grant)) in grants.iter().enumerate() {
        steps.push((view.times.at(grant.asked), false, place));
        steps.push((view.times.at(grant.got), true, place));
    }
    steps.sort_unstable();
    let mut highest: Option<usize> = None;
    let mut floor: Vec<Option<usize>> = vec![None; grants.len()];
    for (_, is_completion, place) in steps {
        if !is_completion {
            floor[place] = highest;
            continue;
        }
        let (fence, grant) = grants[place];
        if let Some(before) = floor[place] {
            let (low, earlier) = grants[before];
            // Equal ones have been found already.
            if fence < low {
                let what = format!(
                    "the fence went back from {low} of {} to {fence} of {}, which was asked for later",
                    earlier.name(),
                    grant.name()
                );
                let explained = forgotten.explains(grant);
                let events = [earlier.got, grant.asked, grant.got];
                report.violated_because(Invariant::I2, Some(key), what, explained, events);
            }
        }
        if highest.is_none_or(|highest| grants[highest].0 < fence) {
            highest = Some(place);
        }
    }
}
