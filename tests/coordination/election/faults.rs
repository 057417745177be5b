//! Elections: a stream of leaders, and a leader that is cut off.
//!
//! The promises on every store are tested in `tests/coordination`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, FenceGrade};

const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.unwrap_or_else(|_| panic!("it takes too long"))
}

#[tokio::test]
async fn an_observer_is_a_stream_too() {
    let locks = Client::open("mem:").await.unwrap();
    let election = locks.election("boss").with(|seat| seat.require_fencing(FenceGrade::Strict)).unwrap();
    let stream = election.observe().into_stream();
    let mut stream = std::pin::pin!(stream);
    let mut next = async || soon(stream.next()).await.unwrap().unwrap().map(|leader| leader.value);
    assert_eq!(next().await, None);
    let leadership = election.campaign("ann").await.unwrap();
    assert_eq!(next().await.as_deref(), Some("ann"));
    leadership.resign().await.unwrap();
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn leader_that_is_cut_off_loses_and_may_not_proclaim() {
    let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let locks = Client::builder().over(fault.clone()).unwrap();
    let election = locks.election("boss").ttl(Duration::from_millis(200));
    let leadership = election.campaign("ann").await.unwrap();
    fault.set(Verb::Renew, Mode::Refuse);
    let stopped = soon(leadership.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Lost(_)));
    let refusal = leadership.proclaim("still here").await.unwrap_err();
    assert!(matches!(refusal.kind(), ErrorKind::Lost(_)), "{refusal}");
    assert!(matches!(leadership.resign().await.unwrap_err().kind(), ErrorKind::Lost(_)));
}
