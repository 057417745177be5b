//! One server and what can go wrong with it: lost answers, late requests, revoked leases, compaction, logins.

use std::time::Duration;

use crate::common::*;
use crate::dead_waiters::parked;
use leasehold::ValueSource;
use leasehold_conformance::patience_for;
use leasehold_core::{
    Backend, Claim, Effect, FailureKind, Grant, LossCause, Patience, Put, Registers, Release, Renew, Renewal,
    Resource, Share, Step,
};
use leasehold_etcd::{EtcdBackend, EtcdConfig, EtcdProof};
use leasehold_testkit::{Certificates, Directory, EtcdCluster, Proxy, Way};

const LONG: Duration = Duration::from_secs(240);

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_same_claim_finds_its_grant() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let backend = connect(&format!("{}/?timeout=3s", server.url_at(&[proxy.addr()]))).await;
    let warm = mutex("warm");
    try_take(&backend, &warm).await.unwrap();
    freed(&backend, &warm).await;

    let claim = mutex("job");
    proxy.blackhole(Way::ToClient);
    let failure = backend.contend(&claim, &Patience::none(clock())).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown), "{failure}");
    proxy.heal().unwrap();
    let grant = try_take(&backend, &claim).await.unwrap();
    assert_eq!(claim_counts(&backend, "job").await, (1, 0));
    assert!(matches!(renew(&backend, &claim, &grant).await, Renewal::Renewed));
    freed(&backend, &claim).await;
    assert_eq!(claim_counts(&backend, "job").await, (0, 0));
}

#[tokio::test]
async fn a_request_that_arrives_after_the_release_does_nothing() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    // The same server twice: first by a way on which everything is late, then directly.
    let url = format!("{}/?servers=given&timeout=6s", server.url_at(&[proxy.addr(), server.addr(0)]));
    for round in 0..4 {
        let backend = connect(&url).await;
        let warm = mutex("warm");
        try_take(&backend, &warm).await.unwrap();
        freed(&backend, &warm).await;

        let name = format!("late/{round}");
        let claim = mutex(&name);
        proxy.hold(Way::ToServer);
        try_take(&backend, &claim).await.unwrap();
        freed(&backend, &claim).await;
        let marks = server.etcdctl(&["get", "--prefix", "leasehold/!", "--keys-only"]).unwrap();
        assert!(marks.contains("leasehold/!"), "the mark was not moved: {marks:?}");
        proxy.heal().unwrap();
        for _ in 0..20 {
            assert_eq!(claim_counts(&backend, &name).await, (0, 0), "a late request took the lock");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The client continues as before, under the new mark.
        let next = mutex(&name);
        try_take(&backend, &next).await.unwrap();
        freed(&backend, &next).await;
    }
}

/// The key of a claim whose client has returned to this name.
async fn in_a_slot(server: &EtcdCluster, backend: &EtcdBackend, name: &str) -> (Claim, Grant, String) {
    // Nobody renews some of these, on a slow machine either.
    let patient = || claim_of(name, Share::MUTEX, LONG);
    for _ in 0..2 {
        let claim = patient();
        try_take(backend, &claim).await.unwrap();
        freed(backend, &claim).await;
    }
    let claim = patient();
    let grant = try_take(backend, &claim).await.unwrap();
    (claim, grant, only_key(server, name))
}

fn only_key(server: &EtcdCluster, name: &str) -> String {
    let prefix = format!("leasehold/{name}!");
    let keys = server.etcdctl(&["get", "--prefix", &prefix, "--keys-only"]).unwrap();
    let keys: Vec<&str> = keys.split_whitespace().collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].to_owned()
}

/// A proxy in front of the server, and the URL of both: a request that the proxy holds up is repeated at
/// the server.
async fn first_through_a_proxy(server: &EtcdCluster) -> (Proxy, String) {
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    // A third of it is for the first of them, another for the second.
    let url = format!("{}/?servers=given&timeout=6s", server.url_at(&[proxy.addr(), server.addr(0)]));
    (proxy, url)
}

