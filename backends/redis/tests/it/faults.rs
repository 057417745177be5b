//! The effects of faults of the server and the network on claims, and the failures that are reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Effect, Failure, FailureKind, Put, Release, Renew, Renewal, Share, Step};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{Data, Proxy, RedisServer, Reply, Way};

async fn refused(url: &str) -> Failure {
    RedisBackend::connect(RedisConfig::parse(url).unwrap()).await.unwrap_err()
}

/// The time that a request may take, unless the URL says another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// A waiter that nobody notifies, and that believes in its subscription, looks no sooner than after this.
const UNNOTIFIED: Duration = Duration::from_secs(15);

/// Connects by way of a proxy, with a timeout that a test can wait for.
async fn through_proxy(timeout: &str) -> Option<(RedisServer, Proxy, RedisBackend)> {
    let server = RedisServer::start_or_skip().await?;
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = connect(&format!("{}?timeout={timeout}", server.url_at(proxy.addr()))).await;
    Some((server, proxy, backend))
}

fn is(failure: &Failure, kind: FailureKind, effect: Effect) {
    assert_eq!((failure.kind, failure.effect), (kind, effect), "{failure}");
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let flush = async || server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    let claims: Vec<_> = (0..5).map(|n| mutex(&format!("job {n}"))).collect();
    for claim in &claims {
        flush().await;
        assert!(try_take(&backend, claim).await.is_some());
        flush().await;
        assert!(renewed(&backend, claim).await);
        flush().await;
        backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    }
    flush().await;
    assert_eq!(backend.list("job", None, 9).await.unwrap().len(), 5);
    flush().await;
    let released = backend.release(&claims.iter().collect::<Vec<_>>()).await;
    assert!(released.iter().all(|release| matches!(release, Release::Freed)), "{released:?}");
}

#[tokio::test]
async fn lost_answer_is_unknown_and_a_retry_gets_the_same_grant() {
    let Some((server, proxy, backend)) = through_proxy("20s").await else { return };
    let claim = mutex("job");
    // The scripts are known already, so that the answer that is lost is not that they are unknown.
    let warm = mutex("warm");
    assert!(try_take(&backend, &warm).await.is_some());
    assert!(renewed(&backend, &warm).await && freed(&backend, &warm).await);
    proxy.cut_after_request(1);
    let failure = backend.contend(&claim, &no_patience()).await.unwrap_err();
    is(&failure, FailureKind::Unavailable, Effect::Unknown);
    assert_eq!(proxy.lost_replies(), 1);
    let seen = connect(&server.url()).await.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    let fence = try_take(&backend, &claim).await.unwrap();
    assert_eq!(seen.holders[0].fence, Some(fence), "it had been granted, and is granted the same");
    assert!(try_take(&backend, &mutex("job")).await.is_none(), "a second holder was granted");

    proxy.cut_after_request(1);
    let Renewal::Unknown(failure) = renew(&backend, &claim).await else { panic!() };
    is(&failure, FailureKind::Unavailable, Effect::Unknown);
    assert!(renewed(&backend, &claim).await);

    proxy.cut_after_request(1);
    let Release::Unknown(failure) = release(&backend, &claim).await else { panic!() };
    is(&failure, FailureKind::Unavailable, Effect::Unknown);
    assert!(!freed(&backend, &claim).await, "it had been released");
    assert!(try_take(&backend, &mutex("job")).await.unwrap() > fence);
}

#[tokio::test]
async fn lost_answer_while_queued_keeps_the_place() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = connect(&format!("{}?wait=poll", server.url_at(proxy.addr()))).await;
    let (holder, first, second) = (mutex("job"), mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    proxy.cut_after_request(1);
    assert_eq!(backend.contend(&first, &endless()).await.unwrap_err().effect, Effect::Unknown);
    for waiter in [&second, &first] {
        assert!(matches!(backend.contend(waiter, &endless()).await.unwrap(), Step::Busy(_)));
    }
    let called = Instant::now();
    assert!(freed(&backend, &holder).await);
    let patience = endless();
    let [later, sooner] = [&second, &first].map(|waiter| backend.contend(waiter, &patience));
    let (later, sooner) = (later.await.unwrap(), sooner.await.unwrap());
    if may_be_passed_over(called) {
        return;
    }
    assert!(matches!((later, sooner), (Step::Busy(_), Step::Granted(_))));
}

