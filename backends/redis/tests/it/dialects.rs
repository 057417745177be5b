//! The dialects of other libraries: what is written, what is left alone, and what is said about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::any::{self, freed, got, release, renew, renewed};
use crate::common::{TTL, claim_of, endless, is_before_7, mutex, no_patience, open, patience};
use leasehold_core::{
    Backend, Claim, Effect, Failure, FailureKind, Fence, Note, Release, Renewal, Share, Step,
};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{RedisCluster, RedisServer, Reply};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

const DIALECTS: [&str; 3] = ["plain", "python-redis-lock", "redisson"];

/// A server, and a connection in this dialect.
async fn open_dialect(options: &str) -> Option<(RedisServer, Arc<dyn Backend>)> {
    let server = RedisServer::start_or_skip().await?;
    let backend = open(&format!("{}?dialect={options}", server.url())).await;
    Some((server, backend))
}

async fn text(server: &RedisServer, args: &[&str]) -> String {
    match server.command(args).await.unwrap() {
        Reply::Bytes(bytes) => bytes.escape_ascii().to_string(),
        Reply::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

async fn refused(backend: &dyn Backend, claim: &Claim) -> Failure {
    backend.contend(claim, &no_patience()).await.unwrap_err()
}

#[tokio::test]
async fn a_plain_lock_is_a_string_under_its_own_name() {
    let Some((server, backend)) = open_dialect("plain").await else { return };
    let claim = mutex("orders 42/é").note(Note::new("host 7").unwrap());
    assert!(got(&*backend, &claim).await);
    let written = format!("{}:host 7", claim.id.to_hex());
    assert_eq!(server.command(&["GET", "orders 42/é"]).await.unwrap(), Reply::Bytes(written.into()));
    let left: u64 = text(&server, &["PTTL", "orders 42/é"]).await.parse().unwrap();
    assert!(left <= 10_000 && left > 5_000, "{left}");
    assert!(freed(&*backend, &claim).await);
    let silent = mutex("b").note(Note::default());
    assert!(got(&*backend, &silent).await);
    assert_eq!(text(&server, &["GET", "b"]).await, format!("{}:", silent.id.to_hex()));
    assert!(freed(&*backend, &silent).await);
    assert_eq!(text(&server, &["DBSIZE"]).await, "0");
    let prefixed = open(&format!("{}?dialect=plain&key-prefix=redlock:", server.url())).await;
    assert!(got(&*prefixed, &silent).await);
    assert_eq!(text(&server, &["GET", "redlock:b"]).await, format!("{}:", silent.id.to_hex()));
}

#[tokio::test]
async fn a_value_of_others_is_busy_seen_and_left_alone() {
    let values = ["anything", "0123456789abcdef0123456789abcdef", "ADDED:2020@host:1", "\u{fffd}\u{1}raw"];
    for dialect in ["plain", "python-redis-lock"] {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        for (n, value) in values.into_iter().enumerate() {
            let name = format!("job {n}");
            let key = if dialect == "plain" { name.clone() } else { format!("lock:{name}") };
            server.command(&["SET", &key, value]).await.unwrap();
            let claim = mutex(&name);
            let step = backend.contend(&claim, &endless()).await.unwrap();
            let Step::Busy(hint) = step else { panic!("{step:?}") };
            assert!(hint.ask_again_in.is_some_and(|pause| pause <= Duration::from_millis(500)), "{hint:?}");
            assert!(!renewed(&*backend, &claim).await && !freed(&*backend, &claim).await);
            let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
            assert_eq!((seen.holders.len(), seen.holders[0].remaining), (1, None), "{value}");
            assert_eq!(seen.holders[0].note.as_str(), "held through another library", "{value}");
            assert_eq!(server.command(&["GET", &key]).await.unwrap(), Reply::Bytes(value.into()));
            // Only by the id that an observer was shown can it be broken.
            assert!(freed(&*backend, &claim.clone().id(seen.holders[0].id)).await, "{value}");
            assert!(got(&*backend, &claim).await);
        }
        assert_eq!(backend.list("job", None, 10).await.unwrap().len(), values.len());
    }
}

#[tokio::test]
async fn key_of_another_type_is_reported_and_never_destroyed() {
    let foreign: [&[&str]; 5] = [
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "field", "1"],
        &["RPUSH", "KEY", "element"],
        &["SADD", "KEY", "member"],
        &["ZADD", "KEY", "1", "member"],
    ];
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        for args in foreign {
            if args[0] == if dialect == "redisson" { "HSET" } else { "SET" } {
                continue;
            }
            let claim = mutex("job");
            let key = if dialect == "python-redis-lock" { "lock:job" } else { "job" };
            let args: Vec<&str> = args.iter().map(|arg| if *arg == "KEY" { key } else { arg }).collect();
            server.command(&args).await.unwrap();
            let before = text(&server, &["DUMP", key]).await;
            let failure = refused(&*backend, &claim).await;
            assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
            assert!(failure.detail().contains("key-prefix"), "{failure}");
            assert!(backend.inspect(&claim.resource, None, &no_patience()).await.is_err());
            // A claim that held before another library took the key is lost.
            assert!(!renewed(&*backend, &claim).await && !freed(&*backend, &claim).await);
            assert!(backend.list("", None, 5).await.unwrap().is_empty());
            assert_eq!(text(&server, &["DUMP", key]).await, before, "{dialect} {args:?}");
            server.flushall().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_damaged_count_of_redisson_is_refused() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    // Each of these holds would be asked for, in one script that nothing ends.
    server.command(&["HSET", "job", "mode", "read", "one:1", "1000000000"]).await.unwrap();
    let claim = mutex("job");
    let failure = refused(&*backend, &claim).await;
    assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
    assert!(backend.inspect(&claim.resource, None, &no_patience()).await.is_err());
    assert!(!renewed(&*backend, &claim).await && !freed(&*backend, &claim).await);
    server.command(&["HSET", "job", "one:1", "2"]).await.unwrap();
    assert!(got(&*backend, &claim_of("job", Share::READER, TTL)).await);
}

#[tokio::test]
async fn python_redis_lock_release_signals_a_blocking_waiter() {
    let Some((server, backend)) = open_dialect("python-redis-lock").await else { return };
    let claim = mutex("job");
    assert!(got(&*backend, &claim).await);
    assert_eq!(text(&server, &["EXISTS", "lock:job", "lock-signal:job"]).await, "1");
    let begun = Instant::now();
    assert!(freed(&*backend, &claim).await);
    let script = "return {redis.call('LLEN', KEYS[1]), redis.call('PTTL', KEYS[1])}";
    let signal = server.command(&["EVAL", script, "1", "lock-signal:job"]).await.unwrap();
    // The signal lives for a second.
    if begun.elapsed() > Duration::from_millis(500) {
        println!("the machine was too slow to see the signal: {:?}", begun.elapsed());
        return;
    }
    let Reply::Many(parts) = &signal else { panic!("{signal:?}") };
    assert!(matches!(parts[..], [Reply::Int(1), Reply::Int(1..=1_000)]), "{signal:?}");
}

#[tokio::test]
async fn redisson_lock_is_a_hash_of_owners_with_a_separate_counter() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    let claim = mutex("orders");
    let Step::Granted(grant) = backend.contend(&claim, &no_patience()).await.unwrap() else { panic!() };
    assert_eq!(grant.fence, Some(Fence::new(0, 1, 0)));
    let hex = claim.id.to_hex();
    let owner = format!("{}-{}-{}-{}-{}:1", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    assert_eq!(text(&server, &["HGET", "orders", &owner]).await, "1");
    assert_eq!(text(&server, &["HLEN", "orders"]).await, "1");
    assert_eq!(text(&server, &["GET", "redisson_lock_token:{orders}"]).await, "1");
    assert!(freed(&*backend, &claim).await);
    assert_eq!(text(&server, &["DBSIZE"]).await, "1", "only the counter stays");

    let (reader, writer) =
        (claim_of("rw", Share::READER, TTL), claim_of("rw", Share::WRITER, Duration::from_secs(5)));
    assert!(got(&*backend, &reader).await && !got(&*backend, &writer).await);
    assert_eq!(text(&server, &["HGET", "rw", "mode"]).await, "read");
    let Reply::Many(keys) = server.command(&["KEYS", "{rw}:*:rwlock_timeout:1"]).await.unwrap() else {
        panic!()
    };
    assert_eq!(keys.len(), 1);
    assert!(freed(&*backend, &reader).await && got(&*backend, &writer).await);
    assert_eq!(text(&server, &["HGET", "rw", "mode"]).await, "write");
    assert!(freed(&*backend, &writer).await);
    assert_eq!(text(&server, &["DBSIZE"]).await, "2", "only the counters stay");
}

#[tokio::test]
async fn a_reader_that_died_among_others_keeps_no_writer_out() {
    let Some((_server, backend)) = open_dialect("redisson").await else { return };
    let short = claim_of("rw", Share::READER, Duration::from_secs(4));
    let long = claim_of("rw", Share::READER, Duration::from_secs(30));
    let writer = claim_of("rw", Share::WRITER, TTL);
    assert!(got(&*backend, &long).await && got(&*backend, &short).await);
    tokio::time::sleep(Duration::from_millis(4_200)).await;
    assert!(!any::still_held(&*backend, &short).await, "its time has passed although the hash lives on");
    let seen = backend.inspect(&long.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [long.id]);
    assert!(freed(&*backend, &long).await);
    assert!(got(&*backend, &writer).await, "what the dead one left is tidied up");
}

/// A Java reader's watchdog sets the end of all readers of the hash, as `RedissonReadLock.renewExpirationAsync` does.
#[tokio::test]
async fn no_reader_relies_on_more_than_redissons_watchdog_leaves() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    let reader = |ttl| claim_of("rw", Share::READER, ttl);
    let failure = refused(&*backend, &reader(Duration::from_secs(60))).await;
    assert_eq!((failure.kind, failure.effect), (FailureKind::Invalid, Effect::None), "{failure}");
    assert!(failure.detail().contains("lockWatchdogTimeout, 30s"), "{failure}");
    for exclusive in [Share::MUTEX, Share::WRITER] {
        let claim = claim_of("rw", exclusive, Duration::from_secs(60));
        assert!(got(&*backend, &claim).await && freed(&*backend, &claim).await);
    }
    let usual = reader(Duration::from_secs(30));
    assert!(got(&*backend, &usual).await && freed(&*backend, &usual).await);

    let backend = open(&format!("{}?dialect=redisson&watchdog=10s", server.url())).await;
    let held = reader(Duration::from_secs(10));
    let begun = Instant::now();
    assert!(got(&*backend, &held).await);
    server.command(&["HSET", "rw", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ends = server.command(&["KEYS", "{rw}:*:rwlock_timeout:1"]).await.unwrap().into_texts().unwrap();
    for key in ["rw", &ends[0]] {
        server.command(&["PEXPIRE", key, "10000"]).await.unwrap();
    }
    let writer = claim_of("rw", Share::WRITER, TTL);
    while !got(&*backend, &writer).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= held.ttl, "a writer beside a reader, after {:?}", begun.elapsed());
}

/// A refusal has no effect, also halfway through the script.
#[tokio::test]
async fn refused_acquisition_leaves_no_lock_of_redisson() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    for (key, text_there) in [("redisson_lock_token:{job}", "x"), ("leasehold_claims:{job}", "x")] {
        for share in [Share::MUTEX, Share::READER, Share::WRITER] {
            server.command(&["SET", key, text_there]).await.unwrap();
            let failure = refused(&*backend, &claim_of("job", share, TTL)).await;
            assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
            assert!(failure.detail().contains(key), "{failure}");
            assert_eq!(text(&server, &["EXISTS", "job"]).await, "0", "{share} {key}");
            assert_eq!(text(&server, &["GET", key]).await, text_there);
            server.flushall().await.unwrap();
            assert!(got(&*backend, &claim_of("job", share, TTL)).await, "{share} {key}");
            server.flushall().await.unwrap();
        }
    }
    // What another program has put there meanwhile keeps no lock from ending.
    for share in [Share::MUTEX, Share::READER, Share::WRITER] {
        let (claim, other) = (claim_of("job", share, TTL), claim_of("job", Share::READER, TTL));
        assert!(got(&*backend, &claim).await);
        let are_two = share == Share::READER && got(&*backend, &other).await;
        server.command(&["SET", "leasehold_claims:{job}", "x"]).await.unwrap();
        assert!(renewed(&*backend, &claim).await && freed(&*backend, &claim).await, "{share}");
        assert!(!are_two || freed(&*backend, &other).await);
        assert_eq!(text(&server, &["EXISTS", "job"]).await, "0", "{share}");
        assert_eq!(text(&server, &["GET", "leasehold_claims:{job}"]).await, "x");
        server.flushall().await.unwrap();
    }
}

#[tokio::test]
async fn repeated_request_and_renewal_never_shorten_a_lease() {
    let shares = [("plain", Share::MUTEX), ("python-redis-lock", Share::MUTEX), ("redisson", Share::MUTEX)];
    for (dialect, share) in shares.into_iter().chain([("redisson&watchdog=2h", Share::READER)]) {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let ttl = Duration::from_secs(60);
        let claim = claim_of("job", share, ttl);
        let key = if dialect == "python-redis-lock" { "lock:job" } else { "job" };
        let left = async || {
            let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
            // The hash of Redisson's readers must last as long as they do.
            let stored: u64 = text(&server, &["PTTL", key]).await.parse().unwrap();
            seen.holders[0].remaining.unwrap().min(Duration::from_millis(stored))
        };
        assert!(got(&*backend, &claim).await);
        let (short, long) = (claim.clone().ttl(ttl / 10), claim.clone().ttl(10 * ttl));
        assert!(got(&*backend, &short).await && left().await > ttl / 2, "{dialect} {share}");
        assert!(got(&*backend, &long).await && left().await > 5 * ttl, "{dialect} {share}");
        assert!(renewed(&*backend, &short).await && left().await > 5 * ttl, "{dialect} {share}");
        let longest = claim.clone().ttl(100 * ttl);
        assert!(renewed(&*backend, &longest).await && left().await > 50 * ttl, "{dialect} {share}");
        assert!(freed(&*backend, &claim).await);
    }
}

/// An operator sees an id of any owner, and may break the lock by it.
#[tokio::test]
async fn each_owner_of_a_redisson_lock_has_an_id_that_breaks_it() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    let ours = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    for owner in [
        ours,
        "8743c9c0-0795-4907-87fd-6c719a6b4586:17",
        "8743C9C0-0795-4907-87FD-6C719A6B4586:1",
        "8743c9c0-0795-4907-87fd-6c719a6b45:1",
        "8743c9c0-0795-4907-87fd-6c719a6b4586-a:1",
        "theirs",
    ] {
        server.command(&["HSET", "orders", owner, "1"]).await.unwrap();
        server.command(&["PEXPIRE", "orders", "60000"]).await.unwrap();
        let digest = text(&server, &["EVAL", "return redis.sha1hex(ARGV[1])", "0", owner]).await;
        let expected = if owner == ours { ours.trim_end_matches(":1").replace('-', "") } else { digest };
        let seen = backend.inspect(&mutex("orders").resource, None, &no_patience()).await.unwrap();
        let [holder] = &seen.holders[..] else { panic!("{owner}: {seen:?}") };
        assert_eq!(holder.id.to_hex(), expected[..32], "{owner}");
        let shown = Claim::new(holder.id, mutex("orders").resource, Share::MUTEX, TTL);
        assert!(freed(&*backend, &shown).await, "{owner}");
        assert_eq!(text(&server, &["EXISTS", "orders"]).await, "0", "{owner}");
    }
}

