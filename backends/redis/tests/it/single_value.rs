//! A lock with one holder and no waiters is one string, and becomes sorted sets when a second claim comes.

use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Claim, ClaimInfo, Effect, FailureKind, Note, Release, Renewal, Share, Step};
use leasehold_redis::RedisConfig;
use leasehold_testkit::{RedisServer, Reply};

const HELD: &str = "{lh:job}:held";
/// The milliseconds by which two ends of the same key may differ; see [`end_of`].
const ROUNDED: i64 = 3;

async fn kind(server: &RedisServer) -> String {
    server.command(&["TYPE", HELD]).await.unwrap().into_text().unwrap()
}

/// Returns the number that a command answers.
async fn number(server: &RedisServer, command: &[&str]) -> i64 {
    match server.command(command).await.unwrap() {
        Reply::Int(number) => number,
        other => other.into_text().unwrap().parse().unwrap(),
    }
}

fn member(claim: &Claim) -> String {
    format!("{}:{}:{}", claim.id.to_hex(), claim.share.weight(), claim.share.capacity())
}

async fn holders(backend: &leasehold_redis::RedisBackend) -> Vec<ClaimInfo> {
    backend.inspect(&resource("job"), None, &no_patience()).await.unwrap().holders
}

#[tokio::test]
async fn refused_claim_without_a_place_leaves_the_single_value() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (holder, other) = (mutex("job"), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    let before = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert!(try_take(&backend, &other).await.is_none());
    assert!(!renewed(&backend, &other).await);
    assert!(!freed(&backend, &other).await);
    let after = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert_eq!(before.version, after.version);
    assert_eq!(kind(&server).await, "string");
    let listed = backend.list("", None, 5).await.unwrap();
    assert_eq!((listed.len(), listed[0].holders, listed[0].waiting), (1, 1, 0));
    assert!(freed(&backend, &holder).await);
    assert_eq!(kind(&server).await, "none");
    assert!(!freed(&backend, &holder).await, "it is gone");
    assert!(try_take(&backend, &other).await.is_some());
}

#[tokio::test]
async fn second_claim_keeps_what_is_known_of_the_first() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let half = Share::permits(1, 2).unwrap();
    for share in [Share::MUTEX, half] {
        let first = claim_of("job", share, Duration::from_secs(600)).note(Note::new("a:b c\n:").unwrap());
        let second = claim_of("job", share, Duration::from_secs(600));
        let fence = try_take(&backend, &first).await.unwrap();
        assert_eq!(kind(&server).await, "string");
        let end = end_of(&server, HELD).await;
        let seen = holders(&backend).await;
        let is_granted = matches!(backend.contend(&second, &endless()).await.unwrap(), Step::Granted(_));
        assert_eq!(is_granted, share == half);
        assert_eq!(kind(&server).await, "zset");
        let kept = number(&server, &["ZSCORE", HELD, &member(&first)]).await;
        // A server that is stopped between two commands of the script makes it later.
        assert!(kept >= end - ROUNDED && kept < end + 10_000, "{kept} {end}");
        for part in ["claims", "queue", "places"] {
            let key = format!("{{lh:job}}:{part}");
            let left = number(&server, &["PTTL", &key]).await;
            assert!(left > 0 || left == -2, "{key} is there for ever");
        }
        let now = holders(&backend).await.into_iter().find(|holder| holder.id == first.id).unwrap();
        assert_eq!(
            (now.fence, &now.note, now.since_unix_ms),
            (Some(fence), &first.note, seen[0].since_unix_ms)
        );
        assert_eq!(try_take(&backend, &first).await, Some(fence), "it asks again");
        assert!(renewed(&backend, &first).await);
        assert!(freed(&backend, &first).await);
        assert!(try_take(&backend, &second).await > Some(fence));
        assert!(freed(&backend, &second).await);
        let rest = server.command(&["KEYS", "*"]).await.unwrap();
        assert_eq!(rest, Reply::Many(vec![Reply::Bytes(b"{lh:job}:fence".to_vec())]));
    }
}

#[tokio::test]
async fn single_value_is_extended_and_never_shortened() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let long = claim_of("job", Share::MUTEX, Duration::from_secs(600));
    let fence = try_take(&backend, &long).await.unwrap();
    let end = async || end_of(&server, HELD).await;
    let first = end().await;
    let short = long.clone().ttl(Duration::from_secs(10));
    assert!(renewed(&backend, &short).await);
    assert_eq!(try_take(&backend, &short).await, Some(fence));
    let same = end().await;
    assert!(same.abs_diff(first) <= ROUNDED.unsigned_abs(), "{same} {first}");
    let longer = long.clone().ttl(Duration::from_secs(1200));
    assert!(renewed(&backend, &longer).await);
    let second = end().await;
    assert!(second >= first + 600_000 - ROUNDED, "{second} {first}");
    let other = long.clone().ttl(Duration::from_secs(2400)).note(Note::new("another client").unwrap());
    assert_eq!(try_take(&backend, &other).await, Some(fence), "the same claim holds the same grant");
    assert!(end().await >= second + 1_200_000 - ROUNDED);
    let seen = holders(&backend).await;
    assert_eq!((&seen[0].note, seen[0].fence), (&other.note, Some(fence)));
    assert_eq!(kind(&server).await, "string");
}

