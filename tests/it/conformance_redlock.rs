//! The laws of the seam, on a quorum of five Redis servers.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use leasehold::backend::Backend;
use leasehold::{Client, ErrorKind};
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_testkit::RedisQuorum;
use leasehold_tests::{arm, redlock};
use tokio::sync::{Mutex, OnceCell};

/// Five servers for the laws that run at the same time, ended with the last of them.
#[derive(Default)]
struct Five(OnceCell<Option<Arc<RedisQuorum>>>);

static RUNNING: Mutex<Weak<RedisQuorum>> = Mutex::const_new(Weak::new());

async fn servers() -> Option<Arc<RedisQuorum>> {
    let mut running = RUNNING.lock().await;
    if let Some(servers) = running.upgrade() {
        return Some(servers);
    }
    let servers = Arc::new(RedisQuorum::start_or_skip(5).await?);
    arm(&redlock(&servers.hosts(), "").await).await;
    *running = Arc::downgrade(&servers);
    Some(servers)
}

#[async_trait]
impl Subject for Five {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let servers = self.0.get_or_init(servers).await.as_ref()?;
        Some(redlock(&servers.hosts(), "").await.backend().clone())
    }

    fn taker(&self) -> Option<TakerCommand> {
        // The suite connects before it asks for a taker.
        let servers = self.0.get()?.as_ref()?;
        Some(
            TakerCommand::test("conformance_redlock::taker", format!("redlock://{}", servers.hosts()))
                .unwrap(),
        )
    }
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| {
        let opened = Client::open(url).await;
        opened
            .map(|locks| locks.backend().clone())
            .map_err(|error| leasehold::backend::Failure::unavailable(error.to_string()))
    });
}

leasehold_conformance::suite!(Five::default());

#[tokio::test]
async fn what_a_majority_cannot_decide_is_refused_with_the_reason() {
    let Some(servers) = RedisQuorum::start_or_skip(3).await else { return };
    let locks = redlock(&servers.hosts(), "").await;
    let error = locks.semaphore("permits", 2).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("of three servers with two permits"), "{error}");
    let error = locks.rwlock("readers").try_read().await.unwrap_err();
    assert!(error.to_string().contains("readers would share"), "{error}");
    for number in 0..servers.count() {
        assert_eq!(servers.server(number).counts().await.unwrap().of("hset"), 0, "nothing was sent");
    }
}
