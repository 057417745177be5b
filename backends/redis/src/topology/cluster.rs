//! The servers of a cluster, and which of them serves which slot, as far as is known.
//!
//! The view is one server's answer. The client asks for a new one when a server says that it does not
//! decide, cannot be reached, or is silent. Nothing depends on the age of the view: a server that does
//! not serve a slot refuses, and a fence carries the epoch that came in the same answer as its server's
//! address.
//!
//! All requests wait for the same refresh. While the answers bring nothing new, the pauses before it grow.

pub(crate) mod delivery;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_backend::url::Host;
use leasehold_core::{Failure, FailureKind};
use redis::cmd;
use tokio::sync::watch;

use crate::config::{Endpoint, RedisConfig};
use crate::net::command_conn::CommandConn;
use crate::net::connection::Dialer;
use crate::net::endpoint::{Fixed, Source, Target};
use crate::net::outage::Outage;
use crate::net::subscriber::Subscriber;
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::reply;
use crate::protocol::slots::{Node, View, slot_of};
use crate::topology::server_info::ServerInfo;

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<ClusterState>,
}

/// One server of it that was connected to.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) conn: Arc<CommandConn>,
    /// Listens on channels of the slots that this server serves.
    pub(crate) subscriber: Subscriber,
    /// Listens on channels that every server of the cluster repeats.
    pub(crate) broadcasts: Subscriber,
    /// Its epoch, for requests that wait until it changes.
    changes: watch::Sender<u64>,
}

impl Cluster {
    /// Asks the servers that the URL names, until one answers.
    pub(crate) async fn connect(config: RedisConfig) -> Result<Cluster, Failure> {
        let cluster = Cluster::new(config);
        cluster.refresh(None).await?;
        Ok(cluster)
    }

    /// Creates a cluster of which only the servers in the URL are known.
    fn new(config: RedisConfig) -> Cluster {
        let known = |own: &Weak<ClusterState>| ClusterState {
            own: own.clone(),
            config,
            view: Mutex::default(),
            members: Mutex::default(),
            refresh_state: Mutex::new(RefreshState {
                pending: None,
                first: None,
                pace: Outage::new(FIRST_PAUSE, LAST_PAUSE),
            }),
            turn: AtomicUsize::new(0),
        };
        Cluster { shared: Arc::new_cyclic(known) }
    }

    /// Returns what is known now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.shared.view()
    }

    /// Returns the server that serves a slot, if any does.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Member>> {
        let view = self.view();
        Some(self.shared.member(view.owner(slot)?))
    }

    /// Returns the servers that serve any slots.
    pub(crate) fn primaries(&self) -> Vec<Arc<Member>> {
        self.view().primaries().map(|node| self.shared.member(node)).collect()
    }

    /// Returns a number for the server that serves a slot, a different one for each server.
    pub(crate) fn part(&self, slot: u16) -> u64 {
        let view = self.view();
        // Ids are random hexadecimal digits.
        let head = view.owner(slot).and_then(|owner| owner.id.get(..16));
        head.and_then(|head| u64::from_str_radix(head, 16).ok()).unwrap_or_default()
    }

    /// Finds the server at an address, if it is known, by any of its names.
    pub(crate) fn at(&self, host: &str, port: u16) -> Option<Arc<Member>> {
        Some(self.shared.member(self.view().node_at(host, port)?))
    }

    /// Returns the endpoint of the server at an address.
    pub(crate) fn endpoint_of(&self, host: &str, port: u16) -> Endpoint {
        match self.view().node_at(host, port) {
            Some(node) => self.shared.endpoint(node),
            None => self.shared.config.endpoint_at(&Host { name: host.to_owned(), port }),
        }
    }

    /// Asks all servers that serve slots what they are. A replica answers for a server that cannot be
    /// reached, since it will replace it; if neither answers, nothing is known of the server.
    pub(crate) async fn server_infos(&self) -> Result<Vec<ServerInfo>, Failure> {
        let limit = self.shared.config.timeout;
        let primaries = self.primaries();
        let asked = primaries.iter().map(|primary| ServerInfo::ask(&primary.conn, limit));
        let (mut reported, mut down) = (Vec::new(), Vec::new());
        for (primary, answer) in primaries.iter().zip(join_all(asked).await) {
            match answer {
                Ok(server) => reported.push(server),
                Err(failure) if failure.kind != FailureKind::Unavailable => return Err(failure),
                Err(failure) => {
                    tracing::warn!(%failure, "a primary of the cluster cannot be asked what it is");
                    down.push((primary, failure));
                }
            }
        }
        // A cluster of which no primary can be reached has no server that can report its facts.
        if let ([], Some((_, failure))) = (&reported[..], down.first()) {
            return Err(failure.clone());
        }
        for (primary, _) in down {
            reported.push(self.replica_of(primary, limit).await.unwrap_or_default());
        }
        Ok(reported)
    }

    /// Returns the answer of the first replica that has one.
    async fn replica_of(&self, primary: &Member, limit: Duration) -> Option<ServerInfo> {
        let view = self.view();
        let replicas = view.replicas_of(&primary.id).map(|node| self.shared.member(node));
        let ask = |replica: Arc<Member>| async move {
            let answer = ServerInfo::ask_any(&replica.conn, limit).await;
            replica.conn.hang_up();
            answer
        };
        let mut asked: FuturesUnordered<_> = replicas.map(ask).collect();
        while let Some(answer) = asked.next().await {
            if let Ok(server) = answer {
                return Some(ServerInfo { is_replica: false, ..server });
            }
        }
        None
    }

    /// Asks which server serves which slots, first the server at `first`; calls that come meanwhile
    /// wait for the same answer.
    pub(crate) async fn refresh(&self, first: Option<Endpoint>) -> Result<(), Failure> {
        self.shared.refresh(first).await
    }
}