#[tokio::test]
async fn single_value_ends_with_its_lease() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (dead, next) = (mutex("job").ttl(Duration::from_secs(5)), mutex("job"));
    let begun = Instant::now();
    let fence = try_take(&backend, &dead).await.unwrap();
    // The lease begins in the server, after the request was sent and before its answer came.
    let granted = Instant::now();
    while granted.elapsed() < Duration::from_millis(5_100) {
        let asked = begun.elapsed();
        let seen = try_take(&backend, &next).await;
        assert!(seen.is_none() || begun.elapsed() >= dead.ttl, "granted before {asked:?}");
        if seen.is_some() {
            assert!(freed(&backend, &next).await);
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(take(&backend, &next, &endless()).await.unwrap().fence > Some(fence));
    assert!(!still_held(&backend, &dead).await);
    assert!(!freed(&backend, &dead).await);
    assert!(renewed(&backend, &next).await);
}

/// The fence was evicted, or deleted by hand, while its lock is held.
#[tokio::test]
async fn holder_whose_fence_was_lost_gets_a_greater_one() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let holder = mutex("job");
    let first = try_take(&backend, &holder).await.unwrap();
    server.command(&["DEL", "{lh:job}:fence"]).await.unwrap();
    let second = try_take(&backend, &holder).await.unwrap();
    assert!(second > first);
    assert_eq!(number(&server, &["GET", "{lh:job}:fence"]).await, i64::try_from(second.seq).unwrap());
    assert_eq!(try_take(&backend, &holder).await, Some(second), "it asks again");
    assert_eq!(holders(&backend).await[0].fence, Some(second));
}

/// The first commands of a client that knows sorted sets only.
#[tokio::test]
async fn older_client_is_refused_by_a_single_value() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job");
    try_take(&backend, &claim).await.unwrap();
    for command in [&["ZRANGE", HELD, "0", "16", "WITHSCORES"][..], &["ZADD", HELD, "1", "x"]] {
        let refusal = server.command(command).await.unwrap_err().to_string();
        assert!(refusal.contains("WRONGTYPE"), "{refusal}");
    }
    assert!(renewed(&backend, &claim).await && freed(&backend, &claim).await);
}

/// A client that knows sorted sets only holds its lock in one, also if the lock has no other claim.
#[tokio::test]
async fn lock_of_an_older_client_is_respected() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (older, newer) = (mutex("job"), mutex("job"));
    let now = number(&server, &["EVAL", "return tonumber(redis.call('TIME')[1])", "0"]).await * 1000;
    server.command(&["ZADD", HELD, &(now + 600_000).to_string(), &member(&older)]).await.unwrap();
    let written = format!("17:{now}:1:1:older");
    server.command(&["HSET", "{lh:job}:claims", &older.id.to_hex(), &written]).await.unwrap();
    assert!(try_take(&backend, &newer).await.is_none());
    assert!(renewed(&backend, &older).await);
    assert!(freed(&backend, &older).await);
    assert!(try_take(&backend, &newer).await.is_some());
    assert_eq!(kind(&server).await, "string");
}

#[tokio::test]
async fn foreign_string_is_reported_and_left_alone() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job");
    let id = claim.id.to_hex();
    let near = [format!("{id}:1 "), format!("{id}:1:1 "), format!("{id}:1:1 zz"), format!("{id}:1:1 17:5:1")];
    let [one, two, three, four] = near.each_ref().map(String::as_str);
    for foreign in ["", "theirs", one, two, three, four, "abc:1:1 17:5:1:1:x"] {
        server.command(&["SET", HELD, foreign]).await.unwrap();
        for failure in [
            backend.contend(&claim, &no_patience()).await.map(drop).unwrap_err(),
            backend.contend(&claim, &patience(Duration::from_millis(50))).await.map(drop).unwrap_err(),
            backend.inspect(&claim.resource, None, &no_patience()).await.map(drop).unwrap_err(),
        ] {
            assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
        }
        assert!(!renewed(&backend, &claim).await);
        assert!(matches!(release(&backend, &claim).await, Release::Unknown(_)));
        assert_eq!(server.command(&["GET", HELD]).await.unwrap(), Reply::Bytes(foreign.into()));
    }
}

