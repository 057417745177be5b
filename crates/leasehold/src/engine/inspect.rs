//! Inspection of a resource: its present state, or its next change.
//!
//! The backend's future runs in a task of the engine, as all of them do. A caller that is dropped ends
//! its patience.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Patience, Resource, Snapshot, SnapshotVersion};

use super::Engine;
use crate::error::{Error, Result};
use crate::panics::spanned;

impl Engine {
    /// Returns the state of a resource. With `seen`, waits up to `limit` until its version is another one.
    pub(crate) async fn look(
        self: &Arc<Self>,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        limit: Duration,
    ) -> Result<Snapshot> {
        let patience = Patience::until(self.clock.clone(), self.clock.now().after(limit));
        let leaving = EndOnDrop(patience.clone());
        let (backend, sought, seen) = (self.backend.clone(), resource.clone(), seen.cloned());
        let looking = async move {
            loop {
                let snapshot = backend.inspect(&sought, seen.as_ref(), &patience).await?;
                if seen.as_ref() != Some(&snapshot.version) || patience.is_ended() {
                    return Ok(snapshot);
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                    () = patience.ended() => {}
                }
            }
        };
        let about = resource.clone();
        let span = move || tracing::debug_span!("leasehold.inspect", resource = %about);
        let mut looking = std::pin::pin!(self.peek(spanned(span, looking)));
        let looked = tokio::select! {
            biased;
            looked = &mut looking => looked,
            _ = self.sleep(limit) => {
                // The request is not dropped: the end of patience makes the backend answer at once.
                leaving.0.end();
                looking.await
            }
        };
        looked.map_err(|failure| Error::failed("inspect", failure).on(resource))
    }
}

/// A guard that ends the patience when the caller no longer waits for the answer.
pub(super) struct EndOnDrop(pub(super) Patience);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Time between two polls of a store that does not report changes.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
