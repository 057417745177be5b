//! The stores that a promise is shown on.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard};
use leasehold_testkit::{RedisQuorum, RedisServer};
use tempfile::TempDir;

use crate::opening::{LIMIT, opened};
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
        opened(&self.url()).await
    }
}

/// Waits until no resource has a holder or a waiter, or fails with what is left.
pub async fn settled(locks: &Client) {
    let began = Instant::now();
    loop {
        let left = locks.list("", None, 100).await.unwrap();
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < LIMIT, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the store has confirmed the lease twice more. It received the second of these renewals after now, unless
/// two were under way.
///
/// # Panics
/// If the lease is lost.
pub async fn renewed(guard: &Guard) {
    let began = Instant::now();
    for _ in 0..2 {
        // In this order: what passes between the two is never taken for a renewal.
        let remaining = guard.remaining();
        let end = Instant::now() + remaining;
        loop {
            guard.check().expect("it is renewed");
            let now = Instant::now();
            if now + guard.remaining() > end {
                break;
            }
            assert!(began.elapsed() < LIMIT, "nothing is renewed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
