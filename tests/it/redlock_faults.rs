//! Redis servers of a quorum that die, hang, are cut off or forget, while locks are held and waited for.

use std::time::{Duration, Instant};

use leasehold::fenced::FenceGate;
use leasehold::{Client, Error, ErrorKind, Fence, FenceGrade, LossCause, Severity, Tuning};
use leasehold_conformance::calls::{claim, take};
use leasehold_testkit::{Data, Lateness, RedisQuorum, RedisServer, Reply};
use leasehold_tests::{arm, opened_with, redlock, renewed};

/// The time for which a server that has forgotten is not counted: this and a second, and the rest of one.
const SHORT: &str = "?max-ttl=900ms&timeout=300ms";
const TTL: Duration = Duration::from_millis(900);
/// The ttl of a lease that a test relies on, on however busy a machine.
const LONG: Duration = Duration::from_secs(30);
/// No step takes this long on any machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn servers(count: usize) -> Option<RedisQuorum> {
    let servers = RedisQuorum::start_or_skip(count).await?;
    arm(&redlock(&servers.hosts(), "").await).await;
    Some(servers)
}

/// A client that tolerates an outage only briefly.
async fn impatient(servers: &RedisQuorum, options: &str) -> Client {
    tuned(&servers.hosts(), options, Tuning::default().outage(Duration::from_millis(200))).await
}

async fn tuned(hosts: &str, options: &str, tuning: Tuning) -> Client {
    let url = format!("redlock://{hosts}{options}");
    opened_with(|| Client::builder().tuning(tuning.clone()), &url).await
}

