//! Faults of a memcached server that affect a lock: each on the real server, in both dialects.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::*;
use futures_util::FutureExt;
use leasehold::ValueSource;
use leasehold_core::{
    Claim, Effect, FailureKind, Proof, Put, Release, Renew, Renewal, Resource, Share, Step,
};
use leasehold_testkit::{MemcachedServer, Proxy, Way};

const DIALECTS: [&str; 2] = ["native", "plain"];

fn in_dialect(url: &str, dialect: &str) -> String {
    format!("{url}?dialect={dialect}")
}

#[tokio::test]
async fn a_restart_loses_the_lock_and_raises_the_epoch() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let backend = connect(&in_dialect(&server.url(), dialect)).await;
        let held = mutex("job");
        let before = hold(&*backend, &held).await.fence.unwrap();
        server.kill().unwrap();
        let failure = try_take(&*backend, &mutex("job")).await.unwrap_err();
        assert!(failure.is_transient(), "{dialect}: {failure}");
        server.restart().await.unwrap();
        let other = mutex("job");
        let after = take(&*backend, &other).await.fence.unwrap();
        assert!(after.epoch > before.epoch && after > before, "{dialect}: {after:?} after {before:?}");
        // The numbers begin anew, so that of the successor may be the one that the holder remembers.
        assert!(matches!(release(&*backend, &held).await, Release::Gone), "{dialect}");
        assert!(matches!(renewed_at_last(&*backend, &held).await, Renewal::Lost), "{dialect}");
        assert!(
            try_take(&*backend, &mutex("job")).await.unwrap().is_none(),
            "{dialect}: the successor was freed"
        );
        assert!(freed(&*backend, &other).await, "{dialect}");
    }
}

#[tokio::test]
async fn a_server_that_was_just_started_is_used_when_it_has_settled() {
    let began = std::time::Instant::now();
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let url = format!("{}?settle=6s", server.url());
    let failure = open(&url).await.unwrap_err();
    assert!(failure.is_transient() && failure.detail().contains("settle"), "{failure}");
    let backend = loop {
        match open(&url).await {
            Ok(backend) => break backend,
            Err(failure) => {
                assert!(failure.is_transient() && began.elapsed() < Duration::from_secs(60), "{failure}")
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    // Its clock counts whole seconds.
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    hold(&*backend, &mutex("job")).await;
}

#[tokio::test]
async fn flush_all_loses_the_lock_and_fences_continue() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let backend = connect(&in_dialect(&server.url(), dialect)).await;
        let held = mutex("job");
        let before = hold(&*backend, &held).await.fence.unwrap();
        server.flush_all().await.unwrap();
        assert!(matches!(renew(&*backend, &held).await, Renewal::Lost), "{dialect}");
        let after = hold(&*backend, &mutex("job")).await.fence.unwrap();
        assert!(after > before, "{dialect}: {after:?} after {before:?}");
        assert!(matches!(release(&*backend, &held).await, Release::Gone), "{dialect}");
    }
}

/// All locks of the server share the connection on which it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn item_of_another_program_of_any_size_leaves_other_locks_alone() {
    for dialect in DIALECTS {
        let builder = MemcachedServer::builder().arg("-I").arg("8m");
        let Some(server) = builder.start_or_skip().await else { return };
        // No request runs into its timeout, which would make one more connection.
        let backend = connect(&format!("{}&timeout=60s", in_dialect(&server.url(), dialect))).await;
        let (held, taken) = (mutex("held"), mutex("taken"));
        hold(&*backend, &held).await;
        let key = if dialect == "plain" { "lock:taken" } else { "lh:taken" };
        let value = "x".repeat(2 << 20);
        let storing = format!("set {key} 0 0 {}\r\n{value}", value.len());
        server.ask(&storing, "STORED\r\n").await.unwrap();
        let connections = server.stat("total_connections").await.unwrap();
        for _ in 0..20 {
            let (outcome, renewal) = tokio::join!(try_take(&*backend, &taken), renew(&*backend, &held));
            assert!(matches!(renewal, Renewal::Renewed), "{dialect}: {renewal:?}");
            match (dialect, outcome) {
                ("plain", Ok(None)) => {}
                ("native", Err(failure)) => {
                    assert_eq!(
                        (failure.kind, failure.effect),
                        (FailureKind::Foreign, Effect::None),
                        "{failure}"
                    );
                }
                (_, outcome) => panic!("{dialect}: {outcome:?}"),
            }
        }
        // Each question to the server by the kit is a connection of its own.
        assert_eq!(server.stat("total_connections").await.unwrap(), connections + 1, "{dialect}");
        assert!(matches!(release(&*backend, &taken).await, Release::Gone | Release::Unknown(_)));
        let there = server.ask(&format!("mg {key} s"), "\r\n").await.unwrap();
        assert!(there.contains(&format!("s{}", value.len())), "{there}");
    }
}

