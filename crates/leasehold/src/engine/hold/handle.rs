//! One guard's reference to a hold. The guards of one owner share the hold.
//!
//! Ground rules: each handle has an end of its own. Its listeners see nothing that happens later, even
//! where the hold has other handles or is kept for a minimum time. The last handle that ends releases the
//! hold; drop never blocks.

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use leasehold_core::LossCause;

use crate::engine::hold::{End, Hold};
use crate::engine::lease::State;
use crate::engine::release::job::Released;
use crate::mutant::mutant;

/// One guard's reference to a hold.
#[derive(Debug)]
pub(crate) struct HoldHandle {
    /// The hold; `None` once this handle has ended.
    hold: Option<Arc<Hold>>,
    is_used: bool,
    /// The end of this handle, where something listens for it.
    end: OnceLock<Arc<End>>,
}

impl HoldHandle {
    pub(crate) fn new(hold: Arc<Hold>) -> HoldHandle {
        if let Some(users) = &hold.users {
            users.fetch_add(1, Ordering::SeqCst);
        }
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
        let (state, mut changes) = (self.held().state(), self.held().watch());
        async move {
            let lost = match state {
                State::Lost(cause) => Some(cause),
                _ => tokio::select! {
                    biased;
                    cause = changes.ended() => cause,
                    () = end.ended.cancelled() => None,
                },
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

    /// Ends this handle. If it was the last one, releases the hold once its minimum time is over. Returns the
    /// state in which it ended, and the outcome of the release.
    ///
    /// Cancel safe: a dropped future leaves the rest to be done in the background.
    pub(crate) async fn release(mut self) -> (State, Option<Released>) {
        // From here on the owner no longer uses the lock, even while the minimum time keeps it held.
        self.leave();
        if !self.hold().is_used() {
            self.hold().stay().await;
        }
        let held = self.held().clone();
        match self.into_hold() {
            Some(hold) => {
                let (state, released) = hold.release();
                (state, Some(released.await))
            }
            None => (held.state(), None),
        }
    }

    /// Ends this handle, and returns the hold if this was its last one. Ending that hold then notifies
    /// the listeners of this handle.
    pub(crate) fn into_hold(mut self) -> Option<Hold> {
        self.leave();
        let hold = self.hold.take()?;
        Self::last(hold, self.end.take())
    }

    fn last(hold: Arc<Hold>, end: Option<Arc<End>>) -> Option<Hold> {
        let Some(end) = end else { return Arc::into_inner(hold) };
        let held = hold.held().clone();
        match Arc::into_inner(hold) {
            Some(hold) => Some(hold.with_end(end)),
            None => {
                if !mutant!("guards of one owner end together") {
                    end.signal(held.state());
                }
                None
            }
        }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_used)
            && let Some(users) = &self.hold().users
        {
            users.fetch_sub(1, Ordering::SeqCst);
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
        if self.hold.is_none() {
            return;
        }
        self.leave();
        let (Some(hold), end) = (self.hold.take(), self.end.take()) else { return };
        // As long as another handle uses the hold, that one keeps it: a reference that stays behind would make it not
        // the last one.
        if hold.is_used() || hold.left_to_keep().is_zero() {
            drop(Self::last(hold, end));
            return;
        }
        if let Some(end) = end {
            end.signal(hold.held().state());
        }
        hold.stay_behind();
    }
}