/// The release may still arrive, and would end a later grant of the same claim.
#[tokio::test]
async fn end_of_a_wait_without_an_answer_is_marked() {
    let Some((server, proxy, backend)) = through_proxy("5s").await else { return };
    let (holder, waiter, patience) = (mutex("job"), mutex("job"), endless());
    assert!(try_take(&backend, &holder).await.is_some() && try_take(&backend, &waiter).await.is_none());
    let before = server.counts().await.unwrap();
    let waiting = async {
        let failure = backend.contend(&waiter, &patience).await.unwrap_err();
        is(&failure, FailureKind::Unavailable, Effect::Unknown);
        assert!(failure.is_release_unanswered(), "{failure:?}");
    };
    let ending = async {
        // It looks again once it has subscribed, and then it waits.
        let begun = Instant::now();
        while server.counts().await.unwrap().since(&before).of("evalsha") < 2 {
            assert!(begun.elapsed() < LIMIT, "it does not look again");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        proxy.hold(Way::ToServer);
        patience.end();
    };
    tokio::join!(waiting, ending);
}

#[tokio::test]
async fn a_server_that_is_down_is_known_not_to_have_done_anything() {
    let Some((_server, proxy, backend)) = through_proxy("20s").await else { return };
    let claim = mutex("job");
    try_take(&backend, &claim).await.unwrap();
    proxy.cut().unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..3 {
        let failure = backend.contend(&mutex("other"), &no_patience()).await.unwrap_err();
        is(&failure, FailureKind::Unavailable, Effect::None);
        assert!(failure.detail().contains(&proxy.addr().to_string()), "{failure}");
        assert!(failure.detail().contains("start the server"), "{failure}");
    }
    let failure = refused(&format!("redis://{}", proxy.addr())).await;
    is(&failure, FailureKind::Unavailable, Effect::None);
    proxy.heal().unwrap();
    assert!(still_held(&backend, &claim).await, "the backend connects again by itself");
}

#[tokio::test]
async fn a_hung_server_times_out_as_unknown_and_comes_back() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?timeout=2s", server.url())).await;
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(120));
    persist(&backend, &claim).await;
    server.stop().unwrap();
    let begun = Instant::now();
    let failure = backend.contend(&mutex("other"), &no_patience()).await.unwrap_err();
    is(&failure, FailureKind::Unavailable, Effect::Unknown);
    let Renewal::Unknown(failure) = renew(&backend, &claim).await else { panic!() };
    assert_eq!(failure.effect, Effect::Unknown);
    assert!(failure.detail().contains("did not answer within 2s"), "{failure}");
    // From now on not even a connection is made.
    let Release::Unknown(_) = release(&backend, &mutex("third")).await else { panic!() };
    assert!(begun.elapsed() < 3 * DEFAULT_TIMEOUT, "three requests took {:?}", begun.elapsed());
    server.resume().unwrap();
    assert!(still_held(&backend, &claim).await);
}

#[tokio::test]
async fn a_network_that_is_cut_is_noticed_within_the_timeout() {
    let Some((_server, proxy, backend)) = through_proxy("2s").await else { return };
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(120));
    persist(&backend, &claim).await;
    proxy.blackhole(Way::Both);
    let begun = Instant::now();
    let Renewal::Unknown(failure) = renew(&backend, &claim).await else { panic!() };
    assert!(failure.detail().contains("did not answer within 2s"), "{failure}");
    for _ in 0..2 {
        let Renewal::Unknown(_) = renew(&backend, &claim).await else { panic!() };
    }
    assert!(begun.elapsed() < 3 * DEFAULT_TIMEOUT, "three requests took {:?}", begun.elapsed());
    proxy.heal().unwrap();
    assert!(still_held(&backend, &claim).await);
}