/// Leaves late requests time to arrive, and checks that they take nothing away.
async fn assert_still_held(backend: &EtcdBackend, claim: &Claim, grant: &Grant) {
    for _ in 0..20 {
        assert_held(backend, claim, grant).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn assert_held(backend: &EtcdBackend, claim: &Claim, grant: &Grant) {
    assert!(matches!(renew(backend, claim, grant).await, Renewal::Renewed));
    let seen = backend.inspect(&claim.resource, None, &Patience::none(clock())).await.unwrap();
    let ids: Vec<_> = seen.holders.iter().map(|info| info.id).collect();
    assert_eq!((ids, seen.holders[0].fence), (vec![claim.id], grant.fence));
}

#[tokio::test]
async fn returning_client_reuses_one_key() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (first, grant, key) = in_a_slot(&server, &backend, "job").await;
    assert_held(&backend, &first, &grant).await;
    freed(&backend, &first).await;
    let (mut before, mut last) = (first, grant);
    for _ in 0..20 {
        let next = mutex("job");
        let grant = try_take(&backend, &next).await.unwrap();
        assert_eq!(only_key(&server, "job"), key);
        assert!(grant.fence > last.fence);
        assert_held(&backend, &next, &grant).await;
        // The claim that had the key before can neither release nor renew it.
        assert!(matches!(release(&backend, &before).await, Release::Gone));
        assert!(matches!(renew(&backend, &before, &last).await, Renewal::Lost));
        assert!(try_take(&backend, &mutex("job")).await.is_none());
        assert_held(&backend, &next, &grant).await;
        freed(&backend, &next).await;
        (before, last) = (next, grant);
    }
}

#[tokio::test]
async fn a_release_that_arrives_late_spares_the_next_claim() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (proxy, url) = first_through_a_proxy(&server).await;
    for round in 0..2 {
        let backend = connect(&url).await;
        let name = format!("late/{round}");
        let (claim, _, _) = in_a_slot(&server, &backend, &name).await;
        proxy.hold(Way::ToServer);
        freed(&backend, &claim).await;
        let next = mutex(&name);
        let grant = try_take(&backend, &next).await.unwrap();
        proxy.heal().unwrap();
        assert_still_held(&backend, &next, &grant).await;
        freed(&backend, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_arrives_late_spares_the_same_claim() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (proxy, url) = first_through_a_proxy(&server).await;
    let other = connect(&server.url()).await;
    for round in 0..8 {
        let backend = connect(&url).await;
        let name = format!("late/{round}");
        let (held, claim) = (claim_of(&name, Share::MUTEX, LONG), claim_of(&name, Share::MUTEX, LONG));
        try_take(&other, &held).await.unwrap();
        let patience = Patience::unlimited(clock());
        let (waits, waited, ends) = (backend.clone(), claim.clone(), patience.clone());
        let waiter = tokio::spawn(async move { waits.contend(&waited, &ends).await.unwrap() });
        wait_for_waiters(&other, &name, 1).await;
        // The first server does not answer the request that ends the place, and the second one does.
        proxy.hold(Way::ToServer);
        patience.end();
        assert!(matches!(waiter.await.unwrap(), Step::Busy(_)));
        freed(&other, &held).await;
        let grant = try_take(&backend, &claim).await.unwrap();
        proxy.heal().unwrap();
        assert_still_held(&backend, &claim, &grant).await;
        freed(&backend, &claim).await;
    }
}

#[tokio::test]
async fn a_place_that_is_asked_for_late_is_not_the_next_claims() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (proxy, url) = first_through_a_proxy(&server).await;
    for round in 0..2 {
        let backend = connect(&url).await;
        let name = format!("late/{round}");
        let (claim, _, _) = in_a_slot(&server, &backend, &name).await;
        freed(&backend, &claim).await;
        let doubtful = mutex(&name);
        proxy.hold(Way::ToServer);
        try_take(&backend, &doubtful).await.unwrap();
        freed(&backend, &doubtful).await;
        let next = mutex(&name);
        let grant = try_take(&backend, &next).await.unwrap();
        proxy.heal().unwrap();
        assert_still_held(&backend, &next, &grant).await;
        freed(&backend, &next).await;
        assert_eq!(claim_counts(&backend, &name).await, (0, 0), "a late request took the lock");
    }
}

#[tokio::test]
async fn a_claim_in_a_slot_can_be_broken_and_its_successor_is_spared() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let (claim, grant, key) = in_a_slot(&server, &holder, "job").await;
    let seen = operator.inspect(&claim.resource, None, &Patience::none(clock())).await.unwrap();
    let shown = mutex("job").id(seen.holders[0].id);
    freed(&operator, &shown).await;
    assert!(matches!(renew(&holder, &claim, &grant).await, Renewal::Lost));
    // A lost claim was not released: its key is not used again.
    let next = mutex("job");
    let grant = try_take(&holder, &next).await.unwrap();
    assert_ne!(only_key(&server, "job"), key);
    freed(&holder, &next).await;
    let after = mutex("job");
    let later = try_take(&holder, &after).await.unwrap();
    assert!(later.fence > grant.fence);
    for gone in [&shown, &next] {
        assert!(matches!(release(&operator, gone).await, Release::Gone));
    }
    assert_held(&holder, &after, &later).await;
}

