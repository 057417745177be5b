//! A Redis Cluster of real servers, with its faults as methods.
//!
//! The kit forms the cluster and moves its slots by the servers' own commands, so that it needs no program
//! but the server, and asks each member for its own view over its unix socket. A member's bus port is a
//! port of its own: the usual one, ten thousand above, would lie where outgoing connections take theirs. Servers
//! before 7.0 have no such choice: there both ports are chosen below that range.

mod builder;

pub use builder::RedisClusterBuilder;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::nodes::Node;
use super::until::{Asking, until};
use super::{ADMIN, Data, RedisServer};
use crate::certificates::Certificates;
use crate::directory::Directory;
use crate::error::Error;
use crate::port::Port;

/// A Redis Cluster of this test alone: primaries first, then as many replicas of each, on free ports of
/// 127.0.0.1.
///
/// # Promises
/// - When a `start` returns, every slot is served, all members agree on it, and the replicas follow.
/// - The members are ended when this is dropped, and also when the test's process is killed.
///
/// # Does not promise
/// A fixed set of primaries: members take over from each other, also without a fault where the machine
/// stands still for longer than the node timeout.
#[derive(Debug)]
pub struct RedisCluster {
    members: Vec<Member>,
    primaries: usize,
    certificates: Option<Certificates>,
    // Dropped last: it holds the certificates.
    _directory: Directory,
}

/// A slot on its way from one member to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotMove {
    /// The slot.
    pub slot: u16,
    /// The member that owns it until the move ends.
    pub from: usize,
    /// The member that owns it from then on.
    pub to: usize,
}

#[derive(Debug)]
struct Member {
    // Dropped in this order: the process ends before its ports are free for others.
    server: RedisServer,
    bus: Port,
    /// `true` while it runs and is not stopped, so that asking it makes sense.
    awake: AtomicBool,
}