/// The clock of the server is behind after a pause: what it stores before it sets the clock would end at once.
#[tokio::test]
async fn a_pause_of_the_server_does_not_end_a_lock_early() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    const TTL: Duration = Duration::from_secs(2);
    // The shortest life is not sure in its last second.
    const VALID: Duration = Duration::from_secs(1);
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let url = format!("{}&timeout=30s", in_dialect(&server.url(), dialect));
        let (backend, other) = (connect(&url).await, connect(&url).await);
        hold(&*backend, &mutex("before")).await;
        hold(&*other, &mutex("by-the-other")).await;
        server.stop().unwrap();
        tokio::time::sleep(TTL + VALID / 4).await;
        let asked_at = std::time::Instant::now();
        let holding: Vec<_> = NAMES
            .iter()
            .map(|name| {
                let (backend, claim) = (backend.clone(), mutex(name).ttl(TTL));
                tokio::spawn(async move { hold(&*backend, &claim).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.resume().unwrap();
        for holding in holding {
            holding.await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        for name in NAMES {
            let taken = try_take(&*other, &mutex(name)).await.unwrap();
            // Where the machine was too busy for it, nothing was tested.
            assert!(taken.is_none() || asked_at.elapsed() >= VALID, "{dialect}: {name} was given to another");
        }
    }
}

#[tokio::test]
async fn rewrites_of_a_value_do_not_extend_its_life() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (registers, at) = (backend.registers().unwrap(), Resource::new("value").unwrap());
    let keep = Duration::from_secs(20);
    let mut seen = registers.read(&at).await.unwrap();
    let mut left = Some(keep);
    for _ in 0..6 {
        let put = Put { value: Some(b"v".to_vec()), keep: left };
        registers.swap(&at, &seen.stamp, &put).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        seen = registers.read(&at).await.unwrap();
        assert!(seen.left <= left, "{:?} became {:?}", left, seen.left);
        left = seen.left;
    }
    // By whole seconds of the server.
    assert!(left <= Some(keep - Duration::from_secs(2)), "{left:?}");
}

/// The server takes a life of thirty days for a date.
#[tokio::test]
async fn a_loaded_value_is_kept_for_as_long_as_the_server_keeps_any() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let locks = leasehold::Client::builder().over(connect(&server.url()).await).unwrap();
    let day = Duration::from_secs(24 * 3600);
    for (key, ttl, stale) in
        [("ttl", day * 30, day), ("stale", day, day * 30), ("longest", Duration::MAX, day)]
    {
        let flight = locks.single_flight(key).stale_for(stale).within(day * 30);
        for expected in [ValueSource::Loaded, ValueSource::Kept] {
            let load = || async { Ok::<_, std::io::Error>(Some(b"value".to_vec())) };
            assert_eq!(flight.get_or_load(ttl, load).await.unwrap().origin, expected, "{key}");
        }
    }
}

#[tokio::test]
async fn eviction_loses_the_lock_unless_the_server_spares_short_ttls() {
    for dialect in DIALECTS {
        for spares in [false, true] {
            let builder = MemcachedServer::builder().memory_mb(8);
            let builder = if spares { builder.arg("-o").arg("temporary_ttl=3600") } else { builder };
            let Some(server) = builder.start_or_skip().await else { return };
            let backend = connect(&in_dialect(&server.url(), dialect)).await;
            // It lasts longer than the server takes to be filled, and less long than what is spared.
            let held = mutex("job").ttl(Duration::from_secs(600));
            let before = hold(&*backend, &held).await.fence.unwrap();
            // Of every size, so that the lock's own class of memory is under pressure too.
            for bytes in [60, 120, 160, 200, 260, 330] {
                server.fill(60_000, bytes).await.unwrap();
            }
            assert!(server.stat("evictions").await.unwrap() > 0);
            let renewal = renew(&*backend, &held).await;
            if spares {
                assert!(matches!(renewal, Renewal::Renewed), "{dialect}: {renewal:?}");
                continue;
            }
            assert!(matches!(renewal, Renewal::Lost), "{dialect}: {renewal:?}");
            let after = hold(&*backend, &mutex("job")).await.fence.unwrap();
            assert!(after > before, "{dialect}: {after:?} after {before:?}");
        }
    }
}

#[tokio::test]
async fn full_server_refuses_new_claims_and_leaves_the_lock_unchanged() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::builder().memory_mb(8).without_evictions().start_or_skip().await
        else {
            return;
        };
        let backend = connect(&in_dialect(&server.url(), dialect)).await;
        // It lasts longer than the server takes to be filled.
        let held = mutex("job").ttl(Duration::from_secs(600));
        hold(&*backend, &held).await;
        for bytes in (40..=500).step_by(10) {
            // Ends at the first refusal.
            _ = server.fill(60_000, bytes).await;
        }
        for _ in 0..5 {
            let busy = try_take(&*backend, &mutex("job")).await;
            assert!(busy.unwrap().is_none(), "{dialect}: the lock was given to another");
        }
        let failure = try_take(&*backend, &mutex("another")).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{dialect}");
        assert!(failure.detail().contains("memory is full"), "{dialect}: {failure}");
        let renewal = renew(&*backend, &held).await;
        let refused = matches!(&renewal, Renewal::Unknown(failure) if failure.effect == Effect::None);
        assert!(refused || matches!(renewal, Renewal::Renewed), "{dialect}: {renewal:?}");
        assert!(freed(&*backend, &held).await, "{dialect}");
    }
}

