//! The servers of a cluster, and who of them serves which slot, as far as is known.
//!
//! What is known is one server's answer, and is asked for anew when a server says that it does not decide, when one cannot be
//! reached, and when one keeps silent. Nothing depends on how old it is: whoever does not serve a slot refuses, and a fence
//! carries the epoch that came in the same answer as its server's address.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_address::Host;
use leasehold_core::Failure;
use redis::cmd;
use tokio::sync::watch;

use crate::config::{Endpoint, RedisConfig};
use crate::connection::Dialer;
use crate::ears::Reach;
use crate::reply;
use crate::subscriber::Subscriber;
use crate::target::{Fixed, Source, Target};
use crate::view::{Node, View};
use crate::wire::Wire;

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Known>,
}

/// One server of it that was talked to.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) wire: Arc<Wire>,
    /// Listens on channels of the slots that this server serves.
    pub(crate) subscriber: Subscriber,
    /// Its epoch, for those who wait until it changes.
    changes: watch::Sender<u64>,
}

impl Cluster {
    /// Asks the servers that the URL names, until one answers.
    pub(crate) async fn connect(config: RedisConfig) -> Result<Cluster, Failure> {
        let known = |own: &Weak<Known>| Known {
            own: own.clone(),
            config,
            view: Mutex::default(),
            members: Mutex::default(),
            asking: Mutex::default(),
            turn: AtomicUsize::new(0),
        };
        let cluster = Cluster { shared: Arc::new_cyclic(known) };
        cluster.refresh(None).await?;
        Ok(cluster)
    }

    /// What is known now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.shared.view()
    }

    /// The server that serves a slot, where anybody does.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Member>> {
        let view = self.view();
        Some(self.shared.member(view.owner(slot)?))
    }

    /// The servers that serve any slots.
    pub(crate) fn primaries(&self) -> Vec<Arc<Member>> {
        self.view().primaries().map(|node| self.shared.member(node)).collect()
    }

    /// The server at an address, known or not.
    pub(crate) fn at(&self, host: &str, port: u16) -> Arc<Wire> {
        self.shared.wire_at(&self.endpoint_at(host, port))
    }

    /// An address as this cluster's servers are connected to.
    pub(crate) fn endpoint_at(&self, host: &str, port: u16) -> Endpoint {
        self.shared.config.endpoint_at(&Host { name: host.to_owned(), port })
    }

    /// Asks who serves what, first the server at `first`; whoever comes meanwhile waits for the same answer.
    pub(crate) async fn refresh(&self, first: Option<Endpoint>) -> Result<(), Failure> {
        self.shared.refresh(first).await
    }

    /// A source for those who may talk to any server: another one with each connection.
    pub(crate) fn any(&self) -> Arc<dyn Source> {
        Arc::new(Any(self.shared.clone()))
    }
}

/// Servers that are asked one after the other who serves what, before the answer is that nobody tells.
const MAX_ASKED: usize = 12;

/// How long one is waited for before the next is asked as well.
const NEXT_AFTER: Duration = Duration::from_millis(200);

/// What is told of a server that is not of the cluster any more: no epoch is so great.
const GONE: u64 = u64::MAX;

type Asking = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// What is known of a cluster, and whom to ask for more.
#[derive(Debug)]
struct Known {
    own: Weak<Known>,
    config: RedisConfig,
    view: Mutex<Arc<View>>,
    members: Mutex<HashMap<String, Arc<Member>>>,
    asking: Mutex<Option<Asking>>,
    /// Whose turn it is, where any server will do.
    turn: AtomicUsize,
}