/// A thread that is the writer and becomes a reader loses the key for the end of its hold in some versions of Redisson:
/// the watchdog renews the hash alone while it writes. For Redisson it reads for as long as the hash exists.
#[tokio::test]
async fn a_java_reader_whose_watchdog_renews_the_hash_alone_keeps_writers_out() {
    const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:57";
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    server.command(&["HSET", "rw", "mode", "read", JAVA, "1"]).await.unwrap();
    server.command(&["PEXPIRE", "rw", "60000"]).await.unwrap();
    for share in [Share::WRITER, Share::MUTEX] {
        let claim = claim_of("rw", share, TTL);
        assert!(!got(&*backend, &claim).await, "{share} beside a reader");
        assert!(!freed(&*backend, &claim).await);
    }
    let seen = backend.inspect(&mutex("rw").resource, None, &no_patience()).await.unwrap();
    let [java] = &seen.holders[..] else { panic!("{seen:?}") };
    assert!(java.remaining.is_some_and(|left| left > TTL), "{java:?}");

    // Nor is it taken out while another one reads, and dies.
    let reader = claim_of("rw", Share::READER, TTL);
    assert!(got(&*backend, &reader).await && renewed(&*backend, &reader).await);
    assert!(!got(&*backend, &claim_of("rw", Share::WRITER, TTL)).await);
    let keys = server.command(&["KEYS", "{rw}:*:rwlock_timeout:1"]).await.unwrap().into_texts().unwrap();
    assert_eq!(server.command(&["DEL", &keys[0]]).await.unwrap(), Reply::Int(1));
    assert!(!got(&*backend, &claim_of("rw", Share::WRITER, TTL)).await);
    assert_eq!(text(&server, &["HGET", "rw", JAVA]).await, "1");
    assert_eq!(text(&server, &["HLEN", "rw"]).await, "2", "only our reader is taken out");

    // Where its watchdog is gone, a writer that waits sees the end of the hash.
    server.command(&["PEXPIRE", "rw", "500"]).await.unwrap();
    let writer = claim_of("rw", Share::WRITER, TTL);
    let taken = any::take(&*backend, &writer, &patience(Duration::from_secs(15))).await;
    assert!(taken.is_some() && freed(&*backend, &writer).await);

    // The last reader that has a key ends all, as in Redisson; and an operator may break it.
    server.command(&["HSET", "rw", "mode", "read", JAVA, "1"]).await.unwrap();
    assert!(got(&*backend, &reader).await && freed(&*backend, &reader).await);
    assert!(got(&*backend, &writer).await && freed(&*backend, &writer).await);
    server.command(&["HSET", "rw", "mode", "read", JAVA, "1"]).await.unwrap();
    assert!(freed(&*backend, &writer.clone().id(java.id)).await);
    assert!(got(&*backend, &writer).await);
}