#[tokio::test]
async fn full_memory_keeps_a_single_value_and_lets_it_be_released() {
    let builder = RedisServer::builder().arg("--maxmemory-policy").arg("noeviction");
    let Some(server) = builder.start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let holder = mutex("job");
    let fence = try_take(&backend, &holder).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let waiter = mutex("job");
    for failure in [
        backend.contend(&mutex("other"), &no_patience()).await.map(drop).unwrap_err(),
        backend.contend(&waiter, &patience(Duration::from_secs(10))).await.map(drop).unwrap_err(),
    ] {
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    }
    let keys = server.command(&["KEYS", "*"]).await.unwrap().into_texts().unwrap();
    assert!(
        keys.len() == 2 && kind(&server).await == "string",
        "a refused claim has changed nothing: {keys:?}"
    );
    let longer = holder.clone().ttl(TTL * 3).note(Note::new("again").unwrap());
    assert!(renewed(&backend, &longer).await);
    assert_eq!(try_take(&backend, &longer.clone().ttl(TTL * 6)).await, Some(fence));
    let seen = holders(&backend).await;
    assert!(seen[0].remaining.unwrap() > TTL * 4);
    assert_eq!(seen[0].note, longer.note);
    assert!(freed(&backend, &holder).await);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    assert!(try_take(&backend, &waiter).await.is_some());
}

/// A claim that waits outside the queue does not change the single value, and is notified of its release.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_outside_the_queue_sleeps_until_the_release() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?order=unordered", server.url())).await;
    let (holder, waiter) = (claim_of("job", Share::MUTEX, Duration::from_secs(600)), mutex("job"));
    try_take(&backend, &holder).await.unwrap();
    let patience = patience(LIMIT);
    let waiting = take(&backend, &waiter, &patience);
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = server.counts().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let used = server.counts().await.unwrap().since(&before);
        assert!(used.of("evalsha") < 20, "{:?}", used.commands);
        assert_eq!(kind(&server).await, "string");
        assert!(freed(&backend, &holder).await);
        Instant::now()
    };
    let (granted, released) = tokio::join!(waiting, releasing);
    assert!(granted.is_some() && released.elapsed() < NOTIFIED, "{:?}", released.elapsed());
}

/// A second claim that is refused in the middle does not change the first one.
#[tokio::test]
async fn refused_second_claim_leaves_the_first_its_lock() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let rules = RedisConfig::parse("redis://db").unwrap().acl_rules();
    for refused in ["+zadd", "+hset", "queue", "claims"] {
        server.flushall().await.unwrap();
        let fewer = rules.replace(&format!(" {refused} "), " ");
        let args = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"].into_iter().chain(fewer.split(' '));
        server.command(&args.collect::<Vec<_>>()).await.unwrap();
        let url = format!("redis://jobs:secret@{}?wait=poll", server.addr());
        let (backend, all) = (connect(&url).await, connect(&server.url()).await);
        let (first, second, third) = (mutex("job"), mutex("job"), mutex("job"));
        let fence = try_take(&backend, &first).await.unwrap();
        if !refused.starts_with('+') {
            server.command(&["SET", &format!("{{lh:job}}:{refused}"), "theirs"]).await.unwrap();
        }
        let failure = backend.contend(&second, &endless()).await.unwrap_err();
        assert_eq!(failure.effect, Effect::None, "{failure}");
        assert_eq!(kind(&server).await, "string", "{refused}");
        assert_eq!(server.command(&["EXISTS", "{lh:job}:places"]).await.unwrap(), Reply::Int(0));
        let met = all.contend(&third, &no_patience()).await;
        assert!(!matches!(met, Ok(Step::Granted(_))), "{refused}: a second holder");
        assert!(renewed(&backend, &first).await);
        assert_eq!(try_take(&backend, &first).await, Some(fence));
        assert!(freed(&backend, &first).await);
    }
}

/// The command PERSIST, or a backup without times, takes the expiry from the key.
#[tokio::test]
async fn lock_whose_expiry_was_removed_stays_held_until_its_renewal() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, other) = (mutex("job"), mutex("job"));
    for is_queued in [false, true] {
        try_take(&backend, &holder).await.unwrap();
        server.command(&["PERSIST", HELD]).await.unwrap();
        assert!(holders(&backend).await[0].remaining.unwrap() > Duration::from_secs(3600));
        let patience = if is_queued { endless() } else { no_patience() };
        for _ in 0..3 {
            assert!(matches!(backend.contend(&other, &patience).await.unwrap(), Step::Busy(_)));
        }
        assert!(renewed(&backend, &holder).await);
        assert!(number(&server, &["PTTL", HELD]).await > 0);
        assert!(freed(&backend, &holder).await);
    }
}

/// A server that no longer decides must not say that a claim still holds.
#[tokio::test]
async fn replica_does_not_confirm_a_single_value() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(600));
    try_take(&backend, &claim).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for ttl in [10, 600, 1200] {
        let again = claim.clone().ttl(Duration::from_secs(ttl)).note(Note::new("again").unwrap());
        assert!(backend.contend(&again, &no_patience()).await.is_err());
        assert!(matches!(renew(&backend, &again).await, Renewal::Unknown(_)));
    }
    assert!(matches!(release(&backend, &claim).await, Release::Unknown(_)));
}
