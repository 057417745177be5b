//! The release that a caller carries out over a backend that does not send directly.
//!
//! Such a release may be parked with what the whole client needs: the turn of a connection that all locks share, the
//! making of a connection, the last permit of a pool. So the worker looks at it a few times a second, as long as there
//! are such releases, and takes over the one that it finds for the second time. A timer for each would cost
//! more than the release.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::engine::release::inline::InlineRelease;

/// The latest of these releases. There is one at a time: one more is batched with others.
#[derive(Debug, Default)]
pub(crate) struct Parked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    latest: Weak<InlineRelease>,
    /// The one that was there at the last look.
    seen: Weak<InlineRelease>,
    /// `true` while the worker looks.
    is_watched: bool,
}

impl Parked {
    /// Notes a release. Returns `true` if the worker has to be woken.
    pub(crate) fn watch(&self, release: &Arc<InlineRelease>) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.latest = Arc::downgrade(release);
        !std::mem::replace(&mut state.is_watched, true)
    }

    /// Takes the release from its caller if it was there at the last look. Returns `true` if there is a reason to look
    /// again.
    pub(crate) fn look(&self) -> bool {
        let late = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.latest.ptr_eq(&state.seen) {
                state.seen = state.latest.clone();
                return true;
            }
            std::mem::take(&mut *state).latest
        };
        if let Some(late) = late.upgrade() {
            late.detach();
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
        let (others, adopted) = mpsc::unbounded_channel();
        let resume = move |release| drop(others.send(release));
        (InlineRelease::new(std::future::pending().boxed(), Handle::current(), resume), adopted)
    }

    #[tokio::test]
    async fn release_is_taken_over_at_the_second_look_that_finds_it() {
        let parked = Parked::default();
        let ((first, mut first_adopted), (second, mut second_adopted)) = (release(), release());
        assert!(parked.watch(&first) && parked.look());
        // The caller of the first one has released another lock since.
        assert!(!parked.watch(&second), "the worker looks already");
        assert!(parked.look());
        assert!(first_adopted.try_recv().is_err() && second_adopted.try_recv().is_err());
        assert!(!parked.look(), "nothing is left to look at");
        assert!(second_adopted.try_recv().is_ok() && first_adopted.try_recv().is_err());
        assert!(parked.watch(&first), "the worker has to be woken");
    }
}