#[tokio::test]
async fn lost_answer_is_reported_and_settled_by_a_retry() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let backend = connect(&in_dialect(&server.url_at(proxy.addr()), dialect)).await;
        let ours = mutex("job");
        proxy.cut_after_request(1);
        let failure = try_take(&*backend, &ours).await.unwrap_err();
        assert_eq!(failure.effect, Effect::Unknown, "{dialect}: {failure}");
        proxy.heal().unwrap();
        let first = take(&*backend, &ours).await;
        assert_eq!(first.fence, hold(&*backend, &ours).await.fence, "{dialect}");
        let onlooker = connect(&in_dialect(&server.url(), dialect)).await;
        let seen = onlooker.inspect(&ours.resource, None, &no_patience()).await.unwrap();
        assert_eq!(seen.holders.len(), 1, "{dialect}");

        // A renewal whose answer is lost counts as none, and the next one finds the lock still its own.
        proxy.drop_replies();
        let renewal = renew(&*backend, &ours).await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{dialect}: {renewal:?}");
        proxy.heal().unwrap();
        assert!(matches!(renewed_at_last(&*backend, &ours).await, Renewal::Renewed), "{dialect}");

        proxy.cut_after_request(1);
        let answer = release(&*backend, &ours).await;
        assert!(matches!(answer, Release::Unknown(_)), "{dialect}: {answer:?}");
        proxy.heal().unwrap();
        for _ in 0..50 {
            match release(&*backend, &ours).await {
                Release::Unknown(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Release::Gone | Release::Freed => break,
            }
        }
        assert!(onlooker.inspect(&ours.resource, None, &no_patience()).await.unwrap().holders.is_empty());
    }
}

