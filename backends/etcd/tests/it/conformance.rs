//! The laws of the seam, on one real server and on a cluster of three.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_etcd::{EtcdBackend, EtcdConfig};
use leasehold_testkit::EtcdCluster;
use tokio::sync::{Mutex, OnceCell};

/// A cluster for the laws that run at the same time, ended with the last of them.
#[derive(Default)]
struct Etcd {
    members: usize,
    options: &'static str,
    cluster: OnceCell<Option<Arc<EtcdCluster>>>,
}

/// The running clusters, by their number of members.
static RUNNING: [Mutex<Weak<EtcdCluster>>; 4] = [const { Mutex::const_new(Weak::new()) }; 4];

impl Etcd {
    fn of(members: usize, options: &'static str) -> Etcd {
        Etcd { members, options, ..Etcd::default() }
    }

    async fn cluster(&self) -> Option<Arc<EtcdCluster>> {
        let mut running = RUNNING[self.members].lock().await;
        if let Some(cluster) = running.upgrade() {
            return Some(cluster);
        }
        let cluster = Arc::new(EtcdCluster::builder().members(self.members).start_or_skip().await?);
        *running = Arc::downgrade(&cluster);
        Some(cluster)
    }

    fn url(&self, cluster: &EtcdCluster) -> String {
        format!("{}{}", cluster.url(), self.options)
    }
}

#[async_trait]
impl Subject for Etcd {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let cluster = self.cluster.get_or_init(|| self.cluster()).await.as_ref()?;
        let url = self.url(cluster);
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        // The suite connects before it asks for a taker.
        let cluster = self.cluster.get()?.as_ref()?;
        Some(TakerCommand::test("conformance::taker", self.url(cluster)).unwrap())
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1_200)
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(EtcdBackend::connect(EtcdConfig::parse(url)?).await?))
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

mod one_server {
    leasehold_conformance::suite!(super::Etcd::of(1, ""));
}

mod three_servers {
    leasehold_conformance::suite!(super::Etcd::of(3, ""));
}

mod concurrency {
    leasehold_conformance::suite!(super::Etcd::of(1, "?dialect=concurrency"));
}

mod etcd3 {
    leasehold_conformance::suite!(super::Etcd::of(1, "?dialect=etcd3"));
}