#[tokio::test]
async fn a_reader_whose_key_never_expires_keeps_writers_out() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    let reader = claim_of("rw", Share::READER, TTL);
    assert!(got(&*backend, &reader).await);
    let keys = server.command(&["KEYS", "{rw}:*:rwlock_timeout:1"]).await.unwrap().into_texts().unwrap();
    server.command(&["PERSIST", &keys[0]]).await.unwrap();
    assert!(!got(&*backend, &claim_of("rw", Share::WRITER, TTL)).await);
    assert!(renewed(&*backend, &reader).await);
    let seen = backend.inspect(&reader.resource, None, &no_patience()).await.unwrap();
    assert_eq!((seen.holders.len(), seen.holders[0].remaining), (1, None), "{seen:?}");
    assert!(freed(&*backend, &reader).await && got(&*backend, &claim_of("rw", Share::WRITER, TTL)).await);
}

/// The hash of the readers may outlive them: nothing of it is left to make a reader of the next holder.
#[tokio::test]
async fn a_mutex_after_readers_that_all_died_is_a_mutex() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    assert!(got(&*backend, &claim_of("rw", Share::READER, TTL)).await);
    let keys = server.command(&["KEYS", "{rw}:*:rwlock_timeout:1"]).await.unwrap().into_texts().unwrap();
    assert_eq!(server.command(&["DEL", &keys[0]]).await.unwrap(), Reply::Int(1));
    let holder = claim_of("rw", Share::MUTEX, TTL);
    assert!(got(&*backend, &holder).await);
    assert_eq!(text(&server, &["HLEN", "rw"]).await, "1", "one owner, and no mode");
    assert!(!got(&*backend, &claim_of("rw", Share::READER, TTL)).await);
    assert!(freed(&*backend, &holder).await);
}