#[tokio::test]
async fn data_loss_is_noticed_at_next_renewal_and_fences_keep_rising() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let mut last = None;
    for round in 0..3 {
        let claim = mutex("job");
        let fence = try_take(&backend, &claim).await.unwrap();
        assert!(Some(fence) > last, "{fence:?} after {last:?}");
        last = Some(fence);
        match round {
            0 => server.flushall().await.unwrap(),
            1 => server.restart(Data::Lose).await.unwrap(),
            _ => _ = server.command(&["DEL", "{lh:job}:held"]).await.unwrap(),
        }
        // The connection may not have noticed the restart yet.
        assert!(!still_held(&backend, &claim).await);
        assert!(!freed(&backend, &claim).await);
    }
    let claim = mutex("job");
    assert!(try_take(&backend, &claim).await > last);
    server.restart(Data::Keep).await.unwrap();
    assert!(still_held(&backend, &claim).await, "what survives a restart is kept");
}

#[tokio::test]
async fn evicted_keys_never_let_two_in() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    for part in ["claims", "fence", "queue", "places"] {
        let name = format!("job {part}");
        let (holder, first, second) = (mutex(&name), mutex(&name), mutex(&name));
        let fence = try_take(&backend, &holder).await.unwrap();
        for waiter in [&first, &second] {
            backend.contend(waiter, &endless()).await.unwrap();
        }
        server.command(&["DEL", &format!("{{lh:job%20{part}}}:{part}")]).await.unwrap();
        for waiter in [&first, &second] {
            assert!(matches!(backend.contend(waiter, &endless()).await.unwrap(), Step::Busy(_)), "{part}");
        }
        let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
        assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 2), "{part}");
        assert!(renewed(&backend, &holder).await, "{part}");
        assert!(try_take(&backend, &holder).await.unwrap() >= fence, "{part}");
        assert!(freed(&backend, &holder).await, "{part}");
        let mut granted = Vec::new();
        for waiter in [&first, &second, &first, &second] {
            if let Step::Granted(grant) = backend.contend(waiter, &endless()).await.unwrap() {
                granted.push(grant.fence.unwrap());
                assert!(freed(&backend, waiter).await);
            }
        }
        assert!(granted.len() >= 2 && granted.windows(2).all(|pair| pair[0] < pair[1]), "{part} {granted:?}");
        assert!(granted[0] > fence, "{part}");
    }
}

#[tokio::test]
async fn waiter_whose_entry_was_evicted_keeps_its_place() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let holder = claim_of("job", Share::MUTEX, Duration::from_secs(600));
    let (first, second) = (mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    for waiter in [&first, &second] {
        backend.contend(waiter, &endless()).await.unwrap();
    }
    server.command(&["DEL", "{lh:job}:claims"]).await.unwrap();
    assert!(matches!(backend.contend(&first, &endless()).await.unwrap(), Step::Busy(_)));
    let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.waiting.iter().map(|info| info.id).collect::<Vec<_>>(), [first.id, second.id]);
}

#[tokio::test]
async fn dead_waiter_with_an_evicted_end_blocks_no_other() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, dead, living) = (mutex("job"), mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    backend.contend(&dead, &endless()).await.unwrap();
    server.command(&["DEL", "{lh:job}:places"]).await.unwrap();
    backend.contend(&living, &endless()).await.unwrap();
    assert!(freed(&backend, &holder).await);
    assert!(matches!(backend.contend(&living, &endless()).await.unwrap(), Step::Granted(_)));
}

