//! The shortcuts for a free lock and for the release of a single value: what they must notice, and whom they notify.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Claim, Effect, FailureKind, Note, Release, Renewal, Share, Step};
use leasehold_redis::RedisBackend;
use leasehold_testkit::{RedisServer, Reply, until};

const HELD: &str = "{lh:job}:held";
const FENCE: &str = "{lh:job}:fence";

fn long(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, Duration::from_secs(600))
}

fn member(claim: &Claim) -> String {
    format!("{}:{}:{}", claim.id.to_hex(), claim.share.weight(), claim.share.capacity())
}

async fn text(server: &RedisServer, key: &str) -> Option<String> {
    match server.command(&["GET", key]).await.unwrap() {
        Reply::Nil => None,
        other => Some(other.into_text().unwrap()),
    }
}

async fn ask(backend: &RedisBackend, claim: &Claim) -> Step {
    backend.contend(claim, &endless()).await.unwrap()
}

/// A lock that is free for a moment, because the next waiter has been called, is not free for a newcomer.
#[tokio::test]
async fn free_lock_with_waiters_goes_to_the_first_of_them() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, waiter, newcomer) = (mutex("job"), mutex("job"), mutex("job"));
    let before = try_take(&backend, &holder).await.unwrap();
    assert!(matches!(ask(&backend, &waiter).await, Step::Busy(_)));
    assert_eq!(text(&server, FENCE).await.unwrap(), format!("{}+", before.seq));
    let called = Instant::now();
    assert!(freed(&backend, &holder).await);
    let before_it = server.command(&["EXISTS", HELD]).await.unwrap();
    let has_overtaken = try_take(&backend, &newcomer).await.is_some();
    let after_it = server.command(&["EXISTS", HELD]).await.unwrap();
    let (behind, first) = (ask(&backend, &newcomer).await, ask(&backend, &waiter).await);
    if may_be_passed_over(called) {
        return;
    }
    assert!(!has_overtaken, "it overtook the waiter");
    assert_eq!((before_it, after_it), (Reply::Int(0), Reply::Int(0)), "it left something");
    assert!(matches!(behind, Step::Busy(_)));
    let Step::Granted(grant) = first else { panic!("the first of the queue") };
    assert!(grant.fence > Some(before));
    assert!(freed(&backend, &waiter).await);
    let Step::Granted(next) = ask(&backend, &newcomer).await else { panic!("it is its turn") };
    assert!(next.fence > grant.fence);
    assert!(freed(&backend, &newcomer).await);
    // Nobody waits any more: the mark goes with the next grant, and the lock is a single value again.
    let last = try_take(&backend, &holder).await.unwrap();
    assert!(Some(last) > next.fence);
    assert_eq!(text(&server, FENCE).await.unwrap(), last.seq.to_string());
    assert_eq!(text(&server, HELD).await.unwrap(), format!("{}={}", member(&holder), since(&server).await));
}

/// The holder gets a new fence, and the queue is not looked at.
#[tokio::test]
async fn holder_whose_entry_was_lost_keeps_the_mark_of_the_queue() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, waiter) = (long("job"), mutex("job"));
    let before = try_take(&backend, &holder).await.unwrap();
    assert!(matches!(ask(&backend, &waiter).await, Step::Busy(_)));
    server.command(&["DEL", "{lh:job}:claims"]).await.unwrap();
    let again = try_take(&backend, &holder).await.unwrap();
    assert!(again > before);
    // Without it, the next newcomer would not look for those that wait.
    assert_eq!(text(&server, FENCE).await.unwrap(), format!("{}+", again.seq));
}

/// Returns what follows the mark in the stored lock.
async fn since(server: &RedisServer) -> String {
    text(server, HELD).await.unwrap().split_once('=').unwrap().1.to_owned()
}

