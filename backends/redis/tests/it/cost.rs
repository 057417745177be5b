//! The costs of calls: round trips, commands and time on the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Claim, Proof, Release, Renew, Renewal, Share};
use leasehold_testkit::{RedisServer, Reply};
use tokio::task::JoinSet;

/// No test here waits for the end of such a lease, and a busy machine needs long for a thousand requests.
const TTL: Duration = Duration::from_secs(600);

fn mutex(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, TTL)
}

/// Returns the member of a claim in the sorted sets.
fn member(claim: &Claim) -> String {
    format!("{}:{}:{}", claim.id.to_hex(), claim.share.weight(), claim.share.capacity())
}

#[tokio::test]
async fn an_uncontended_cycle_is_two_requests() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["", "?order=unordered", "?wait=poll"] {
        let backend = connect(&format!("{}{options}", server.url())).await;
        let warm = mutex("warm");
        try_take(&backend, &warm).await.unwrap();
        freed(&backend, &warm).await;
        // Both scripts, and of what they run: TIME, SET twice, MGET and DEL; for a new name also GET of the floor.
        for commands in [8, 7] {
            let before = server.counts().await.unwrap();
            for n in 0..50 {
                let claim = mutex(&format!("job {n}"));
                assert!(take(&backend, &claim, &endless()).await.is_some());
                assert!(freed(&backend, &claim).await);
            }
            let used = server.counts().await.unwrap().since(&before);
            assert_eq!(used.of("evalsha"), 100, "{:?}", used.commands);
            assert_eq!(used.total(), commands * 50, "{:?}", used.commands);
            let outside =
                ["eval", "script", "ping", "subscribe", "info", "hello", "auth", "select", "client"];
            assert_eq!(outside.map(|command| used.of(command)), [0; 9], "{:?}", used.commands);
        }
        server.flushall().await.unwrap();
    }
}

#[tokio::test]
async fn two_thousand_renewals_are_four_requests() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claims: Vec<_> = (0..2_000).map(|n| mutex(&format!("job {n}"))).collect();
    for claim in &claims {
        try_take(&backend, claim).await.unwrap();
    }
    let gone = mutex("never held");
    let proof = Proof::none();
    let mut batch: Vec<_> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    batch[777] = Renew { claim: &gone, proof: &proof };
    backend.renew(&batch).await;
    let before = server.counts().await.unwrap();
    let renewals = backend.renew(&batch).await;
    let used = server.counts().await.unwrap().since(&before);
    assert_eq!(used.of("evalsha"), 4);
    for (n, renewal) in renewals.iter().enumerate() {
        assert_eq!(matches!(renewal, Renewal::Renewed), n != 777, "{n}: {renewal:?}");
        assert_eq!(matches!(renewal, Renewal::Lost), n == 777, "{n}: {renewal:?}");
    }
    let released = backend.release(&claims.iter().collect::<Vec<_>>()).await;
    assert_eq!(released.iter().filter(|release| matches!(release, Release::Freed)).count(), 2_000);
}

#[tokio::test]
async fn queue_length_does_not_slow_down_a_mutex() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let mut per_length = Vec::new();
    let holder = mutex("job");
    try_take(&backend, &holder).await.unwrap();
    for length in [10, 2_000] {
        let mut last = mutex("job");
        for _ in 0..length {
            last = mutex("job");
            backend.contend(&last, &endless()).await.unwrap();
        }
        let before = server.counts().await.unwrap();
        for _ in 0..20 {
            backend.contend(&last, &endless()).await.unwrap();
        }
        let used = server.counts().await.unwrap().since(&before);
        per_length.push(used.total() / 20);
    }
    assert_eq!(per_length[0], per_length[1], "commands inside a look, behind 10 and behind 2,010");
}

/// Prints figures; asserts what they consist of.
#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_share_one_connection() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let before = server.counts().await.unwrap();
    let rounds = 200_u32;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let backend = backend.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let claim = mutex(&format!("job {n}"));
                try_take(&backend, &claim).await.unwrap();
                assert!(freed(&backend, &claim).await);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let rate = f64::from(64 * rounds) / begun.elapsed().as_secs_f64();
    println!("{rate:.0} cycles a second with 64 tasks");
    let used = server.counts().await.unwrap().since(&before);
    assert_eq!(used.connections, before.connections, "the one that there was carries them all");
    // A script that is sent in full may run in parallel to others that do not know yet that the server has it.
    assert!(used.of("evalsha") <= u64::from(2 * 64 * rounds + 2 * 64), "{:?}", used.commands);
}

