//! Ends claims, and continues in the background with those whose end could not be confirmed.
//!
//! Ground rule: the session outlives a lost connection, and would keep a forgotten node for as long as
//! the client lives. So an abandoned claim is ended until a server says that it is gone, however long
//! that takes.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use leasehold_backend::random;
use leasehold_core::{Backoff, Claim, Failure, Release};

use crate::client::Ensemble;
use crate::protocol::layout::unsettled;
use crate::protocol::names::NodeRole;
use crate::state::claim_table::Stage;

impl Ensemble {
    /// Ends the claims of a batch, in order.
    pub(crate) async fn end_all(&self, batch: &[&Claim]) -> Vec<Release> {
        if let [claim] = batch {
            return vec![self.end(claim).await];
        }
        let ends: Vec<_> = batch.iter().map(|claim| self.end(claim)).collect();
        stream::iter(ends).buffered(AT_ONCE).collect().await
    }

    async fn end(&self, claim: &Claim) -> Release {
        match self.try_end(claim).await {
            Ok(true) => Release::Freed,
            Ok(false) => Release::Gone,
            Err(failure) => {
                // From here on the background task has it too, so that nothing is left when the caller gives
                // up.
                if failure.is_transient() {
                    self.leftovers.add(claim);
                    return Release::Unknown(unsettled(failure));
                }
                Release::Unknown(failure)
            }
        }
    }

    /// Removes the claim's node, wherever it is. Returns `true` if it existed.
    async fn try_end(&self, claim: &Claim) -> Result<bool, Failure> {
        let known = self.claims.get(claim.id).filter(|known| known.resource == claim.resource);
        // From here on it counts as abandoned, also where no server can be asked now.
        if let Some(known) = &known {
            self.claims.set(claim, known.session, Stage::Ending);
        }
        let session = match known.as_ref().and_then(|known| self.session_pool.session(known.session)) {
            Some(session) => {
                session.ready(self.config.timeout).await?;
                session
            }
            None => self.sessions.present(self.config.timeout).await?,
        };
        let own = known.as_ref().and_then(|known| known.own(session.id)).cloned();
        let mut was_there = false;
        match own {
            Some(own) => {
                was_there = self.delete(&session, &self.path(claim, &own)).await?;
                if let Some(number) = self.names.number(&own.name).filter(|_| own.role == NodeRole::Queue) {
                    self.uncontended.record_gone(&claim.resource, number);
                }
            }
            // It was never ours, or its making was not answered, or it was made in another session.
            None => {
                for _ in 0..MAX_MOVES {
                    let mut moved = false;
                    let view = self.current_view(&session, &claim.resource).await?;
                    for (role, name) in view.nodes_of(claim.id) {
                        let path = format!("{}/{name}", self.names.node(&claim.resource, role));
                        let deleted = self.delete(&session, &path).await?;
                        // Another client's may have been given its lease at this moment.
                        moved |= !deleted && role == NodeRole::Locks;
                        was_there |= deleted;
                    }
                    if !moved {
                        break;
                    }
                }
            }
        }
        if known.is_some() {
            self.claims.forget(claim.id);
        }
        self.leftovers.remove(claim.id);
        Ok(was_there)
    }
}

/// Ends leftover claims, for as long as the client lives.
pub(crate) async fn end_leftovers(ensemble: Weak<Ensemble>) {
    let Some(added) = ensemble.upgrade().map(|ensemble| ensemble.leftovers.added.clone()) else { return };
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    loop {
        let is_idle = {
            let Some(ensemble) = ensemble.upgrade() else { return };
            for claim in ensemble.leftovers.sample(AT_ONCE) {
                match ensemble.try_end(&claim).await {
                    Ok(was_there) => {
                        tracing::debug!(resource = %claim.resource, was_there, "ended what was left over");
                        backoff.reset();
                    }
                    Err(failure) if failure.is_transient() => break,
                    // It can never succeed: the session's end is what ends the node.
                    Err(failure) => {
                        tracing::warn!(resource = %claim.resource, %failure, "a claim cannot be ended");
                        ensemble.leftovers.remove(claim.id);
                    }
                }
            }
            ensemble.leftovers.sample(AT_ONCE).is_empty()
        };
        let pause = if is_idle { IDLE } else { backoff.failed(random::chance()) };
        // The pause also makes the task notice that the client is gone.
        tokio::select! {
            () = added.notified() => backoff.reset(),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The most looks for a claim whose node has disappeared: it moves once, from the queue to the leases.
const MAX_MOVES: usize = 2;
/// The most requests of one batch that are on their way together.
const AT_ONCE: usize = 256;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(2);
/// The pause while nothing is left over.
const IDLE: Duration = Duration::from_secs(30);
