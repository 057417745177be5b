//! Takes a lease of another library's semaphore: joins the queue of its lock, and moves from there to
//! the leases.
//!
//! Each user of these semaphores makes a lease only while it is the first in the queue of their lock. A
//! claim of ours does so too, and once a lease is free it removes its place and makes its lease *in one
//! transaction*. So a claim is one node at any time, and its lease was made while it was the first: no
//! other client could make one between the look and the lease.
//!
//! Ground rules: what was looked at may be old, and then shows too many leases, or a place that is not
//! first any more; it never shows too few, since the claim that was first before made its lease before
//! it left. The fence is the lease's `czxid`, which is the transaction of the grant itself. An
//! unanswered move leaves either node, and both carry the claim's id.

use futures_util::future::join;
use leasehold_core::{Claim, Effect, Failure, FailureKind, Moment, Patience, Resource};
use zookeeper_client::{CreateMode, Error, MultiWriteError, MultiWriteResult};

use crate::backend::acquire::{Look, Place, enqueue_failure, look_failure};
use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::protocol::dialect::{Dialect, looks_like_a_claim};
use crate::protocol::layout::{self, unsettled};
use crate::protocol::names::NodeRole;
use crate::protocol::resource_view;
use crate::state::claim_table::{OwnNode, Stage};

/// A semaphore, as seen by the claim that is the first in its queue.
struct Semaphore {
    /// The number of leases.
    taken: usize,
    /// The state of the node that said how many there may be, where one does.
    capacity_version: Option<i32>,
}

/// The number of leases that a semaphore's node declares.
enum DeclaredCapacity {
    /// As many as are asked for, or nothing; in this version.
    Fits(i32),
    /// Nothing was written there yet.
    Unset(i32),
    /// The node does not exist.
    Absent,
}

impl Ensemble {
    /// Looks once for a lease for a claim, whose node is `own` where it has one.
    pub(crate) async fn look_for_lease(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        patience: &Patience,
        own: Option<OwnNode>,
    ) -> Result<Look, Failure> {
        let (own, queue) = match own {
            Some(own) if own.role == NodeRole::Leases => {
                return self.confirm_lease(session, claim, own, patience).await;
            }
            Some(own) => {
                let queue = self.current_queue(session, &claim.resource, NodeRole::Locks).await;
                let Some((queue, _)) = queue.map_err(unsettled)? else {
                    self.claims.forget_node(claim.id, &own.name);
                    return Ok(Look::Gone);
                };
                (own, queue)
            }
            None => {
                // A claim that asks for another number is refused before it blocks others in the queue.
                self.declared_capacity(session, claim).await?;
                if patience.is_ended()
                    && let Some(ahead) = self.ahead_of_newcomer(session, claim).await?
                {
                    return Ok(Look::Refused(ahead));
                }
                match self.enqueue(session, claim, patience.now()).await? {
                    Some(queued) => queued,
                    None => return Ok(Look::Gone),
                }
            }
        };
        let Some(index) = queue.position(&own.name) else {
            self.claims.forget_node(claim.id, &own.name);
            return Ok(Look::Gone);
        };
        if !queue.admits(index) {
            return Ok(Look::Blocked(Place { queue, index, own }));
        }
        match self.semaphore(session, claim).await {
            Ok(None) => Ok(Look::Again),
            Ok(Some(semaphore)) if semaphore.taken < max_leases(claim) => {
                self.take_lease(session, claim, own, &semaphore, patience).await
            }
            Ok(Some(semaphore)) => Ok(Look::Full(semaphore.taken, own)),
            Err(failure) if failure.is_transient() => Err(unsettled(failure)),
            Err(failure) => {
                self.leave(session, claim, &own).await?;
                Err(failure)
            }
        }
    }

    /// Checks whether the lease that this client has still exists, confirmed by the ensemble.
    async fn confirm_lease(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: OwnNode,
        patience: &Patience,
    ) -> Result<Look, Failure> {
        let asked_at = self.counted_from(session, patience).await.map_err(unsettled)?;
        let proof = session.prove(self.names.root()).map_err(look_failure)?;
        let stat = session.client.check_stat(&self.path(claim, &own));
        let both = async {
            let (proof, stat) = join(proof, stat).await;
            proof.and(stat)
        };
        match session.ask(self.config.timeout, both).await.map_err(look_failure)? {
            Some(stat) if stat.ephemeral_owner == session.id => {
                Ok(Look::Admitted(self.grant(session, claim, own, asked_at)))
            }
            _ => {
                self.claims.forget_node(claim.id, &own.name);
                Ok(Look::Gone)
            }
        }
    }

