//! The handles of an owner on one hold, and the hold itself while none is left and its minimum hold is not over.
//!
//! Ground rules: a handle ends and drops its reference under one lock, so the handle that ends last has the last
//! reference, and its release ends the claim. What is kept belongs to no handle, and the next handle takes it over.
//! No clock and no other foreign code is called under the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::Moment;

use crate::engine::hold::Hold;
use crate::mutant::mutant;

/// The handles on one hold.
#[derive(Debug, Default)]
pub(in crate::engine) struct Users(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The handles that have not ended.
    handles: usize,
    /// Those of them that use the hold. The others wait for the end of its minimum hold.
    in_use: usize,
    /// The hold without a handle, until its minimum hold is over.
    kept: Option<Arc<Hold>>,
}

/// The outcome of the end of a handle.
pub(super) enum HandleEnd {
    /// Other handles have the hold.
    Shared,
    /// It was the last one, and the hold is kept until this moment, the end of its minimum hold.
    Kept(Moment),
    /// It was the last one.
    Last(Hold),
}

impl Users {
    /// Returns `true` if a handle uses the hold. Otherwise it is only kept for its minimum hold, or is being released.
    pub(super) fn has_any(&self) -> bool {
        self.state().in_use > 0
    }

    /// Adds a handle, which has a reference of its own to the hold.
    pub(super) fn enter(&self) {
        let mut state = self.state();
        state.handles += 1;
        state.in_use += 1;
        let kept = state.kept.take_if(|_| !mutant!("what is kept is not taken over"));
        drop(state);
        drop(kept);
    }

    /// Adds a handle if others use the hold, and returns its reference. What is only kept ends by itself, and a task of
    /// the owner may wait for that.
    pub(super) fn enter_beside_others(&self, hold: &Weak<Hold>) -> Option<Arc<Hold>> {
        let mut state = self.state();
        if state.in_use == 0 {
            return None;
        }
        // It is not the last reference when it ends, since it counts as a handle from here on.
        let hold = hold.upgrade()?;
        state.handles += 1;
        state.in_use += 1;
        Some(hold)
    }

    /// Records that a handle does not use the hold any more.
    pub(super) fn leave(&self) {
        self.state().in_use -= 1;
    }

    /// Ends a handle if others use the hold. Otherwise returns its reference.
    pub(super) fn end_if_used(&self, hold: Arc<Hold>) -> Option<Arc<Hold>> {
        let mut state = self.state();
        if state.in_use == 0 {
            return Some(hold);
        }
        state.handles -= 1;
        // Not the last reference: the handles that use it have others.
        drop(hold);
        None
    }

    /// Ends a handle. If it is the last one, and the minimum hold is not over at `now`, the hold is kept in here.
    pub(super) fn end(&self, hold: Arc<Hold>, now: Moment) -> HandleEnd {
        let mut state = self.state();
        state.handles -= 1;
        if state.handles > 0 {
            // Not the last reference, as above.
            drop(hold);
            return HandleEnd::Shared;
        }
        if let Some(until) = hold.min_hold_end(now) {
            state.kept = Some(hold);
            return HandleEnd::Kept(until);
        }
        drop(state);
        // A task of the owner that looks at the hold in this moment has a reference, and a handle in the next.
        Arc::into_inner(hold).map_or(HandleEnd::Shared, HandleEnd::Last)
    }

    /// Ends what was kept until this moment, unless a handle has taken it over, or its minimum hold ends later by now.
    fn end_min_hold(&self, until: Moment) {
        let over = self.state().kept.take_if(|hold| hold.min_hold_end(until).is_none());
        drop(over);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard of a hold that is kept without a handle: its drop ends that.
pub(super) struct MinHoldGuard {
    pub(super) users: Arc<Users>,
    pub(super) until: Moment,
}

impl Drop for MinHoldGuard {
    fn drop(&mut self) {
        self.users.end_min_hold(self.until);
    }
}
