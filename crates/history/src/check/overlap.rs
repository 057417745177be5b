//! I4: no two grants that exclude each other are relied on at one time.
//!
//! A sweep over the spans from the moment at which a holder learns of its grant to the first of its release, its
//! loss and the end of its validity. All of these are times at which the holder itself was sure.

use crate::check::Checker;
use crate::check::losses::ForgottenGrants;
use crate::event::{Event, Mode};
use crate::report::{Report, nanos, shown};
use crate::verdict::Invariant;
use crate::view::{GrantLife, View};

pub(super) fn check(view: &View<'_>, checker: &Checker, report: &mut Report<'_, '_>) {
    if view.grants.is_empty() {
        report.unjudged(Invariant::I4, "nothing was granted");
    }
    let tolerance = nanos(checker.tolerance);
    let forgotten = ForgottenGrants::of(view);
    for (key, grants) in view.grants_by_key() {
        let mut held: Vec<&GrantLife> = Vec::new();
        for grant in grants {
            held.retain(|other| other.until > grant.from);
            let shared =
                |other: &&&GrantLife| other.until.min(grant.until).saturating_sub(grant.from) > tolerance;
            let others: Vec<&GrantLife> = held.iter().filter(shared).copied().collect();
            if let Some(excluded) = excluded(grant, &others) {
                let (what, events) = described(key, grant, &excluded);
                // A grant that was handed on after the store forgot it may be the later one of the two.
                let explained =
                    excluded.iter().copied().chain([grant]).find_map(|one| forgotten.explains(one));
                report.violated_because(Invariant::I4, Some(key), what, explained, events);
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
    // All are permits, or all are shared. They are held together at the moment of this grant.
    let (mut taken, mut least) = match grant.mode {
        Mode::Permits { taken, of } => (u64::from(taken), of),
        _ => return None,
    };
    for other in others {
        if let Mode::Permits { taken: more, of } = other.mode {
            taken += u64::from(more);
            least = least.min(of);
        }
    }
    (taken > u64::from(least)).then(|| others.to_vec())
}

/// Returns `true` if no two such shares may be held at one time.
fn excludes(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. }) => false,
        // A reader takes one of very many permits, and a semaphore may have none left for it.
        (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
        (Mode::Shared, Mode::Permits { .. }) | (Mode::Permits { .. }, Mode::Shared) => false,
    }
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