/// The queue is older than the mark: its waiters died, and their places ended.
#[tokio::test]
async fn mark_of_a_queue_that_is_gone_does_no_harm() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job");
    server.command(&["SET", FENCE, "1700000000000000+"]).await.unwrap();
    let fence = try_take(&backend, &claim).await.unwrap();
    assert!(fence.seq > 1_700_000_000_000_000);
    assert_eq!(text(&server, FENCE).await.unwrap(), fence.seq.to_string());
    assert!(freed(&backend, &claim).await);
}

#[tokio::test]
async fn fences_rise_also_if_the_clock_is_behind_them() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job");
    for before in [4_000_000_000_000_000, 999, 123_456_789_012_345] {
        server.command(&["SET", FENCE, &u64::to_string(&before)]).await.unwrap();
        let fence = try_take(&backend, &claim).await.unwrap();
        assert!(fence.seq > before, "{fence:?}");
        assert!(before < 1_000_000_000_000_000 || fence.seq == before + 1, "{fence:?}");
        assert_eq!(try_take(&backend, &claim).await, Some(fence), "it asks again");
        let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
        assert_eq!((seen.fence, seen.holders[0].fence), (Some(fence), Some(fence)));
        assert!(freed(&backend, &claim).await);
    }
}

/// The shortcut writes before it has seen everything, and takes that back.
#[tokio::test]
async fn what_the_shortcut_meets_is_reported_and_left_alone() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let met: [&[&str]; 9] = [
        // Each has as many bytes as a fence, and Lua takes it for a number.
        &["SET", FENCE, "1700000000.12345"],
        &["SET", FENCE, "1.12345678901234"],
        &["SET", FENCE, "0x00000000000001"],
        &["SET", FENCE, "-000000000000001"],
        &["SET", FENCE, "not a number 123"],
        &["SET", FENCE, "10zzzzzzzzzzzzzz"],
        &["SET", FENCE, "3.1700000000000000@0123456789abcdef0123456789abcdef01234567"],
        &["SET", FENCE, "1700000000000000 another name"],
        &["SADD", FENCE, "theirs"],
    ];
    for command in met {
        server.command(command).await.unwrap();
        let before = server.command(&["DUMP", FENCE]).await.unwrap();
        let failure = backend.contend(&mutex("job"), &no_patience()).await.unwrap_err();
        assert_eq!(failure.effect, Effect::None, "{failure}");
        assert_eq!(server.command(&["DUMP", FENCE]).await.unwrap(), before, "{command:?}");
        assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), Reply::Int(1), "{command:?}");
        server.flushall().await.unwrap();
    }
}

/// A user that may set keys, but not delete them, cannot take back what the shortcut wrote.
#[tokio::test]
async fn nothing_remains_of_a_refusal_to_delete() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let rules = "reset on >secret ~{lh:* resetchannels &{lh:* -@all +ping +eval +evalsha +time +get +mget +set +exists +publish";
    let rules: Vec<&str> = ["ACL", "SETUSER", "keeper"].into_iter().chain(rules.split(' ')).collect();
    server.command(&rules).await.unwrap();
    let keeper = connect(&format!("redis://keeper:secret@{}", server.addr())).await;
    server.command(&["SET", FENCE, "1700000000000000+"]).await.unwrap();
    let failure = keeper.contend(&long("job"), &no_patience()).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
    assert_eq!(text(&server, FENCE).await.unwrap(), "1700000000000000+");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(try_take(&backend, &mutex("job")).await.is_some());
}

/// The fence was lost with its mark, so a newcomer overtakes a waiter. Nothing of the waiter remains when it leaves.
#[tokio::test]
async fn waiter_that_was_overtaken_leaves_the_queue() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let (holder, waiter, newcomer) = (mutex("job"), long("job"), long("job"));
    try_take(&backend, &holder).await.unwrap();
    assert!(matches!(ask(&backend, &waiter).await, Step::Busy(_)));
    let called = Instant::now();
    assert!(freed(&backend, &holder).await);
    server.command(&["DEL", FENCE]).await.unwrap();
    assert!(try_take(&backend, &newcomer).await.is_some());
    let has_left = freed(&backend, &waiter).await;
    if may_be_passed_over(called) {
        return;
    }
    assert!(has_left);
    assert!(!freed(&backend, &waiter).await);
    assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), Reply::Int(2), "the lock and its fence");
    assert!(freed(&backend, &newcomer).await);
}