#[tokio::test]
async fn a_full_memory_refuses_new_claims_and_keeps_what_is_held() {
    let builder = RedisServer::builder().arg("--maxmemory-policy").arg("noeviction");
    let Some(server) = builder.start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, waiter) = (mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    backend.contend(&waiter, &endless()).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let failure = backend.contend(&mutex("other"), &no_patience()).await.unwrap_err();
    is(&failure, FailureKind::Unavailable, Effect::None);
    assert!(failure.detail().contains("maxmemory"), "{failure}");
    let rest = server.command(&["KEYS", "*other*"]).await.unwrap();
    assert_eq!(rest, Reply::Many(Vec::new()), "a refused claim has changed nothing");
    assert!(renewed(&backend, &holder).await);
    let long = holder.clone().ttl(TTL * 3);
    assert!(renewed(&backend, &long).await);
    let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert!(seen.holders[0].remaining.unwrap() > TTL * 2, "the renewal took effect");
    assert!(
        matches!(backend.contend(&waiter, &endless()).await.unwrap(), Step::Busy(_)),
        "its place is kept"
    );
    let called = Instant::now();
    assert!(freed(&backend, &long).await);
    let granted = backend.contend(&waiter, &endless()).await;
    // Without a place it is a new claim, which is refused.
    if may_be_passed_over(called) {
        return;
    }
    assert!(matches!(granted.unwrap(), Step::Granted(_)));
    assert!(freed(&backend, &waiter).await);
}

#[tokio::test]
async fn foreign_keys_are_reported_and_left_alone() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    for part in ["held", "queue", "places", "claims", "fence"] {
        let name = format!("job.{part}");
        let key = format!("{{lh:{name}}}:{part}");
        let others = if part == "fence" { "LPUSH" } else { "APPEND" };
        server.command(&[others, &key, "theirs"]).await.unwrap();
        let (claim, neighbour) = (mutex(&name), mutex("neighbour"));
        // What only waiters use does nothing to a resource without waiters; it is met by the first waiter.
        match (part, backend.contend(&claim, &patience(Duration::from_millis(50))).await) {
            ("queue" | "places" | "claims", Ok(Step::Granted(_))) => {
                let waiter = mutex(&name);
                let met = backend.contend(&waiter, &patience(Duration::from_millis(50))).await.unwrap_err();
                is(&met, FailureKind::Foreign, Effect::None);
                assert!(freed(&backend, &claim).await);
            }
            (_, outcome) => {
                let failure = outcome.unwrap_err();
                is(&failure, FailureKind::Foreign, Effect::None);
                assert!(failure.detail().contains("prefix"), "{failure}");
                assert!(try_take(&backend, &neighbour).await.is_some());
                // A foreign key must not keep others in the same batch from being renewed.
                let proof = leasehold_core::Proof::none();
                let batch = [&claim, &neighbour].map(|claim| Renew { claim, proof: &proof });
                let renewals = backend.renew(&batch).await;
                assert!(matches!(renewals[..], [Renewal::Lost, Renewal::Renewed]), "{part}: {renewals:?}");
                assert!(freed(&backend, &neighbour).await);
            }
        }
        let kind = server.command(&["TYPE", &key]).await.unwrap().into_text().unwrap();
        assert_eq!(kind, if part == "fence" { "list" } else { "string" }, "{part}");
    }
    server.command(&["SET", "{lh:text}:fence", "hello"]).await.unwrap();
    let failure = backend.contend(&mutex("text"), &no_patience()).await.unwrap_err();
    is(&failure, FailureKind::Foreign, Effect::None);
}