/// The number of servers that are asked in turn which server serves what, before the lookup fails.
const MAX_ASKED: usize = 12;

/// The time to wait for one server before the next is asked as well.
const NEXT_AFTER: Duration = Duration::from_millis(200);

/// Pauses between refreshes that bring nothing new. The longest is short compared to the grace of a
/// call, so that waiters listen to the right server in time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// The epoch that is reported for a server that has left the cluster: no real epoch is so great.
const GONE: u64 = u64::MAX;

type PendingRefresh = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// The refresh of the view, which all requests share.
#[derive(Debug)]
struct RefreshState {
    pending: Option<PendingRefresh>,
    /// The server to ask first: the last redirection named it.
    first: Option<Endpoint>,
    pace: Outage,
}

/// The effect of an answer on the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    Changed,
    Unchanged,
}

/// The state that is known of a cluster, and the servers to ask for more.
#[derive(Debug)]
struct ClusterState {
    own: Weak<ClusterState>,
    config: RedisConfig,
    view: Mutex<Arc<View>>,
    members: Mutex<HashMap<String, Arc<Member>>>,
    refresh_state: Mutex<RefreshState>,
    /// The server that is asked first, in turn.
    turn: AtomicUsize,
}

impl ClusterState {
    fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn members(&self) -> MutexGuard<'_, HashMap<String, Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self, node: &Node) -> Arc<Member> {
        let mut members = self.members();
        let make = || {
            // The caller may know the server from an earlier view than the present one, which no other change follows.
            let now = self.view().node(&node.id).map_or(GONE, |node| self.target(node).view);
            let changes = watch::Sender::new(now);
            let changed = changes.subscribe();
            let source = Arc::new(Single { known: self.own.clone(), id: node.id.clone(), changed });
            let dialer = Arc::new(Dialer::new(self.config.clone(), source));
            let subscriber = Subscriber::new(dialer.clone(), ChannelScope::Slot);
            let broadcasts = Subscriber::new(dialer.clone(), ChannelScope::Everywhere);
            let conn = Arc::new(CommandConn::new(dialer));
            Arc::new(Member { id: node.id.clone(), conn, subscriber, broadcasts, changes })
        };
        members.entry(node.id.clone()).or_insert_with(make).clone()
    }

    /// Returns the connection of a known server, or a new one to a server that is not known.
    fn conn_at(&self, endpoint: &Endpoint) -> Arc<CommandConn> {
        let view = self.view();
        match view.nodes().iter().find(|node| self.endpoint(node) == *endpoint) {
            Some(node) => self.member(node).conn.clone(),
            None => {
                let source = Arc::new(Fixed::new(endpoint.clone()));
                Arc::new(CommandConn::new(Arc::new(Dialer::new(self.config.clone(), source))))
            }
        }
    }

    fn endpoint(&self, node: &Node) -> Endpoint {
        // Certificates are made for names; an address needs no name.
        let name = node.name.as_ref().filter(|_| self.config.is_secured());
        self.config.endpoint_at(&Host { name: name.unwrap_or(&node.host).clone(), port: node.port })
    }

    async fn refresh(&self, first: Option<Endpoint>) -> Result<(), Failure> {
        self.start_refresh(first).await
    }

    /// Returns the refresh that is under way, or starts a new one.
    fn start_refresh(&self, first: Option<Endpoint>) -> PendingRefresh {
        let mut refresh_state = self.refresh_state();
        refresh_state.first = first.or(refresh_state.first.take());
        if let Some(pending) = refresh_state.pending.as_ref().filter(|pending| pending.peek().is_none()) {
            return pending.clone();
        }
        let (own, opens_at) = (self.own.clone(), refresh_state.pace.opens_at());
        // A task of its own, so that the answer is of now and not of when the last waiter for it left.
        let ask = leasehold_machine::spawn(async move {
            if let Some(opens_at) = opens_at {
                tokio::time::sleep_until(opens_at).await;
            }
            match own.upgrade() {
                Some(known) => known.refresh_once().await,
                None => Ok(()),
            }
        });
        let ended = |_| Err(Failure::unavailable("the runtime ended while the cluster was asked in it"));
        refresh_state
            .pending
            .insert(ask.map(move |answer| answer.unwrap_or_else(ended)).boxed().shared())
            .clone()
    }

    async fn refresh_once(&self) -> Result<(), Failure> {
        let first = self.refresh_state().first.take();
        let answer = self.ask(first).await.map(|view| self.learn(view));
        let mut refresh_state = self.refresh_state();
        if let Ok(Update::Changed) = answer {
            refresh_state.pace.worked();
        }
        refresh_state.pace.failed(timer::now());
        answer.map(drop)
    }

    fn refresh_state(&self) -> MutexGuard<'_, RefreshState> {
        self.refresh_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one server after the other, the next as soon as one has failed or is slow, until one answers.
    async fn ask(&self, first: Option<Endpoint>) -> Result<View, Failure> {
        let mut candidates = self.candidates(first).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut last = Failure::unavailable("no server of the cluster is known");
        loop {
            let next = candidates.next();
            let exhausted = next.is_none();
            if let Some(endpoint) = next {
                let conn = self.conn_at(&endpoint);
                asked.push(async move { self.ask_one(&conn, &endpoint).await });
            } else if asked.is_empty() {
                return Err(last);
            }
            let soon = async {
                match exhausted {
                    false => tokio::time::sleep(NEXT_AFTER).await,
                    true => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(answer) = asked.next() => match answer {
                    Ok(view) => return Ok(view),
                    Err(failure) => last = failure,
                },
                () = soon => {}
            }
        }
    }

    async fn ask_one(&self, conn: &CommandConn, endpoint: &Endpoint) -> Result<View, Failure> {
        let mut command = cmd("CLUSTER");
        command.arg("NODES");
        let answer = conn.command(&command, self.config.timeout).await?;
        let mut view = View::read(&reply::read::<String>(answer)?)?;
        if let Endpoint::Tcp { host, .. } | Endpoint::Tls { host, .. } = endpoint {
            view.fill_own_host(host);
        }
        Ok(view)
    }

    fn learn(&self, view: View) -> Update {
        let earlier = self.view();
        let view = Arc::new(view.no_older_than(&earlier));
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view.clone();
        let moved = view.moved_since(&earlier);
        self.members().retain(|id, member| {
            let now = view.node(id).map(|node| self.target(node).view);
            member.changes.send_if_modified(|known| {
                std::mem::replace(known, now.unwrap_or(GONE)) != now.unwrap_or(GONE)
            });
            if !moved.is_empty() {
                // A server that died does not report that its slots have another owner.
                member.subscriber.notify_channels(|channel| moved.contains(&slot_of(channel)));
            }
            now.is_some()
        });
        if view.agrees_with(&earlier) { Update::Unchanged } else { Update::Changed }
    }

    /// Lists the servers to ask, each once: the one that was named, then those that are known to live,
    /// then those in the URL.
    fn candidates(&self, first: Option<Endpoint>) -> Vec<Endpoint> {
        let view = self.view();
        let mut nodes: Vec<&Node> = view.nodes().iter().filter(|node| node.is_reachable).collect();
        if !nodes.is_empty() {
            // Not always the same first: it may be the one that hangs.
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let by = turn % nodes.len();
            nodes.rotate_left(by);
        }
        let known = nodes.into_iter().map(|node| self.endpoint(node));
        let mut candidates: Vec<Endpoint> = Vec::new();
        for endpoint in first.into_iter().chain(known).chain(self.config.seeds()) {
            if candidates.len() < MAX_ASKED && !candidates.contains(&endpoint) {
                candidates.push(endpoint);
            }
        }
        candidates
    }

    fn target(&self, node: &Node) -> Target {
        // Epochs of a new cluster may begin at 0, which is the epoch of servers without an election.
        let epoch = node.epoch.saturating_add(1);
        Target { endpoint: self.endpoint(node), epoch, view: epoch }
    }
}

