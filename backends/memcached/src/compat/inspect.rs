//! Inspection of a plain lock.

use std::time::Duration;

use leasehold_core::{ClaimInfo, Failure, Note, Resource, Share, Snapshot, SnapshotVersion};

use crate::backend::cells::fence;
use crate::compat::plain::PlainBackend;
use crate::compat::token::Token;
use crate::net::error;
use crate::protocol::command::CLOCK_LAG;
use crate::protocol::reply::Reply;

impl PlainBackend {
    /// Returns the lock as it is, held by any client.
    pub(crate) async fn inspect_once(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let unlocked = Snapshot::new(resource.clone(), SnapshotVersion::new("-"));
        let (link, value, number, left) = match self.servers.look(&[resource]).await.pop() {
            Some(Ok((link, Reply::Item { value, number, left, .. }))) => (link, value, number, left),
            Some(Ok((_, Reply::Missing { .. }))) => return Ok(unlocked),
            Some(Ok((_, reply))) => return Err(self.servers.node(resource).unexpected(&reply)),
            Some(Err(failure)) => return Err(failure),
            None => return Err(Failure::unavailable("no server answered")),
        };
        let left = left.map(Duration::from_secs);
        let info =
            |id, fence, left, note| ClaimInfo::new(id, Share::MUTEX).fence(fence).remaining(left).note(note);
        let holder = match Token::read(&value) {
            Token::Ours(owner) if owner.resource != *resource => {
                return Err(error::of_collision(resource, &owner.resource));
            }
            Token::Ours(owner) => {
                let granted = owner.fence.unwrap_or_else(|| fence(&link, number));
                // The item outlives the lease.
                let left = left.map(|left| left.saturating_sub(CLOCK_LAG));
                info(owner.id, Some(granted), left, owner.note)
            }
            Token::Foreign(id) => info(id, None, left, Note::clipped("held through another library")),
        };
        let version =
            SnapshotVersion::new(format!("{}-{}", holder.id.tag(), holder.fence.unwrap_or_default()));
        Ok(Snapshot::new(unlocked.resource, version).fence(holder.fence).holders(vec![holder]))
    }
}