/// Requests a lock until this error comes. If the servers are late, others come before it.
async fn refused(locks: &Client, is_expected: impl Fn(&Error) -> bool) {
    let began = Instant::now();
    loop {
        let error = locks.mutex("job").lock().await.unwrap_err();
        if is_expected(&error) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns `true` if the server has a lock of this resource.
async fn is_locked(server: &RedisServer, name: &str) -> bool {
    server.command(&["EXISTS".to_owned(), format!("{{lh:{name}}}:vote")]).await.unwrap() == Reply::Int(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_hangs_or_is_dead_slows_no_grant() {
    let Some(servers) = servers(5).await else { return };
    let locks = redlock(&servers.hosts(), "").await;
    servers.server(0).stop().unwrap();
    servers.server(3).kill().unwrap();
    let mut took = Vec::new();
    let lateness = Lateness::watch();
    for n in 0..15 {
        let began = Instant::now();
        let guard = locks.mutex(format!("job/{n}")).lock().await.unwrap();
        took.push(began.elapsed());
        guard.release().await.unwrap();
    }
    took.sort_unstable();
    servers.server(0).resume().unwrap();
    // A client that waited for those that are silent would take its time limit, a second, each time.
    let late = lateness.end().await;
    assert!(took[7] < Duration::from_millis(500) + late, "{took:?}, late by {late:?}");
}

/// Returns the number of scripts that a server has run.
async fn scripts(server: &RedisServer) -> u64 {
    let Reply::Bytes(text) = server.command(&["INFO", "commandstats"]).await.unwrap() else { panic!() };
    let text = String::from_utf8_lossy(&text).into_owned();
    let calls = |command: &str| {
        let (_, rest) = text.split_once(&format!("cmdstat_{command}:calls="))?;
        rest.split_once(',')?.0.parse::<u64>().ok()
    };
    calls("evalsha").unwrap_or(0) + calls("eval").unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_returns_acquires_in_one_round() {
    let Some(servers) = servers(3).await else { return };
    let (one, two) = (redlock(&servers.hosts(), "").await, redlock(&servers.hosts(), "").await);
    let mut last = None;
    for (client, other, returns) in [
        (&one, &two, false),
        (&one, &two, true),
        (&one, &two, true),
        (&two, &one, false),
        (&two, &one, true),
        (&one, &two, false),
        (&one, &two, true),
    ] {
        let mut seen: Vec<Vec<u64>> = Vec::new();
        while !seen.last().is_some_and(|run| is_as_expected(run, returns)) {
            assert!(seen.len() < 20, "{seen:?}, returns: {returns}");
            if !returns && !seen.is_empty() {
                // So that the client comes anew once more.
                cycle(&servers, other, &mut last).await;
            }
            seen.push(cycle(&servers, client, &mut last).await);
        }
    }
}

/// Returns `true` if each server of a majority ran so many scripts: the question and the end for a client that
/// returns. A server whose answer was late is asked for a withdrawal, too.
fn is_as_expected(run: &[u64], returns: bool) -> bool {
    // The second round may reach a bare majority.
    run.iter().filter(|run| if returns { **run == 2 } else { **run >= 3 }).count() >= 2
}

/// Acquires a lock and releases it. Returns the number of scripts that each server ran for that.
async fn cycle(servers: &RedisQuorum, client: &Client, last: &mut Option<Fence>) -> Vec<u64> {
    // A request that was late is not one of the next acquisition.
    let before = settled(servers).await;
    let guard = client.mutex("job").lock().await.unwrap();
    let fence = guard.fence();
    assert!(fence > *last, "{fence:?} after {last:?}");
    *last = fence;
    guard.release().await.unwrap();
    let after = settled(servers).await;
    before.iter().zip(&after).map(|(before, after)| after - before).collect()
}

/// Returns the number of scripts of each server, once no more are under way.
async fn settled(servers: &RedisQuorum) -> Vec<u64> {
    let mut before = Vec::new();
    loop {
        let mut now = Vec::new();
        for number in 0..3 {
            now.push(scripts(servers.server(number)).await);
        }
        if now == before {
            return now;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_each_server_is_named_with_its_state() {
    let Some(servers) = servers(5).await else { return };
    let locks = impatient(&servers, "?timeout=300ms").await;
    servers.server(0).kill().unwrap();
    servers.server(1).kill().unwrap();
    servers.server(2).stop().unwrap();
    let error = locks.mutex("job").lock().await.unwrap_err();
    servers.server(2).resume().unwrap();
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Unavailable), "{error}");
    assert!(text.contains("of 5 servers answered, 3 are needed"), "{text}");
    for number in 0..3 {
        assert!(text.contains(&servers.server(number).port().to_string()), "{text}");
    }
    let guard = redlock(&servers.hosts(), "").await.mutex("job").lock().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_restores_a_lock_that_a_minority_forgot() {
    let Some(servers) = servers(5).await else { return };
    let locks = tuned(&servers.hosts(), "", Tuning::default().renew_at(0.05)).await;
    let guard = locks.mutex("job").ttl(LONG).lock().await.unwrap();
    for number in [1, 4] {
        servers.server(number).restart(Data::Lose).await.unwrap();
    }
    let end = Instant::now() + LIMIT;
    while !(is_locked(servers.server(1), "job").await && is_locked(servers.server(4), "job").await) {
        assert!(Instant::now() < end, "it is not locked again on those that forgot it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    // The release does not wait for the last server.
    let end = Instant::now() + LIMIT;
    for number in 0..5 {
        while is_locked(servers.server(number), "job").await {
            assert!(Instant::now() < end, "server {number} is still locked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_data_loss_is_reported_and_blocks_until_rearmed() {
    let Some(servers) = servers(5).await else { return };
    let (locks, patient) = (impatient(&servers, "").await, redlock(&servers.hosts(), "").await);
    let guard = patient.mutex("job").ttl(TTL).lock().await.unwrap();
    let fence = guard.fence();
    // All three at once: a renewal between two restarts would put the claim back on the first.
    for number in 0..3 {
        servers.server(number).kill().unwrap();
    }
    for number in 0..3 {
        servers.server(number).restart(Data::Lose).await.unwrap();
    }
    let cause = tokio::time::timeout(LIMIT, guard.lost()).await.unwrap();
    assert!(matches!(cause, LossCause::Gone | LossCause::Expired), "{cause:?}");
    refused(&locks, |error| {
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("leasehold redlock rearm")
    })
    .await;
    let findings = locks.diagnose(TTL).await;
    assert!(findings.iter().any(|found| found.topic == "servers" && found.severity == Severity::Broken));
    let rearmed = arm(&locks).await;
    assert_eq!(rearmed.armed.len(), 5, "{rearmed:?}");
    let locks = redlock(&servers.hosts(), "").await;
    let next = locks.mutex("job").require_fencing(FenceGrade::AcrossFailover).unwrap().lock().await.unwrap();
    assert!(next.fence() > fence, "{:?} after {fence:?}", next.fence());
    assert_eq!(next.fence().unwrap().epoch, rearmed.epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_loss_on_one_server_after_another_recovers_by_itself() {
    let Some(servers) = servers(3).await else { return };
    let locks = redlock(&servers.hosts(), SHORT).await;
    let mut last = None;
    for number in 0..3 {
        servers.server(number).restart(Data::Lose).await.unwrap();
        // It counts again once it has run for longer than any lease, and a client has asked.
        let mut epochs = std::collections::BTreeSet::new();
        let end = Instant::now() + LIMIT;
        // The raise and the return are two steps; the next server must not fall between them.
        while epochs.len() < 2 || !are_marked(&servers).await {
            assert!(Instant::now() < end, "server {number} does not come back: {epochs:?}");
            let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
            assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
            last = guard.fence();
            epochs.extend(last.map(|fence| fence.epoch));
            // On a busy machine so short a lease may end before.
            let _ = guard.release().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns `true` if each of three servers has the mark that lets it vote.
async fn are_marked(servers: &RedisQuorum) -> bool {
    for number in 0..3 {
        if servers.server(number).command(&["EXISTS", "{lh:}:mark"]).await.unwrap() == Reply::Int(0) {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_servers_join_by_themselves_once_no_lease_can_be_older() {
    let Some(servers) = RedisQuorum::start_or_skip(3).await else { return };
    let locks = redlock(&servers.hosts(), SHORT).await;
    // For this client they could be older for long.
    refused(&impatient(&servers, "?timeout=1s").await, |error| {
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("never served")
    })
    .await;
    let end = Instant::now() + LIMIT;
    let guard = loop {
        match locks.mutex("job").ttl(TTL).try_lock_for(LIMIT).await {
            Ok(guard) => break guard.expect("no lease can be older any more"),
            // While one of them has joined and the others have not yet, they might have forgotten what was granted.
            Err(error) => {
                assert!(error.kind() == ErrorKind::Unsupported && Instant::now() < end, "{error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(guard.fence().unwrap().epoch > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_without_restart_counts_as_data_loss() {
    let Some(servers) = servers(3).await else { return };
    let (locks, patient) = (impatient(&servers, "").await, redlock(&servers.hosts(), "").await);
    let guard = patient.mutex("job").lock().await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    servers.server(0).flushall().await.unwrap();
    servers.server(1).kill().unwrap();
    refused(&locks, |error| error.to_string().contains("is not armed")).await;
    servers.server(1).restart(Data::Lose).await.unwrap();
    let locks = redlock(&servers.hosts(), "").await;
    arm(&locks).await;
    assert!(locks.mutex("job").lock().await.unwrap().fence() > fence);
}

/// Returns the time that the server has run, in seconds.
async fn uptime(server: &RedisServer) -> u64 {
    let Reply::Bytes(info) = server.command(&["INFO", "server"]).await.unwrap() else { panic!("no INFO") };
    let info = String::from_utf8(info).unwrap();
    info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_server_grants_no_vote_while_a_lease_is_valid() {
    let Some(servers) = servers(3).await else { return };
    let options = "?max-ttl=6s";
    let (one, two) = (redlock(&servers.hosts(), options).await, impatient(&servers, options).await);
    // The servers have run for longer than any lease.
    while uptime(servers.server(1)).await < 8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A claim that nothing renews: a renewal would lock the servers anew.
    let (old, lasts) = (claim("job", Duration::from_secs(6)), Duration::from_secs(6));
    let asked_at = Instant::now();
    take(&**one.backend(), &old).await;
    // The grant does not wait for the last server, whose request may still be under way.
    let end = Instant::now() + Duration::from_secs(60);
    for server in 0..3 {
        while !is_locked(servers.server(server), "job").await {
            assert!(Instant::now() < end, "server {server} is never asked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // As if one of the servers had not been reached.
    servers.server(2).command(&["DEL", "{lh:job}:vote"]).await.unwrap();
    servers.server(1).flushall().await.unwrap();
    loop {
        let answer = two.mutex("job").try_lock_for(Duration::from_millis(300)).await;
        if let Ok(Some(_new)) = answer {
            assert!(asked_at.elapsed() >= lasts, "two hold it after {:?}", asked_at.elapsed());
            break;
        }
        assert!(Instant::now() < end, "the other client is not granted the lock: {answer:?}");
    }
}

/// Returns the time when the server was first asked without a mark, by a client that acquires another
/// lock; it differs from `before`.
async fn noted(locks: &Client, server: &RedisServer, before: &Reply) -> Reply {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        // The grant does not wait for this server.
        locks.mutex("other").lock().await.unwrap().release().await.unwrap();
        let noted = server.command(&["GET", "{lh:}:unarmed"]).await.unwrap();
        if noted != Reply::Nil && noted != *before {
            return noted;
        }
        assert!(Instant::now() < end, "no client recorded that it has forgotten: {noted:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_server_notes_when_it_was_first_asked() {
    let Some(servers) = servers(3).await else { return };
    let two = redlock(&servers.hosts(), "").await;
    let old = two.mutex("job").ttl(Duration::from_secs(50)).lock().await.unwrap();
    servers.server(1).flushall().await.unwrap();
    let first = noted(&two, servers.server(1), &Reply::Nil).await;
    assert_eq!(servers.server(1).command(&["EXISTS", "{lh:}:mark"]).await.unwrap(), Reply::Int(0));
    // It forgets once more, and the time begins anew.
    servers.server(1).flushall().await.unwrap();
    noted(&two, servers.server(1), &first).await;
    old.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_server_rejoins_by_itself() {
    let Some(servers) = servers(3).await else { return };
    let locks = redlock(&servers.hosts(), SHORT).await;
    servers.server(0).flushall().await.unwrap();
    let mark = ["EXISTS", "{lh:}:mark"];
    let end = Instant::now() + Duration::from_secs(60);
    while servers.server(0).command(&mark).await.unwrap() == Reply::Int(0) {
        assert!(Instant::now() < end, "it does not come back");
        drop(locks.mutex("job").ttl(TTL).lock().await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let unarmed = ["EXISTS", "{lh:}:unarmed"];
    assert_eq!(servers.server(0).command(&unarmed).await.unwrap(), Reply::Int(0));
}

/// The votes are still there, and the refusal may pass within the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_refuse_writes_for_a_while_lose_no_lock() {
    let Some(servers) = servers(3).await else { return };
    let locks = tuned(&servers.hosts(), "", Tuning::default().renew_at(0.05)).await;
    let guard = locks.mutex("job").ttl(LONG).lock().await.unwrap();
    let refuse = async |least: &str| {
        for number in 0..2 {
            let setting = ["CONFIG", "SET", "min-replicas-to-write", least];
            servers.server(number).command(&setting).await.unwrap();
        }
    };
    refuse("1").await;
    // Several renewals fall into this, and the lease does not end.
    tokio::time::sleep(Duration::from_millis(4500)).await;
    guard.check().unwrap();
    refuse("0").await;
    renewed(&guard).await;
    guard.release().await.unwrap();
}

/// After a failover and the way back, a server has its run id and its mark, and lacks grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_with_replicas_are_refused() {
    let Some(servers) = RedisQuorum::start_or_skip(3).await else { return };
    let mut replicas = Vec::new();
    for member in 0..2 {
        let replica = RedisServer::builder().start().await.unwrap();
        let port = servers.server(member).port().to_string();
        replica.command(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
        servers.server(member).replicated(1).await.unwrap();
        replicas.push(replica);
    }
    let error = Client::open(&format!("redlock://{}", servers.hosts())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("has replicas"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_evict_keys_or_have_two_names_are_refused() {
    let builder = RedisServer::builder().arg("--maxmemory-policy").arg("allkeys-lru");
    if RedisQuorum::start_or_skip(1).await.is_none() {
        return;
    }
    let servers = RedisQuorum::start_with(3, builder).await.unwrap();
    let error = Client::open(&format!("redlock://{}", servers.hosts())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("noeviction"), "{error}");
    let servers = RedisQuorum::start(2).await.unwrap();
    let (one, two) = (servers.server(0).port(), servers.server(1).port());
    let url = format!("redlock://127.0.0.1:{one},localhost:{one},127.0.0.1:{two}");
    // A server that answers too late is not compared when a client opens. Its second vote never counts: see
    // `leasehold_core::quorum::VoteTally`.
    let mut opened = Client::open(&url).await;
    for _ in 0..100 {
        if opened.is_err() {
            break;
        }
        opened = Client::open(&url).await;
    }
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("two votes"), "{error}");
}

/// Breaks, on purpose, the assumption that servers are not armed while an earlier lock may be valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_stops_the_old_holder_after_a_hasty_rearm() {
    let Some(servers) = servers(5).await else { return };
    let (one, two) = (redlock(&servers.hosts(), "").await, redlock(&servers.hosts(), "").await);
    let gate = FenceGate::new(0u32);
    let old = one.mutex("job").ttl(Duration::from_secs(50)).lock().await.unwrap();
    let pass = gate.open(old.fence().unwrap()).unwrap();
    pass.access(|value| *value += 1).unwrap();
    for number in 0..5 {
        servers.server(number).restart(Data::Lose).await.unwrap();
    }
    arm(&two).await;
    let new = two.mutex("job").lock().await.unwrap();
    assert!(old.check().is_ok() && new.check().is_ok(), "the violation that this test is about");
    let entered = gate.open(new.fence().unwrap()).unwrap();
    assert!(pass.access(|value| *value += 1).is_err(), "the old holder is let in beside the new one");
    entered.access(|value| *value += 1).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let page = include_str!("../../backends/redis/src/redlock.md");
    let rules = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER jobs on >secret ")).unwrap();
    if RedisQuorum::start_or_skip(1).await.is_none() {
        return;
    }
    let builder = RedisServer::builder().acl_user("jobs", "secret", rules);
    let servers = RedisQuorum::start_with(3, builder).await.unwrap();
    let hosts = format!("jobs:secret@{}", servers.hosts());
    let one = tuned(&hosts, "", Tuning::default().renew_at(0.05)).await;
    let two = redlock(&hosts, "").await;
    arm(&one).await;
    let guard = one.mutex("job").ttl(LONG).lock().await.unwrap();
    let waiter = tokio::spawn(async move { two.mutex("job").lock().await.map(drop) });
    renewed(&guard).await;
    // Long enough for the other to listen, on a machine with time.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(one.inspect("job").await.unwrap().holders.len(), 1);
    assert_eq!(one.list("", None, 10).await.unwrap().len(), 1);
    guard.release().await.unwrap();
    tokio::time::timeout(LIMIT, waiter).await.unwrap().unwrap().unwrap();
}