    /// Returns the number of claims ahead of a claim that has no place, if it does not fit behind them.
    async fn ahead_of_newcomer(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
    ) -> Result<Option<usize>, Failure> {
        let ahead = |view: &resource_view::ResourceView| {
            let ahead = self.occupied(view) + view.locks.entries().len();
            (ahead >= max_leases(claim)).then_some(ahead)
        };
        if ahead(&self.current_view(session, &claim.resource).await?).is_none() {
            return Ok(None);
        }
        // What this server shows may be over already: see `current_queue`.
        Ok(ahead(&self.proven_view(session, &claim.resource).await?))
    }

    /// Returns how many leases of a semaphore are taken, without the claims in its queue. kazoo also counts
    /// the other children of its node.
    fn occupied(&self, view: &resource_view::ResourceView) -> usize {
        let others = match self.names.dialect() {
            Dialect::Kazoo => view.queue.entries().len(),
            _ => 0,
        };
        view.leases.len() + others
    }

    /// Returns the semaphore now; `None` where its node was missing and was made, or changed meanwhile.
    async fn semaphore(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
    ) -> Result<Option<Semaphore>, Failure> {
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let capacity_version = match self.declared_capacity(session, claim).await? {
            None => None,
            Some(DeclaredCapacity::Fits(version)) => Some(version),
            Some(DeclaredCapacity::Unset(version)) => {
                let capacity = claim.share.capacity().to_string();
                let set = session.client.set_data(&node, capacity.as_bytes(), Some(version));
                return match session.ask(self.config.timeout, set).await {
                    Ok(_) | Err(Error::BadVersion | Error::NoNode) => Ok(None),
                    Err(error) => Err(layout::failure(error, "cannot write how many permits there are")),
                };
            }
            Some(DeclaredCapacity::Absent) => {
                let options = CreateMode::Persistent.with_acls(self.names.acls());
                let capacity = claim.share.capacity().to_string();
                self.create_with_parents(session, &node, capacity.as_bytes(), &options).await?;
                return Ok(None);
            }
        };
        let listed = session.ask(self.config.timeout, session.client.get_children(&node)).await;
        match listed {
            Ok((names, _)) => {
                Ok(Some(Semaphore { taken: self.taken(&claim.resource, names)?, capacity_version }))
            }
            Err(Error::NoNode) => {
                self.create_with_parents(session, &node, b"", &self.names.container_options()).await?;
                Ok(None)
            }
            Err(error) => Err(look_failure(error)),
        }
    }

    /// Returns how many leases these children of a semaphore's node are. kazoo counts all that it finds
    /// there; names that lead deeper hold nothing and are passed over.
    fn taken(&self, resource: &Resource, names: Vec<String>) -> Result<usize, Failure> {
        let read = resource_view::leases(self.names.dialect(), names);
        let (leases, others) = read.map_err(|why| layout::unreadable(resource, &why))?;
        Ok(leases.len() + others.iter().filter(|name| looks_like_a_claim(name)).count())
    }

    /// Returns the number of leases that the semaphore's node declares; `None` in a dialect where it declares
    /// none.
    ///
    /// # Errors
    /// `Invalid` where it is another number than the claim's.
    async fn declared_capacity(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
    ) -> Result<Option<DeclaredCapacity>, Failure> {
        if self.names.dialect() != Dialect::Kazoo {
            return Ok(None);
        }
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let (data, stat) = match session.ask(self.config.timeout, session.client.get_data(&node)).await {
            Ok(found) => found,
            Err(Error::NoNode) => return Ok(Some(DeclaredCapacity::Absent)),
            Err(error) => return Err(look_failure(error)),
        };
        match layout::read_capacity(&data) {
            Some(capacity) if capacity != claim.share.capacity() => {
                let text = format!(
                    "{:?} is a semaphore of {capacity} permits, and one of {} was asked for: all who use it must ask \
                     for as many; to change the number, delete the node {node} while nobody uses it",
                    claim.resource,
                    claim.share.capacity()
                );
                Err(Failure::new(FailureKind::Invalid, Effect::None, text))
            }
            None if data.is_empty() => Ok(Some(DeclaredCapacity::Unset(stat.version))),
            // Data that is not a number has another purpose: kazoo passes over it, too.
            _ => Ok(Some(DeclaredCapacity::Fits(stat.version))),
        }
    }