#[tokio::test]
async fn release_is_published_on_the_redisson_channel() {
    let Some((server, backend)) = open_dialect("redisson").await else { return };
    let other = open(&format!("{}?dialect=redisson", server.url())).await;
    for share in [Share::MUTEX, Share::WRITER] {
        let (holder, waiter) = (claim_of("job", share, TTL), claim_of("job", share, TTL));
        assert!(got(&*backend, &holder).await);
        // One that nobody wakes looks when the lease would have ended, which is later.
        let limit = patience(Duration::from_secs(8));
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(freed(&*backend, &holder).await);
        };
        let (step, ()) = tokio::join!(other.contend(&waiter, &limit), releasing);
        let step = step.unwrap();
        assert!(matches!(step, Step::Granted(_)), "{step:?}");
        assert!(freed(&*other, &waiter).await);
    }
}

#[tokio::test]
async fn unsupported_dialect_feature_is_refused_before_any_request() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let failure = refused(&*backend, &claim_of("job", Share::permits(1, 3).unwrap(), TTL)).await;
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unsupported, Effect::None), "{failure}");
        assert!(failure.detail().contains("dialect=native"), "{failure}");
        let short = claim_of("job", Share::MUTEX, Duration::from_millis(1));
        assert_eq!(refused(&*backend, &short).await.kind, FailureKind::Invalid);
        assert_eq!(text(&server, &["DBSIZE"]).await, "0");
    }
    let Some((_server, backend)) = open_dialect("redisson").await else { return };
    let failure = refused(&*backend, &mutex("redisson_lock_token:{orders}")).await;
    assert_eq!(failure.kind, FailureKind::Invalid, "{failure}");
    // Who asks for the native backend gets no other.
    let config = RedisConfig::parse("redis://127.0.0.1:1?dialect=plain").unwrap();
    let failure = RedisBackend::connect(config).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid, "{failure}");
}

