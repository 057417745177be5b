//! The watch for inline releases that stall, over a backend that does not send directly.
//!
//! Such a release stalls if its caller is not polled, and may then keep what the whole client needs: the turn of a
//! connection that all locks share, the making of a connection, the last permit of a pool. So the reaper checks a few
//! times a second, as long as there are such releases, and takes over the one that it finds for the second time. A
//! timer for each would cost more than the release.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::engine::release::inline::InlineRelease;

/// The watch over the latest of these releases. There is one at a time: one more is batched with others.
#[derive(Debug, Default)]
pub(crate) struct StallWatch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    latest: Weak<InlineRelease>,
    /// The one that was there at the last check.
    seen: Weak<InlineRelease>,
    /// `true` while the reaper checks.
    is_active: bool,
}

impl StallWatch {
    /// Notes a release. Returns `true` if the reaper has to be notified to check.
    pub(crate) fn note(&self, release: &Arc<InlineRelease>) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.latest = Arc::downgrade(release);
        !std::mem::replace(&mut state.is_active, true)
    }

    /// Takes the release from its caller if it was there at the last check. Returns `true` if there is a reason to
    /// check again.
    pub(crate) fn check(&self) -> bool {
        let stalled = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.latest.ptr_eq(&state.seen) {
                state.seen = state.latest.clone();
                return true;
            }
            std::mem::take(&mut *state).latest
        };
        if let Some(stalled) = stalled.upgrade() {
            stalled.detach();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::Handle;
    use tokio::sync::mpsc;

    use super::*;
    use crate::engine::release::inline::ReleaseFuture;

    /// Returns a release that never ends by itself, and the receiver on which it arrives when taken over.
    fn release() -> (Arc<InlineRelease>, mpsc::UnboundedReceiver<ReleaseFuture>) {
        let (others, taken_over) = mpsc::unbounded_channel();
        let take_over = move |release| drop(others.send(release));
        (InlineRelease::new(std::future::pending().boxed(), Handle::current(), take_over), taken_over)
    }

    #[tokio::test]
    async fn release_is_taken_over_at_the_second_check_that_finds_it() {
        let stall_watch = StallWatch::default();
        let ((first, mut first_taken), (second, mut second_taken)) = (release(), release());
        assert!(stall_watch.note(&first) && stall_watch.check());
        // The caller of the first one has released another lock since.
        assert!(!stall_watch.note(&second), "the reaper checks already");
        assert!(stall_watch.check());
        assert!(first_taken.try_recv().is_err() && second_taken.try_recv().is_err());
        assert!(!stall_watch.check(), "nothing is left to check");
        assert!(second_taken.try_recv().is_ok() && first_taken.try_recv().is_err());
        assert!(stall_watch.note(&first), "the reaper has to be notified");
    }
}
