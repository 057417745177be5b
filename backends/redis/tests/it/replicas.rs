//! `?replicas=`: what a grant waits for, and what is said where it does not come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::{Backend, Effect, Failure, FailureKind, Proof, Put, Registers, Renew, Renewal, Share};
use leasehold_testkit::{Proxy, RedisSentinel, RedisServer, Reply, Way};

/// Sentinels that never fail over by themselves.
async fn group() -> Option<RedisSentinel> {
    RedisSentinel::builder().down_after(Duration::from_secs(60)).start_or_skip().await
}

/// Repeats a request whose failure came too late from a server that was slow: it has half a second more than it waits
/// for replicas.
async fn in_time(mut request: impl AsyncFnMut() -> Failure) -> Failure {
    for _ in 0..10 {
        let failure = request().await;
        if !failure.detail().contains("did not answer within") {
            return failure;
        }
    }
    panic!("ten answers came too late");
}

#[tokio::test]
async fn what_was_granted_and_renewed_is_on_the_replicas() {
    let Some(group) = group().await else { return };
    // The replicas have a third of it to confirm.
    let request = Duration::from_secs(60);
    let backend = connect(&format!("{}?replicas=2&timeout=60s", group.url())).await;
    for n in 0..50 {
        let claim = claim_of(&format!("job {n}"), Share::MUTEX, request);
        try_take(&backend, &claim).await.unwrap();
        let key = format!("{{lh:job%20{n}}}:held");
        let ends = async |replica: usize| end_of(group.server(replica), &key).await;
        let granted = [ends(1).await, ends(2).await];
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(renewed(&backend, &claim).await);
        assert!(ends(1).await > granted[0] && ends(2).await > granted[1], "{granted:?}");
    }
}

#[tokio::test]
async fn a_grant_that_too_few_confirm_is_given_back() {
    let Some(group) = group().await else { return };
    // The replica that is well has a third of it to confirm.
    let request = Duration::from_secs(9);
    let url = |replicas: u32| format!("{}?replicas={replicas}&timeout=9s", group.url());
    let (one, two) = (connect(&url(1)).await, connect(&url(2)).await);
    let held = claim_of("held", Share::MUTEX, Duration::from_secs(120));
    persist(&two, &held).await;
    group.stop(2).unwrap();
    let (mut claim, mut took) = (held.clone(), Duration::ZERO);
    let failure = in_time(async || {
        claim = claim_of(&format!("job {}", claim.id.to_hex()), Share::MUTEX, request);
        let begun = Instant::now();
        let failure = two.contend(&claim, &no_patience()).await.unwrap_err();
        took = begun.elapsed();
        failure
    })
    .await;
    // It waits for a third of what a request may take.
    assert!(took < request * 2 / 3, "{took:?}");
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    assert!(
        failure.detail().contains("1 of 2 replicas") && failure.detail().contains("released again"),
        "{failure}"
    );
    let seen = two.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    assert!(seen.holders.is_empty() && seen.waiting.is_empty(), "{seen:?}");
    // A claim on a held lock is refused without waiting for replicas.
    let before = group.server(0).counts().await.unwrap();
    assert!(try_take(&two, &mutex("held")).await.is_none());
    assert_eq!(group.server(0).counts().await.unwrap().since(&before).of("wait"), 0);
    // A renewal counts as little, and does not say that the claim is lost.
    let failure = in_time(async || match renew(&two, &held).await {
        Renewal::Unknown(failure) => failure,
        other => panic!("it counted: {other:?}"),
    })
    .await;
    assert!(failure.detail().contains("1 of 2 replicas"), "{failure}");

    // One of the two is enough for a client that asks for one.
    persist(&one, &claim).await;
    group.resume(2).unwrap();
    persist(&two, &mutex("other")).await;
}

