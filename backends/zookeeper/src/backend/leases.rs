//! Takes a lease of another library's semaphore: joins the queue of its lock, and moves from there to
//! the leases.
//!
//! Each user of these semaphores makes a lease only while it is the first in the queue of their lock. A
//! claim of ours does so too, and once there is room it removes its place and makes its lease *in one
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

use crate::backend::acquire::{Look, cannot_look, cannot_stand};
use crate::client::Ensemble;
use crate::net::session::Session;
use crate::protocol::dialect::{Dialect, looks_like_a_claim};
use crate::protocol::layout;
use crate::protocol::names::NodeRole;
use crate::protocol::resource_view;
use crate::state::places::{Own, Stage};

/// A semaphore, as seen by the claim that is the first in its queue.
struct Pool {
    /// The number of leases.
    taken: usize,
    /// The state of the node that said how many there may be, where one does.
    agreed: Option<i32>,
}

/// The statement of a semaphore's node about the number of leases.
enum Agreement {
    /// As many as are asked for, or nothing; in this version.
    Fits(i32),
    /// Nothing was written there yet.
    Open(i32),
    /// The node does not exist.
    Absent,
}

impl Ensemble {
    /// Looks once for a lease for a claim, whose node is `own` where it has one.
    pub(crate) async fn look_for_lease(
        &self,
        session: &Session,
        claim: &Claim,
        patience: &Patience,
        own: Option<Own>,
    ) -> Result<Look, Failure> {
        let (own, line) = match own {
            Some(own) if own.post == NodeRole::Leases => {
                return self.still_leases(session, claim, own, patience).await;
            }
            Some(own) => {
                let line = self.line_now(session, &claim.resource, NodeRole::Locks).await;
                let Some((line, _)) = line.map_err(unsettled)? else {
                    self.places.forget(claim.id);
                    return Ok(Look::Gone);
                };
                (own, line)
            }
            None => {
                // A claim that asks for another number is refused before it blocks others in the queue.
                self.agreement(session, claim).await?;
                if patience.is_ended()
                    && let Some(ahead) = self.ahead_of_a_newcomer(session, claim).await?
                {
                    return Ok(Look::Refused(ahead));
                }
                match self.stand(session, claim, patience.now()).await? {
                    Some(stands) => stands,
                    None => return Ok(Look::Gone),
                }
            }
        };
        let Some(index) = line.position(&own.name) else {
            self.places.forget(claim.id);
            return Ok(Look::Gone);
        };
        if !line.admits(index) {
            return Ok(Look::Blocked(line, index, own));
        }
        match self.pool(session, claim).await {
            Ok(None) => Ok(Look::Again),
            Ok(Some(pool)) if pool.taken < room(claim) => {
                self.move_in(session, claim, own, &pool, patience).await
            }
            Ok(Some(pool)) => Ok(Look::Full(pool.taken, own)),
            Err(failure) if failure.is_transient() => Err(unsettled(failure)),
            Err(failure) => {
                self.leave(session, claim, &own).await?;
                Err(failure)
            }
        }
    }

    /// Looks whether the lease that this client has still exists, confirmed by the ensemble.
    async fn still_leases(
        &self,
        session: &Session,
        claim: &Claim,
        own: Own,
        patience: &Patience,
    ) -> Result<Look, Failure> {
        let asked_at = patience.now();
        let proof = session.prove(self.names.root()).map_err(cannot_look)?;
        let stat = session.client.check_stat(&self.path(claim, &own));
        let both = async {
            let (proof, stat) = join(proof, stat).await;
            proof.and(stat)
        };
        match session.ask(self.config.timeout, both).await.map_err(cannot_look)? {
            Some(stat) if stat.ephemeral_owner == session.id => {
                Ok(Look::Admitted(self.grant(session, claim, own, asked_at)))
            }
            _ => {
                self.places.forget(claim.id);
                Ok(Look::Gone)
            }
        }
    }

    /// Returns the number of claims ahead of a claim that has no place, if it does not fit behind them.
    async fn ahead_of_a_newcomer(&self, session: &Session, claim: &Claim) -> Result<Option<usize>, Failure> {
        let scene = self.scene_now(session, &claim.resource).await?;
        let ahead = self.occupied(&scene) + scene.locks.places().len();
        Ok((ahead >= room(claim)).then_some(ahead))
    }

    /// Returns how much room is taken in a semaphore, besides the claims in its queue. kazoo counts
    /// everything that is beside its leases.
    fn occupied(&self, scene: &resource_view::ResourceView) -> usize {
        let beside = match self.names.dialect() {
            Dialect::Kazoo => scene.line.places().len(),
            _ => 0,
        };
        scene.leases.len() + beside
    }

    /// Returns the semaphore now; `None` where its node was missing and was made, or changed meanwhile.
    async fn pool(&self, session: &Session, claim: &Claim) -> Result<Option<Pool>, Failure> {
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let agreed = match self.agreement(session, claim).await? {
            None => None,
            Some(Agreement::Fits(version)) => Some(version),
            Some(Agreement::Open(version)) => {
                let capacity = claim.share.capacity().to_string();
                let set = session.client.set_data(&node, capacity.as_bytes(), Some(version));
                return match session.ask(self.config.timeout, set).await {
                    Ok(_) | Err(Error::BadVersion | Error::NoNode) => Ok(None),
                    Err(error) => Err(layout::failure(error, "cannot write how many permits there are")),
                };
            }
            Some(Agreement::Absent) => {
                let options = CreateMode::Persistent.with_acls(self.names.acls());
                let capacity = claim.share.capacity().to_string();
                self.make_all(session, &node, capacity.as_bytes(), &options).await?;
                return Ok(None);
            }
        };
        let listed = session.ask(self.config.timeout, session.client.get_children(&node)).await;
        match listed {
            Ok((names, _)) => Ok(Some(Pool { taken: self.taken(&claim.resource, names)?, agreed })),
            Err(Error::NoNode) => {
                self.make_all(session, &node, b"", &self.names.container_options()).await?;
                Ok(None)
            }
            Err(error) => Err(cannot_look(error)),
        }
    }