#[tokio::test]
async fn a_thousand_readers_can_be_taken_and_let_go() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let readers: Vec<_> = (0..1_000).map(|_| claim_of("page", Share::READER, TTL)).collect();
    let begun = Instant::now();
    for reader in &readers {
        try_take(&backend, reader).await.unwrap();
    }
    let taken = begun.elapsed();
    backend.release(&readers.iter().collect::<Vec<_>>()).await;
    println!("1,000 readers taken in {taken:?}, released in {:?}", begun.elapsed() - taken);
    // A tenth of a millisecond each on an idle processor.
    assert!(begun.elapsed() < Duration::from_secs(120));
    assert!(try_take(&backend, &claim_of("page", Share::WRITER, TTL)).await.is_some());
}

/// Many holders are counted, not read: an exchange of one of them is not noticed. Older clients do not
/// count, and their changes are noticed.
#[tokio::test]
async fn many_holders_are_counted_and_not_read() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let readers: Vec<_> = (0..40).map(|_| claim_of("page", Share::READER, TTL)).collect();
    for reader in &readers {
        try_take(&backend, reader).await.unwrap();
    }
    let held = "{lh:page}:held";
    let exclusive = claim_of("page", Share::WRITER, TTL);
    let Reply::Bytes(end) = server.command(&["ZSCORE", held, &member(&readers[0])]).await.unwrap() else {
        panic!()
    };
    let end = String::from_utf8(end).unwrap();
    server.command(&["ZREM", held, &member(&readers[0])]).await.unwrap();
    server.command(&["ZADD", held, &end, &member(&exclusive)]).await.unwrap();
    let newcomer = claim_of("page", Share::READER, TTL);
    assert!(try_take(&backend, &newcomer).await.is_some(), "it read the holders");
    // A release leaves one holder less than was written down.
    assert!(freed(&backend, &newcomer).await);
    assert!(try_take(&backend, &newcomer).await.is_some());
    // An older client lets a reader go, and does not count it.
    server.command(&["ZREM", held, &member(&readers[1])]).await.unwrap();
    assert!(
        try_take(&backend, &claim_of("page", Share::READER, TTL)).await.is_none(),
        "it counted what is not so"
    );
    server.command(&["ZREM", held, &member(&exclusive)]).await.unwrap();
    assert!(try_take(&backend, &claim_of("page", Share::READER, TTL)).await.is_some());
    // An older client lets one go and grants to another: as many hold, but the last fence is another.
    server.command(&["ZREM", held, &member(&readers[2])]).await.unwrap();
    server.command(&["ZADD", held, &end, &member(&exclusive)]).await.unwrap();
    server.command(&["SET", "{lh:page}:fence", "4000000000000000"]).await.unwrap();
    assert!(
        try_take(&backend, &claim_of("page", Share::READER, TTL)).await.is_none(),
        "it trusted an older number"
    );
}

#[tokio::test]
async fn counted_holders_leave_and_expire_one_by_one() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let pool = Share::permits(1, 50).unwrap();
    let permits: Vec<_> = (0..50).map(|_| claim_of("pool", pool, TTL)).collect();
    for permit in &permits {
        assert!(try_take(&backend, permit).await.is_some());
    }
    let more = || claim_of("pool", pool, TTL);
    let full = more();
    assert!(try_take(&backend, &full).await.is_none());
    assert!(freed(&backend, &permits[0]).await);
    assert!(try_take(&backend, &more()).await.is_some());
    // Those that run out make room for as many.
    for permit in permits.iter().skip(1).step_by(2) {
        let ended =
            server.command(&["ZADD", "{lh:pool}:held", "XX", "CH", "1", &member(permit)]).await.unwrap();
        assert_eq!(ended, Reply::Int(1));
    }
    for n in 0..25 {
        assert!(try_take(&backend, &more()).await.is_some(), "{n}");
    }
    assert!(try_take(&backend, &more()).await.is_none());
    let seen = backend.inspect(&full.resource, None, &no_patience()).await.unwrap();
    assert_eq!(seen.holders.len(), 50);
    let held: Vec<_> = permits.iter().step_by(2).skip(1).collect();
    backend.release(&held).await;
    assert!(try_take(&backend, &claim_of("pool", Share::permits(24, 50).unwrap(), TTL)).await.is_some());
    assert!(try_take(&backend, &more()).await.is_none());
}