#[tokio::test]
async fn server_hang_is_unavailable_and_its_lock_is_not_granted() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let url = format!("{}&timeout=3s", in_dialect(&server.url(), dialect));
        let backend = connect(&url).await;
        let held = mutex("job");
        hold(&*backend, &held).await;
        server.stop().unwrap();
        let failure = try_take(&*backend, &mutex("job")).await.unwrap_err();
        assert!(failure.is_transient(), "{dialect}: {failure}");
        server.resume().unwrap();
        assert!(matches!(renewed_at_last(&*backend, &held).await, Renewal::Renewed), "{dialect}");
        assert!(try_take(&*backend, &mutex("job")).await.unwrap().is_none(), "{dialect}");
    }
}

#[tokio::test]
async fn dead_server_makes_its_locks_unavailable_and_others_continue() {
    let Some(servers) = MemcachedServer::several_or_skip(3).await else { return };
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("memcached://{}", hosts.join(","));
    let backend = connect(&url).await;
    let claims: Vec<_> = (0..60).map(|n| mutex(&format!("job-{n}"))).collect();
    for claim in &claims {
        hold(&*backend, claim).await;
    }
    let items = [0, 1, 2].map(|n| servers[n].stat("curr_items"));
    let items = futures_util::future::join_all(items).await;
    let items: Vec<u64> = items.into_iter().map(Result::unwrap).collect();
    assert_eq!(items.iter().sum::<u64>(), 60);
    assert!(items.iter().all(|part| *part > 0), "{items:?}");

    servers[0].kill().unwrap();
    // Another client, which starts only now, sees the same.
    let late = connect(&url).await;
    let (mut away, mut kept) = (0, 0);
    for claim in &claims {
        for client in [&backend, &late] {
            match try_take(&**client, &mutex(claim.resource.as_str())).await {
                Err(failure) => {
                    assert!(failure.is_transient(), "{failure}");
                    away += 1;
                }
                Ok(None) => kept += 1,
                Ok(Some(_)) => panic!("{:?} was given away", claim.resource),
            }
        }
    }
    assert_eq!((away, kept), (2 * items[0], 2 * (items[1] + items[2])));
    let answers = backend.release(&claims.iter().collect::<Vec<_>>()).await;
    let freed = answers.iter().filter(|answer| matches!(answer, Release::Freed)).count() as u64;
    assert_eq!(freed, items[1] + items[2]);
    assert!(answers.iter().all(|answer| !matches!(answer, Release::Gone)));
    servers[0].restart().await.unwrap();
    for claim in &claims {
        take(&*late, &mutex(claim.resource.as_str())).await;
    }
}

/// The engine asks the parts of a store apart from each other. Here a request waits for minutes, so that
/// one which concerns the hung server is never answered in time.
#[tokio::test]
async fn a_hung_server_keeps_no_lease_of_the_others_from_renewal() {
    let Some(servers) = MemcachedServer::several_or_skip(3).await else { return };
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let backend = connect(&format!("memcached://{}?timeout=5m", hosts.join(","))).await;
    let mut parts: BTreeMap<u64, Vec<Claim>> = BTreeMap::new();
    for n in 0..1_000 {
        let claim = mutex(&format!("job-{n}")).ttl(Duration::from_secs(600));
        hold(&*backend, &claim).await;
        parts.entry(backend.part(&claim)).or_default().push(claim);
    }
    let hung = servers[0].stat("curr_items").await.unwrap();
    servers[0].stop().unwrap();
    let mut renewing = tokio::task::JoinSet::new();
    for claims in parts.into_values() {
        let backend = backend.clone();
        renewing.spawn(async move {
            let proof = Proof::none();
            let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
            backend.renew(&batch).await
        });
    }
    assert_eq!(renewing.len(), 3, "a part is a server");
    let mut renewed = 0;
    for _ in 0..2 {
        let answers = tokio::time::timeout(Duration::from_secs(60), renewing.join_next()).await;
        let answers = answers.expect("it waits for the hung server").unwrap().unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
        renewed += answers.len() as u64;
    }
    assert_eq!(renewed, 1_000 - hung);
    servers[0].resume().unwrap();
    let answers = renewing.join_next().await.unwrap().unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
}

