//! Taking a place in the queue, looking whether it holds, and sleeping until that can have changed.
//!
//! Ground rules: a grant is counted from before a request that a quorum agreed to, never from a read
//! alone: a server that lost its leader still answers reads. A node counts as the claim's own only if
//! the present session owns it; one of another session dies with that session, even under the same
//! name. A waiter that sleeps has seen, *after* its watch was set, that what it watches still exists. A
//! look is left out only where [`crate::quiet`] shows what it would find.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{OptionFuture, join, join_all, join4, select_all};
use leasehold_core::{
    Claim, Effect, Failure, Fence, Grant, Hint, MAX_LINE, Moment, Patience, Proof, Resource, Step,
};
use zookeeper_client::{Error, Stat};

use crate::client::Ensemble;
use crate::net::session::Session;
use crate::net::watching::Watching;
use crate::protocol::dialect::Dialect;
use crate::protocol::layout;
use crate::protocol::names::NodeRole;
use crate::protocol::proof::ZooKeeperProof;
use crate::protocol::queue::{Blockers, Line};
use crate::state::places::{Own, Stage};
use crate::state::uncontended::{FastPath, Watched};

/// The findings of one look.
pub(crate) enum Look {
    Admitted(Grant),
    /// It is in the queue here, and has to wait.
    Blocked(Line, usize, Own),
    /// It is the first of those that want a lease, and all leases are given to so many.
    Full(usize, Own),
    /// It has no place, and would not be admitted behind so many.
    Refused(usize),
    /// It has no node: the claim was ended, or its session did end, or the session had no room for one.
    Gone,
    /// A node that it needs was made, or changed during the look: it has to look again.
    Again,
}

/// The queue, and its container's state.
pub(crate) type Seen = (Line, Stat);