#[tokio::test]
async fn a_claim_in_a_slot_is_the_same_claim_for_another_client() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (first, second) = (connect(&server.url()).await, connect(&server.url()).await);
    // Who waits for it has put a key of its own first, and takes that away again.
    let (claim, grant, _) = in_a_slot(&server, &first, "waited").await;
    let again = take(&second, &claim, LONG).await.unwrap();
    assert_eq!((again.fence, claim_counts(&first, "waited").await), (grant.fence, (1, 0)));
    assert_held(&second, &claim, &again).await;
    freed(&second, &claim).await;
    let (claim, grant, key) = in_a_slot(&server, &first, "job").await;
    for _ in 0..3 {
        let again = try_take(&second, &claim).await.unwrap();
        assert_eq!(again.fence, grant.fence);
        let waited = take(&second, &claim, LONG).await.unwrap();
        assert_eq!(waited.fence, grant.fence);
        assert_eq!(only_key(&server, "job"), key);
        assert_held(&second, &claim, &again).await;
    }
    freed(&second, &claim).await;
    assert!(matches!(renew(&first, &claim, &grant).await, Renewal::Lost));
    // Taken once more, it has a key of the client that took it.
    let again = try_take(&second, &claim).await.unwrap();
    assert!(again.fence > grant.fence);
    assert_ne!(only_key(&server, "job"), key);
    freed(&second, &claim).await;
    assert_eq!(claim_counts(&first, "job").await, (0, 0));
}

#[tokio::test]
async fn release_with_a_lost_answer_reports_its_real_outcome() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let url = format!("{}/?servers=given&timeout=6s", server.url_at(&[proxy.addr(), server.addr(0)]));
    let backend = connect(&url).await;
    let claim = mutex("job");
    try_take(&backend, &claim).await.unwrap();
    proxy.blackhole(Way::ToClient);
    assert!(matches!(release(&backend, &claim).await, Release::Freed));
    assert_eq!(claim_counts(&backend, "job").await, (0, 0));
    assert!(matches!(release(&backend, &claim).await, Release::Gone));
}