#[tokio::test]
async fn what_was_held_before_is_kept_though_too_few_confirm() {
    let Some(group) = group().await else { return };
    let (plain, two) =
        (connect(&group.url()).await, connect(&format!("{}?replicas=2&timeout=15s", group.url())).await);
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(120));
    let fence = try_take(&plain, &claim).await.unwrap();
    group.stop(2).unwrap();
    // Another process asks for it, as one does to whom it is handed over.
    let failure = in_time(async || two.contend(&claim, &no_patience()).await.unwrap_err()).await;
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    assert!(failure.detail().contains("1 of 2 replicas"), "{failure}");
    let seen = two.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders.len(), 1, "it was ended");
    group.resume(2).unwrap();
    assert_eq!(persist(&two, &claim).await, fence, "it is another grant");
}

/// Otherwise its holder learns of the loss only when replicas confirm again, or its lease ends.
#[tokio::test]
async fn renewal_that_too_few_confirm_reports_what_is_gone() {
    let Some(group) = group().await else { return };
    let (plain, two) =
        (connect(&group.url()).await, connect(&format!("{}?replicas=2&timeout=15s", group.url())).await);
    let [held, gone] = ["held", "gone"].map(|name| claim_of(name, Share::MUTEX, Duration::from_secs(120)));
    persist(&two, &held).await;
    persist(&two, &gone).await;
    assert!(freed(&plain, &gone).await, "another client breaks it");
    group.stop(2).unwrap();
    let proof = Proof::none();
    let failure = in_time(async || {
        let batch = [&held, &gone].map(|claim| Renew { claim, proof: &proof });
        match &two.renew(&batch).await[..] {
            [Renewal::Unknown(failure), Renewal::Lost] => failure.clone(),
            // It was too slow, which is tried again.
            [Renewal::Unknown(failure), Renewal::Unknown(_)] => {
                assert!(!failure.detail().contains("of 2 replicas"), "{failure}");
                failure.clone()
            }
            renewals => panic!("{renewals:?}"),
        }
    })
    .await;
    assert!(failure.detail().contains("1 of 2 replicas"), "{failure}");
    group.resume(2).unwrap();
}

/// The answer to a direct request is a grant as it comes, and no replica is waited for.
#[tokio::test]
async fn nothing_is_requested_directly_if_replicas_have_to_confirm() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    assert!(connect(&server.url()).await.direct_requests().is_some());
    assert!(connect(&format!("{}?replicas=1", server.url())).await.direct_requests().is_none());
}

#[tokio::test]
async fn missing_replicas_are_reported_in_time() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?replicas=1", server.url())).await;
    let claims: Vec<_> =
        (0..40).map(|n| claim_of(&format!("job {n}"), Share::MUTEX, Duration::from_secs(3))).collect();
    let begun = Instant::now();
    let patience = no_patience();
    let failures = claims
        .iter()
        .map(async |claim| in_time(async || backend.contend(claim, &patience).await.unwrap_err()).await);
    for failure in join_all(failures).await {
        assert!(failure.is_transient() && failure.detail().contains("0 of 1 replicas"), "{failure}");
    }
    // All forty wait at the same time, a second each, and none behind all others.
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
}

/// The requests have written by then, and wait for a replica that is not there.
#[tokio::test]
async fn wait_for_replicas_that_ends_with_the_primary_passes() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?replicas=1&timeout=2m", server.url())).await;
    let lasting = |name: &str| claim_of(name, Share::MUTEX, Duration::from_secs(120));
    let [first, second] = [lasting("first"), lasting("second")];
    let patience = no_patience();
    let demoting = async {
        let begun = Instant::now();
        while server.info_field("blocked_clients").await.unwrap().as_deref() != Some("1") {
            assert!(begun.elapsed() < LIMIT, "nothing waits for a replica");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    };
    let (one, two, ()) =
        tokio::join!(backend.contend(&first, &patience), backend.contend(&second, &patience), demoting);
    for failure in [one.unwrap_err(), two.unwrap_err()] {
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown), "{failure}");
    }
    server.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let seen = backend.inspect(&first.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders.len(), 1, "it was not granted");
}