#[tokio::test]
async fn a_lock_that_the_server_forgot_is_lost_at_the_next_renewal() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let claim = mutex("job");
        assert!(got(&*backend, &claim).await);
        server.flushall().await.unwrap();
        assert!(matches!(renew(&*backend, &claim).await, Renewal::Lost), "{dialect}");
    }
}

#[tokio::test]
async fn server_out_of_memory_refuses_clearly_and_keeps_held_locks() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let held = mutex("held");
        assert!(got(&*backend, &held).await);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
        let failure = refused(&*backend, &mutex("other")).await;
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
        assert!(failure.detail().contains("memory is full"), "{failure}");
        assert!(renewed(&*backend, &held).await && freed(&*backend, &held).await, "{dialect}");
        assert_eq!(text(&server, &["EXISTS", "other", "lock:other"]).await, "0");
    }
}

#[tokio::test]
async fn a_replica_does_not_say_that_a_lock_is_gone() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let other = RedisServer::builder().arg("--repl-diskless-sync-delay").arg("0").start().await.unwrap();
        let claim = mutex("job");
        assert!(got(&*backend, &claim).await);
        server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await.unwrap();
        server.flushall().await.unwrap_err();
        let limit = Instant::now() + Duration::from_secs(20);
        while text(&server, &["DBSIZE"]).await != "0" {
            assert!(Instant::now() < limit, "it has not become a copy of the empty one");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let renewal = renew(&*backend, &claim).await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{dialect}: {renewal:?}");
        let release = release(&*backend, &claim).await;
        assert!(matches!(release, Release::Unknown(_)), "{dialect}: {release:?}");
    }
}

