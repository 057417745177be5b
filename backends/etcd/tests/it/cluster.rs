//! Three servers with faults: no lock is granted while another client may still believe to hold it, and the
//! queue advances.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, Claim, Durability, Effect, FailureKind, Patience, Release, Renewal, Share};
use leasehold_etcd::{EtcdBackend, EtcdConfig};
use leasehold_testkit::{EtcdCluster, Proxy, Way};

const SHORT: Duration = Duration::from_secs(4);
/// A lease that has to outlast an election on a busy machine.
const LASTING: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(60);

async fn three() -> Option<EtcdCluster> {
    EtcdCluster::builder().members(3).start_or_skip().await
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_survives_its_leader_and_the_queue_advances() {
    let Some(cluster) = three().await else { return };
    let (first, second) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for round in 0..3 {
        let name = format!("killed/{round}");
        let (held, waits) = (mutex(&name), claim_of(&name, Share::MUTEX, LONG));
        let grant = try_take(&first, &held).await.unwrap();
        let holder = Holder::start(&first, &held, grant);
        let waiter = waiting(&second, &waits, LONG);
        wait_for_waiters(&second, &name, 1).await;
        let leader = cluster.leader().await.unwrap();
        cluster.kill(leader).unwrap();
        cluster.leader().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!holder.is_lost(), "a claim was lost although a quorum lived");
        assert!(!waiter.is_finished(), "granted beside the holder");
        let fence = holder.fence;
        holder.stop();
        let released = release(&first, &held).await;
        assert!(matches!(released, Release::Freed), "{released:?}");
        let (grant, _) = waiter.await.unwrap().unwrap();
        assert!(grant.fence.unwrap() > fence);
        cluster.restart(leader).await.unwrap();
        assert!(matches!(release(&second, &waits).await, Release::Freed));
        assert_eq!(claim_counts(&first, &name).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_vote_costs_no_claim() {
    let Some(mut cluster) = EtcdCluster::start_or_skip().await else { return };
    cluster.add_learner().await.unwrap();
    let addrs = [cluster.addr(1), cluster.addr(0)];
    let url = format!("{}/?servers=given", cluster.url_at(&addrs));
    let (first, second) = (connect(&url).await, connect(&url).await);
    let (held, waits) = (mutex("voters"), mutex("voters"));
    let grant = try_take(&first, &held).await.unwrap();
    assert!(matches!(renew(&first, &held, &grant).await, Renewal::Renewed));
    let waiter = waiting(&second, &waits, LONG);
    wait_for_waiters(&second, "voters", 1).await;
    freed(&first, &held).await;
    assert!(waiter.await.unwrap().is_some(), "the watch is on the member that does not vote");
    freed(&second, &waits).await;
    // If the URL names no other member, the error says what to do.
    let config = EtcdConfig::parse(&format!("{}/?timeout=1s", cluster.url_at(&addrs[..1]))).unwrap();
    let failure = EtcdBackend::connect(config).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    assert!(failure.detail().contains("name the members that vote"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_takes_nothing_with_it() {
    let Some(cluster) = three().await else { return };
    let (first, second) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let (held, waits) = (mutex("stopped"), mutex("stopped"));
    let grant = try_take(&first, &held).await.unwrap();
    let holder = Holder::start(&first, &held, grant);
    let waiter = waiting(&second, &waits, LONG);
    wait_for_waiters(&second, "stopped", 1).await;
    let leader = cluster.leader().await.unwrap();
    cluster.stop(leader).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!holder.is_lost() && !waiter.is_finished(), "a stopped leader cost a claim");
    let now = clock().now();
    assert!(holder.valid_until() > now, "no renewal was confirmed while the leader was stopped");
    let fence = holder.fence;
    holder.stop();
    assert!(matches!(release(&first, &held).await, Release::Freed));
    let (grant, at) = waiter.await.unwrap().unwrap();
    assert!(grant.fence.unwrap() > fence);
    assert!(at.since(now) < Duration::from_secs(8), "woken {:?} after the release", at.since(now));
    cluster.resume(leader).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_cut_off_loses_before_the_next_one_holds() {
    let Some(cluster) = three().await else { return };
    let mut proxies = Vec::new();
    for member in 0..3 {
        proxies.push(Proxy::start(cluster.addr(member)).await.unwrap());
    }
    let addrs: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let cut_off = connect(&format!("{}/?timeout=1s", cluster.url_at(&addrs))).await;
    let other = connect(&cluster.url()).await;
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let name = format!("cut/{way:?}");
        let held = claim_of(&name, leasehold_core::Share::MUTEX, SHORT);
        let grant = take(&cut_off, &held, LONG).await.unwrap();
        let fence = grant.fence;
        let holder = Holder::start(&cut_off, &held, grant.clone());
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let waiter = waiting(&other, &mutex(&name), LONG);
        proxies.iter().for_each(|proxy| proxy.blackhole(way));
        let (next, at) = waiter.await.unwrap().unwrap();
        assert!(at >= holder.valid_until(), "granted {:?} too early", at.until(holder.valid_until()));
        assert!(next.fence > fence);
        proxies.iter().for_each(|proxy| proxy.heal().unwrap());
        tokio::time::sleep(SHORT).await;
        assert!(holder.is_lost(), "a holder that was cut off for longer than its lease still holds");
        let released = known_release(&cut_off, &held).await;
        assert!(matches!(released, Release::Gone), "{released:?}");
    }
}

/// Releases until the answer is known: a server on a busy machine may answer later than the URL allows for.
async fn known_release(backend: &EtcdBackend, claim: &Claim) -> Release {
    let limit = clock().now().after(LONG);
    loop {
        match release(backend, claim).await {
            Release::Unknown(failure) if failure.is_transient() && clock().now() < limit => {}
            known => return known,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_unknown_and_nothing_is_granted_without_a_quorum() {
    let Some(cluster) = three().await else { return };
    let backend = connect(&format!("{}/?timeout=2s", cluster.url())).await;
    let held = claim_of("quorum", leasehold_core::Share::MUTEX, LASTING * 3 / 2);
    let grant = try_take(&backend, &held).await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let other = (leader + 1) % 3;
    cluster.kill(leader).unwrap();
    cluster.kill(other).unwrap();
    let failure = backend.contend(&mutex("other"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    let renewal = renew(&backend, &held, &grant).await;
    assert!(matches!(renewal, leasehold_core::Renewal::Unknown(_)), "{renewal:?}");
    let released = release(&backend, &held).await;
    assert!(matches!(released, Release::Unknown(ref failure) if failure.is_transient()), "{released:?}");
    // Both begin at once: neither is ready before there is a quorum.
    let (first, second) = tokio::join!(cluster.restart(leader), cluster.restart(other));
    first.unwrap();
    second.unwrap();
    assert!(take(&backend, &mutex("quorum"), LONG).await.is_some(), "what nobody holds any more stays taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_or_hangs_is_passed_by() {
    let Some(cluster) = three().await else { return };
    let backend = connect(&cluster.url()).await;
    for member in 0..3 {
        cluster.stop(member).unwrap();
        let claim = mutex("passed");
        assert!(take(&backend, &claim, LONG).await.is_some());
        assert!(matches!(release(&backend, &claim).await, Release::Freed));
        cluster.resume(member).unwrap();
        cluster.leader().await.unwrap();
    }
    // One that cannot be reached at all never saw the request.
    let unreachable = Proxy::start(cluster.addr(0)).await.unwrap();
    unreachable.cut().unwrap();
    let config =
        leasehold_etcd::EtcdConfig::parse(&format!("etcd://{}/?timeout=500ms", unreachable.addr())).unwrap();
    let failure = leasehold_etcd::EtcdBackend::connect(config).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_leader_extends_no_lease() {
    let Some(cluster) = three().await else { return };
    let (first, second) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = claim_of("back", leasehold_core::Share::MUTEX, LASTING);
    let grant = try_take(&first, &held).await.unwrap();
    let holder = Holder::start(&first, &held, grant);
    let waiter = waiting(&second, &mutex("back"), LONG);
    wait_for_waiters(&second, "back", 1).await;
    let leader = cluster.leader().await.unwrap();
    cluster.stop(leader).unwrap();
    // For the leader all leases that it knew have ended when it comes back.
    tokio::time::sleep(LASTING + Duration::from_secs(3)).await;
    assert!(!holder.is_lost() && !waiter.is_finished(), "a stopped leader cost a claim");
    cluster.resume(leader).unwrap();
    tokio::time::sleep(SHORT).await;
    if first.profile().durability == Durability::Strict {
        assert!(!holder.is_lost() && !waiter.is_finished(), "a leader that came back cost a claim");
    }
    // If the server is known to revoke leases wrongly, the fence distinguishes the two, and the holder
    // sees the loss.
    if waiter.is_finished() {
        let (next, _) = waiter.await.unwrap().unwrap();
        assert!(next.fence.unwrap() > holder.fence);
        assert!(holder.is_lost(), "two hold, and neither knows");
        return;
    }
    let fence = holder.fence;
    holder.stop();
    assert!(matches!(release(&first, &held).await, Release::Freed));
    let (next, _) = waiter.await.unwrap().unwrap();
    assert!(next.fence.unwrap() > fence);
}
