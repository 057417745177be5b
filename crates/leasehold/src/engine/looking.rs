//! Looking at a resource: now, or when it has changed.
//!
//! The backend's future runs in a task of the engine, as all of them do: a caller that leaves ends its patience.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Patience, Resource, Snapshot, Version};

use super::Engine;
use crate::error::{Error, Result};
use crate::panics::spanned;

impl Engine {
    /// How a resource stands; with `seen`, waits up to `limit` until that is another version.
    pub(crate) async fn look(
        self: &Arc<Self>,
        resource: &Resource,
        seen: Option<&Version>,
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
                leaving.0.end();
                looking.await
            }
        };
        looked.map_err(|failure| Error::failed("inspect", failure).on(resource))
    }
}

/// Whoever leaves does not want the answer any more.
pub(super) struct EndOnDrop(pub(super) Patience);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Time between two looks of an onlooker at a store that tells nobody of changes.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
