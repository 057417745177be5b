//! Acquires a claim: joins the queue, looks whether the claim holds, and sleeps until that can have changed.
//!
//! Ground rules: a grant is counted from before a request that a quorum agreed to, never from a read
//! alone: a server that lost its leader still answers reads. A node counts as the claim's own only if
//! the present session owns it; one of another session dies with that session, even under the same
//! name. A waiter that sleeps has seen, *after* its watch was set, that what it watches still exists. A
//! look is left out only where [`crate::state::uncontended`] shows what it would find.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join, join_all, join4};
use leasehold_core::{
    Claim, Effect, Failure, Fence, Grant, Hint, MAX_QUEUE, Moment, Patience, Proof, Resource, Step,
};
use zookeeper_client::{Error, Stat};

use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::net::watching::{Watching, any_change};
use crate::protocol::dialect::Dialect;
use crate::protocol::layout::{self, unsettled};
use crate::protocol::names::NodeRole;
use crate::protocol::proof::ZooKeeperProof;
use crate::protocol::queue::{Blockers, NodeQueue};
use crate::protocol::resource_view;
use crate::state::claim_table::{OwnNode, Stage};
use crate::state::uncontended::{KnownBefore, Watched};

/// The findings of one look.
pub(crate) enum Look {
    Admitted(Grant),
    /// It is in the queue here, and has to wait.
    Blocked(Place),
    /// It is the first of those that want a lease, and so many others have all leases.
    Full(usize, OwnNode),
    /// It has no place, and would not be admitted behind so many.
    Refused(usize),
    /// It has no node: the claim was ended, or its session did end, or the session had no capacity for one.
    Gone,
    /// A node that it needs was made, or changed during the look: it has to look again.
    Again,
}

/// The place of a claim in a queue.
pub(crate) struct Place {
    /// The queue, as it was seen.
    pub(crate) queue: NodeQueue,
    /// The position of its own node there.
    pub(crate) index: usize,
    pub(crate) own: OwnNode,
}

/// The queue, and its container's state.
pub(crate) type ListedQueue = (NodeQueue, Stat);