/// A server that no longer decides must not say that a claim still holds, also where its lease is long enough already.
#[tokio::test]
async fn a_replica_does_not_confirm_a_lease() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let mut held = Vec::new();
    let shares =
        DIALECTS.map(|dialect| (dialect, Share::MUTEX)).into_iter().chain([("redisson", Share::READER)]);
    for (dialect, share) in shares {
        for longer in [&["PEXPIRE", "KEY", "600000"][..], &["PERSIST", "KEY"]] {
            let what = format!("{dialect} {share} {}", longer[0]);
            let claim = claim_of(&what, share, Duration::from_secs(30));
            // Each call over a connection of its own: one that is refused is left.
            let [asks, renews] = [(); 2].map(|()| format!("{}?dialect={dialect}", server.url()));
            let (asks, renews) = (open(&asks).await, open(&renews).await);
            assert!(got(&*asks, &claim).await && renewed(&*renews, &claim).await, "{what}");
            for key in server.command(&["KEYS", &format!("*{what}*")]).await.unwrap().into_texts().unwrap() {
                let args: Vec<&str> =
                    longer.iter().map(|arg| if *arg == "KEY" { key.as_str() } else { arg }).collect();
                server.command(&args).await.unwrap();
            }
            assert!(renewed(&*renews, &claim).await && got(&*asks, &claim).await, "{what}");
            held.push((what, claim, asks, renews));
        }
    }
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for (what, claim, asks, renews) in held {
        let renewal = renew(&*renews, &claim).await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{what}: {renewal:?}");
        let step = asks.contend(&claim, &no_patience()).await;
        assert!(step.is_err(), "{what}: {step:?}");
    }
}