/// The release of a grant that too few replicas have may still arrive, and would end a later grant of the same claim.
#[tokio::test]
async fn release_without_an_answer_is_marked() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    // It waits for the replica for a third of it.
    let url = format!("{}?replicas=1&timeout=9s", server.url_at(proxy.addr()));
    let backend: Arc<dyn Backend> = Arc::new(connect(&url).await);
    for _ in 0..10 {
        let claim = claim_of("job", Share::MUTEX, Duration::from_secs(120));
        let asking = {
            let (backend, claim) = (backend.clone(), claim.clone());
            tokio::spawn(async move { backend.contend(&claim, &no_patience()).await.unwrap_err() })
        };
        let begun = Instant::now();
        while server.info_field("blocked_clients").await.unwrap().as_deref() != Some("1")
            && !asking.is_finished()
        {
            assert!(begun.elapsed() < LIMIT, "nothing waits for a replica");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        proxy.hold(Way::ToServer);
        let failure = asking.await.unwrap();
        proxy.heal().unwrap();
        // A machine that is late holds up nothing of it.
        if failure.effect == Effect::None {
            println!("the release was not held up: {failure}");
            continue;
        }
        assert!(failure.detail().contains("0 of 1 replicas"), "{failure}");
        assert!(failure.is_release_unanswered() && failure.is_transient(), "{failure:?}");
        return;
    }
    panic!("ten releases were not held up");
}

/// A client finds its own write at the primary, which a replica may still lack.
#[tokio::test]
async fn unconfirmed_write_is_read_once_replicas_have_it() {
    let Some(group) = group().await else { return };
    let url = format!("{}?replicas=2&timeout=15s", group.url());
    let (writer, other) = (connect(&url).await, connect(&url).await);
    let at = resource("job");
    let nothing = in_the_end(|| Registers::read(&writer, &at)).await.stamp;
    let mut seen = nothing.clone();
    for put in [Put { value: Some(b"a".to_vec()), keep: None }, Put { value: None, keep: None }] {
        group.stop(2).unwrap();
        let swap = async || in_time(async || writer.swap(&at, &seen, &put).await.unwrap_err()).await;
        let (first, second) = (swap().await, swap().await);
        let read = in_time(async || Registers::read(&writer, &at).await.unwrap_err()).await;
        for failure in [first, second, read] {
            assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown));
            assert!(failure.detail().contains("1 of 2 replicas"), "{failure}");
        }
        let read = in_the_end(|| Registers::read(&other, &at)).await;
        assert_eq!(read.value, put.value, "who wrote nothing may read");
        group.resume(2).unwrap();
        let found = in_the_end(|| Registers::read(&writer, &at)).await;
        let there = group.server(2).command(&["EXISTS", "{lh:job}:value"]).await.unwrap();
        assert_eq!(there, Reply::Int(put.value.is_some().into()), "a replica lacks what is reported as made");
        assert_eq!(found.value, put.value);
        let again = in_the_end(|| writer.swap(&at, &seen, &put)).await;
        assert_eq!(again, None, "it was made by the first attempt");
        seen = found.stamp;
    }
    assert_eq!(seen, nothing);
    // Nothing of it stays.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(group.server(0).command(&["EXISTS", "{lh:job}:confirm"]).await.unwrap(), Reply::Int(0));
}

#[tokio::test]
async fn many_grants_share_one_question() {
    let Some(group) = group().await else { return };
    // The replicas have a third of it to confirm.
    let request = Duration::from_secs(60);
    let backend = connect(&format!("{}?replicas=1&timeout=60s", group.url())).await;
    let claims: Vec<_> = (0..500).map(|n| claim_of(&format!("job {n}"), Share::MUTEX, request)).collect();
    persist(&backend, &mutex("warm")).await;
    let before = group.server(0).counts().await.unwrap();
    let taken = join_all(claims.iter().map(|claim| try_take(&backend, claim))).await;
    assert!(taken.iter().all(Option::is_some));
    let used = group.server(0).counts().await.unwrap().since(&before);
    println!("{} questions for 500 grants", used.of("wait"));
    assert!(used.of("wait") < 100, "{:?}", used.commands);
}