    /// Removes the place and makes the lease, in one transaction.
    async fn take_lease(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: OwnNode,
        semaphore: &Semaphore,
        patience: &Patience,
    ) -> Result<Look, Failure> {
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let stem = self.names.dialect().lease(claim.id);
        let data = layout::data(self.names.dialect(), NodeRole::Leases, claim);
        let mut multi = session.client.new_multi_writer();
        let added = multi
            .add_delete(&self.path(claim, &own), None)
            .and_then(|()| {
                multi.add_create(&format!("{node}/{stem}"), data.as_bytes(), &self.names.lease_options())
            })
            .and_then(|()| {
                semaphore.capacity_version.map_or(Ok(()), |version| multi.add_check_version(&node, version))
            });
        added.map_err(enqueue_failure)?;
        let asked_at = self.counted_from(session, patience).await.map_err(unsettled)?;
        self.claims.set(claim, session.id, Stage::Sent);
        let moved = async { Ok(multi.commit().await) };
        match session.ask(self.config.timeout, moved).await.map_err(enqueue_failure)? {
            Ok(results) => self.moved(session, claim, results, asked_at).await,
            Err(MultiWriteError::RequestFailed { source }) => Err(enqueue_failure(source)),
            // Nothing of it happened.
            Err(MultiWriteError::OperationFailed { index: DELETE_INDEX, source: Error::NoNode }) => {
                self.claims.forget(claim.id);
                Ok(Look::Gone)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                // A lease of this id is of an attempt that was not answered, and is found as that.
                if source != Error::NodeExists {
                    self.claims.set(claim, session.id, Stage::Queued(own));
                }
                match source {
                    Error::NodeExists | Error::NoNode | Error::BadVersion => Ok(Look::Again),
                    source => Err(unsettled(enqueue_failure(source))),
                }
            }
        }
    }

    /// Returns the lease that was made: its name, and the transaction that made it.
    async fn moved(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        results: Vec<MultiWriteResult>,
        asked_at: Moment,
    ) -> Result<Look, Failure> {
        let made = results.into_iter().find_map(|result| match result {
            MultiWriteResult::Create { path, stat } => Some((path, stat)),
            _ => None,
        });
        let (path, mut stat) =
            made.ok_or_else(|| Failure::unanswered("the server does not say what it made"))?;
        // Servers before 3.7.2 and 3.8.2 answer a transaction without it.
        if stat.is_invalid() {
            let asked = session.ask(self.config.timeout, session.client.check_stat(&path)).await;
            match asked.map_err(|error| unsettled(look_failure(error)))? {
                Some(found) => stat = found,
                None => {
                    self.claims.forget(claim.id);
                    return Ok(Look::Gone);
                }
            }
        }
        if stat.ephemeral_owner != session.id {
            return Err(Failure::unanswered("a lease was made for another session than this one"));
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let own = OwnNode { role: NodeRole::Leases, name, czxid: stat.czxid };
        Ok(Look::Admitted(self.grant(session, claim, own, asked_at)))
    }

    /// Sleeps until a lease may be free; `true` where patience ended first.
    pub(crate) async fn wait_for_lease(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        patience: &Patience,
    ) -> Result<bool, Failure> {
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let watcher = match session.watch_children(&node, self.config.timeout).await {
            Ok((names, _, _)) if self.taken(&claim.resource, names.clone())? < max_leases(claim) => {
                return Ok(false);
            }
            Ok((_, _, watcher)) => watcher,
            Err(Error::NoNode) => return Ok(false),
            Err(error) => return Err(look_failure(error)),
        };
        tokio::select! {
            () = watcher.changed() => Ok(false),
            () = patience.ended() => Ok(true),
        }
    }

    /// Returns `true` if a lease is left for a claim after those ahead of it in the queue, which are being
    /// granted theirs.
    pub(crate) async fn lease_fits_behind(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        index: usize,
    ) -> Result<bool, Failure> {
        let view = self.current_view(session, &claim.resource).await.map_err(unsettled)?;
        Ok(self.occupied(&view) + index < max_leases(claim))
    }
}

/// Returns how many leases there may be.
fn max_leases(claim: &Claim) -> usize {
    usize::try_from(claim.share.capacity()).unwrap_or(usize::MAX)
}

/// The position in the transaction at which the place is removed.
const DELETE_INDEX: usize = 0;
