//! One guard's reference to a hold. The guards of one owner share the hold.
//!
//! Ground rules: each handle has an end of its own. Its listeners see nothing that happens later, even
//! where the hold has other handles or is kept for its minimum hold. The last handle that ends releases the
//! hold; drop never blocks. In a fork nothing is released, notified, spawned or locked, and no clock is read: what
//! another thread of the parent had locked stays locked there.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use leasehold_core::{LossCause, Moment};

use crate::engine::hold::users::{HandleEnd, MinHoldGuard};
use crate::engine::hold::{EndSignal, Hold, SKIP_MIN_HOLD, held_until};
use crate::engine::lease::{Lease, State};
use crate::engine::release::job::Released;
use crate::mutant::mutant;

/// One guard's reference to a hold.
#[derive(Debug)]
pub(crate) struct HoldHandle {
    /// The hold; `None` once this handle has ended.
    hold: Option<Arc<Hold>>,
    is_used: bool,
    /// The end of this handle, where something listens for it.
    end: OnceLock<Arc<EndSignal>>,
}

impl HoldHandle {
    pub(crate) fn new(hold: Arc<Hold>) -> HoldHandle {
        if let Some(users) = &hold.users {
            users.enter();
        }
        HoldHandle::entered(hold)
    }

    /// Creates the handle of a hold that counts it already.
    pub(super) fn entered(hold: Arc<Hold>) -> HoldHandle {
        HoldHandle { hold: Some(hold), is_used: true, end: OnceLock::new() }
    }

    /// Returns `true` if the hold has no other handle and nothing else keeps it.
    pub(crate) fn is_only(&self) -> bool {
        Arc::strong_count(self.hold()) == 1
    }

    /// Returns a future of the end of this handle: the cause of a loss, or `None` for a release. The
    /// future does not keep the lock held.
    pub(crate) fn ending(&self) -> impl Future<Output = Option<LossCause>> + Send + 'static {
        let end = self.end.get_or_init(Arc::default).clone();
        let changes = (!self.hold().engine.is_forked()).then(|| self.lease().watch());
        async move {
            let Some(mut changes) = changes else { return Some(LossCause::Forked) };
            let lost = tokio::select! {
                biased;
                cause = changes.ended() => cause,
                () = end.ended.cancelled() => None,
            };
            // A loss after this end belongs to the next holder.
            end.cause.get().copied().unwrap_or(lost)
        }
    }

    /// Returns a check of whether this handle has ended. The check does not keep the lock held.
    pub(crate) fn over(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let end = self.end.get_or_init(Arc::default).clone();
        move || end.cause.get().is_some()
    }

    /// Ends this handle. If it was the last one, releases the hold once its minimum hold is over. Returns the
    /// state in which it ended, and the outcome of the release.
    ///
    /// Cancel safe: a dropped future leaves the rest to be done in the background.
    pub(crate) async fn release(mut self) -> (State, Option<Released>) {
        if self.ends_in_fork() {
            return (State::Lost(LossCause::Forked), None);
        }
        // From here on the owner no longer uses the lock, even while its minimum hold lasts.
        self.leave();
        let lease = self.lease().clone();
        if self.ends_beside_others(&lease) {
            return (lease.state(), None);
        }
        let now = self.hold().wait_min_hold().await;
        match self.end_at(now) {
            Some(hold) => {
                let (state, released) = hold.release();
                (state, Some(released.await))
            }
            None => (lease.state(), None),
        }
    }

    /// Ends this handle, and returns the hold if this was its last one, whatever is left of its minimum hold. Ending
    /// that hold then notifies the listeners of this handle. In a fork it returns `None`.
    pub(crate) fn into_hold(mut self) -> Option<Hold> {
        if self.ends_in_fork() {
            return None;
        }
        self.end_at(SKIP_MIN_HOLD)
    }

    /// Ends this handle if this process is a fork of the one that holds the lock. Returns `false` if it is not.
    fn ends_in_fork(&mut self) -> bool {
        if !self.hold().engine.is_forked() {
            return false;
        }
        if let Some(end) = self.end.take() {
            let _ = end.cause.set(Some(LossCause::Forked));
            // The drop of its token locks, as its cancellation would.
            std::mem::forget(end);
        }
        self.hold = None;
        true
    }

    /// Ends this handle if others use the hold: one of them is the last.
    fn ends_beside_others(&mut self, lease: &Lease) -> bool {
        let Some(users) = self.hold().users.clone() else { return false };
        self.hold = self.hold.take().and_then(|hold| users.end_if_used(hold));
        if self.hold.is_none() {
            signal(self.end.take(), lease);
        }
        self.hold.is_none()
    }

    /// Ends this handle. Returns the hold if this was its last one, and its minimum hold is over at `now`.
    fn end_at(&mut self, now: Moment) -> Option<Hold> {
        self.leave();
        let (hold, end) = (self.hold.take()?, self.end.take());
        let Some(users) = hold.users.clone() else {
            // It has no other handle.
            return Arc::into_inner(hold).map(|hold| hold.with_end(end));
        };
        let (engine, lease) = (hold.engine.clone(), hold.lease().clone());
        let ended = users.end(hold, now);
        match ended {
            HandleEnd::Last(hold) => return Some(hold.with_end(end)),
            HandleEnd::Shared => signal(end, &lease),
            HandleEnd::Kept(until) => {
                signal(end, &lease);
                let guard = MinHoldGuard { users, until };
                engine.clone().spawn(async move {
                    let _guard = guard;
                    held_until(engine, lease, until).await;
                });
            }
        }
        None
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_used)
            && let Some(users) = &self.hold().users
        {
            users.leave();
        }
    }

    fn hold(&self) -> &Arc<Hold> {
        // Invariant: `hold` is taken only by what consumes the handle.
        match &self.hold {
            Some(hold) => hold,
            None => unreachable!("a handle that has ended is not reachable any more"),
        }
    }
}

impl Deref for HoldHandle {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        self.hold()
    }
}

impl Drop for HoldHandle {
    fn drop(&mut self) {
        if self.hold.is_none() || self.ends_in_fork() {
            return;
        }
        let now = self.hold().now_if_min_hold();
        if self.hold().users.is_some() || self.hold().min_hold_end(now).is_none() {
            drop(self.end_at(now));
            return;
        }
        let (Some(hold), end) = (self.hold.take(), self.end.take()) else { return };
        signal(end, hold.lease());
        hold.wait_min_hold_detached();
    }
}

/// Notifies the listeners of a handle that has ended without its hold.
fn signal(end: Option<Arc<EndSignal>>, lease: &Lease) {
    if let Some(end) = end
        && !mutant!("guards of one owner end together")
    {
        end.signal(lease.state());
    }
}