#[tokio::test]
async fn cancelled_waits_leave_nothing() {
    // By a variable, because a whole campaign takes minutes.
    let rounds = std::env::var("LEASEHOLD_MEMCACHED_CANCELS").map_or(300, |rounds| rounds.parse().unwrap());
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let url = in_dialect(&server.url(), dialect);
        let store = connect(&url).await;
        let locks = leasehold::Client::builder().over(connect(&url).await).unwrap();
        // Longer than the longest campaign.
        let mut held = mutex("job");
        held.ttl = Duration::from_secs(3_600);
        hold(&*store, &held).await;
        for round in 0..rounds {
            let mutex = locks.mutex("job").ttl(Duration::from_secs(30));
            let waiting = tokio::spawn(async move { mutex.lock().await });
            // Anywhere between before the request and after the place was taken.
            tokio::time::sleep(Duration::from_micros(round % 40 * 50)).await;
            waiting.abort();
        }
        locks.close(Duration::from_secs(10)).await;
        let mut left = usize::MAX;
        for _ in 0..100 {
            left = store.inspect(&held.resource, None, &no_patience()).await.unwrap().waiting.len();
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(left, 0, "{dialect}");
        assert!(freed(&*store, &held).await, "{dialect}");
        assert_eq!(server.stat("curr_items").await.unwrap(), 0, "{dialect}");
    }
}

/// A caller that takes a free lock writes the request itself, and reads the answer. It may leave at any point of that.
#[tokio::test]
async fn callers_that_leave_a_free_lock_leave_nothing() {
    let rounds = std::env::var("LEASEHOLD_MEMCACHED_CANCELS").map_or(300, |rounds| rounds.parse().unwrap());
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let url = in_dialect(&server.url(), dialect);
        let (locks, others) = (connect(&url).await, connect(&url).await);
        let locks = leasehold::Client::builder().over(locks).unwrap();
        let others = leasehold::Client::builder().over(others).unwrap();
        for round in 0..rounds {
            let name = format!("job-{}", round % 3);
            let mutex = locks.mutex(&name).ttl(Duration::from_secs(600));
            let taken = tokio::spawn(async move { mutex.lock().await?.release().await });
            // Anywhere between before the request and after the release.
            tokio::time::sleep(Duration::from_micros(round % 40 * 20)).await;
            taken.abort();
            if round % 10 == 0 {
                let guard = others.mutex(&name).try_lock_for(Duration::from_secs(30)).await.unwrap();
                guard.unwrap().release().await.unwrap();
            }
        }
        assert!(locks.close(Duration::from_secs(10)).await, "{dialect}");
        others.close(Duration::from_secs(10)).await;
        assert_eq!(server.stat("curr_items").await.unwrap(), 0, "{dialect}");
    }
}

/// A caller that was polled once and is left alone keeps no other one from the connection.
#[tokio::test]
async fn caller_that_is_not_polled_delays_no_other() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let backend = connect(&in_dialect(&server.url(), dialect)).await;
        let locks = leasehold::Client::builder().over(backend).unwrap();
        // A lock and a release that wait for their answers.
        let (first, second) = (locks.mutex("a"), locks.mutex("b"));
        let guard = second.lock().await.unwrap();
        let mut lock = Box::pin(first.lock());
        let mut release = Box::pin(guard.release());
        assert!(lock.as_mut().now_or_never().is_none(), "{dialect}");
        assert!(release.as_mut().now_or_never().is_none(), "{dialect}");
        for _ in 0..20 {
            let busy = locks.mutex("c").try_lock_for(Duration::from_secs(30)).await.unwrap();
            busy.unwrap().release().await.unwrap();
        }
        release.await.unwrap();
        lock.await.unwrap().release().await.unwrap();
        assert_eq!(server.stat("curr_items").await.unwrap(), 0, "{dialect}");
    }
}

/// The answer breaks off in the middle, or never comes: the outcome is unknown, and is settled.
#[tokio::test]
async fn server_that_dies_while_a_caller_reads_leaves_no_lock() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        // As long as a server that was just started has to settle.
        let url = format!("{}&timeout=3s", in_dialect(&server.url_at(proxy.addr()), dialect));
        let locks = leasehold::Client::builder().over(connect(&url).await).unwrap();
        for fault in 0..3 {
            let mutex = locks.mutex("job");
            mutex.lock().await.unwrap().release().await.unwrap();
            match fault {
                0 => proxy.cut_after_request(1),
                1 => proxy.drop_replies(),
                _ => proxy.cut().unwrap(),
            }
            let taking = tokio::spawn(async move { mutex.lock().await?.release().await });
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.heal().unwrap();
            taking.await.unwrap().unwrap();
            let mut left = u64::MAX;
            for _ in 0..200 {
                left = server.stat("curr_items").await.unwrap();
                if left == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(left, 0, "{dialect}, fault {fault}");
        }
    }
}