#[tokio::test]
async fn in_a_cluster_every_lock_is_in_one_slot() {
    let builder = RedisCluster::builder().node_timeout(Duration::from_secs(30));
    let Some(cluster) = builder.start_or_skip().await else { return };
    for dialect in DIALECTS {
        let backend = open(&format!("{}?dialect={dialect}", cluster.url())).await;
        let other = open(&format!("{}?dialect={dialect}", cluster.url())).await;
        // python-redis-lock itself needs its two keys in one place.
        let name = |n: usize| format!("{dialect} {}{n}{}", "{", "}");
        let claims: Vec<Claim> = (0..20).map(|n| mutex(&name(n))).collect();
        for claim in &claims {
            assert!(got(&*backend, claim).await && !got(&*other, &mutex(claim.resource.as_str())).await);
        }
        assert_eq!(backend.list(dialect, None, 100).await.unwrap().len(), 20);
        let waiter = mutex(claims[0].resource.as_str());
        // One that nobody wakes looks when the lease would have ended, which is later.
        let limit = patience(Duration::from_secs(8));
        let waiting = any::take(&*other, &waiter, &limit);
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(renewed(&*backend, &claims[0]).await && freed(&*backend, &claims[0]).await);
        };
        let (taken, ()) = tokio::join!(waiting, releasing);
        assert!(taken.is_some(), "{dialect}");
        let released = backend.release(&claims[1..].iter().collect::<Vec<_>>()).await;
        assert!(released.iter().all(|release| matches!(release, Release::Freed)), "{released:?}");
    }
    let backend = open(&format!("{}?dialect=python-redis-lock", cluster.url())).await;
    let torn = mutex("torn apart");
    assert!(got(&*backend, &torn).await);
    let release = release(&*backend, &torn).await;
    assert!(
        matches!(&release, Release::Unknown(failure) if failure.detail().contains("slot")),
        "{release:?}"
    );
}

/// Connects a listener to a channel, as a Java process does.
async fn listener(server: &RedisServer, command: &str, channel: &str) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.write_all(format!("{command} \"{channel}\"\r\n").as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(read_until(&mut lines, ":1").await, channel, "{command}");
    lines
}

/// Reads lines until this one; returns the one before it.
async fn read_until(lines: &mut Lines<BufReader<TcpStream>>, end: &str) -> String {
    let read = async {
        let mut before = String::new();
        loop {
            let line = lines.next_line().await.unwrap().expect("the server ends the connection");
            if line == end {
                return before;
            }
            before = line;
        }
    };
    tokio::time::timeout(WOKEN, read).await.unwrap_or_else(|_| panic!("the line {end} does not arrive"))
}

/// Longer than any machine takes to wake a waiter, and shorter than a waiter sleeps that nothing wakes.
const WOKEN: Duration = Duration::from_secs(10);