/// A lock in a form that is not known is held, and nobody but its writer may end it.
#[tokio::test]
async fn single_value_of_another_version_is_refused() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job");
    let own = member(&claim);
    for stored in [format!("{own} 17:1700:1:1:note"), format!("{own}?:note"), own.clone()] {
        server.command(&["SET", HELD, &stored]).await.unwrap();
        for asking in [&claim, &mutex("job")] {
            let failure = backend.contend(asking, &no_patience()).await.unwrap_err();
            assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None), "{failure}");
            assert!(matches!(release(&backend, asking).await, Release::Unknown(_)), "{stored}");
            assert!(!matches!(renew(&backend, asking).await, Renewal::Renewed), "{stored}");
        }
        assert!(backend.inspect(&claim.resource, None, &no_patience()).await.is_err());
        assert_eq!(text(&server, HELD).await.unwrap(), stored);
    }
}

#[tokio::test]
async fn claim_is_ended_whatever_share_is_named() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claim = mutex("job").note(Note::new("=!: a note").unwrap());
    let mut other = claim.clone();
    other.share = Share::permits(1, 17).unwrap();
    try_take(&backend, &claim).await.unwrap();
    let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    assert_eq!((seen.holders[0].note.as_str(), seen.holders[0].share), ("=!: a note", Share::MUTEX));
    assert!(freed(&backend, &other).await);
    assert!(!freed(&backend, &claim).await);
}

/// Returns how many messages the server was asked to publish.
async fn published(server: &RedisServer) -> u64 {
    server.counts().await.unwrap().of("publish")
}

#[tokio::test]
async fn release_without_an_audience_publishes_nothing() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (claim, other) = (mutex("job"), mutex("job"));
    try_take(&backend, &claim).await.unwrap();
    assert!(try_take(&backend, &other).await.is_none());
    backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
    assert!(freed(&backend, &claim).await);
    assert_eq!(published(&server).await, 0);
}

/// Waits until a waiter has marked the lock, whose release is published from then on.
async fn until_marked(server: &RedisServer, holder: &Claim) {
    let mark = format!("{}!", member(holder));
    until("a waiter has marked the lock", async || {
        text(server, HELD).await.is_some_and(|stored| stored.starts_with(&mark))
    })
    .await;
}

/// Each holder's release is published, although each grant writes a value without a mark.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_outside_the_queue_are_notified_of_each_release() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let url = format!("{}?order=unordered", server.url());
    let holder = connect(&server.url()).await;
    let first = long("job");
    try_take(&holder, &first).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let backend = Arc::new(connect(&url).await);
        waiting.push(tokio::spawn(async move {
            let claim = long("job");
            assert!(take(&backend, &claim, &patience(Duration::from_secs(20))).await.is_some());
            // Long enough for the others to look and to sleep again.
            tokio::time::sleep(Duration::from_millis(150)).await;
            assert!(freed(&backend, &claim).await);
        }));
    }
    until_marked(&server, &first).await;
    let listeners = ["PUBSUB", "NUMSUB", "{lh:job}:wake"];
    until("all four listen", async || {
        let listeners = server.command(&listeners).await.unwrap();
        matches!(&listeners, Reply::Many(parts) if parts[1] == Reply::Int(4))
    })
    .await;
    let begun = Instant::now();
    assert!(freed(&holder, &first).await);
    for waiter in waiting {
        waiter.await.unwrap();
    }
    // A waiter that nobody notifies looks again after many seconds.
    assert!(begun.elapsed() < NOTIFIED, "{:?}", begun.elapsed());
}

