//! I4: a holder whose lock the store has granted to another, and whose renewals are confirmed all the same.
//!
//! A store that forgets a grant has nothing of it to renew, so two holders at one time end with the next renewal of the
//! first one. One that continues beside the second has a client, or a store, that does not notice the loss. The fault
//! that made the store forget explains nothing of that.

use crate::check::losses::{StoreClaims, added};
use crate::event::Event;
use crate::view::{GrantLife, Stamps, View};

/// Returns a renewal of the first of two holders that was asked for when the second one knew of its grant, and that no
/// fault of the store or of a network explains: those that were at work when the store granted the second were over,
/// and none has begun since. The store has confirmed the second one as well.
pub(super) fn renewed_beside<'h>(
    view: &View<'h>,
    claims: &StoreClaims<'h>,
    first: &GrantLife<'h>,
    second: &GrantLife<'h>,
) -> Option<&'h Event> {
    let ((_, known), (begun, second_known)) = (claims.span(view, first), claims.span(view, second));
    // Only then the store has granted the first one before the second.
    if known >= begun.saturating_sub(added(view, second)) || !is_confirmed(view, second) {
        return None;
    }
    let calm = end_of_faults(view, second_known);
    let is_unexplained = |event: &&Event| {
        let is_meanwhile = requested_at(view, first, event).is_some_and(|at| at > calm && at < second.until);
        let mut faults = view.faults_in(calm.saturating_add(1), view.times.at(event));
        is_meanwhile && !faults.any(|fault| fault.is_outside_of_processes())
    };
    first.renewals().find(is_unexplained)
}

/// Returns `true` if the store has renewed or released a grant after its holder knew of it.
fn is_confirmed(view: &View<'_>, grant: &GrantLife<'_>) -> bool {
    let is_released = grant.release.is_some_and(|release| release.succeeded());
    let is_later = |event: &Event| requested_at(view, grant, event).is_some_and(|at| at > grant.from);
    is_released || grant.renewals().any(is_later)
}

/// Returns when the faults that are at work at a time are over, with those that begin before their end.
fn end_of_faults(view: &View<'_>, at: u64) -> u64 {
    let mut end = at;
    loop {
        let touching = view.faults_in(end, end).filter(|fault| fault.is_outside_of_processes());
        let later = touching.map(|fault| fault.until).max().unwrap_or(end);
        if later <= end {
            return end;
        }
        end = later;
    }
}

/// Returns a time before which a renewal was not asked for: the validity counts from the request. By a slow clock it
/// ends later, and the renewal was confirmed by then.
fn requested_at(view: &View<'_>, grant: &GrantLife<'_>, renewal: &Event) -> Option<u64> {
    if view.times.stamps == Stamps::Recorder {
        return None;
    }
    let given = grant.asked.values.ttl?.saturating_add(added(view, grant));
    let counted = view.times.shift(renewal, renewal.values.valid_until?.saturating_sub(given));
    Some(counted.min(view.times.at(renewal)))
}
