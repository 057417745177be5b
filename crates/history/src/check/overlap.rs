//! I4: no two grants that exclude each other are relied on at one time.
//!
//! A sweep over the spans from the moment at which a holder learns of its grant to the first of its release, its
//! loss and the end of its validity. All of these are times at which the holder itself was sure.

use crate::check::Checker;
use crate::check::losses::{ForgottenGrants, StoreClaims};
use crate::check::renewed::renewed_beside;
use crate::event::{Event, Mode};
use crate::report::{Excuse, Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    if view.grants.is_empty() {
        report.unjudged(Invariant::I4, "nothing was granted");
    }
    let tolerance = nanos(checker.tolerance);
    let (forgotten, claims) = (ForgottenGrants::of(view), StoreClaims::of(view));
    for (key, grants) in view.grants_by_key() {
        let mut held: Vec<&GrantLife> = Vec::new();
        for grant in grants {
            held.retain(|other| other.until > grant.from);
            let shared =
                |other: &&&GrantLife| other.until.min(grant.until).saturating_sub(grant.from) > tolerance;
            let others: Vec<&GrantLife> = held.iter().filter(shared).copied().collect();
            if let Some(excluded) = excluded(grant, &others) {
                let (mut what, mut events) = described(key, grant, &excluded);
                // A grant that was handed on after the store forgot it may be the later one of the two.
                let pairs = || excluded.iter().flat_map(|other| [(*other, grant), (grant, *other)]);
                let excuse = pairs().find_map(|(victim, other)| forgotten.excuse(view, victim, other));
                let mut excuse = excuse.unwrap_or_default();
                excuse.meanwhile = excluded.iter().find_map(|other| claims.fault_between(view, other, grant));
                let mut pairs = pairs().filter(|(first, second)| excludes(first.mode, second.mode));
                let renewed = pairs.find_map(|(first, second)| {
                    Some((first.name(), renewed_beside(view, &claims, first, second)?))
                });
                if let Some((name, event)) = renewed {
                    what.push_str(&format!(
                        "; {name} was renewed beside the other when no fault was at work any more"
                    ));
                    events.push(event);
                    excuse = Excuse::default();
                }
                report.violated_because(Invariant::I4, Some(key), what, excuse, events);
            }
            held.push(grant);
        }
    }
}

/// Returns the grants that exclude this one; none if all of them fit together.
fn excluded<'g, 'h>(grant: &GrantLife<'h>, others: &[&'g GrantLife<'h>]) -> Option<Vec<&'g GrantLife<'h>>> {
    if let Some(other) = others.iter().find(|other| excludes(grant.mode, other.mode)) {
        return Some(vec![other]);
    }
    // They are held together at the moment of this grant.
    let (mut taken, mut least) = permits(grant.mode);
    for other in others {
        let (more, of) = permits(other.mode);
        taken += more;
        least = least.min(of);
    }
    (taken > least).then(|| others.to_vec())
}

/// Returns how many permits a share takes, and of how many. A reader takes one of very many, and a semaphore may have
/// none left for it.
fn permits(mode: Mode) -> (u64, u64) {
    match mode {
        Mode::Exclusive => (1, 1),
        Mode::Shared => (1, u64::MAX),
        Mode::Permits { taken, of } => (u64::from(taken), u64::from(of)),
    }
}

/// Returns `true` if no two such shares may be held at one time, however many permits there are.
fn excludes(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}

fn described<'h>(key: &str, grant: &GrantLife<'h>, others: &[&GrantLife<'h>]) -> (String, Vec<&'h Event>) {
    let until = others.iter().map(|other| other.until.min(grant.until)).min().unwrap_or(grant.from);
    let names: Vec<String> =
        others.iter().map(|other| format!("{} ({})", other.name(), other.mode)).collect();
    let what = format!(
        "{} ({}) and {} were all valid on {key} for {}",
        grant.name(),
        grant.mode,
        names.join(", "),
        shown(until - grant.from)
    );
    let mut events = Vec::new();
    for holder in others.iter().copied().chain([grant]) {
        events.extend([holder.asked, holder.got]);
        events.extend(holder.valid_until().map(|(event, _)| event));
        events.extend(holder.lost);
        events.extend(holder.release.map(|release| release.invoke));
    }
    (what, events)
}