/// A source that leads to one server of a cluster.
#[derive(Debug)]
struct Single {
    known: Weak<ClusterState>,
    id: String,
    changed: watch::Receiver<u64>,
}

impl Single {
    fn now(&self) -> Option<Target> {
        let known = self.known.upgrade()?;
        let view = known.view();
        Some(known.target(view.node(&self.id)?))
    }
}

#[async_trait]
impl Source for Single {
    fn describe(&self) -> String {
        self.now().map_or_else(|| "a server that left its cluster".to_owned(), |now| now.endpoint.to_string())
    }

    async fn target(&self) -> Result<Target, Failure> {
        self.now().ok_or_else(|| Failure::unavailable("the server has left its cluster"))
    }

    fn is_current(&self, target: &Target) -> bool {
        self.now().as_ref() == Some(target)
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.changed.clone())
    }

    fn report_stale(&self, _target: &Target) {
        refresh_in_background(&self.known);
    }
}

/// Starts a refresh of the view, without waiting for it.
fn refresh_in_background(known: &Weak<ClusterState>) {
    if let Some(known) = known.upgrade() {
        drop(known.start_refresh(None));
    }
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::RedisServer;

    use super::*;
    use crate::net::subscriber::Notification;

    /// Longer than any machine takes, and shorter than waiters without notifications wait.
    const LIMIT: Duration = Duration::from_secs(15);

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[tokio::test]
    async fn server_known_from_an_earlier_view_has_its_present_epoch() {
        let cluster = Cluster::new(RedisConfig::parse("redis+cluster://127.0.0.1:1").unwrap());
        let learn = |epoch: u64| {
            let text = format!("{A} 127.0.0.1:1@1 master - 0 0 {epoch} connected 0-16383\n");
            cluster.shared.learn(View::read(&text).unwrap());
            cluster.view()
        };
        let earlier = learn(1);
        learn(2);
        let member = cluster.shared.member(earlier.owner(0).unwrap());
        let source = Single {
            known: cluster.shared.own.clone(),
            id: member.id.clone(),
            changed: member.changes.subscribe(),
        };
        let target = source.target().await.unwrap();
        let source: &dyn Source = &source;
        assert!(source.superseded(&target).now_or_never().is_none(), "nothing is newer than {target:?}");
    }

    #[tokio::test]
    async fn waiter_on_a_moved_slot_is_woken_to_look_again() {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let config = RedisConfig::parse(&server.url().replace("redis://", "redis+cluster://")).unwrap();
        let cluster = Cluster::new(config);
        let learn = |text: String| cluster.shared.learn(View::read(&text).unwrap());
        let (port, other) = (server.port(), server.port().wrapping_add(1));
        let (moved, stays) = ("{lh:a}:swake", "{lh:b}:swake");
        let slot = slot_of(moved);
        let before = format!("{A} 127.0.0.1:{port}@1 master - 0 0 1 connected 0-16383\n");
        assert_eq!(learn(before.clone()), Update::Changed);
        let member = cluster.owner(slot).unwrap();
        // A subscription that is confirmed late is notified of that. Nothing has come for one that joins afterwards.
        let listen = async |channel: &'static str| {
            let _first = member.subscriber.subscribe(channel).await.unwrap();
            let begun = tokio::time::Instant::now();
            loop {
                if let Some(joined) = member.subscriber.join(channel) {
                    return joined;
                }
                assert!(begun.elapsed() < LIMIT, "it is not confirmed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let (mut moved_subscription, mut other_subscription) = (listen(moved).await, listen(stays).await);
        assert_eq!(learn(before), Update::Unchanged);
        // Another server took the slot over; the old one is known by the same name and epoch as before.
        let after = format!(
            "{A} 127.0.0.1:{port}@1 master - 0 0 1 connected 0-{} {}-16383\n\
             {B} 127.0.0.1:{other}@1 master - 0 0 2 connected {slot}\n",
            slot - 1,
            slot + 1
        );
        assert_eq!(learn(after), Update::Changed);
        assert_eq!(
            tokio::time::timeout(LIMIT, moved_subscription.recv()).await.unwrap(),
            Notification::Changed
        );
        assert!(!cluster.owner(slot).unwrap().subscriber.owns(&moved_subscription));
        assert!(tokio::time::timeout(Duration::ZERO, other_subscription.recv()).await.is_err());
        assert!(cluster.owner(slot_of(stays)).unwrap().subscriber.owns(&other_subscription));
        assert_ne!(cluster.part(slot), cluster.part(slot_of(stays)));
    }
}