/// Redisson before 3.22, or with `shardedSubscriptionMode=OFF`, uses plain channels in a cluster, newer ones use those
/// of the slots.
#[tokio::test]
async fn redisson_in_a_cluster_is_heard_on_both_kinds_of_channel() {
    const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:57";
    let builder = RedisCluster::builder().node_timeout(Duration::from_secs(30));
    let Some(cluster) = builder.start_or_skip().await else { return };
    let is_before_7 = is_before_7(cluster.member(0)).await;
    // The rights that the documentation has for a cluster are enough.
    let rights = RedisConfig::parse("redis://h?dialect=redisson").unwrap().acl_rules();
    let of_slots = if is_before_7 { "" } else { " +spublish +ssubscribe +sunsubscribe" };
    let rights = format!("{rights} +cluster|nodes +asking{of_slots}");
    for number in 0..cluster.members() {
        let args = ["ACL", "SETUSER", "jobs", "on", ">secret"].into_iter().chain(rights.split(' '));
        cluster.member(number).command(&args.collect::<Vec<_>>()).await.unwrap();
    }
    let url = cluster.url().replace("://", "://jobs:secret@");
    let backend = open(&format!("{url}?dialect=redisson")).await;
    let kinds = [("SUBSCRIBE", "PUBLISH", "NUMSUB"), ("SSUBSCRIBE", "SPUBLISH", "SHARDNUMSUB")];
    let kinds = if is_before_7 { &kinds[..1] } else { &kinds[..] };
    for (subscribe, publish, count) in kinds {
        let (name, waits_for) = (format!("heard {subscribe}"), format!("notified {subscribe}"));
        let channel = |name: &str| format!("redisson_lock__channel:{{{name}}}");
        let servers = async |name: &str| {
            let owner = cluster.primary_of(cluster.slot_of(name).await.unwrap()).await.unwrap();
            // What is for all servers is repeated to all.
            let other = if *subscribe == "SUBSCRIBE" { (owner + 1) % 3 } else { owner };
            (cluster.member(owner), cluster.member(other))
        };
        let claim = mutex(&name);
        let mut lines = listener(servers(&name).await.1, subscribe, &channel(&name)).await;
        assert!(got(&*backend, &claim).await && freed(&*backend, &claim).await);
        assert_eq!(read_until(&mut lines, "0").await, "$1", "{subscribe}");

        let (owner, other) = servers(&waits_for).await;
        owner.command(&["HSET", &waits_for, JAVA, "1"]).await.unwrap();
        owner.command(&["PEXPIRE", &waits_for, "60000"]).await.unwrap();
        let claim = mutex(&waits_for);
        let waiting = tokio::spawn({
            let (backend, claim) = (backend.clone(), claim.clone());
            async move { any::take(&*backend, &claim, &endless()).await }
        });
        let begun = Instant::now();
        let listeners = async || owner.command(&["PUBSUB", count, &channel(&waits_for)]).await.unwrap();
        while !matches!(listeners().await, Reply::Many(parts) if matches!(parts[1], Reply::Int(1..))) {
            assert!(begun.elapsed() < WOKEN, "the waiter does not {subscribe}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        owner.command(&["DEL", &waits_for]).await.unwrap();
        other.command(&[*publish, &channel(&waits_for), "0"]).await.unwrap();
        let granted = tokio::time::timeout(WOKEN, waiting).await;
        assert!(granted.unwrap_or_else(|_| panic!("{publish} wakes nobody")).unwrap().is_some());
        assert!(freed(&*backend, &claim).await);
    }
    // Who may publish in one form only is granted nothing.
    let forms = if is_before_7 { &[][..] } else { &["publish", "spublish"] };
    for form in forms {
        for number in 0..cluster.members() {
            let args = ["ACL", "SETUSER", "jobs", &format!("-{form}")];
            cluster.member(number).command(&args).await.unwrap();
        }
        let failure = refused(&*backend, &mutex("unheard")).await;
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
        assert!(failure.detail().contains(&format!("may not {}", form.to_uppercase())), "{failure}");
        for number in 0..cluster.members() {
            let args = ["ACL", "SETUSER", "jobs", &format!("+{form}")];
            cluster.member(number).command(&args).await.unwrap();
        }
    }
}
