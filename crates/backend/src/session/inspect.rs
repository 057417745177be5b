//! Looking without touching.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use leasehold_core::{Failure, Resource, Snapshot, SnapshotVersion};

use crate::session::backend::SessionBackend;
use crate::session::sessions::Sessions;
use crate::session::showing::shown_holders;

impl<C: Sessions> SessionBackend<C> {
    /// Returns the holders that are shown now.
    pub(crate) async fn inspect_once(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let holders = shown_holders(&self.pool.sessions, resource).await?;
        let mut state = DefaultHasher::new();
        for holder in &holders {
            (holder.id, holder.fence).hash(&mut state);
        }
        let version = SnapshotVersion::new(format!("{:016x}", state.finish()));
        // Only the server knows which sessions wait, and it does not say for which claim.
        let (fence, waiting) = (holders.iter().filter_map(|holder| holder.fence).max(), Vec::new());
        Ok(Snapshot::new(resource.clone(), version).holders(holders).waiting(waiting).fence(fence))
    }
}
