//! The laws of the seam, on a real server, in every mode of waiting and order.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_conformance::Subject;
use leasehold_core::Backend;
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::RedisServer;
use tokio::sync::OnceCell;

/// A server for one law, started when the law first connects.
struct Redis {
    options: &'static str,
    server: OnceCell<Option<RedisServer>>,
}

impl Redis {
    fn with(options: &'static str) -> Redis {
        Redis { options, server: OnceCell::new() }
    }
}

#[async_trait]
impl Subject for Redis {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let server = self.server.get_or_init(RedisServer::start_or_skip).await.as_ref()?;
        let config = RedisConfig::parse(&format!("{}{}", server.url(), self.options)).unwrap();
        Some(Arc::new(RedisBackend::connect(config).await.unwrap()))
    }
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