impl Ensemble {
    /// Takes one step towards holding the claim, for as long as patience lasts.
    pub(crate) async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.names.check(claim.share)?;
        self.names.check_name(&claim.resource)?;
        let mut passing = None;
        for _ in 0..MAX_LOOKS {
            let session = self.session_for(claim).await?;
            match self.look(&session, claim, patience).await? {
                Look::Admitted(grant) => return Ok(Step::Granted(grant)),
                Look::Refused(ahead) => return Ok(busy(ahead)),
                Look::Gone | Look::Again => {}
                Look::Blocked(Place { index: MAX_QUEUE.., own, .. }) if !patience.is_ended() => {
                    self.leave(&session, claim, &own).await?;
                    let detail = format!("{MAX_QUEUE} claims are queued for it already: try again later");
                    return Err(Failure::unavailable(detail));
                }
                Look::Blocked(place) => {
                    if self.must_leave(&session, claim, &place, patience, &mut passing).await? {
                        self.leave(&session, claim, &place.own).await?;
                        return Ok(busy(place.index));
                    }
                }
                Look::Full(taken, own) => {
                    if patience.is_ended() || self.wait_for_lease(&session, claim, patience).await? {
                        self.leave(&session, claim, &own).await?;
                        return Ok(busy(taken));
                    }
                }
            }
        }
        // The place is kept; the caller returns at once.
        Ok(busy(0))
    }

    /// Waits until a claim that has to wait may be admitted. Returns `true` if its time ends first, so that it must
    /// leave its place.
    ///
    /// A claim that looks once waits only for others that are just being granted a lease. `passing` is the end of that
    /// wait, which all looks of one step share.
    async fn must_leave(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        place: &Place,
        patience: &Patience,
        passing: &mut Option<Moment>,
    ) -> Result<bool, Failure> {
        let blockers = self.blockers(session, claim, place);
        if !patience.is_ended() {
            return Ok(wait_for_any(blockers.await.map_err(unsettled)?, patience.ended()).await);
        }
        let is_for_lease = place.own.role == NodeRole::Locks;
        if !is_for_lease || !self.lease_fits_behind(session, claim, place.index).await? {
            return Ok(true);
        }
        let until = *passing.get_or_insert_with(|| patience.now().after(PASSING));
        let blockers = blockers.await.map_err(unsettled)?;
        Ok(wait_for_any(blockers, tokio::time::sleep(patience.now().until(until))).await)
    }

    /// Returns the session of the claim, or one that has capacity for it.
    async fn session_for(&self, claim: &Claim) -> Result<Arc<EnsembleSession>, Failure> {
        let known = self.claims.get(claim.id);
        // The node that was asked for may exist.
        let effect = match known.as_ref().map(|known| &known.stage) {
            None | Some(Stage::Ending) => Effect::None,
            Some(_) => Effect::Unknown,
        };
        let session = match known.and_then(|known| self.session_pool.session(known.session)) {
            Some(session) => Ok(session),
            None => self.session_pool.with_capacity(&self.claims, self.bytes_of(claim)).await,
        };
        let ready = async {
            let session = session?;
            session.ready(self.config.timeout).await?;
            Ok(session)
        };
        ready.await.map_err(|failure: Failure| failure.with_effect(effect))
    }

    /// Returns what the node of a claim adds to what the servers write when its session ends.
    fn bytes_of(&self, claim: &Claim) -> usize {
        // One that wants a lease of a semaphore moves from one node to another; it has one at a time.
        let roles = [self.names.queue_role(claim.share), NodeRole::Leases];
        let longest = roles.map(|role| self.names.node(&claim.resource, role).len()).into_iter().max();
        let stem = self.names.dialect().stem(claim.id, claim.share);
        longest.unwrap_or_default() + stem.len() + SEQUENCE
    }

    async fn look(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        patience: &Patience,
    ) -> Result<Look, Failure> {
        let known = self.claims.get(claim.id);
        let own = match &known {
            Some(known) if matches!(known.stage, Stage::Ending) => {
                return Err(Failure::unavailable("this claim was given up and is still being ended"));
            }
            Some(known) => match known.own(session.id) {
                Some(own) => Some(own.clone()),
                None => self.recover(session, claim).await?,
            },
            None => None,
        };
        if self.names.queue_role(claim.share) == NodeRole::Locks {
            return self.look_for_lease(session, claim, patience, own).await;
        }
        let (asked_at, own, seen) = match own {
            Some(own) => {
                let asked_at = self.counted_from(session, patience).await.map_err(unsettled)?;
                let seen = self.proven_queue(session, &claim.resource).await?;
                (asked_at, own, seen.map(|(queue, _)| queue))
            }
            None => {
                // No place is taken for a claim that could not be admitted.
                if patience.is_ended()
                    && let Some(ahead) = self.ahead_in_queue(session, claim).await?
                {
                    return Ok(Look::Refused(ahead));
                }
                let asked_at = self.counted_from(session, patience).await?;
                let Some((own, queue)) = self.enqueue(session, claim, asked_at).await? else {
                    return Ok(Look::Gone);
                };
                (asked_at, own, Some(queue))
            }
        };
        Ok(self.judge(session, claim, own, seen, asked_at))
    }

    /// Returns the time from which a grant counts that is asked for now. After a pause of this process the leader has to
    /// hear of the session first.
    pub(crate) async fn counted_from(
        &self,
        session: &EnsembleSession,
        patience: &Patience,
    ) -> Result<Moment, Failure> {
        let lag = self.validity.report_lag();
        for _ in 0..MAX_PAUSES {
            // Noted before the look, so that a pause between the two is noticed or is counted.
            let asked_at = patience.now();
            if session.is_settled(lag) {
                return Ok(asked_at);
            }
            session.settled(lag, self.config.timeout).await?;
        }
        Err(Failure::unavailable("this process was paused again and again while it asked"))
    }

    /// Decides what the queue means for the claim whose node is `own`.
    fn judge(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: OwnNode,
        seen: Option<NodeQueue>,
        asked_at: Moment,
    ) -> Look {
        let Some((queue, index)) =
            seen.and_then(|queue| queue.position(&own.name).map(|index| (queue, index)))
        else {
            self.claims.forget_node(claim.id, &own.name);
            return Look::Gone;
        };
        if !queue.admits(index) {
            return Look::Blocked(Place { queue, index, own });
        }
        Look::Admitted(self.grant(session, claim, own, asked_at))
    }

    /// Builds the grant: the claim holds by its node `own`, as the ensemble agreed after `asked_at`.
    pub(crate) fn grant(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: OwnNode,
        asked_at: Moment,
    ) -> Grant {
        let path = self.path(claim, &own);
        let fence = Fence::new(0, own.czxid.cast_unsigned(), 0);
        let proof = Proof::of(ZooKeeperProof { path, czxid: own.czxid });
        self.claims.set(claim, session.id, Stage::Holding(own));
        Grant::new(asked_at).fence(Some(fence)).lost(Some(session.lost())).proof(proof)
    }

    /// Joins the queue, and reads it. A session's requests are answered in order, so all are sent together.
    /// `None` where the session has no capacity for one more node.
    pub(crate) async fn enqueue(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        now: Moment,
    ) -> Result<Option<(OwnNode, NodeQueue)>, Failure> {
        let role = self.names.queue_role(claim.share);
        let container = self.names.node(&claim.resource, role);
        let stem = self.names.dialect().stem(claim.id, claim.share);
        let path = format!("{container}/{stem}");
        let above = self.names.container_options();
        let (data, options) = (layout::data(self.names.dialect(), role, claim), self.names.entry_options());
        let mut before = match role {
            NodeRole::Queue => self.uncontended.take(&claim.resource, session.id),
            // There the queue alone does not say which claims hold.
            NodeRole::Locks | NodeRole::Leases => KnownBefore::None,
        };
        let bytes = self.bytes_of(claim);
        let mut makes_container = self.names.dialect() != Dialect::Kazoo && !self.recent.is(&container, now);
        for _ in 0..MAX_PARENTS {
            if !self.claims.reserve(claim, session.id, bytes) {
                return Ok(None);
            }
            // If it exists already, that is not an error; why it cannot be made is found out where it
            // is missing.
            let made = makes_container.then(|| session.client.create(&container, b"", &above));
            let made = OptionFuture::from(made);
            let create = session.client.create(&path, data.as_bytes(), &options);
            let permit = match before {
                KnownBefore::WorthWatching => session.watches.take_spare(&container),
                _ => None,
            };
            let watch = permit.as_ref().map(|_| session.client.check_and_watch_stat(&container));
            let is_listed = !matches!(before, KnownBefore::After(..));
            let list = is_listed.then(|| session.client.get_children(&container));
            let (watch, list) = (OptionFuture::from(watch), OptionFuture::from(list));
            let all = async { Ok(join4(made, create, watch, list).await) };
            let (_, created, watching, listed) =
                session.ask(self.config.timeout, all).await.map_err(enqueue_failure)?;
            match created {
                // The container was never made, or was removed since it was empty.
                Err(Error::NoNode) => {
                    before = KnownBefore::None;
                    self.claims.forget(claim.id);
                    // If it was tried already, the node above it is missing.
                    if makes_container || self.names.dialect() == Dialect::Kazoo {
                        self.create_with_parents(session, &container, b"", &above).await?;
                    }
                    makes_container = !makes_container && self.names.dialect() != Dialect::Kazoo;
                }
                Err(error) => {
                    let failure = enqueue_failure(error);
                    if failure.effect == Effect::None {
                        self.claims.forget(claim.id);
                    }
                    return Err(failure);
                }
                Ok((stat, sequence)) => {
                    self.recent.used(&container, now);
                    let own = OwnNode { role, name: format!("{stem}{sequence}"), czxid: stat.czxid };
                    if stat.ephemeral_owner != session.id {
                        return Err(Failure::unanswered("a node was made for another session than this one"));
                    }
                    self.claims.set(claim, session.id, Stage::Queued(own.clone()));
                    if let (Some(Ok((Some(_), watcher))), Some(permit)) = (watching, permit) {
                        before =
                            KnownBefore::Watching(Watched::new(session.id, Watching::Watch(watcher, permit)));
                    }
                    return match self.queue_of_newcomer(session, claim, &own, before, listed).await {
                        Ok(queue) => Ok(Some((own, queue))),
                        // The place exists and is known; it may even hold.
                        Err(failure) => Err(failure.with_effect(Effect::Unknown)),
                    };
                }
            }
        }
        self.claims.forget(claim.id);
        Err(Failure::unavailable("the container of a resource was removed again and again while it was used"))
    }

    /// Returns the queue of a claim that has just taken its place, and what was asked together with
    /// that.
    async fn queue_of_newcomer(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        own: &OwnNode,
        before: KnownBefore,
        listed: Option<Result<(Vec<String>, Stat), Error>>,
    ) -> Result<NodeQueue, Failure> {
        let number = self.names.number(&own.name);
        let mut watched = None;
        let follows = match before {
            KnownBefore::None | KnownBefore::WorthWatching => false,
            KnownBefore::Watching(watching) => {
                watched = Some(watching);
                false
            }
            KnownBefore::After(last, mut watching) => {
                let there = !watching.is_gone();
                watched = there.then_some(watching);
                there && number == Some(last.wrapping_add(1))
            }
        };
        let names = match listed {
            Some(listed) => listed.map_err(look_failure)?.0,
            None if follows => vec![own.name.clone()],
            // Another claim was there in between, so the queue has to be seen after all.
            None => {
                let list = session.client.get_children(&self.names.node(&claim.resource, own.role));
                session.ask(self.config.timeout, list).await.map_err(look_failure)?.0
            }
        };
        let queue = self.names.queue(names).map_err(|why| layout::unreadable(&claim.resource, &why))?;
        if let Some(number) = number
            && own.role == NodeRole::Queue
            && matches!(queue.entries(), [only] if only.name == own.name)
        {
            self.uncontended.record_alone(&claim.resource, number, watched);
        }
        Ok(queue)
    }

    /// Finds the node of an attempt whose answer did not come, and ends those that an earlier session
    /// left behind.
    async fn recover(&self, session: &EnsembleSession, claim: &Claim) -> Result<Option<OwnNode>, Failure> {
        let children = self.proven_children(session, &claim.resource).await?;
        let mut found: Option<OwnNode> = None;
        for (role, name) in resource_view::nodes_of(self.names.dialect(), &children, claim.id) {
            let path = format!("{}/{name}", self.names.node(&claim.resource, role));
            let stat = session.ask(self.config.timeout, session.client.check_stat(&path)).await;
            match stat.map_err(look_failure)? {
                Some(stat) if stat.ephemeral_owner == session.id && found.is_none() => {
                    found = Some(OwnNode { role, name, czxid: stat.czxid });
                }
                // It belongs to a session that is dying, or is one too many: it must not count.
                Some(_) => drop(self.delete(session, &path).await?),
                None => {}
            }
        }
        match &found {
            Some(own) => self.claims.set(claim, session.id, Stage::Queued(own.clone())),
            None => self.claims.forget(claim.id),
        }
        Ok(found)
    }

    /// Returns the number of claims ahead of a claim that has no place, if it does not fit behind them.
    async fn ahead_in_queue(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
    ) -> Result<Option<usize>, Failure> {
        let ahead = |listed: Option<ListedQueue>| {
            let (queue, _) = listed?;
            let ahead = queue.entries().len();
            (!queue.fits_behind(ahead, claim.share)).then_some(ahead)
        };
        if ahead(self.current_queue(session, &claim.resource, NodeRole::Queue).await?).is_none() {
            return Ok(None);
        }
        // What this server shows may be over already: see `current_queue`.
        Ok(ahead(self.proven_queue(session, &claim.resource).await?))
    }

    /// Returns the queue, together with the proof that the ensemble still had this session when it was
    /// asked.
    async fn proven_queue(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<Option<ListedQueue>, Failure> {
        let proof = session.prove(self.names.root()).map_err(look_failure)?;
        self.queue_after(session, resource, NodeRole::Queue, proof).await
    }

    /// Returns the queue as it is now: the leader is asked first, in the same batch of requests, so that this server
    /// has caught up with it.
    ///
    /// The answer of the leader itself may still be old. For its own clients a `sync` waits for nothing, and the leader
    /// applies a change after it has sent the commit to the other servers: one of them may have confirmed it before.
    pub(crate) async fn current_queue(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
        role: NodeRole,
    ) -> Result<Option<ListedQueue>, Failure> {
        let synced = session.client.sync(self.names.root());
        self.queue_after(session, resource, role, synced).await
    }

    /// Returns the queue after the answer to `first`. Both are sent together: a session's requests are answered
    /// in order.
    async fn queue_after(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
        role: NodeRole,
        first: impl Future<Output = Result<(), Error>>,
    ) -> Result<Option<ListedQueue>, Failure> {
        let list = session.client.get_children(&self.names.node(resource, role));
        let both = async {
            let (first, listed) = join(first, list).await;
            first.and(listed)
        };
        match session.ask(self.config.timeout, both).await {
            Ok((names, stat)) => {
                let queue = self.names.queue(names).map_err(|why| layout::unreadable(resource, &why))?;
                Ok(Some((queue, stat)))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(look_failure(error)),
        }
    }

    /// Returns the watches of which one ends when the claim may be admitted; none where it may be already.
    async fn blockers(
        &self,
        session: &EnsembleSession,
        claim: &Claim,
        place: &Place,
    ) -> Result<Vec<Watching>, Failure> {
        let container = self.names.node(&claim.resource, place.own.role);
        let limit = self.config.timeout;
        let mut watchers = Vec::new();
        match place.queue.blockers(place.index) {
            Blockers::Some(entries) => {
                let paths: Vec<String> =
                    entries.iter().map(|entry| format!("{container}/{}", entry.name)).collect();
                for watched in join_all(paths.iter().map(|path| session.watch_stat(path, limit))).await {
                    let (stat, watcher) = watched.map_err(look_failure)?;
                    if stat.is_none() {
                        return Ok(Vec::new());
                    }
                    watchers.push(watcher);
                }
            }
            Blockers::Any => match session.watch_children(&container, limit).await {
                Ok((names, _, watcher)) => {
                    if self.names.queue(names).as_ref() == Ok(&place.queue) {
                        watchers.push(watcher);
                    }
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(look_failure(error)),
            },
        }
        Ok(watchers)
    }

    pub(crate) fn path(&self, claim: &Claim, own: &OwnNode) -> String {
        format!("{}/{}", self.names.node(&claim.resource, own.role), own.name)
    }
}

/// Sleeps until one of the watchers fires; `true` where `end` comes first. A watch also ends with the
/// session.
async fn wait_for_any(watchers: Vec<Watching>, end: impl Future<Output = ()>) -> bool {
    if watchers.is_empty() {
        return false;
    }
    tokio::select! {
        _ = any_change(watchers) => false,
        () = end => true,
    }
}

fn busy(ahead: usize) -> Step {
    Step::Busy(Hint { ask_again_in: None, ahead: u32::try_from(ahead).ok() })
}

pub(crate) fn enqueue_failure(error: Error) -> Failure {
    layout::failure(error, "cannot join the queue")
}

pub(crate) fn look_failure(error: Error) -> Failure {
    layout::failure(error, "cannot look at the line")
}

/// The number of pauses of this process that one request waits for.
const MAX_PAUSES: usize = 8;
/// The most looks in one step: each follows a change in the queue ahead, and a full queue has no more.
const MAX_LOOKS: usize = 10_000;
/// The time for which a claim that looks once waits for claims ahead that are being granted a lease.
const PASSING: Duration = Duration::from_millis(500);
/// The bytes of a path in addition to the container's and the child's own name: a slash, the number that
/// the server adds, and its length.
const SEQUENCE: usize = 1 + 10 + 4;
/// The number of times that a container may vanish between its making and its first child.
const MAX_PARENTS: usize = 8;
