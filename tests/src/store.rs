//! The stores that a promise is shown on.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::{RedisQuorum, RedisServer};
use tempfile::TempDir;

use crate::redlock::arm;

/// A store of its own for one test, removed with it.
pub enum Store {
    File(TempDir),
    Redis(Box<RedisServer>),
    Redlock(Box<RedisQuorum>),
}

impl Store {
    pub fn file() -> Store {
        Store::File(tempfile::tempdir().unwrap())
    }

    /// Starts the store. `None`, with the reason printed, if no server is installed.
    pub async fn redis() -> Option<Store> {
        RedisServer::start_or_skip().await.map(|server| Store::Redis(Box::new(server)))
    }

    /// Starts five servers that decide together, armed. `None`, with the reason printed, if no server is
    /// installed.
    pub async fn redlock() -> Option<Store> {
        let store = Store::Redlock(Box::new(RedisQuorum::start_or_skip(5).await?));
        arm(&store.client().await).await;
        Some(store)
    }

    pub fn url(&self) -> String {
        match self {
            Store::File(dir) => format!("file:{}", dir.path().display()),
            Store::Redis(server) => server.url(),
            Store::Redlock(servers) => format!("redlock://{}", servers.hosts()),
        }
    }

    pub async fn client(&self) -> Client {
        Client::open(&self.url()).await.unwrap()
    }
}

/// Waits until no resource has a holder or a waiter, or fails with what is left.
pub async fn settled(locks: &Client) {
    let mut left = Vec::new();
    for _ in 0..1000 {
        left = locks.list("", None, 100).await.unwrap();
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {left:?}");
}
