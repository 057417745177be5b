//! The laws of the seam, on a real server, in every mode of waiting and order.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
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

    fn url(&self, server: &RedisServer) -> String {
        format!("{}{}", server.url(), self.options)
    }
}

#[async_trait]
impl Subject for Redis {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let server = self.server.get_or_init(RedisServer::start_or_skip).await.as_ref()?;
        Some(connect(&self.url(server)).await.unwrap())
    }

    fn taker(&self) -> Option<TakerCommand> {
        // The suite connects before it asks for a taker.
        let server = self.server.get()?.as_ref()?;
        Some(TakerCommand::test("taker", self.url(server)).unwrap())
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(RedisBackend::connect(RedisConfig::parse(url)?).await?))
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