#[tokio::test]
async fn two_names_that_collide_are_an_error() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex(&"x".repeat(400));
    let fence = try_take(&backend, &claim).await.unwrap();
    let Reply::Many(keys) = server.command(&["KEYS", "*:fence"]).await.unwrap() else { panic!() };
    let key = keys[0].clone().into_text().unwrap();
    server.command(&["SET", &key, &format!("{} another name", fence.seq)]).await.unwrap();
    for failure in [
        backend.contend(&claim, &no_patience()).await.map(drop).unwrap_err(),
        backend.inspect(&claim.resource, None, &no_patience()).await.map(drop).unwrap_err(),
    ] {
        is(&failure, FailureKind::Foreign, Effect::None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_a_restart_of_the_server() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&format!("{}?timeout=2s", server.url())).await);
    let holder = claim_of("job", Share::MUTEX, Duration::from_secs(60));
    persist(&backend, &holder).await;
    let waiter = claim_of("job", Share::MUTEX, Duration::from_secs(60));
    let (waiting, sent) = (backend.clone(), waiter.clone());
    let task = tokio::spawn(async move {
        // As the engine does, the same claim asks again after a failure.
        loop {
            match waiting.contend(&sent, &endless()).await {
                Ok(Step::Granted(grant)) => return grant,
                Ok(Step::Busy(_)) => {}
                Err(failure) => {
                    assert!(failure.is_transient(), "{failure}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.restart(Data::Keep).await.unwrap();
    // Subscriptions are back soon, and a release is notified at once again.
    until_subscribed(&server).await;
    assert!(!task.is_finished());
    let begun = Instant::now();
    assert!(freed(&connect(&server.url()).await, &holder).await);
    task.await.unwrap();
    assert!(begun.elapsed() < UNNOTIFIED, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_poll_while_their_subscription_is_down() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let holder = claim_of("job", Share::MUTEX, Duration::from_secs(60));
    try_take(&backend, &holder).await.unwrap();
    let (waiting, waiter) = (backend.clone(), mutex("job"));
    let task = tokio::spawn(async move { take(&waiting, &waiter, &endless()).await });
    until_subscribed(&server).await;
    // The subscription ends, and no new connection is accepted; the one for commands stays.
    server.command(&["CONFIG", "SET", "maxclients", "1"]).await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    assert!(freed(&backend, &holder).await);
    assert!(task.await.unwrap().is_some());
    assert!(begun.elapsed() < UNNOTIFIED, "{:?}", begun.elapsed());
}

/// As behind a firewall that has forgotten the connection: it is not closed, and brings nothing.
#[tokio::test(flavor = "multi_thread")]
async fn subscription_that_is_silent_is_given_up() {
    let Some((server, proxy, backend)) = through_proxy("3s").await else { return };
    let other = connect(&server.url()).await;
    try_take(&other, &claim_of("job", Share::MUTEX, Duration::from_secs(600))).await.unwrap();
    let backend = Arc::new(backend);
    let waiting = backend.clone();
    let task = tokio::spawn(async move { waiting.contend(&mutex("job"), &endless()).await });
    until_subscribed(&server).await;
    proxy.hold(Way::ToClient);
    let given_up = async {
        while !matches!(&server.command(&["PUBSUB", "CHANNELS"]).await, Ok(Reply::Many(all)) if all.is_empty())
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, given_up).await.expect("it listens to what never comes");
    let commands = server.command(&["INFO", "commandstats"]).await.unwrap().into_text().unwrap();
    assert!(!commands.contains("cmdstat_unsubscribe"), "only the end of the wait ended it");
    task.abort();
}

/// Its copy may lag behind: what it has is not what the register is.
#[tokio::test]
async fn replica_neither_reads_nor_writes_a_register() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (registers, at) = (backend.registers().unwrap(), resource("job"));
    let put = |value: Option<&str>| Put { value: value.map(|value| value.into()), keep: None };
    let empty = registers.read(&at).await.unwrap().stamp;
    let written = registers.swap(&at, &empty, &put(Some("first"))).await.unwrap().unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for name in ["job", "another"] {
        assert!(registers.read(&resource(name)).await.is_err(), "{name}");
        for seen in [&empty, &written] {
            for value in [Some("second"), None] {
                assert!(
                    registers.swap(&resource(name), seen, &put(value)).await.is_err(),
                    "{name} {value:?}"
                );
            }
        }
    }
}

/// The lease of the server begins when it decides, and that may be long before its answer comes.
#[tokio::test]
async fn grants_count_from_before_their_requests() {
    for dialect in ["native", "plain", "python-redis-lock", "redisson"] {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = |url: &str| format!("{url}?dialect={dialect}&timeout=60s");
        let clients = [open(&url(&server.url_at(proxy.addr()))).await, open(&url(&server.url())).await];
        println!("{dialect}");
        let received = move || proxy.bytes(Way::ToClient);
        leasehold_conformance::faults::grants_count_from_before_their_requests(clients, received).await;
    }
}