#[tokio::test]
async fn a_claim_that_was_broken_is_lost_at_its_next_renewal() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, operator) = (connect(&server.url()).await, connect(&server.url()).await);
    let claim = mutex("job");
    let grant = try_take(&holder, &claim).await.unwrap();
    let proof = grant.proof.get::<EtcdProof>().unwrap();
    assert_eq!(proof.create_revision().unsigned_abs(), grant.fence.unwrap().seq);
    freed(&operator, &claim).await;
    let next = mutex("job");
    try_take(&operator, &next).await.unwrap();
    assert!(matches!(renew(&holder, &claim, &grant).await, Renewal::Lost));
    assert_eq!(grant.lost.as_ref().and_then(|lost| lost.cause()), Some(LossCause::Gone));
    // Granted once more it has another fence, and the old proof renews nothing.
    freed(&operator, &next).await;
    let again = try_take(&holder, &claim).await.unwrap();
    assert!(again.fence > grant.fence);
    assert!(matches!(renew(&holder, &claim, &grant).await, Renewal::Lost));
    assert!(matches!(renew(&holder, &claim, &again).await, Renewal::Renewed));
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_lease_is_reported_and_its_waiter_queues_again() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (first, second) = (connect(&server.url()).await, connect(&server.url()).await);
    let (held, waits) = (claim_of("job", Share::MUTEX, LONG), mutex("job"));
    let grant = try_take(&first, &held).await.unwrap();
    let waiter = waiting(&second, &waits, LONG);
    wait_for_waiters(&second, "job", 1).await;
    // From now on its key stays on one lease.
    parked(&server, "job", 1).await;
    // The waiter's lease ends. The waiter must be queued again, and not take the end of its own key for
    // its turn.
    let key =
        server.etcdctl(&["get", "--prefix", "leasehold/job!", "--sort-by=CREATE", "-w", "fields"]).unwrap();
    let leases = server.etcdctl(&["lease", "list"]).unwrap();
    let leases: Vec<&str> = leases.lines().skip(1).collect();
    let lease_of = |nth: usize| {
        let lines = key.lines().filter_map(|line| line.strip_prefix("\"Lease\" : "));
        let lease: i64 = lines.collect::<Vec<_>>()[nth].trim().parse().unwrap();
        format!("{lease:016x}")
    };
    assert!(leases.contains(&lease_of(1).as_str()), "{leases:?} {key}");
    server.etcdctl(&["lease", "revoke", &lease_of(1)]).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    wait_for_waiters(&second, "job", 1).await;
    assert!(!waiter.is_finished(), "granted beside the holder");
    // And the holder's: it learns at its next renewal, the waiter at once.
    server.etcdctl(&["lease", "revoke", &lease_of(0)]).unwrap();
    let (next, _) = waiter.await.unwrap().unwrap();
    assert!(next.fence > grant.fence);
    assert!(matches!(renew(&first, &held, &grant).await, Renewal::Lost));
    assert!(grant.lost.unwrap().cause().is_some());
    freed(&second, &waits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_compacted_while_the_watch_was_down_is_not_missed() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let first = connect(&server.url()).await;
    let second = connect(&format!("{}/?timeout=4s", server.url_at(&[proxy.addr()]))).await;
    for round in 0..3 {
        let name = format!("compacted/{round}");
        let (held, waits) = (mutex(&name), mutex(&name));
        try_take(&first, &held).await.unwrap();
        let waiter = waiting(&second, &waits, LONG);
        wait_for_waiters(&first, &name, 1).await;
        proxy.cut().unwrap();
        freed(&first, &held).await;
        let other = mutex("other");
        let grant = try_take(&first, &other).await.unwrap();
        let revision = grant.fence.unwrap().seq.to_string();
        server.etcdctl(&["compact", &revision, "--physical"]).unwrap();
        freed(&first, &other).await;
        proxy.heal().unwrap();
        waiter.await.unwrap().expect("the waiter slept through a release that was compacted away");
        freed(&second, &waits).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_hangs_is_noticed() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let first = connect(&server.url()).await;
    let second =
        connect(&format!("{}/?servers=given&timeout=2s", server.url_at(&[proxy.addr(), server.addr(0)])))
            .await;
    let (held, waits) = (mutex("job"), mutex("job"));
    try_take(&first, &held).await.unwrap();
    let waiter = waiting(&second, &waits, LONG);
    wait_for_waiters(&first, "job", 1).await;
    proxy.blackhole(Way::Both);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let freed_at = clock().now();
    freed(&first, &held).await;
    let (_, at) = waiter.await.unwrap().unwrap();
    // Unless it is noticed, the waiter sleeps until its patience ends.
    assert!(at.since(freed_at) < LONG / 2, "noticed after {:?}", at.since(freed_at));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ran_out_is_fetched_anew() {
    let builder = EtcdCluster::builder().arg("--auth-token-ttl=1");
    let Some(server) = builder.start_or_skip().await else { return };
    for args in [
        "user add root:root",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks readwrite leasehold/ --prefix=true",
        "role add guest",
        "role grant-permission guest readwrite guest/ --prefix=true",
        "user add jobs:secret",
        "user grant-role jobs locks",
        "user add guest:secret",
        "user grant-role guest guest",
        "auth enable",
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        // The first role exists from the beginning on some versions.
        server.etcdctl(&args).unwrap();
    }
    let login = |login: &str| server.url().replace("etcd://", &format!("etcd://{login}@"));
    let (first, second) = (connect(&login("jobs:secret")).await, connect(&login("jobs:secret")).await);
    let (held, waits) = (mutex("job"), mutex("job"));
    // No failure is ignored.
    let waiting = || {
        let (second, waits) = (second.clone(), waits.clone());
        tokio::spawn(async move { second.contend(&waits, &patience_for(&clock(), LONG)).await })
    };
    let grant = try_take(&first, &held).await.unwrap();
    let waiter = waiting();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(matches!(renew(&first, &held, &grant).await, Renewal::Renewed));
    assert_eq!(claim_counts(&first, "job").await, (1, 1));
    freed(&first, &held).await;
    assert!(matches!(waiter.await.unwrap().unwrap(), Step::Granted(_)));
    freed(&second, &waits).await;
    // The stream of watches stays open, and its token runs out as well: nothing is sent meanwhile.
    tokio::time::sleep(Duration::from_secs(4)).await;
    try_take(&first, &held).await.unwrap();
    let waiter = waiting();
    wait_for_waiters(&first, "job", 1).await;
    freed(&first, &held).await;
    assert!(matches!(waiter.await.unwrap().unwrap(), Step::Granted(_)));
    freed(&second, &waits).await;

    for (url, hint) in [
        (server.url(), "user:password"),
        (login("jobs:wrong"), "check user and password"),
        (login("guest:secret"), "readwrite"),
    ] {
        let failure = EtcdBackend::connect(EtcdConfig::parse(&url).unwrap()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
        assert!(failure.detail().contains(hint), "{failure}");
    }
    let guest = connect(&format!("{}/?prefix=guest/", login("guest:secret"))).await;
    let claim = mutex("job");
    try_take(&guest, &claim).await.unwrap();
    freed(&guest, &claim).await;
}

#[tokio::test]
async fn tls_is_verified_both_ways() {
    let Some(server) = EtcdCluster::builder().tls().start_or_skip().await else { return };
    let certificates = server.certificates().unwrap();
    let (ca, client) = (certificates.ca_path().display(), certificates.client());
    let identity = format!("&cert={}&key={}", client.certificate.display(), client.key.display());
    let url = format!("{}/?ca={ca}{identity}&timeout=10s", server.url());
    let backend = connect(&url).await;
    let claim = mutex("job");
    try_take(&backend, &claim).await.unwrap();
    freed(&backend, &claim).await;

    for bad in [
        format!("{}/?ca={ca}&timeout=1s", server.url()),
        format!("{}/?timeout=1s{identity}", server.url()),
        format!("{}/?timeout=1s", server.url().replace("etcds", "etcd")),
    ] {
        let failure = EtcdBackend::connect(EtcdConfig::parse(&bad).unwrap()).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    }
}

/// A server whose certificate is of another authority from now on is trusted once the file names that authority.
#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let Some(server) = EtcdCluster::builder().tls().start_or_skip().await else { return };
    let (first, directory) = (server.certificates().unwrap(), Directory::create("renewed").unwrap());
    let renewed = Certificates::create(&directory).unwrap();
    let (ca, client) = (directory.path().join("trusted.crt"), first.client());
    std::fs::copy(first.ca_path(), &ca).unwrap();
    let files = [("ca", &ca), ("cert", &client.certificate), ("key", &client.key)];
    let files = files.map(|(option, path)| format!("{option}={}", path.display())).join("&");
    let backend = connect(&format!("{}/?{files}&timeout=10s", server.url())).await;
    let claim = mutex("job");
    try_take(&backend, &claim).await.unwrap();
    freed(&backend, &claim).await;

    std::fs::copy(&renewed.server().certificate, &first.server().certificate).unwrap();
    std::fs::copy(&renewed.server().key, &first.server().key).unwrap();
    std::fs::copy(renewed.ca_path(), &ca).unwrap();
    server.kill(0).unwrap();
    server.restart(0).await.unwrap();
    assert!(take(&backend, &mutex("job"), Duration::from_secs(60)).await.is_some(), "the old files are used");
    // A file that cannot be read is named.
    std::fs::remove_file(&ca).unwrap();
    server.kill(0).unwrap();
    server.restart(0).await.unwrap();
    let (limit, mut text) = (clock().now().after(Duration::from_secs(60)), String::new());
    while !text.contains("trusted.crt cannot be read") {
        assert!(clock().now() < limit, "{text}");
        let failure = backend.contend(&mutex("other"), &Patience::none(clock())).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
        text = failure.to_string();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_value_is_not_brought_back_by_a_late_put() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (proxy, url) = first_through_a_proxy(&server).await;
    let other = connect(&server.url()).await;
    for round in 0..2 {
        let backend = connect(&url).await;
        let at = Resource::new(&format!("offer/{round}")).unwrap();
        let absent = backend.read(&at).await.unwrap();
        assert_eq!(absent.value, None);
        proxy.hold(Way::ToServer);
        let put = Put { value: Some(b"offer".to_vec()), keep: None };
        let put = backend.swap(&at, &absent.stamp, &put).await.unwrap().expect("nobody else wrote");
        let removed = other.swap(&at, &put, &Put { value: None, keep: None }).await.unwrap();
        assert_eq!(other.read(&at).await.unwrap().stamp, removed.clone().expect("it was there"));
        proxy.heal().unwrap();
        for _ in 0..20 {
            assert_eq!(other.read(&at).await.unwrap().value, None, "a late put brought it back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What was absent before is another state than what is absent now.
        let again = Put { value: Some(b"again".to_vec()), keep: None };
        assert_eq!(other.swap(&at, &absent.stamp, &again).await.unwrap(), None);
        assert!(other.swap(&at, &removed.unwrap(), &again).await.unwrap().is_some());
    }
}

/// A lease is longer than was asked for, and a failed load puts the value on a new one.
#[tokio::test]
async fn a_loaded_value_is_fresh_for_its_own_time_and_not_for_that_of_its_lease() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let locks = leasehold::Client::builder().over(connect(&server.url()).await).unwrap();
    let flight = locks.single_flight("page").stale_for(Duration::from_secs(600)).early(0.0);
    let (ttl, asked_at) = (Duration::from_secs(1), std::time::Instant::now());
    let load = || async { Ok::<_, std::io::Error>(Some(b"old".to_vec())) };
    assert_eq!(flight.get_or_load(ttl, load).await.unwrap().origin, ValueSource::Loaded);
    let kept = flight.get().await.unwrap().unwrap().origin;
    assert!(kept == ValueSource::Kept || asked_at.elapsed() >= ttl, "not fresh for {ttl:?}");
    tokio::time::sleep(ttl * 2).await;
    for _ in 0..3 {
        assert_eq!(flight.get().await.unwrap().unwrap().origin, ValueSource::Stale);
        let fail = || async { Err::<Option<Vec<u8>>, _>(std::io::Error::other("the source is down")) };
        assert_eq!(flight.get_or_load(ttl, fail).await.unwrap().origin, ValueSource::Stale);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_server_with_small_transactions_is_served_in_small_ones() {
    let Some(server) = EtcdCluster::builder().arg("--max-txn-ops=8").start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claims: Vec<_> = (0..50).map(|n| mutex(&format!("many/{n}"))).collect();
    let mut grants = Vec::new();
    for claim in &claims {
        grants.push(try_take(&backend, claim).await.unwrap());
    }
    let renews: Vec<_> =
        claims.iter().zip(&grants).map(|(claim, grant)| Renew { claim, proof: &grant.proof }).collect();
    let renewals = backend.renew(&renews).await;
    assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewed)), "{renewals:?}");
    let claims: Vec<_> = claims.iter().collect();
    let releases = backend.release(&claims).await;
    assert!(releases.iter().all(|release| matches!(release, Release::Freed)), "{releases:?}");
}

#[tokio::test]
async fn key_that_is_not_a_claim_is_left_alone() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    server.etcdctl(&["put", "leasehold/job!mine", "precious"]).unwrap();
    let failure = backend.contend(&mutex("job"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    assert!(server.etcdctl(&["get", "leasehold/job!mine"]).unwrap().contains("precious"));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_two_clusters_are_not_taken_for_one() {
    let (Some(ours), Some(other)) = (EtcdCluster::start_or_skip().await, EtcdCluster::start_or_skip().await)
    else {
        return;
    };
    let servers = ours.url_at(&[ours.addr(0), other.addr(0)]);
    let url = |timeout: &str| format!("{servers}/?servers=given&timeout={timeout}");
    let config = leasehold_etcd::EtcdConfig::parse(&url("20s")).unwrap();
    let failure = leasehold_etcd::EtcdBackend::connect(config).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
    assert!(failure.detail().contains(&other.addr(0).to_string()), "{failure}");
    // A server that is silent at first is detected when it answers for the other.
    other.stop(0).unwrap();
    let backend = connect(&url("6s")).await;
    let held = claim_of("one", Share::MUTEX, LONG);
    let grant = try_take(&backend, &held).await.unwrap();
    other.resume(0).unwrap();
    ours.kill(0).unwrap();
    let failure = backend.contend(&mutex("two"), &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    let renewal = renew(&backend, &held, &grant).await;
    assert!(matches!(renewal, leasehold_core::Renewal::Unknown(_)), "{renewal:?}");
    ours.restart(0).await.unwrap();
    let grant = take(&backend, &mutex("three"), Duration::from_secs(60)).await;
    assert!(grant.is_some(), "the client stays at the server of the other cluster");
}

/// Lets many writes reach the quota together: a server then carries out some of those that it reports as refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_server_refuses_is_not_reported_as_without_effect() {
    let builder = EtcdCluster::builder().arg("--quota-backend-bytes=4194304");
    let Some(server) = builder.start_or_skip().await else { return };
    let backend = connect(&format!("{}/?timeout=60s", server.url())).await;
    let value = vec![b'x'; 256 * 1024];
    let mut refused = 0;
    // The server looks at the size of its file, which it writes a moment later: it may take all of a round.
    for round in 0..16 {
        let writes = (0..64).map(|n| {
            let (backend, value) = (backend.clone(), value.clone());
            tokio::spawn(async move {
                let at = Resource::new(&format!("full/{round}/{n}")).unwrap();
                let seen = backend.read(&at).await.unwrap();
                (backend.swap(&at, &seen.stamp, &Put { value: Some(value), keep: None }).await, at)
            })
        });
        for write in futures_util::future::join_all(writes).await {
            let (Err(failure), at) = write.unwrap() else { continue };
            refused += 1;
            assert!(failure.detail().contains("etcdctl alarm disarm"), "{failure}");
            let is_written = backend.read(&at).await.unwrap().value.is_some();
            assert!(!is_written || failure.effect == Effect::Unknown, "{at:?} was written: {failure:?}");
        }
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "16 × 64 × 256 KiB fit into 4 MiB");
    // A claim that was refused leaves nothing once it is released.
    let claim = mutex("full");
    let failure = backend.contend(&claim, &Patience::none(clock())).await.unwrap_err();
    assert!(failure.detail().contains("etcdctl alarm disarm"), "{failure}");
    assert!(matches!(release(&backend, &claim).await, Release::Gone));
    assert_eq!(claim_counts(&backend, "full").await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predecessor_that_went_in_a_compacted_revision_is_noticed() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let slow = connect(&format!("{}/?timeout=20s", server.url_at(&[proxy.addr()]))).await;
    let fast = connect(&server.url()).await;
    // So that its leases are there before its requests are slow.
    let warm = mutex("warm");
    try_take(&slow, &warm).await.unwrap();
    let held = mutex("compacted");
    try_take(&fast, &held).await.unwrap();
    proxy.delay(Way::ToServer, Duration::from_millis(700));
    let waiter = waiting(&slow, &mutex("compacted"), LONG);
    wait_for_waiters(&fast, "compacted", 1).await;
    // It has seen the holder ahead of it, and its watch is on the way: the next revision is the delete,
    // and is compacted away.
    assert!(matches!(release(&fast, &held).await, Release::Freed));
    let revision = server.etcdctl(&["get", "nothing", "--write-out=fields"]).unwrap();
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().to_owned();
    server.etcdctl(&["compact", &revision]).unwrap();
    let limit = tokio::time::timeout(LONG / 2, waiter).await;
    assert!(limit.expect("a waiter sleeps on although nobody holds").unwrap().is_some());
}

/// The server decides when a request arrives, and that may be long before its answer comes.
#[tokio::test]
async fn grants_count_from_before_their_requests() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let by_proxy = format!("{}/?servers=given&timeout=60s", server.url_at(&[proxy.addr()]));
    let here: std::sync::Arc<dyn Backend> = connect(&by_proxy).await;
    let there: std::sync::Arc<dyn Backend> = connect(&server.url()).await;
    let received = move || proxy.bytes(Way::ToClient);
    leasehold_conformance::faults::grants_count_from_before_their_requests([here, there], received).await;
}

/// A try that no look keeps up with joins the queue for a moment. It takes nothing there past a claim that excludes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_is_always_overtaken_is_refused_behind_a_writer() {
    const LOOKS: u64 = 4;
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let other = connect(&server.url()).await;
    let tries = connect(&format!("{}/?servers=given&timeout=60s", server.url_at(&[proxy.addr()]))).await;
    // Its lease is there before its requests are slow.
    let warm = claim_of("warm", Share::READER, LONG);
    try_take(&tries, &warm).await.unwrap();
    freed(&tries, &warm).await;
    for round in 0..10 {
        let of = |share| claim_of(&format!("doc/{round}"), share, LONG);
        proxy.delay(Way::ToServer, Duration::from_millis(400));
        let before = proxy.round_trips();
        let (reader, writer) = (of(Share::READER), of(Share::WRITER));
        let trying = {
            let (tries, reader) = (tries.clone(), reader.clone());
            tokio::spawn(async move { try_take(&tries, &reader).await })
        };
        // Each of its looks finds a reader that has come since the one before.
        let mut last = of(Share::READER);
        try_take(&other, &last).await.unwrap();
        while proxy.round_trips() < before + LOOKS && !trying.is_finished() {
            let next = of(Share::READER);
            try_take(&other, &next).await.unwrap();
            freed(&other, &std::mem::replace(&mut last, next)).await;
        }
        let waits = waiting(&other, &writer, LONG);
        let granted = trying.await.unwrap();
        let looks = proxy.round_trips() - before;
        proxy.heal().unwrap();
        freed(&other, &last).await;
        if granted.is_some() {
            freed(&tries, &reader).await;
        }
        let (first, _) = waits.await.unwrap().unwrap();
        freed(&other, &writer).await;
        match granted {
            Some(grant) => assert!(grant.fence < first.fence, "{grant:?} has passed the writer of {first:?}"),
            // It has joined the queue, and has left it.
            None if looks > LOOKS + 1 => return,
            None => {}
        }
        println!("{looks} looks found no writer ahead, or found it too early");
    }
    panic!("ten tries did not come that far");
}