    /// Returns how many leases these children of a semaphore's node are. kazoo counts all that it finds
    /// there; names that lead deeper hold nothing and are passed over.
    fn taken(&self, resource: &Resource, names: Vec<String>) -> Result<usize, Failure> {
        let read = resource_view::leases(self.names.dialect(), names);
        let (leases, others) = read.map_err(|why| layout::unreadable(resource, &why))?;
        Ok(leases.len() + others.iter().filter(|name| looks_like_a_claim(name)).count())
    }

    /// Returns what the semaphore's node says of the number of leases; `None` in a dialect where it says
    /// nothing.
    ///
    /// # Errors
    /// `Invalid` where it is another number than the claim's.
    async fn agreement(&self, session: &Session, claim: &Claim) -> Result<Option<Agreement>, Failure> {
        if self.names.dialect() != Dialect::Kazoo {
            return Ok(None);
        }
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let (data, stat) = match session.ask(self.config.timeout, session.client.get_data(&node)).await {
            Ok(found) => found,
            Err(Error::NoNode) => return Ok(Some(Agreement::Absent)),
            Err(error) => return Err(cannot_look(error)),
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
            None if data.is_empty() => Ok(Some(Agreement::Open(stat.version))),
            // Data that is not a number has another purpose: kazoo passes over it, too.
            _ => Ok(Some(Agreement::Fits(stat.version))),
        }
    }

    /// Gives up the place and makes the lease, in one transaction.
    async fn move_in(
        &self,
        session: &Session,
        claim: &Claim,
        own: Own,
        pool: &Pool,
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
            .and_then(|()| pool.agreed.map_or(Ok(()), |version| multi.add_check_version(&node, version)));
        added.map_err(cannot_stand)?;
        self.places.set(claim, session.id, Stage::Sent);
        let asked_at = patience.now();
        let moved = async { Ok(multi.commit().await) };
        match session.ask(self.config.timeout, moved).await.map_err(cannot_stand)? {
            Ok(results) => self.moved(session, claim, results, asked_at).await,
            Err(MultiWriteError::RequestFailed { source }) => Err(cannot_stand(source)),
            // Nothing of it happened.
            Err(MultiWriteError::OperationFailed { index: PLACE, source: Error::NoNode }) => {
                self.places.forget(claim.id);
                Ok(Look::Gone)
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                // A lease of this id is of an attempt that was not answered, and is found as that.
                if source != Error::NodeExists {
                    self.places.set(claim, session.id, Stage::Stands(own));
                }
                match source {
                    Error::NodeExists | Error::NoNode | Error::BadVersion => Ok(Look::Again),
                    source => Err(unsettled(cannot_stand(source))),
                }
            }
        }
    }

    /// Returns the lease that was made: its name, and the transaction that made it.
    async fn moved(
        &self,
        session: &Session,
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
            match asked.map_err(|error| unsettled(cannot_look(error)))? {
                Some(found) => stat = found,
                None => {
                    self.places.forget(claim.id);
                    return Ok(Look::Gone);
                }
            }
        }
        if stat.ephemeral_owner != session.id {
            return Err(Failure::unanswered("a lease was made for another session than this one"));
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let own = Own { post: NodeRole::Leases, name, czxid: stat.czxid };
        Ok(Look::Admitted(self.grant(session, claim, own, asked_at)))
    }

    /// Sleeps until a lease may be free; `true` where patience ended first.
    pub(crate) async fn sleep_until_room(
        &self,
        session: &Session,
        claim: &Claim,
        patience: &Patience,
    ) -> Result<bool, Failure> {
        let node = self.names.node(&claim.resource, NodeRole::Leases);
        let watcher = match session.watch_children(&node, self.config.timeout).await {
            Ok((names, _, _)) if self.taken(&claim.resource, names.clone())? < room(claim) => {
                return Ok(false);
            }
            Ok((_, _, watcher)) => watcher,
            Err(Error::NoNode) => return Ok(false),
            Err(error) => return Err(cannot_look(error)),
        };
        tokio::select! {
            () = watcher.changed() => Ok(false),
            () = patience.ended() => Ok(true),
        }
    }

    /// Returns `true` if there is room for a claim behind those ahead of it in the line: they are on
    /// their way in.
    pub(crate) async fn has_room_behind(
        &self,
        session: &Session,
        claim: &Claim,
        index: usize,
    ) -> Result<bool, Failure> {
        let scene = self.scene_now(session, &claim.resource).await.map_err(unsettled)?;
        Ok(self.occupied(&scene) + index < room(claim))
    }
}

/// Returns how many leases there may be.
fn room(claim: &Claim) -> usize {
    usize::try_from(claim.share.capacity()).unwrap_or(usize::MAX)
}

/// Marks a failure as unsettled: the claim has a place, or even a lease, although this went wrong.
fn unsettled(failure: Failure) -> Failure {
    Failure::new(failure.kind, Effect::Unknown, failure.detail())
}

/// The position in the transaction at which the place is removed.
const PLACE: usize = 0;
