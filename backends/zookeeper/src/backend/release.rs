//! Ends claims, and continues in the background with those whose end could not be confirmed.
//!
//! Ground rule: the session outlives a lost connection, and would keep a forgotten node for as long as
//! the client lives. So an abandoned claim is ended until a server says that it is gone, however long
//! that takes, also where the servers refuse that at first.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use leasehold_backend::random;
use leasehold_core::{Claim, Failure, Moment, Release};
use leasehold_machine::since_boot;
use zookeeper_client::Error;

use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::protocol::layout::{self, unsettled};
use crate::protocol::names::NodeRole;
use crate::protocol::resource_view;
use crate::state::claim_table::{OwnNode, Stage, TrackedClaim};
use crate::state::leftovers::EndFailure;

impl Ensemble {
    /// Ends the claims of a batch, in order.
    pub(crate) async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        if let [claim] = batch {
            return vec![self.release_one(claim).await];
        }
        let ends: Vec<_> = batch.iter().map(|claim| self.release_one(claim)).collect();
        stream::iter(ends).buffered(AT_ONCE).collect().await
    }

    /// Gives up the place of a claim in its queue.
    pub(crate) async fn leave(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: &OwnNode,
    ) -> Result<(), Failure> {
        // A node that could not be removed is abandoned, whatever the reason.
        self.delete(session, &self.path(claim, own)).await.map_err(unsettled)?;
        self.claims.forget(claim.id);
        Ok(())
    }

    /// Removes a node. Returns `true` if it existed.
    pub(crate) async fn delete(&self, session: &EnsembleSession, path: &str) -> Result<bool, Failure> {
        match session.ask(self.config.timeout, session.client.delete(path, None)).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(layout::failure(error, "cannot remove a claim")),
        }
    }

    async fn release_one(&self, claim: &Claim) -> Release {
        match self.try_end(claim).await {
            Ok(true) => Release::Freed,
            Ok(false) => Release::Gone,
            Err(failure) => match self.keep(claim, &failure) {
                true => Release::Unknown(unsettled(failure)),
                false => Release::Unknown(failure),
            },
        }
    }

    /// Leaves a claim whose end failed to the background task, so that nothing is left when the caller gives
    /// up. Returns `false` for another client's that could not be taken away.
    fn keep(&self, claim: &Claim, failure: &Failure) -> bool {
        let kind = match failure.is_transient() {
            true => EndFailure::Transient,
            false if self.tracked(claim).is_some() => EndFailure::Refused,
            false => {
                self.leftovers.remove(claim.id);
                return false;
            }
        };
        if self.leftovers.failed(claim, kind, now(), random::chance()) {
            tracing::warn!(resource = %claim.resource, %failure, "a claim cannot be ended, and is tried again");
        }
        true
    }

    /// Ends what is left over of a claim, or leaves it for later.
    async fn end_leftover(&self, claim: &Claim) {
        match self.try_end(claim).await {
            Ok(was_there) => {
                tracing::debug!(resource = %claim.resource, was_there, "ended what was left over");
            }
            Err(failure) if self.keep(claim, &failure) => {}
            Err(failure) => tracing::warn!(resource = %claim.resource, %failure, "a claim cannot be ended"),
        }
    }

    /// Returns what this client knows of a claim; `None` for one that is not its own.
    fn tracked(&self, claim: &Claim) -> Option<TrackedClaim> {
        self.claims.get(claim.id).filter(|known| known.resource == claim.resource)
    }

    /// Removes the claim's node, wherever it is. Returns `true` if it existed.
    async fn try_end(&self, claim: &Claim) -> Result<bool, Failure> {
        // Nothing is ever held under such a name, and its path may be a node of somebody else.
        self.names.check_name(&claim.resource)?;
        let known = self.tracked(claim);
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
        if let Some(own) = &own {
            was_there = self.delete(&session, &self.path(claim, own)).await?;
            if let Some(number) = self.names.number(&own.name).filter(|_| own.role == NodeRole::Queue) {
                self.uncontended.record_gone(&claim.resource, number);
            }
        }
        // It was never ours, or its making was not answered, or it was made in another session, or it has just been
        // given its lease.
        if own.is_none_or(|own| !was_there && own.role == NodeRole::Locks) {
            was_there = self.end_by_id(&session, claim).await?;
        }
        if known.is_some() {
            self.claims.forget_ended(claim.id);
        }
        self.leftovers.remove(claim.id);
        Ok(was_there)
    }

    /// Removes all nodes of the claim, found by its id alone: its container may have children that form no queue.
    /// Returns `true` if one existed.
    async fn end_by_id(&self, session: &EnsembleSession, claim: &Claim) -> Result<bool, Failure> {
        let mut was_there = false;
        for _ in 0..MAX_MOVES {
            let mut moved = false;
            let children = self.proven_children(session, &claim.resource).await?;
            for (role, name) in resource_view::nodes_of(self.names.dialect(), &children, claim.id) {
                let path = format!("{}/{name}", self.names.node(&claim.resource, role));
                let deleted = self.delete(session, &path).await?;
                // Another client's may have been given its lease at this moment.
                moved |= !deleted && role == NodeRole::Locks;
                was_there |= deleted;
            }
            if !moved {
                break;
            }
        }
        Ok(was_there)
    }
}

/// Ends leftover claims, for as long as the client lives.
pub(crate) async fn end_leftovers(ensemble: Weak<Ensemble>) {
    let Some(added) = ensemble.upgrade().map(|ensemble| ensemble.leftovers.added.clone()) else { return };
    loop {
        let next_due = {
            let Some(ensemble) = ensemble.upgrade() else { return };
            let due = ensemble.leftovers.due(now(), AT_ONCE);
            let ends: Vec<_> = due.iter().map(|claim| ensemble.end_leftover(claim)).collect();
            stream::iter(ends).buffer_unordered(AT_ONCE).collect::<()>().await;
            ensemble.leftovers.next_due()
        };
        let pause = next_due.map_or(IDLE, |due| now().until(due).min(IDLE));
        // The pause also makes the task notice that the client is gone.
        tokio::select! {
            () = added.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn now() -> Moment {
    Moment::START.after(since_boot())
}

/// The most looks for a claim whose node has disappeared: it moves once, from the queue to the leases.
const MAX_MOVES: usize = 2;
/// The most requests of one batch that are on their way together.
const AT_ONCE: usize = 256;
/// The longest pause while nothing is due.
const IDLE: Duration = Duration::from_secs(30);