#[tokio::test]
async fn a_late_release_never_frees_the_next_holder() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let (slow, quick) = (
            connect(&in_dialect(&server.url(), dialect)).await,
            connect(&in_dialect(&server.url(), dialect)).await,
        );
        let mut expiring = mutex("job");
        expiring.ttl = Duration::from_secs(2);
        hold(&*slow, &expiring).await;
        let next = mutex("job");
        take(&*quick, &next).await;
        assert!(matches!(release(&*slow, &expiring).await, Release::Gone), "{dialect}");
        assert!(matches!(renew(&*slow, &expiring).await, Renewal::Lost), "{dialect}");
        assert!(try_take(&*slow, &mutex("job")).await.unwrap().is_none(), "{dialect}");
        assert!(freed(&*quick, &next).await, "{dialect}");
    }
}

#[tokio::test]
async fn many_waiters_poll_seldom() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    for dialect in DIALECTS {
        let backend = connect(&in_dialect(&server.url(), dialect)).await;
        let held = mutex(dialect);
        hold(&*backend, &held).await;
        let before = server.stat("get_hits").await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let (backend, claim) = (backend.clone(), mutex(dialect));
            waiting.spawn(async move {
                let began = std::time::Instant::now();
                while began.elapsed() < Duration::from_secs(3) {
                    let pause = match backend.contend(&claim, &endless()).await {
                        Ok(Step::Busy(hint)) => hint.ask_again_in.unwrap(),
                        Ok(Step::Granted(_)) => panic!("granted while it is held"),
                        // Too many came at once, each to write itself into the line.
                        Err(failure) => {
                            assert!(failure.is_transient(), "{failure}");
                            Duration::from_millis(50)
                        }
                    };
                    tokio::time::sleep(pause).await;
                }
                assert!(!matches!(release(&*backend, &claim).await, Release::Unknown(_)));
            });
        }
        while let Some(done) = waiting.join_next().await {
            done.unwrap();
        }
        // A few quick ones, then about two a second each; joining and leaving the line costs some, too.
        let looks = server.stat("get_hits").await.unwrap() - before;
        println!("{dialect}: {looks} looks of 40 waiters in 3 s");
        assert!(looks < 40 * 30, "{dialect}: {looks} looks of 40 waiters in 3 s");
        assert!(freed(&*backend, &held).await, "{dialect}");
    }
}

#[tokio::test]
async fn shares_of_a_capacity_are_counted_over_clients() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let (a, b) = (connect(&server.url()).await, connect(&server.url()).await);
    let permits: Vec<_> = (0..3).map(|_| claim("pool", Share::permits(1, 2).unwrap())).collect();
    let first = hold(&*a, &permits[0]).await.fence;
    let second = hold(&*b, &permits[1]).await.fence;
    assert!(second > first);
    assert!(try_take(&*a, &permits[2]).await.unwrap().is_none());
    assert!(freed(&*a, &permits[0]).await);
    assert!(hold(&*b, &permits[2]).await.fence > second);

    let plain = connect(&in_dialect(&server.url(), "plain")).await;
    let failure = try_take(&*plain, &permits[0]).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
}

/// The lease of the server begins when it decides, and that may be long before its answer comes.
#[tokio::test]
async fn grants_count_from_before_their_requests() {
    for dialect in DIALECTS {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let url = |url: &str| format!("{}&timeout=60s", in_dialect(url, dialect));
        let clients = [connect(&url(&server.url_at(proxy.addr()))).await, connect(&url(&server.url())).await];
        println!("{dialect}");
        let received = move || proxy.bytes(Way::ToClient);
        leasehold_conformance::faults::grants_count_from_before_their_requests(clients, received).await;
    }
}
