//! Every kind of store, opened for one test. Stores of one server, which differ in how they write locks
//! down, share it.

use std::any::Any;
use std::time::Duration;

use crate::opening::opened;
use crate::redlock::arm;
use leasehold_testkit::{
    Directory, EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisQuorum,
    RedisSentinel, RedisServer, ZooKeeperEnsemble,
};

/// The stores of one server, removed with it.
pub struct Stores {
    pub all: Vec<Store>,
    _keep: Box<dyn Any + Send>,
}

/// A store of its own for one test.
pub struct Store {
    pub url: String,
    /// `true` if other processes can reach the store.
    pub is_shared: bool,
}

impl Store {
    /// Returns the URL with which a client whose process ends is known as dead after `session`, on a store that has
    /// sessions. The servers of the others know it at once, or when the lease ends.
    pub fn mortal(&self, session: Duration) -> String {
        self.url.replace("session=30s", &format!("session={}s", session.as_secs()))
    }

    /// Returns the URL with which a client also waits for the answers of a busy machine, where the store has been seen
    /// to be late.
    pub fn patient(&self) -> String {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        if self.url.starts_with("etcd:") { format!("{}{mark}{PATIENCE}", self.url) } else { self.url.clone() }
    }

    /// Returns the URL with which a client that cannot reach its server counts its locks as lost after `silence`, if
    /// connections hold them, and otherwise as [`Store::mortal`] says.
    pub fn cut_off(&self, session: Duration, silence: Duration) -> String {
        self.mortal(session).replace(NO_SILENCE, &format!("silence={}s", silence.as_secs()))
    }
}

impl Stores {
    fn of(urls: impl IntoIterator<Item = String>, keep: impl Any + Send) -> Option<Stores> {
        let store = |url| Store { url, is_shared: true };
        Some(Stores { all: urls.into_iter().map(store).collect(), _keep: Box::new(keep) })
    }
}

pub async fn memory() -> Option<Stores> {
    let mut stores = Stores::of(["mem:coordination".to_owned()], ())?;
    stores.all[0].is_shared = false;
    Some(stores)
}

pub async fn file() -> Option<Stores> {
    let dir = tempfile::tempdir().unwrap();
    Stores::of([format!("file:{}", dir.path().display())], dir)
}

pub async fn sqlite() -> Option<Stores> {
    // A shared disk sometimes takes seconds to sync.
    let dir = Directory::create_in_memory("sqlite").unwrap();
    Stores::of([format!("sqlite:{}", dir.path().join("locks.db").display())], dir)
}

/// Each in a database of its own. `plain` also covers `python-redis-lock`, which the same scripts serve,
/// with a notification to its waiters.
pub async fn redis() -> Option<Stores> {
    let server = RedisServer::start_or_skip().await?;
    let ways =
        ["", "?wait=poll&order=unordered", "?dialect=plain", "?dialect=redisson", "?dialect=dual:redisson"];
    let urls = ways.iter().enumerate().map(|(number, way)| format!("{}/{number}{way}", server.url()));
    Stores::of(urls.collect::<Vec<_>>(), server)
}

/// Too long for a machine that stands still: no test of these stores is about a failover, which loses claims.
const NO_FAILOVER: Duration = Duration::from_secs(60);

pub async fn redis_sentinel() -> Option<Stores> {
    let servers = RedisSentinel::builder().down_after(NO_FAILOVER).start_or_skip().await?;
    Stores::of([servers.url()], servers)
}

pub async fn redis_cluster() -> Option<Stores> {
    let cluster = RedisCluster::builder().replicas(0).node_timeout(NO_FAILOVER).start_or_skip().await?;
    Stores::of([cluster.url()], cluster)
}

pub async fn redlock() -> Option<Stores> {
    let servers = RedisQuorum::start_or_skip(3).await?;
    let url = format!("redlock://{}", servers.hosts());
    arm(&opened(&url).await).await;
    Stores::of([url], servers)
}

/// `concurrency` also covers `etcd3`, which writes other keys and values in the same way, and keeps no queue.
pub async fn etcd() -> Option<Stores> {
    let cluster = EtcdCluster::start_or_skip().await?;
    let url = cluster.url();
    Stores::of([url.clone(), format!("{url}?dialect=concurrency&prefix=others/")], cluster)
}

/// `curator` also covers `kazoo`, which names its nodes otherwise.
pub async fn zookeeper() -> Option<Stores> {
    let ensemble = ZooKeeperEnsemble::start_or_skip(1).await?;
    let url = ensemble.url();
    let urls = [format!("{url}?session=30s"), format!("{url}?session=30s&dialect=curator&prefix=others")];
    Stores::of(urls, ensemble)
}

pub async fn memcached() -> Option<Stores> {
    let server = MemcachedServer::start_or_skip().await?;
    let url = server.url();
    Stores::of([url.clone(), format!("{url}?dialect=plain")], server)
}

/// `shedlock` also covers that of MySQL, which differs in its statements.
pub async fn postgres() -> Option<Stores> {
    // Several of the processes may have as many connections as one may.
    let server = PostgresServer::builder().setting("max_connections", "900").start_or_skip().await?;
    let locked = format!("?method=for-update&table=locked&{TRANSACTIONS}&{NO_SILENCE}");
    let advisory = format!("?method=advisory&{NO_SILENCE}");
    let ways = ["", "?dialect=shedlock", &advisory, &locked];
    let urls = ways.map(|way| format!("{}{way}", server.url()));
    Stores::of(urls, server)
}

/// `get-lock` also covers its dialect `tooz`, which names its locks otherwise.
pub async fn mysql() -> Option<Stores> {
    let server = MariaDbServer::builder().setting("max-connections", "900").start_or_skip().await?;
    let locked = format!("?method=for-update&table=locked&{TRANSACTIONS}&{NO_SILENCE}");
    let named = format!("?method=get-lock&{NO_SILENCE}");
    let ways = ["", &named, &locked];
    let urls = ways.map(|way| format!("{}{way}", server.url()));
    Stores::of(urls, server)
}

/// All primitives and all deaths at once hold and wait for more locks of one client than a program does
/// by default, and each takes a connection.
const TRANSACTIONS: &str = "transactions=200";
/// A server that shares two cores with all other stores has taken more than five seconds for an answer.
const PATIENCE: &str = "timeout=20s";
/// No test of these stores is about a server that is silent, as one on a busy machine may be.
const NO_SILENCE: &str = "silence=60s";