impl Ensemble {
    /// Takes one step towards holding the claim, for as long as patience lasts.
    pub(crate) async fn step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.names.check(claim.share)?;
        let mut passing = None;
        for _ in 0..MAX_LOOKS {
            let session = self.session_for(claim).await?;
            match self.look(&session, claim, patience).await? {
                Look::Admitted(grant) => return Ok(Step::Granted(grant)),
                Look::Refused(ahead) => return Ok(busy(ahead)),
                Look::Gone | Look::Again => {}
                Look::Blocked(_, MAX_LINE.., own) if !patience.is_ended() => {
                    self.leave(&session, claim, &own).await?;
                    let detail = format!("{MAX_LINE} claims are queued for it already: try again later");
                    return Err(Failure::unavailable(detail));
                }
                Look::Blocked(line, index, own) => {
                    let blockers = self.blockers(&session, claim, &own, &line, index);
                    let ended = match patience.is_ended() {
                        false => asleep(blockers.await?, patience.ended()).await,
                        true if own.post == NodeRole::Locks
                            && self.has_room_behind(&session, claim, index).await? =>
                        {
                            // A claim that looks once does not find it busy because others are just on
                            // their way in.
                            let until = *passing.get_or_insert_with(|| patience.now().after(PASSING));
                            asleep(blockers.await?, tokio::time::sleep(patience.now().until(until))).await
                        }
                        true => true,
                    };
                    if ended {
                        self.leave(&session, claim, &own).await?;
                        return Ok(busy(index));
                    }
                }
                Look::Full(taken, own) => {
                    if patience.is_ended() || self.sleep_until_room(&session, claim, patience).await? {
                        self.leave(&session, claim, &own).await?;
                        return Ok(busy(taken));
                    }
                }
            }
        }
        // The place is kept; the caller returns at once.
        Ok(busy(0))
    }

    /// Returns the session that the claim is in, or one that has room for it.
    async fn session_for(&self, claim: &Claim) -> Result<Arc<Session>, Failure> {
        let known = self.places.get(claim.id);
        // The node that was asked for may exist.
        let effect = match known.as_ref().map(|known| &known.stage) {
            None | Some(Stage::Ends) => Effect::None,
            Some(_) => Effect::Unknown,
        };
        let session = match known.and_then(|known| self.fleet.session(known.session)) {
            Some(session) => Ok(session),
            None => self.fleet.roomy(&self.places, self.bytes_of(claim)).await,
        };
        let ready = async {
            let session = session?;
            session.ready(self.config.timeout).await?;
            Ok(session)
        };
        ready.await.map_err(|failure: Failure| Failure::new(failure.kind, effect, failure.detail()))
    }

    /// Returns what the node of a claim adds to what the servers write when its session ends.
    fn bytes_of(&self, claim: &Claim) -> usize {
        // One that wants a lease of a semaphore moves from one node to another; it has one at a time.
        let posts = [self.names.line_of(claim.share), NodeRole::Leases];
        let longest = posts.map(|post| self.names.node(&claim.resource, post).len()).into_iter().max();
        let stem = self.names.dialect().stem(claim.id, claim.share);
        longest.unwrap_or_default() + stem.len() + SEQUENCE
    }

    async fn look(&self, session: &Session, claim: &Claim, patience: &Patience) -> Result<Look, Failure> {
        let known = self.places.get(claim.id);
        let own = match &known {
            Some(known) if matches!(known.stage, Stage::Ends) => {
                return Err(Failure::unavailable("this claim was given up and is still being ended"));
            }
            Some(known) => match known.own(session.id) {
                Some(own) => Some(own.clone()),
                None => self.recover(session, claim).await?,
            },
            None => None,
        };
        if self.names.line_of(claim.share) == NodeRole::Locks {
            return self.look_for_lease(session, claim, patience, own).await;
        }
        let (asked_at, own, seen) = match own {
            Some(own) => {
                let asked_at = patience.now();
                let seen = self.proven_line(session, &claim.resource).await?;
                (asked_at, own, seen.map(|(line, _)| line))
            }
            None => {
                if patience.is_ended() {
                    // Nothing is written for a claim that could not be admitted.
                    let line = self.line_now(session, &claim.resource, NodeRole::Line).await?;
                    let line = line.map(|(line, _)| line);
                    let ahead = line.as_ref().map_or(0, |line| line.places().len());
                    if line.is_some_and(|line| !line.fits_behind(ahead, claim.share)) {
                        return Ok(Look::Refused(ahead));
                    }
                }
                let asked_at = patience.now();
                let Some((own, line)) = self.stand(session, claim, asked_at).await? else {
                    return Ok(Look::Gone);
                };
                (asked_at, own, Some(line))
            }
        };
        Ok(self.judge(session, claim, own, seen, asked_at))
    }

    /// Decides what the queue means for the claim whose node is `own`.
    fn judge(
        &self,
        session: &Session,
        claim: &Claim,
        own: Own,
        seen: Option<Line>,
        asked_at: Moment,
    ) -> Look {
        let Some((line, index)) = seen.and_then(|line| line.position(&own.name).map(|index| (line, index)))
        else {
            self.places.forget(claim.id);
            return Look::Gone;
        };
        if !line.admits(index) {
            return Look::Blocked(line, index, own);
        }
        Look::Admitted(self.grant(session, claim, own, asked_at))
    }

    /// Builds the grant: the claim holds by its node `own`, as the ensemble agreed after `asked_at`.
    pub(crate) fn grant(&self, session: &Session, claim: &Claim, own: Own, asked_at: Moment) -> Grant {
        let path = self.path(claim, &own);
        let fence = Fence::new(0, own.czxid.cast_unsigned(), 0);
        let proof = Proof::of(ZooKeeperProof { path, czxid: own.czxid });
        self.places.set(claim, session.id, Stage::Holds(own));
        Grant { asked_at, fence: Some(fence), lost: Some(session.lost()), proof }
    }

    /// Takes a place in the queue, and sees the queue. A session's requests are answered in order, so all
    /// leave together. `None` where the session has no room for one more node.
    pub(crate) async fn stand(
        &self,
        session: &Session,
        claim: &Claim,
        now: Moment,
    ) -> Result<Option<(Own, Line)>, Failure> {
        let post = self.names.line_of(claim.share);
        let container = self.names.node(&claim.resource, post);
        let stem = self.names.dialect().stem(claim.id, claim.share);
        let path = format!("{container}/{stem}");
        let above = self.names.container_options();
        let (data, options) = (layout::data(self.names.dialect(), post, claim), self.names.place_options());
        let mut hope = match post {
            NodeRole::Line => self.quiet.hope(&claim.resource, session.id),
            // There the queue alone does not say which claims hold.
            NodeRole::Locks | NodeRole::Leases => FastPath::None,
        };
        let bytes = self.bytes_of(claim);
        let mut makes = self.names.dialect() != Dialect::Kazoo && !self.recent.is(&container, now);
        for _ in 0..MAX_PARENTS {
            if !self.places.enter(claim, session.id, bytes) {
                return Ok(None);
            }
            // If it exists already, that is not an error; why it cannot be made is found out where it
            // is missing.
            let made = makes.then(|| session.client.create(&container, b"", &above));
            let create = session.client.create(&path, data.as_bytes(), &options);
            let room = match hope {
                FastPath::Again => session.watches.take_spare(&container),
                _ => None,
            };
            let watch = room.as_ref().map(|_| session.client.check_and_watch_stat(&container));
            let list =
                (!matches!(hope, FastPath::After(..))).then(|| session.client.get_children(&container));
            let all = async {
                let (made, watch, list) =
                    (OptionFuture::from(made), OptionFuture::from(watch), OptionFuture::from(list));
                Ok(join4(made, create, watch, list).await)
            };
            let (_, created, watching, listed) =
                session.ask(self.config.timeout, all).await.map_err(cannot_stand)?;
            match created {
                // The container was never made, or was removed since it was empty.
                Err(Error::NoNode) => {
                    hope = FastPath::None;
                    self.places.forget(claim.id);
                    // If it was tried already, the node above it is missing.
                    if makes || self.names.dialect() == Dialect::Kazoo {
                        self.make_all(session, &container, b"", &above).await?;
                    }
                    makes = !makes && self.names.dialect() != Dialect::Kazoo;
                }
                Err(error) => {
                    let failure = cannot_stand(error);
                    if failure.effect == Effect::None {
                        self.places.forget(claim.id);
                    }
                    return Err(failure);
                }
                Ok((stat, sequence)) => {
                    self.recent.used(&container, now);
                    let own = Own { post, name: format!("{stem}{sequence}"), czxid: stat.czxid };
                    if stat.ephemeral_owner != session.id {
                        return Err(Failure::unanswered("a node was made for another session than this one"));
                    }
                    self.places.set(claim, session.id, Stage::Stands(own.clone()));
                    if let (Some(Ok((Some(_), watcher))), Some(room)) = (watching, room) {
                        hope = FastPath::Watching(Watched::new(session.id, Watching::Watch(watcher, room)));
                    }
                    return match self.line_of_newcomer(session, claim, &own, hope, listed).await {
                        Ok(line) => Ok(Some((own, line))),
                        // The place exists and is known; it may even hold.
                        Err(failure) => Err(Failure::new(failure.kind, Effect::Unknown, failure.detail())),
                    };
                }
            }
        }
        self.places.forget(claim.id);
        Err(Failure::unavailable("the container of a resource was removed again and again while it was used"))
    }

    /// Returns the queue of a claim that has just taken its place, and what was asked together with
    /// that.
    async fn line_of_newcomer(
        &self,
        session: &Session,
        claim: &Claim,
        own: &Own,
        hope: FastPath,
        listed: Option<Result<(Vec<String>, Stat), Error>>,
    ) -> Result<Line, Failure> {
        let number = self.names.number(&own.name);
        let mut watched = None;
        let follows = match hope {
            FastPath::None | FastPath::Again => false,
            FastPath::Watching(watching) => {
                watched = Some(watching);
                false
            }
            FastPath::After(last, mut watching) => {
                let there = !watching.is_gone();
                watched = there.then_some(watching);
                there && number == Some(last.wrapping_add(1))
            }
        };
        let names = match listed {
            Some(listed) => listed.map_err(cannot_look)?.0,
            None if follows => vec![own.name.clone()],
            // Another claim was there in between, so the queue has to be seen after all.
            None => {
                let list = session.client.get_children(&self.names.node(&claim.resource, own.post));
                session.ask(self.config.timeout, list).await.map_err(cannot_look)?.0
            }
        };
        let line = self.names.line(names).map_err(|why| layout::unreadable(&claim.resource, &why))?;
        if let Some(number) = number
            && own.post == NodeRole::Line
            && matches!(line.places(), [only] if only.name == own.name)
        {
            self.quiet.alone(&claim.resource, number, watched);
        }
        Ok(line)
    }

    /// Finds the node of an attempt whose answer did not come, and ends those that an earlier session
    /// left behind.
    async fn recover(&self, session: &Session, claim: &Claim) -> Result<Option<Own>, Failure> {
        let scene = self.scene_now(session, &claim.resource).await?;
        let mut found: Option<Own> = None;
        for (post, name) in scene.nodes_of(claim.id) {
            let path = format!("{}/{name}", self.names.node(&claim.resource, post));
            let stat = session.ask(self.config.timeout, session.client.check_stat(&path)).await;
            match stat.map_err(cannot_look)? {
                Some(stat) if stat.ephemeral_owner == session.id && found.is_none() => {
                    found = Some(Own { post, name, czxid: stat.czxid });
                }
                // It belongs to a session that is dying, or is one too many: it must not count.
                Some(_) => drop(self.delete(session, &path).await?),
                None => {}
            }
        }
        match &found {
            Some(own) => self.places.set(claim, session.id, Stage::Stands(own.clone())),
            None => self.places.forget(claim.id),
        }
        Ok(found)
    }

    /// Returns the queue, together with the proof that the ensemble still had this session when it was
    /// asked.
    async fn proven_line(&self, session: &Session, resource: &Resource) -> Result<Option<Seen>, Failure> {
        let proof = session.prove(self.names.root()).map_err(cannot_look)?;
        self.line_after(session, resource, NodeRole::Line, proof).await
    }

    /// Returns the queue as it is now: the leader is asked first, in the same breath, so that the answer
    /// of this server is not old.
    pub(crate) async fn line_now(
        &self,
        session: &Session,
        resource: &Resource,
        post: NodeRole,
    ) -> Result<Option<Seen>, Failure> {
        let synced = session.client.sync(self.names.root());
        self.line_after(session, resource, post, synced).await
    }

    /// Returns the queue after what is answered `first`. Both leave together: a session's requests are
    /// answered in order.
    async fn line_after(
        &self,
        session: &Session,
        resource: &Resource,
        post: NodeRole,
        first: impl Future<Output = Result<(), Error>>,
    ) -> Result<Option<Seen>, Failure> {
        let list = session.client.get_children(&self.names.node(resource, post));
        let both = async {
            let (first, listed) = join(first, list).await;
            first.and(listed)
        };
        match session.ask(self.config.timeout, both).await {
            Ok((names, stat)) => {
                let line = self.names.line(names).map_err(|why| layout::unreadable(resource, &why))?;
                Ok(Some((line, stat)))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(cannot_look(error)),
        }
    }

    /// Returns what ends when the claim may be admitted; nothing where that is so already.
    async fn blockers(
        &self,
        session: &Session,
        claim: &Claim,
        own: &Own,
        line: &Line,
        index: usize,
    ) -> Result<Vec<Watching>, Failure> {
        let container = self.names.node(&claim.resource, own.post);
        let limit = self.config.timeout;
        let mut watchers = Vec::new();
        match line.blockers(index) {
            Blockers::Some(places) => {
                let paths: Vec<String> =
                    places.iter().map(|place| format!("{container}/{}", place.name)).collect();
                for watched in join_all(paths.iter().map(|path| session.watch_stat(path, limit))).await {
                    let (stat, watcher) = watched.map_err(cannot_look)?;
                    if stat.is_none() {
                        return Ok(Vec::new());
                    }
                    watchers.push(watcher);
                }
            }
            Blockers::Any => match session.watch_children(&container, limit).await {
                Ok((names, _, watcher)) => {
                    if self.names.line(names).as_ref() == Ok(line) {
                        watchers.push(watcher);
                    }
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(cannot_look(error)),
            },
        }
        Ok(watchers)
    }

    /// Gives up the place.
    pub(crate) async fn leave(&self, session: &Session, claim: &Claim, own: &Own) -> Result<(), Failure> {
        self.delete(session, &self.path(claim, own)).await?;
        self.places.forget(claim.id);
        Ok(())
    }

    /// Removes a node. Returns `true` if it existed.
    pub(crate) async fn delete(&self, session: &Session, path: &str) -> Result<bool, Failure> {
        match session.ask(self.config.timeout, session.client.delete(path, None)).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(layout::failure(error, "cannot remove a claim")),
        }
    }

    pub(crate) fn path(&self, claim: &Claim, own: &Own) -> String {
        format!("{}/{}", self.names.node(&claim.resource, own.post), own.name)
    }
}