/// No memory is left for the mark, so the release is not published.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_cannot_be_notified_looks_twice_a_second() {
    let builder = RedisServer::builder().arg("--maxmemory-policy").arg("noeviction");
    let Some(server) = builder.start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let watcher = connect(&format!("{}?order=unordered", server.url())).await;
    let (holder, waiter) = (long("job"), long("job"));
    try_take(&backend, &holder).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let waiting =
        tokio::spawn(async move { take(&watcher, &waiter, &patience(Duration::from_secs(20))).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(text(&server, HELD).await.unwrap().starts_with(&format!("{}=", member(&holder))));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    let begun = Instant::now();
    assert!(freed(&backend, &holder).await);
    assert!(waiting.await.unwrap().is_some());
    assert!(begun.elapsed() < NOTIFIED, "{:?}", begun.elapsed());
}

/// A claim that is granted again, with another note, keeps the mark.
#[tokio::test(flavor = "multi_thread")]
async fn mark_outlives_renewals_and_another_note() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let watcher = Arc::new(connect(&format!("{}?order=unordered", server.url())).await);
    let claim = long("job");
    let fence = try_take(&backend, &claim).await.unwrap();
    let (waiting, waiter) = (watcher.clone(), long("job"));
    let task = tokio::spawn(async move { take(&waiting, &waiter, &patience(Duration::from_secs(20))).await });
    until_marked(&server, &claim).await;
    assert!(renewed(&backend, &claim).await);
    let again = claim.clone().note(Note::new("another").unwrap());
    assert_eq!(try_take(&backend, &again).await, Some(fence));
    assert_eq!(text(&server, HELD).await.unwrap(), format!("{}!:another", member(&claim)));
    let begun = Instant::now();
    assert!(freed(&backend, &claim).await);
    assert!(task.await.unwrap().is_some());
    assert!(begun.elapsed() < NOTIFIED, "{:?}", begun.elapsed());
}

/// An observer that waits for a change gets a message, and one that may not write looks twice a second.
#[tokio::test(flavor = "multi_thread")]
async fn observers_notice_the_release_of_a_single_value() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let rules = "resetkeys ~{lh:* resetchannels &{lh:* -@all +ping +eval +evalsha +time +get +mget +pttl +exists \
                 +zrange +zrangebyscore +hmget +subscribe";
    server
        .command(
            &["ACL", "SETUSER", "eyes", "reset", "on", ">secret"]
                .into_iter()
                .chain(rules.split_whitespace())
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let backend = connect(&server.url()).await;
    for (url, limit) in [
        (server.url(), Duration::from_millis(400)),
        (format!("redis://eyes:secret@{}", server.addr()), Duration::from_secs(2)),
    ] {
        let observer = Arc::new(connect(&url).await);
        let claim = long("job");
        try_take(&backend, &claim).await.unwrap();
        let mut soonest = Duration::MAX;
        // Without a message it takes between nothing and half a second: some tries tell the two apart.
        for _ in 0..5 {
            let seen = observer.inspect(&claim.resource, None, &no_patience()).await.unwrap();
            let (observing, at) = (observer.clone(), claim.resource.clone());
            let watching = tokio::spawn(async move {
                let limit = patience(Duration::from_secs(10));
                let changed = observing.inspect(&at, Some(&seen.version), &limit).await.unwrap();
                (changed.holders.len(), Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(700)).await;
            let released = Instant::now();
            assert!(freed(&backend, &claim).await);
            let (holders, noticed) = watching.await.unwrap();
            assert_eq!(holders, 0);
            assert!(noticed - released < NOTIFIED);
            soonest = soonest.min(noticed - released);
            try_take(&backend, &claim).await.unwrap();
        }
        assert!(soonest < limit, "{soonest:?}");
        assert!(freed(&backend, &claim).await);
    }
    assert!(published(&server).await >= 5);
}
