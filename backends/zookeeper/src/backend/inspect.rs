//! Inspects one resource, with its notes. Changes nothing.

use futures_util::future::{join, join_all};
use leasehold_backend::changes::until_changed;
use leasehold_core::{
    ClaimId, ClaimInfo, Failure, Fence, Note, Patience, Resource, Share, Snapshot, SnapshotVersion,
};
use zookeeper_client::{Error, MultiReadResult, Stat};

use crate::backend::acquire::look_failure;
use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::net::watching::{Watching, any_change};
use crate::protocol::dialect::Dialect;
use crate::protocol::layout;
use crate::protocol::names::NodeRole;
use crate::protocol::resource_view::{Children, ResourceView};

/// The claims that hold and that wait, in the order of their arrival.
#[derive(Default)]
pub(crate) struct ClaimInfos {
    pub(crate) holders: Vec<ClaimInfo>,
    pub(crate) waiting: Vec<ClaimInfo>,
}

/// One node of a claim, as it was read.
struct ReadNode {
    id: ClaimId,
    /// The share that its name says.
    share: Share,
    data: Vec<u8>,
    stat: Stat,
}

impl Ensemble {
    /// Returns the holders and the queue of a resource; with `seen`, waits for another version.
    pub(crate) async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.names.check_name(resource)?;
        let session = self.sessions.present(self.config.timeout).await?;
        if let Some(seen) = seen {
            let look = || async {
                // The last look is the one below.
                let (version, watchers) = match patience.is_ended() {
                    true => (None, Vec::new()),
                    false => self.version_and_watches(&session, resource).await?,
                };
                Ok((version, any_change(watchers)))
            };
            until_changed(patience, |version| version.as_ref() != Some(seen), look).await?;
        }
        for _ in 0..MAX_TRIES {
            let view = self.current_view(&session, resource).await?;
            if let Some(ClaimInfos { holders, waiting }) = self.claim_infos(&session, resource, &view).await?
            {
                let fence = holders.iter().filter_map(|info| info.fence).max();
                let version = view.version();
                return Ok(Snapshot::new(resource.clone(), version)
                    .holders(holders)
                    .waiting(waiting)
                    .fence(fence));
            }
        }
        Err(Failure::unavailable("the line changes faster than it can be read; look again"))
    }

    /// Returns all claims at a resource now: the leader is asked first, in the same batch of requests. A session's
    /// requests are answered in order. What the leader itself shows may be old: see [`Ensemble::current_queue`].
    pub(crate) async fn current_view(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<ResourceView, Failure> {
        let synced = session.client.sync(self.names.root());
        self.view_of(resource, self.children_after(session, resource, synced).await?)
    }

    /// Returns the children of all nodes of a resource, whether they form a queue or not, after all changes that the
    /// leader had been asked for before, answered or not. The leader lets its own clients wait for none of those by a
    /// `sync`.
    pub(crate) async fn proven_children(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<Vec<(NodeRole, Children)>, Failure> {
        let proof = session.prove(self.names.root()).map_err(look_failure)?;
        self.children_after(session, resource, proof).await
    }

    /// Returns the children after the answer to `first`, which is sent together with the lists.
    async fn children_after(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
        first: impl Future<Output = Result<(), Error>>,
    ) -> Result<Vec<(NodeRole, Children)>, Failure> {
        let children = self.read_children(session, resource);
        let (first, children) = join(session.ask(self.config.timeout, first), children).await;
        match first {
            // Without its node a change is refused in its turn, and the lists follow it all the same.
            Ok(()) | Err(Error::NoNode) => children,
            Err(error) => Err(look_failure(error)),
        }
    }

    /// Returns all claims at a resource that this server knows.
    pub(crate) async fn read_view(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<ResourceView, Failure> {
        self.view_of(resource, self.read_children(session, resource).await?)
    }

    /// Returns all claims at a resource, as [`Ensemble::proven_children`] lists them.
    pub(crate) async fn proven_view(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<ResourceView, Failure> {
        self.view_of(resource, self.proven_children(session, resource).await?)
    }

    fn view_of(
        &self,
        resource: &Resource,
        children: Vec<(NodeRole, Children)>,
    ) -> Result<ResourceView, Failure> {
        ResourceView::of(self.names.dialect(), children).map_err(|why| layout::unreadable(resource, &why))
    }

    async fn read_children(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<Vec<(NodeRole, Children)>, Failure> {
        let roles = self.names.roles();
        let lists: Vec<_> =
            roles.iter().map(|role| session.client.get_children(&self.names.node(resource, *role))).collect();
        let lists = async { Ok(join_all(lists).await) };
        let mut nodes: Vec<(NodeRole, Children)> = Vec::with_capacity(roles.len());
        for (role, listed) in
            roles.iter().zip(session.ask(self.config.timeout, lists).await.map_err(look_failure)?)
        {
            match listed {
                Ok(children) => nodes.push((*role, Some(children))),
                Err(Error::NoNode) => nodes.push((*role, None)),
                Err(error) => return Err(look_failure(error)),
            }
        }
        Ok(nodes)
    }

    /// Returns the present version, and watches of which one fires at the next.
    async fn version_and_watches(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
    ) -> Result<(Option<SnapshotVersion>, Vec<Watching>), Failure> {
        let (mut nodes, mut watchers) = (Vec::new(), Vec::new());
        for role in self.names.roles() {
            let (children, watcher) =
                self.children_and_watch(session, &self.names.node(resource, *role)).await?;
            nodes.push((*role, children));
            watchers.push(watcher);
        }
        let view = ResourceView::of(self.names.dialect(), nodes)
            .map_err(|why| layout::unreadable(resource, &why))?;
        Ok((Some(view.version()), watchers))
    }

    /// Returns the children of a node, and a watch on their next change, or on the making of the node.
    async fn children_and_watch(
        &self,
        session: &EnsembleSession,
        node: &str,
    ) -> Result<(Children, Watching), Failure> {
        let limit = self.config.timeout;
        for _ in 0..MAX_TRIES {
            match session.watch_children(node, limit).await {
                Ok((names, stat, watcher)) => return Ok((Some((names, stat)), watcher)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(look_failure(error)),
            }
            let absent = session.watch_stat(node, limit).await;
            let (stat, watcher) = absent.map_err(look_failure)?;
            if stat.is_none() {
                return Ok((None, watcher));
            }
        }
        Err(Failure::unavailable("the container comes and goes faster than it can be watched; look again"))
    }

    /// Reads the info of each claim; returns `None` where one left meanwhile.
    pub(crate) async fn claim_infos(
        &self,
        session: &EnsembleSession,
        resource: &Resource,
        view: &ResourceView,
    ) -> Result<Option<ClaimInfos>, Failure> {
        let node = |role| self.names.node(resource, role);
        let mut asked: Vec<(ClaimId, Share, String)> = Vec::new();
        for (role, queue) in [(NodeRole::Queue, &view.queue), (NodeRole::Locks, &view.locks)] {
            let parent = node(role);
            let entries = queue.entries().iter();
            asked.extend(entries.map(|entry| (entry.id, entry.share, format!("{parent}/{}", entry.name))));
        }
        let parent = node(NodeRole::Leases);
        let leases = view.leases.iter();
        asked.extend(leases.map(|lease| (lease.id, UNKNOWN_PERMITS, format!("{parent}/{}", lease.name))));
        let mut seen = Vec::with_capacity(asked.len());
        for chunk in asked.chunks(NOTES_AT_ONCE) {
            let Some(found) = self.read_all(session, chunk).await? else { return Ok(None) };
            seen.extend(found);
        }
        let leases = seen.split_off(view.queue.entries().len() + view.locks.entries().len());
        let locks = seen.split_off(view.queue.entries().len());
        let mut found = ClaimInfos::default();
        for (index, seen) in seen.into_iter().enumerate() {
            let info = info_of(&seen).note(layout::read_note(&seen.data));
            if index < view.queue.holders() {
                found.holders.push(with_fence(info, &seen.stat));
            } else {
                found.waiting.push(info);
            }
        }
        if !(locks.is_empty() && leases.is_empty()) {
            let capacity = self.capacity(session, resource).await?;
            self.add_semaphore(&mut found, locks, leases, capacity);
        }
        Ok(Some(found))
    }

    /// Reads the data of some nodes; `None` where one is gone.
    async fn read_all(
        &self,
        session: &EnsembleSession,
        asked: &[(ClaimId, Share, String)],
    ) -> Result<Option<Vec<ReadNode>>, Failure> {
        let mut reader = session.client.new_multi_reader();
        for (_, _, path) in asked {
            reader.add_get_data(path).map_err(look_failure)?;
        }
        let results = session.ask(self.config.timeout, reader.commit()).await.map_err(look_failure)?;
        let mut found = Vec::with_capacity(asked.len());
        for ((id, share, _), result) in asked.iter().zip(results) {
            match result {
                MultiReadResult::Data { data, stat } => {
                    found.push(ReadNode { id: *id, share: *share, data, stat });
                }
                MultiReadResult::Error { err: Error::NoNode } => return Ok(None),
                MultiReadResult::Error { err } => return Err(look_failure(err)),
                _ => {
                    return Err(Failure::unavailable("the server answers another question than was asked"));
                }
            }
        }
        Ok(Some(found))
    }

    /// Returns how many permits the semaphore has, as its node says.
    async fn capacity(&self, session: &EnsembleSession, resource: &Resource) -> Result<Option<u32>, Failure> {
        if self.names.dialect() != Dialect::Kazoo {
            return Ok(None);
        }
        let node = self.names.node(resource, NodeRole::Leases);
        match session.ask(self.config.timeout, session.client.get_data(&node)).await {
            Ok((data, _)) => Ok(layout::read_capacity(&data)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(look_failure(error)),
        }
    }

    /// Adds the claims that have a lease, and those that wait in the queue for one.
    fn add_semaphore(
        &self,
        found: &mut ClaimInfos,
        locks: Vec<ReadNode>,
        mut leases: Vec<ReadNode>,
        capacity: Option<u32>,
    ) {
        // Leases are made one at a time, so this is the order of their grants.
        leases.sort_unstable_by_key(|lease| lease.stat.czxid);
        let default_share =
            capacity.and_then(|capacity| Share::permits(1, capacity).ok()).unwrap_or(UNKNOWN_PERMITS);
        let read = |seen: &ReadNode| match self.names.dialect() {
            Dialect::Curator => layout::read_permit(&seen.data),
            _ => (None, layout::read_note(&seen.data)),
        };
        let info = |seen: &ReadNode, (share, note): (Option<Share>, Note)| {
            let mut info = info_of(seen).note(note);
            info.share = share.unwrap_or(default_share);
            info
        };
        let newest = leases.len().checked_sub(1);
        for (index, lease) in leases.iter().enumerate() {
            let permit = read(lease);
            // Curator makes its lease while it is the first in the queue, and then waits. Ours never do.
            let waits = self.names.dialect() == Dialect::Curator
                && Some(index) == newest
                && permit.0.is_none()
                && locks.first().is_some_and(|first| is_in_hand(lease, first));
            if !waits {
                found.holders.push(with_fence(info(lease, permit), &lease.stat));
            }
        }
        found.waiting.extend(locks.iter().map(|lock| info(lock, read(lock))));
    }
}

/// Returns `true` if the lease was made by the one that is the first in the queue, as far as can be seen: by
/// the same session, and after its place.
fn is_in_hand(lease: &ReadNode, first: &ReadNode) -> bool {
    lease.stat.ephemeral_owner == first.stat.ephemeral_owner && lease.stat.czxid > first.stat.czxid
}

fn info_of(seen: &ReadNode) -> ClaimInfo {
    ClaimInfo::new(seen.id, seen.share).since_unix_ms(u64::try_from(seen.stat.ctime).ok())
}

fn with_fence(info: ClaimInfo, stat: &Stat) -> ClaimInfo {
    info.fence(Some(Fence::new(0, stat.czxid.cast_unsigned(), 0)))
}

/// One permit of an unknown number.
const UNKNOWN_PERMITS: Share = match Share::permits(1, u32::MAX - 1) {
    Ok(share) => share,
    Err(_) => Share::READER,
};
/// The number of times that a queue that changes is read again.
const MAX_TRIES: usize = 16;
/// Notes are up to 1 KiB each, and an answer should stay far below 1 MiB.
const NOTES_AT_ONCE: usize = 256;
