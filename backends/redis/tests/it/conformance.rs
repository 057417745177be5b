//! The laws of the seam, on a real server, in every mode of waiting and order, and in every dialect.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_redis::RedisConfig;
use leasehold_testkit::{RedisCluster, RedisServer};
use tokio::sync::{Mutex, OnceCell};

/// A server for one law, started when the law first connects.
struct Redis {
    options: &'static str,
    server: OnceCell<Option<RedisServer>>,
}

impl Redis {
    fn with(options: &'static str) -> Redis {
        Redis { options, server: OnceCell::new() }
    }

    fn url(&self, server: &RedisServer) -> String {
        format!("{}{}", server.url(), self.options)
    }
}

#[async_trait]
impl Subject for Redis {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let server = self.server.get_or_init(RedisServer::start_or_skip).await.as_ref()?;
        let url = self.url(server);
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        // The suite connects before it asks for a taker.
        let server = self.server.get()?.as_ref()?;
        Some(TakerCommand::test("conformance::taker", self.url(server)).unwrap())
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_redis::connect(RedisConfig::parse(url)?).await
}

/// One law on a cluster, which those that run at the same time share, and whose end is that of the last
/// of them.
struct Cluster {
    options: String,
    cluster: OnceCell<Option<Arc<RedisCluster>>>,
}

/// The cluster that runs.
static RUNNING: Mutex<Weak<RedisCluster>> = Mutex::const_new(Weak::new());

impl Cluster {
    /// Each law has keys of its own.
    fn with(options: &str) -> Cluster {
        static PREFIX: AtomicUsize = AtomicUsize::new(0);
        let prefix = PREFIX.fetch_add(1, Ordering::Relaxed);
        Cluster { options: format!("?prefix=law{prefix}{options}"), cluster: OnceCell::new() }
    }

    async fn running() -> Option<Arc<RedisCluster>> {
        let mut running = RUNNING.lock().await;
        if let Some(cluster) = running.upgrade() {
            return Some(cluster);
        }
        let cluster = Arc::new(RedisCluster::builder().node_timeout(PATIENT).start_or_skip().await?);
        *running = Arc::downgrade(&cluster);
        Some(cluster)
    }
}

/// The laws are about locks: no server is to be taken for dead because a busy machine stood still.
const PATIENT: Duration = Duration::from_secs(30);

#[async_trait]
impl Subject for Cluster {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let cluster = self.cluster.get_or_init(Cluster::running).await.as_ref()?;
        let url = format!("{}{}", cluster.url(), self.options);
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        let cluster = self.cluster.get()?.as_ref()?;
        Some(TakerCommand::test("conformance::taker", format!("{}{}", cluster.url(), self.options)).unwrap())
    }
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

mod pubsub_fifo {
    leasehold_conformance::suite!(super::Redis::with(""));
}

mod poll_fifo {
    leasehold_conformance::suite!(super::Redis::with("?wait=poll"));
}

mod pubsub_unordered {
    leasehold_conformance::suite!(super::Redis::with("?order=unordered"));
}

mod poll_unordered {
    leasehold_conformance::suite!(super::Redis::with("?order=unordered&wait=poll"));
}

mod cluster {
    leasehold_conformance::suite!(super::Cluster::with(""));
}

mod cluster_poll_unordered {
    leasehold_conformance::suite!(super::Cluster::with("&order=unordered&wait=poll"));
}

mod plain {
    leasehold_conformance::suite!(super::Redis::with("?dialect=plain"));
}

mod python_redis_lock {
    leasehold_conformance::suite!(super::Redis::with("?dialect=python-redis-lock&key-prefix=app/"));
}

mod redisson {
    leasehold_conformance::suite!(super::Redis::with("?dialect=redisson&key-prefix=app:&watchdog=1h"));
}
