//! The view of an onlooker on one resource, with its notes. Looking changes nothing.

use futures_util::future::{join, join_all, select_all};
use leasehold_core::{
    ClaimId, ClaimInfo, Failure, Fence, Note, Patience, Resource, Share, Snapshot, SnapshotVersion,
};
use zookeeper_client::{Error, MultiReadResult, Stat};

use crate::backend::acquire::cannot_look;
use crate::client::Ensemble;
use crate::net::session::Session;
use crate::net::watching::Watching;
use crate::protocol::dialect::Dialect;
use crate::protocol::layout;
use crate::protocol::names::NodeRole;
use crate::protocol::resource_view::{Children, ResourceView};

/// The claims that hold and that wait, first come first.
#[derive(Default)]
pub(crate) struct Standings {
    pub(crate) holders: Vec<ClaimInfo>,
    pub(crate) waiting: Vec<ClaimInfo>,
}

/// One node of a claim, as it was read.
struct Seen {
    id: ClaimId,
    /// The share that its name says.
    share: Share,
    data: Vec<u8>,
    stat: Stat,
}

impl Ensemble {
    /// Returns the holders and the queue of a resource; with `seen`, waits for another version.
    pub(crate) async fn observe(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let session = self.sessions.present(self.config.timeout).await?;
        while let Some(seen) = seen.filter(|_| !patience.is_ended()) {
            let (version, watchers) = self.version_and_watches(&session, resource).await?;
            if version != *seen {
                break;
            }
            let changes = watchers.into_iter().map(|watcher| Box::pin(watcher.changed()));
            tokio::select! {
                _ = select_all(changes) => {}
                () = patience.ended() => {}
            }
        }
        for _ in 0..MAX_TRIES {
            let scene = self.scene_now(&session, resource).await?;
            if let Some(Standings { holders, waiting }) = self.standings(&session, resource, &scene).await? {
                let fence = holders.iter().filter_map(|standing| standing.fence).max();
                let version = scene.version();
                return Ok(Snapshot { resource: resource.clone(), version, holders, waiting, fence });
            }
        }
        Err(Failure::unavailable("the line changes faster than it can be read; look again"))
    }

    /// Returns all claims at a resource now: the leader is asked first, in the same breath, so that the
    /// answer of this server is not old. A session's requests are answered in order.
    pub(crate) async fn scene_now(
        &self,
        session: &Session,
        resource: &Resource,
    ) -> Result<ResourceView, Failure> {
        let synced = session.client.sync(self.names.root());
        let scene = self.scene(session, resource);
        let (synced, scene) = join(session.ask(self.config.timeout, synced), scene).await;
        synced.map_err(cannot_look)?;
        scene
    }

    /// Returns all claims at a resource that this server knows.
    pub(crate) async fn scene(
        &self,
        session: &Session,
        resource: &Resource,
    ) -> Result<ResourceView, Failure> {
        let posts = self.names.posts();
        let lists: Vec<_> =
            posts.iter().map(|post| session.client.get_children(&self.names.node(resource, *post))).collect();
        let lists = async { Ok(join_all(lists).await) };
        let mut nodes: Vec<(NodeRole, Children)> = Vec::with_capacity(posts.len());
        for (post, listed) in
            posts.iter().zip(session.ask(self.config.timeout, lists).await.map_err(cannot_look)?)
        {
            match listed {
                Ok(children) => nodes.push((*post, Some(children))),
                Err(Error::NoNode) => nodes.push((*post, None)),
                Err(error) => return Err(cannot_look(error)),
            }
        }
        ResourceView::of(self.names.dialect(), nodes).map_err(|why| layout::unreadable(resource, &why))
    }

    /// Returns the present version, and watches of which one fires at the next.
    async fn version_and_watches(
        &self,
        session: &Session,
        resource: &Resource,
    ) -> Result<(SnapshotVersion, Vec<Watching>), Failure> {
        let (mut nodes, mut watchers) = (Vec::new(), Vec::new());
        for post in self.names.posts() {
            let (children, watcher) =
                self.children_and_watch(session, &self.names.node(resource, *post)).await?;
            nodes.push((*post, children));
            watchers.push(watcher);
        }
        let scene = ResourceView::of(self.names.dialect(), nodes)
            .map_err(|why| layout::unreadable(resource, &why))?;
        Ok((scene.version(), watchers))
    }