impl RedisCluster {
    /// Options for a cluster.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder::new()
    }

    /// Starts three primaries with a replica each, or ends the test as skipped; see
    /// [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns how many members there are, running or not.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns one member, to ask it or to count what it did. Its faults belong to the cluster's methods,
    /// which remember them.
    ///
    /// # Panics
    /// If the member does not exist.
    pub fn member(&self, member: usize) -> &RedisServer {
        &self.members[member].server
    }

    /// Returns `redis+cluster://…` or, with TLS, `rediss+cluster://…`, with all members, and the default
    /// user's password if it has one.
    pub fn url(&self) -> String {
        let addrs: Vec<SocketAddr> = (0..self.members()).map(|member| self.addr(member)).collect();
        self.url_at(&addrs)
    }

    /// Returns the URL as [`RedisCluster::url`] does, by way of other addresses, or of fewer.
    pub fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        format!("{scheme}+cluster://{}{}", self.members[0].server.password_part(), addrs.join(","))
    }

    /// Returns the address of a member's port for clients: with TLS where the cluster has it.
    ///
    /// # Panics
    /// If the member does not exist.
    pub fn addr(&self, member: usize) -> SocketAddr {
        let server = &self.members[member].server;
        server.tls_addr().unwrap_or_else(|| server.addr())
    }

    /// Returns the certificates, which all members share, where TLS was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Stops a member (SIGSTOP): connections stay open, and nothing answers. See [`RedisServer::stop`].
    pub fn stop(&self, member: usize) -> Result<(), Error> {
        self.members[member].awake.store(false, Ordering::SeqCst);
        self.members[member].server.stop()
    }

    /// Continues a member after [`RedisCluster::stop`].
    pub fn resume(&self, member: usize) -> Result<(), Error> {
        self.members[member].server.resume()?;
        self.members[member].awake.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Kills a member (SIGKILL), stopped or not, and waits until it is gone.
    pub fn kill(&self, member: usize) -> Result<(), Error> {
        self.members[member].awake.store(false, Ordering::SeqCst);
        self.members[member].server.kill()
    }

    /// Restarts a member as [`RedisServer::restart`] does. It knows itself and its cluster in either case.
    pub async fn restart(&self, member: usize, data: Data) -> Result<(), Error> {
        self.members[member].awake.store(false, Ordering::SeqCst);
        self.members[member].server.restart(data).await?;
        self.members[member].awake.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Returns the slot that a key lies in.
    pub async fn slot_of(&self, key: &str) -> Result<u16, Error> {
        let reply = self.members[self.awake()?].server.command(&["CLUSTER", "KEYSLOT", key]).await?;
        reply.into_text()?.parse().map_err(|_| Error::failed("redis answered no number as the slot of a key"))
    }

    /// Returns the member that says it is the primary of a slot, the one of the newest epoch where two do.
    /// Waits up to a minute for one.
    pub async fn primary_of(&self, slot: u16) -> Result<usize, Error> {
        let serving = || -> Asking<'_, _> {
            Box::pin(async move { Ok(self.serving(slot).await?.map(|(_, member)| member)) })
        };
        self.until(&format!("a primary of slot {slot}"), serving).await
    }

    /// Returns the member that serves a slot and is not `old`. Waits up to a minute for one.
    pub async fn promoted(&self, slot: u16, old: usize) -> Result<usize, Error> {
        let other = || -> Asking<'_, _> {
            Box::pin(async move {
                let serving = self.serving(slot).await?.map(|(_, member)| member);
                Ok(serving.filter(|member| *member != old))
            })
        };
        self.until(&format!("another primary of slot {slot} than member {old}"), other).await
    }

    /// Returns a member that runs and follows `primary`. Waits up to a minute for one that is in step.
    pub async fn replica_of(&self, primary: usize) -> Result<usize, Error> {
        let find = || -> Asking<'_, _> { Box::pin(self.follower(primary)) };
        self.until(&format!("a replica of member {primary}"), find).await
    }

    /// Waits up to a minute until all members that run agree on the owner of each slot, serve, and follow
    /// their primary if they are replicas.
    pub async fn settle(&self) -> Result<(), Error> {
        let settled = || -> Asking<'_, _> { Box::pin(async { Ok(self.is_settled().await?.then_some(())) }) };
        self.until("a cluster at rest", settled).await
    }

    /// Hands what `primary` serves over to its replica in order, as before maintenance, and says which that
    /// is.
    pub async fn fail_over(&self, primary: usize) -> Result<usize, Error> {
        let replica = self.replica_of(primary).await?;
        let asked = Mutex::new(None);
        let promoted = || -> Asking<'_, _> { Box::pin(self.take_over(replica, &asked)) };
        self.until(&format!("member {replica} as a primary"), promoted).await
    }

    /// Moves a slot with all its keys, live.
    pub async fn move_slot(&self, slot: u16, to: usize) -> Result<(), Error> {
        let moving = self.begin_move(slot, to).await?;
        while self.move_keys(&moving, MOVED_AT_ONCE).await? > 0 {}
        self.end_move(&moving).await
    }

    /// Begins a move: from now on the old owner refers requests for keys that it does not have to the new
    /// one.
    pub async fn begin_move(&self, slot: u16, to: usize) -> Result<SlotMove, Error> {
        let from = self.primary_of(slot).await?;
        let (source, target) = (self.myself(from).await?.id, self.myself(to).await?.id);
        let slot_text = slot.to_string();
        let ask = |member: usize, state: &'static str, id: String| {
            let args = ["CLUSTER".to_owned(), "SETSLOT".into(), slot_text.clone(), state.into(), id];
            async move { self.members[member].server.command(&args).await }
        };
        ask(to, "IMPORTING", source).await?;
        ask(from, "MIGRATING", target).await?;
        Ok(SlotMove { slot, from, to })
    }

    /// Moves some keys of a slot, and says how many.
    pub async fn move_keys(&self, moving: &SlotMove, at_most: usize) -> Result<usize, Error> {
        let (source, target) = (&self.members[moving.from].server, &self.members[moving.to].server);
        let args =
            ["CLUSTER".to_owned(), "GETKEYSINSLOT".into(), moving.slot.to_string(), at_most.to_string()];
        let keys = source.command(&args).await?.into_texts()?;
        if keys.is_empty() {
            return Ok(0);
        }
        let port = self.addr(moving.to).port().to_string();
        let mut args = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "4000", "AUTH2", ADMIN];
        args.extend([target.admin.password.as_str(), "KEYS"]);
        args.extend(keys.iter().map(String::as_str));
        source.command(&args).await?;
        Ok(keys.len())
    }

    /// Ends a move: the new owner serves the slot, under a new epoch. All members are notified at once.
    pub async fn end_move(&self, moving: &SlotMove) -> Result<(), Error> {
        let id = self.myself(moving.to).await?.id;
        let args = ["CLUSTER".to_owned(), "SETSLOT".into(), moving.slot.to_string(), "NODE".into(), id];
        // The new owner first: from then on one of the two serves the slot at any moment.
        let others = (0..self.members()).filter(|member| ![moving.to, moving.from].contains(member));
        for member in [moving.to, moving.from].into_iter().chain(others) {
            if self.members[member].is_awake() && self.myself(member).await?.is_primary() {
                self.members[member].server.command(&args).await?;
            }
        }
        Ok(())
    }

    async fn follower(&self, primary: usize) -> Result<Option<usize>, Error> {
        let id = self.myself(primary).await?.id;
        for (member, _) in self.members.iter().enumerate().filter(|(_, member)| member.is_awake()) {
            let node = self.myself(member).await?;
            if node.primary.as_deref() == Some(&id) && self.follows(member).await? {
                return Ok(Some(member));
            }
        }
        Ok(None)
    }

    /// Lets a replica take over, unless it has, or tries to since it was asked last.
    async fn take_over(
        &self,
        replica: usize,
        asked: &Mutex<Option<Instant>>,
    ) -> Result<Option<usize>, Error> {
        if self.myself(replica).await?.is_primary() {
            return Ok(Some(replica));
        }
        // The others do not vote again about a primary that they have voted about just now, and the attempt
        // ends.
        let now = Instant::now();
        let tries = {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            let tries = asked.is_some_and(|asked: Instant| now.duration_since(asked) < HAND_OVER_LIMIT);
            if !tries {
                *asked = Some(now);
            }
            tries
        };
        if !tries {
            self.members[replica].server.command(&["CLUSTER", "FAILOVER"]).await?;
        }
        Ok(None)
    }

    async fn serving(&self, slot: u16) -> Result<Option<(u64, usize)>, Error> {
        let mut found = None;
        for (member, _) in self.members.iter().enumerate().filter(|(_, member)| member.is_awake()) {
            let node = self.myself(member).await?;
            if node.is_primary() && node.serves(slot) {
                found = found.max(Some((node.epoch, member)));
            }
        }
        Ok(found)
    }

    async fn is_settled(&self) -> Result<bool, Error> {
        let mut views = Vec::new();
        for (member, _) in self.members.iter().enumerate().filter(|(_, member)| member.is_awake()) {
            let info = self.members[member].server.command(&["CLUSTER", "INFO"]).await?.into_text()?;
            let nodes = self.nodes(member).await?;
            let replica = nodes.iter().any(|node| node.is_myself() && !node.is_primary());
            let known = nodes.len() == self.members() && nodes.iter().all(|node| !node.is_in_handshake());
            if !known || !info.contains("cluster_state:ok") || replica && !self.follows(member).await? {
                return Ok(false);
            }
            let mut owners: Vec<_> = nodes.into_iter().filter_map(Node::into_ownership).collect();
            owners.sort();
            views.push(owners);
        }
        let slots: usize = views.first().map_or(0, |owners| owners.iter().map(|owner| owner.slots()).sum());
        Ok(slots == SLOTS && views.windows(2).all(|pair| pair[0] == pair[1]))
    }

    async fn follows(&self, replica: usize) -> Result<bool, Error> {
        let status = self.members[replica].server.info_field("master_link_status").await?;
        Ok(status.as_deref() == Some("up"))
    }

    async fn myself(&self, member: usize) -> Result<Node, Error> {
        let mut nodes = self.nodes(member).await?.into_iter();
        nodes
            .find(Node::is_myself)
            .ok_or_else(|| Error::failed("a member of the cluster does not know itself"))
    }

    async fn nodes(&self, member: usize) -> Result<Vec<Node>, Error> {
        Node::read_all(&self.members[member].server.command(&["CLUSTER", "NODES"]).await?.into_text()?)
    }

    fn awake(&self) -> Result<usize, Error> {
        let awake = self.members.iter().position(Member::is_awake);
        awake.ok_or_else(|| Error::failed("no member of the cluster runs"))
    }

    async fn until<'a, T>(&'a self, what: &str, ask: impl FnMut() -> Asking<'a, T>) -> Result<T, Error> {
        let log = || self.awake().map_or_else(|_| String::new(), |member| self.log_tail(member));
        until(what, log, ask).await
    }

    fn log_tail(&self, member: usize) -> String {
        self.members[member].server.process.directory().log_tail()
    }

    async fn has_met(&self) -> Result<Option<()>, Error> {
        for member in 0..self.members() {
            let nodes = self.nodes(member).await?;
            let known = nodes.iter().filter(|node| !node.is_in_handshake()).count();
            if known < self.members() || nodes.len() > self.members() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// Makes one cluster out of servers that do not know each other.
    async fn form(&self) -> Result<(), Error> {
        let count = self.members();
        for member in 0..count {
            let server = &self.members[member].server;
            if member < self.primaries {
                let first = member * SLOTS / self.primaries;
                let last = (member + 1) * SLOTS / self.primaries - 1;
                // One by one, since servers before 7.0 take no ranges.
                let slots = (first..=last).map(|slot| slot.to_string());
                let args = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots);
                server.command(&args.collect::<Vec<_>>()).await?;
            }
            // An epoch for each, also for those that will be replicas: of two primaries with one epoch, one
            // draws another when they meet, which may be that of a third.
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(member + 1).to_string()]).await?;
        }
        // Everybody meets everybody: gossip would get around as well, but takes seconds.
        for one in 0..count {
            for other in one + 1..count {
                let (port, bus) = (self.addr(other).port().to_string(), &self.members[other].bus);
                let args = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus.number().to_string()];
                self.members[one].server.command(&args).await?;
            }
        }
        let met = || -> Asking<'_, _> { Box::pin(self.has_met()) };
        self.until("members that know each other", met).await?;
        for replica in self.primaries..count {
            let id = self.myself(replica % self.primaries).await?.id;
            self.members[replica].server.command(&["CLUSTER", "REPLICATE", &id]).await?;
        }
        self.settle().await
    }
}

impl Member {
    fn is_awake(&self) -> bool {
        self.awake.load(Ordering::SeqCst)
    }
}

const SLOTS: usize = 16_384;
/// Keys that are moved by one command.
const MOVED_AT_ONCE: usize = 100;
/// The time for which a server tries to take over in order, a little more than its own limit.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(5_500);
