//! Elections: one leads, all know who, and no value outlives its leader.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{ErrorKind, Grade, Leader, Leadership, Leasehold};

const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.unwrap_or_else(|_| panic!("it takes too long"))
}

async fn memory() -> Leasehold {
    Leasehold::open("mem:").await.unwrap()
}

fn value(leader: Option<Leader>) -> Option<String> {
    leader.map(|leader| leader.value)
}

#[tokio::test]
async fn candidates_lead_one_after_the_other_and_all_see_who() {
    let locks = memory().await;
    let election = locks.election("boss").with(|seat| seat.fenced(Grade::Strict)).unwrap();
    assert_eq!(election.leader().await.unwrap(), None);
    let first = election.campaign("ann").await.unwrap();
    assert!(election.try_campaign("ben").await.unwrap().is_none());
    let refusal = election.campaign_timeout("ben", Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Timeout);
    let seen = election.leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.fence), ("ann", first.fence()));
    let (next, resigned) = tokio::join!(soon(election.campaign("ben")), first.resign());
    let next = next.unwrap();
    resigned.unwrap();
    assert!(next.fence() > seen.fence);
    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("ben"));
}

#[tokio::test]
async fn what_is_proclaimed_is_seen_while_its_leader_leads_and_not_after() {
    let locks = memory().await;
    let election = locks.election("boss");
    let leadership = election.campaign("at first").await.unwrap();
    for said in ["second", "third", "with spaces in it", ""] {
        leadership.proclaim(said).await.unwrap();
        assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some(said));
    }
    drop(leadership);
    let next = soon(election.campaign("other")).await.unwrap();
    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("other"));
    next.resign().await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None);
    let long = "x".repeat(981);
    assert_eq!(election.campaign(&long).await.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(election.leader().await.unwrap(), None, "nobody leads by a value that is refused");
}

#[tokio::test]
async fn an_observer_is_told_each_time_something_else_is_true() {
    let locks = memory().await;
    let election = locks.election("boss");
    let stream = election.observe().into_stream();
    let mut stream = std::pin::pin!(stream);
    let mut next = async || value(soon(stream.next()).await.unwrap().unwrap());
    assert_eq!(next().await, None);
    let leadership = election.campaign("ann").await.unwrap();
    assert_eq!(next().await.as_deref(), Some("ann"));
    leadership.proclaim("ann, again").await.unwrap();
    assert_eq!(next().await.as_deref(), Some("ann, again"));
    leadership.resign().await.unwrap();
    // Between the two values that it gave up the first may be seen once more.
    loop {
        match next().await.as_deref() {
            None => break,
            Some(seen) => assert_eq!(seen, "ann"),
        }
    }
}

#[tokio::test]
async fn an_observer_that_leaves_a_question_loses_nothing() {
    let locks = memory().await;
    let election = locks.election("boss");
    let mut observer = election.observe();
    assert_eq!(soon(observer.next()).await.unwrap(), None);
    assert!(tokio::time::timeout(Duration::from_millis(20), observer.next()).await.is_err());
    let leadership: Leadership = election.campaign("ann").await.unwrap();
    assert_eq!(value(soon(observer.next()).await.unwrap()).as_deref(), Some("ann"));
    leadership.resign().await.unwrap();
    assert_eq!(soon(observer.next()).await.unwrap(), None);
}

#[tokio::test]
async fn a_leader_who_is_cut_off_is_told_and_may_not_proclaim() {
    let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let locks = Leasehold::builder().over(fault.clone()).unwrap();
    let election = locks.election("boss").ttl(Duration::from_millis(200));
    let leadership = election.campaign("ann").await.unwrap();
    fault.set(Verb::Renew, Mode::Refuse);
    let stopped = soon(leadership.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Lost(_)));
    let refusal = leadership.proclaim("still here").await.unwrap_err();
    assert!(matches!(refusal.kind(), ErrorKind::Lost(_)), "{refusal}");
    assert!(matches!(leadership.resign().await.unwrap_err().kind(), ErrorKind::Lost(_)));
}
