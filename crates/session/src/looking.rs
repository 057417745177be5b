//! Looking without touching.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_cell::ended;
use leasehold_core::{Failure, Patience, Resource, Snapshot, Version};

use crate::backend::SessionBackend;
use crate::sessions::Sessions;

impl<C: Sessions> SessionBackend<C> {
    /// Looks at one resource; with `seen`, again and again until it shows another version or patience ends.
    pub(crate) async fn observe(
        &self,
        resource: &Resource,
        seen: Option<&Version>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        loop {
            let snapshot = self.snapshot(resource).await?;
            if seen.is_none_or(|seen| *seen != snapshot.version) || patience.is_ended() {
                return Ok(snapshot);
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = ended(patience) => {}
            }
        }
    }

    async fn snapshot(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let holders = self.roster.sessions.holders(resource).await?;
        let mut state = DefaultHasher::new();
        for holder in &holders {
            (holder.id, holder.fence).hash(&mut state);
        }
        let version = Version(format!("{:016x}", state.finish()));
        // Nobody but the server knows who waits, and it does not say for which claim.
        let (fence, waiting) = (holders.iter().filter_map(|holder| holder.fence).max(), Vec::new());
        Ok(Snapshot { resource: resource.clone(), version, holders, waiting, fence })
    }
}

/// The pause between two looks of an onlooker who waits for a change.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
