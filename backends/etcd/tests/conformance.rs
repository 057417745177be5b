//! The laws of the seam, on a real server of its own for each law.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::Subject;
use leasehold_core::Backend;
use leasehold_etcd::{EtcdBackend, EtcdConfig};
use leasehold_testkit::EtcdCluster;
use tokio::sync::OnceCell;

/// A server that the connections of one law share.
#[derive(Default)]
struct Etcd {
    members: usize,
    cluster: OnceCell<Option<EtcdCluster>>,
}

#[async_trait::async_trait]
impl Subject for Etcd {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let start = || EtcdCluster::builder().members(self.members).start_or_skip();
        let cluster = self.cluster.get_or_init(start).await.as_ref()?;
        let config = EtcdConfig::parse(&cluster.url()).unwrap();
        Some(Arc::new(EtcdBackend::connect(config).await.unwrap()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(1_200)
    }
}

mod one_server {
    use super::*;
    leasehold_conformance::suite!(Etcd { members: 1, ..Etcd::default() });
}

mod three_servers {
    use super::*;
    leasehold_conformance::suite!(Etcd { members: 3, ..Etcd::default() });
}