    /// Returns the children of a node, and a watch on their next change, or on the making of the node.
    async fn children_and_watch(
        &self,
        session: &Session,
        node: &str,
    ) -> Result<(Children, Watching), Failure> {
        let limit = self.config.timeout;
        for _ in 0..MAX_TRIES {
            match session.watch_children(node, limit).await {
                Ok((names, stat, watcher)) => return Ok((Some((names, stat)), watcher)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(cannot_look(error)),
            }
            let absent = session.watch_stat(node, limit).await;
            let (stat, watcher) = absent.map_err(cannot_look)?;
            if stat.is_none() {
                return Ok((None, watcher));
            }
        }
        Err(Failure::unavailable("the container comes and goes faster than it can be watched; look again"))
    }

    /// Returns what each claim says of itself; `None` where one left meanwhile.
    pub(crate) async fn standings(
        &self,
        session: &Session,
        resource: &Resource,
        scene: &ResourceView,
    ) -> Result<Option<Standings>, Failure> {
        let node = |post| self.names.node(resource, post);
        let mut asked: Vec<(ClaimId, Share, String)> = Vec::new();
        for (post, line) in [(NodeRole::Line, &scene.line), (NodeRole::Locks, &scene.locks)] {
            let parent = node(post);
            let places = line.places().iter();
            asked.extend(places.map(|place| (place.id, place.share, format!("{parent}/{}", place.name))));
        }
        let parent = node(NodeRole::Leases);
        let leases = scene.leases.iter();
        asked.extend(leases.map(|lease| (lease.id, UNTOLD, format!("{parent}/{}", lease.name))));
        let mut seen = Vec::with_capacity(asked.len());
        for some in asked.chunks(NOTES_AT_ONCE) {
            let Some(found) = self.read_all(session, some).await? else { return Ok(None) };
            seen.extend(found);
        }
        let leases = seen.split_off(scene.line.places().len() + scene.locks.places().len());
        let locks = seen.split_off(scene.line.places().len());
        let mut found = Standings::default();
        for (index, seen) in seen.into_iter().enumerate() {
            let standing = ClaimInfo { note: layout::read_note(&seen.data), ..bare(&seen) };
            if index < scene.line.holders() {
                found.holders.push(holding(standing, &seen.stat));
            } else {
                found.waiting.push(standing);
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
        session: &Session,
        asked: &[(ClaimId, Share, String)],
    ) -> Result<Option<Vec<Seen>>, Failure> {
        let mut reader = session.client.new_multi_reader();
        for (_, _, path) in asked {
            reader.add_get_data(path).map_err(cannot_look)?;
        }
        let results = session.ask(self.config.timeout, reader.commit()).await.map_err(cannot_look)?;
        let mut found = Vec::with_capacity(asked.len());
        for ((id, share, _), result) in asked.iter().zip(results) {
            match result {
                MultiReadResult::Data { data, stat } => {
                    found.push(Seen { id: *id, share: *share, data, stat });
                }
                MultiReadResult::Error { err: Error::NoNode } => return Ok(None),
                MultiReadResult::Error { err } => return Err(cannot_look(err)),
                _ => {
                    return Err(Failure::unavailable("the server answers another question than was asked"));
                }
            }
        }
        Ok(Some(found))
    }

    /// Returns how many permits the semaphore has, as its node says.
    async fn capacity(&self, session: &Session, resource: &Resource) -> Result<Option<u32>, Failure> {
        if self.names.dialect() != Dialect::Kazoo {
            return Ok(None);
        }
        let node = self.names.node(resource, NodeRole::Leases);
        match session.ask(self.config.timeout, session.client.get_data(&node)).await {
            Ok((data, _)) => Ok(layout::read_capacity(&data)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(cannot_look(error)),
        }
    }

    /// Adds the claims that have a lease, and those that wait in the queue for one.
    fn add_semaphore(
        &self,
        found: &mut Standings,
        locks: Vec<Seen>,
        mut leases: Vec<Seen>,
        capacity: Option<u32>,
    ) {
        // Leases are made one at a time, so this is the order of their grants.
        leases.sort_unstable_by_key(|lease| lease.stat.czxid);
        let agreed = capacity.and_then(|capacity| Share::permits(1, capacity).ok()).unwrap_or(UNTOLD);
        let read = |seen: &Seen| match self.names.dialect() {
            Dialect::Curator => layout::read_permit(&seen.data),
            _ => (None, layout::read_note(&seen.data)),
        };
        let standing = |seen: &Seen, (share, note): (Option<Share>, Note)| ClaimInfo {
            share: share.unwrap_or(agreed),
            note,
            ..bare(seen)
        };
        let newest = leases.len().checked_sub(1);
        for (index, lease) in leases.iter().enumerate() {
            let said = read(lease);
            // Curator makes its lease while it is the first in the queue, and waits with it in hand. Ours
            // are never so.
            let waits = self.names.dialect() == Dialect::Curator
                && Some(index) == newest
                && said.0.is_none()
                && locks.first().is_some_and(|first| is_in_hand(lease, first));
            if !waits {
                found.holders.push(holding(standing(lease, said), &lease.stat));
            }
        }
        found.waiting.extend(locks.iter().map(|lock| standing(lock, read(lock))));
    }
}

/// Returns `true` if the lease was made by the one that is the first in the queue, as far as can be seen: by
/// the same session, and after its place.
fn is_in_hand(lease: &Seen, first: &Seen) -> bool {
    lease.stat.ephemeral_owner == first.stat.ephemeral_owner && lease.stat.czxid > first.stat.czxid
}

fn bare(seen: &Seen) -> ClaimInfo {
    ClaimInfo {
        id: seen.id,
        share: seen.share,
        fence: None,
        since_unix_ms: u64::try_from(seen.stat.ctime).ok(),
        remaining: None,
        note: Note::default(),
    }
}

fn holding(standing: ClaimInfo, stat: &Stat) -> ClaimInfo {
    ClaimInfo { fence: Some(Fence::new(0, stat.czxid.cast_unsigned(), 0)), ..standing }
}

/// One permit of an unknown number.
const UNTOLD: Share = match Share::permits(1, u32::MAX - 1) {
    Ok(share) => share,
    Err(_) => Share::READER,
};
/// The number of times that a queue that changes is read again.
const MAX_TRIES: usize = 16;
/// Notes are up to 1 KiB each, and an answer should stay far below 1 MiB.
const NOTES_AT_ONCE: usize = 256;