/// Sleeps until one of the watchers fires; `true` where `end` comes first. A watch also ends with the
/// session.
async fn asleep(watchers: Vec<Watching>, end: impl Future<Output = ()>) -> bool {
    if watchers.is_empty() {
        return false;
    }
    let changes = watchers.into_iter().map(|watcher| Box::pin(watcher.changed()));
    tokio::select! {
        _ = select_all(changes) => false,
        () = end => true,
    }
}

fn busy(ahead: usize) -> Step {
    Step::Busy(Hint { ask_again_in: None, ahead: u32::try_from(ahead).ok() })
}

pub(crate) fn cannot_stand(error: Error) -> Failure {
    layout::failure(error, "cannot join the queue")
}

pub(crate) fn cannot_look(error: Error) -> Failure {
    layout::failure(error, "cannot look at the line")
}

/// The most looks in one step: each follows a change in the queue ahead, and a full queue has no more.
const MAX_LOOKS: usize = 10_000;
/// The time for which a claim that looks once waits for those that are on their way in before it.
const PASSING: Duration = Duration::from_millis(500);
/// The bytes that a path has beside the container's and the child's own name: a slash, the number that
/// the server adds, and its length.
const SEQUENCE: usize = 1 + 10 + 4;
/// The number of times that a container may vanish between its making and its first child.
const MAX_PARENTS: usize = 8;