impl Known {
    fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn members(&self) -> MutexGuard<'_, HashMap<String, Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self, node: &Node) -> Arc<Member> {
        let mut members = self.members();
        let make = || {
            let changes = watch::Sender::new(self.target(node).view);
            let changed = changes.subscribe();
            let source = Arc::new(Single { known: self.own.clone(), id: node.id.clone(), changed });
            let dialer = Arc::new(Dialer::new(self.config.clone(), source));
            let subscriber = Subscriber::new(dialer.clone(), Reach::Slot);
            let wire = Arc::new(Wire::new(dialer));
            Arc::new(Member { id: node.id.clone(), wire, subscriber, changes })
        };
        members.entry(node.id.clone()).or_insert_with(make).clone()
    }

    /// Uses the wire of a known server; one that is not known is talked to for this once.
    fn wire_at(&self, endpoint: &Endpoint) -> Arc<Wire> {
        let view = self.view();
        match view.nodes().iter().find(|node| self.endpoint(node) == *endpoint) {
            Some(node) => self.member(node).wire.clone(),
            None => {
                let source = Arc::new(Fixed(endpoint.clone()));
                Arc::new(Wire::new(Arc::new(Dialer::new(self.config.clone(), source))))
            }
        }
    }

    fn endpoint(&self, node: &Node) -> Endpoint {
        // Certificates are made for names; addresses do without anybody who knows the name.
        let name = node.name.as_ref().filter(|_| self.config.is_secured());
        self.config.endpoint_at(&Host { name: name.unwrap_or(&node.host).clone(), port: node.port })
    }

    async fn refresh(&self, first: Option<Endpoint>) -> Result<(), Failure> {
        let asking = {
            let mut slot = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            match &*slot {
                Some(asking) if asking.peek().is_none() => asking.clone(),
                _ => {
                    let own = self.own.clone();
                    let ask = async move {
                        match own.upgrade() {
                            Some(known) => known.ask(first).await,
                            None => Ok(()),
                        }
                    };
                    slot.insert(ask.boxed().shared()).clone()
                }
            }
        };
        asking.await
    }

    /// Asks one server after the other, the next as soon as one has failed or is slow, until one answers.
    async fn ask(&self, first: Option<Endpoint>) -> Result<(), Failure> {
        let mut candidates = self.candidates(first).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut last = Failure::unavailable("no server of the cluster is known");
        loop {
            let next = candidates.next();
            let exhausted = next.is_none();
            if let Some(endpoint) = next {
                let wire = self.wire_at(&endpoint);
                asked.push(async move { self.ask_one(&wire, &endpoint).await });
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
                    Ok(view) => {
                        self.learn(view);
                        return Ok(());
                    }
                    Err(failure) => last = failure,
                },
                () = soon => {}
            }
        }
    }

    async fn ask_one(&self, wire: &Wire, endpoint: &Endpoint) -> Result<View, Failure> {
        let mut question = cmd("CLUSTER");
        question.arg("NODES");
        let answer = wire.command(&question, self.config.timeout).await?;
        let mut view = View::read(&reply::read::<String>(answer)?)?;
        if let Endpoint::Tcp { host, .. } | Endpoint::Tls { host, .. } = endpoint {
            view.name_asked(host);
        }
        Ok(view)
    }

    fn learn(&self, view: View) {
        let view = Arc::new(view.no_older_than(&self.view()));
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view.clone();
        self.members().retain(|id, member| {
            let now = view.node(id).map(|node| self.target(node).view);
            member.changes.send_if_modified(|known| {
                std::mem::replace(known, now.unwrap_or(GONE)) != now.unwrap_or(GONE)
            });
            now.is_some()
        });
    }

    /// Whom to ask, each once: whoever was named, then who is known to live, then who stands in the URL.
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
        // Epochs of a new cluster may begin at 0, which is that of servers that nobody elects.
        let epoch = node.epoch.saturating_add(1);
        Target { endpoint: self.endpoint(node), epoch, view: epoch }
    }
}

/// Leads to one server of a cluster.
#[derive(Debug)]
struct Single {
    known: Weak<Known>,
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

    fn doubt(&self, _target: &Target) {
        doubt(&self.known);
    }
}

/// Leads to some server of a cluster, another one with each connection.
#[derive(Debug)]
struct Any(Arc<Known>);

#[async_trait]
impl Source for Any {
    fn describe(&self) -> String {
        "a server of the cluster".to_owned()
    }

    async fn target(&self) -> Result<Target, Failure> {
        let view = self.0.view();
        let reachable: Vec<&Node> = view.nodes().iter().filter(|node| node.is_reachable).collect();
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        let node = reachable.get(turn % reachable.len().max(1));
        let node = node.ok_or_else(|| Failure::unavailable("no server of the cluster can be reached"))?;
        Ok(self.0.target(node))
    }

    fn doubt(&self, _target: &Target) {
        doubt(&self.0.own);
    }
}

/// Asks who serves what, without anybody waiting for it.
fn doubt(known: &Weak<Known>) {
    if let Some(known) = known.upgrade() {
        tokio::spawn(async move { known.refresh(None).await });
    }
}
