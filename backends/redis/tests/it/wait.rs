//! Waiting in the queue: which waiters are woken, when, and at what cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::{
    Backend, CALL_GRACE, CHALLENGE_AFTER, Claim, PROBE_AFTER, PROBED_PER_SILENT, SILENT_AFTER, Share, Step,
};
use leasehold_redis::RedisBackend;
use leasehold_testkit::{Lateness, Proxy, RedisServer, Reply, until};
use tokio::task::JoinSet;

async fn waiting(backend: &RedisBackend, claim: &Claim) -> usize {
    backend.inspect(&claim.resource, None, &no_patience()).await.unwrap().waiting.len()
}

async fn until_waiting(backend: &RedisBackend, claim: &Claim, count: usize) {
    until("they wait", async || waiting(backend, claim).await == count).await;
}

/// Waits in a task of its own and answers when it was granted.
fn spawn_wait(
    tasks: &mut JoinSet<(usize, Instant)>,
    backend: &Arc<RedisBackend>,
    claim: &Claim,
    number: usize,
) {
    let (backend, claim) = (backend.clone(), claim.clone());
    tasks.spawn(async move {
        take(&backend, &claim, &endless()).await.unwrap();
        (number, Instant::now())
    });
}

/// Waits for the next grant after a release at `begun`. Returns whose it is and how long it took.
async fn handed_over(tasks: &mut JoinSet<(usize, Instant)>, begun: Instant) -> (usize, Duration) {
    let (number, _) = tasks.join_next().await.unwrap().unwrap();
    let took = begun.elapsed();
    // One that nobody wakes looks for safety after 15 seconds at the earliest.
    assert!(took < Duration::from_secs(8), "{took:?}: it was not woken");
    (number, took)
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_served_in_order_without_a_thundering_herd() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let first = lasting("job");
    try_take(&holder, &first).await.unwrap();
    let mut tasks = JoinSet::new();
    let mut claims = Vec::new();
    for number in 0..20 {
        // Each from a client of its own, as processes are.
        let backend = Arc::new(connect(&server.url()).await);
        let claim = lasting("job");
        spawn_wait(&mut tasks, &backend, &claim, number);
        until_waiting(&holder, &claim, number + 1).await;
        claims.push(claim);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = server.counts().await.unwrap();
    let mut begun = Instant::now();
    assert!(freed(&holder, &first).await);
    let (mut quickest, mut slowest) = (Duration::MAX, Duration::ZERO);
    for expected in 0..claims.len() {
        let (number, took) = handed_over(&mut tasks, begun).await;
        (quickest, slowest) = (quickest.min(took), slowest.max(took));
        // A waiter that is called and late makes others look, or is passed over.
        assert!(number == expected || slowest > PROBE_AFTER / 2, "{number} instead of {expected}");
        begun = Instant::now();
        assert!(freed(&holder, &claims[number]).await);
    }
    assert!(quickest < PROBE_AFTER, "no waiter was called: the quickest took {quickest:?}");
    if slowest > PROBE_AFTER / 2 {
        println!("the machine was too slow for those who were called: one took {slowest:?}");
        return;
    }
    let used = server.counts().await.unwrap().since(&before);
    // A release and a look for each; a waiter that is not called is silent.
    let scripts = used.of("evalsha");
    assert!((41..=45).contains(&scripts), "{scripts} scripts for 21 releases and 20 grants");
}

#[tokio::test]
async fn release_wakes_all_waiters_that_fit_and_no_others() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let writer = claim_of("page", Share::WRITER, LASTING);
    try_take(&backend, &writer).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..70 {
        spawn_wait(&mut tasks, &backend, &claim_of("page", Share::READER, TTL), number);
    }
    until_waiting(&backend, &writer, 70).await;
    let last = claim_of("page", Share::WRITER, TTL);
    spawn_wait(&mut tasks, &backend, &last, 99);
    until_waiting(&backend, &writer, 71).await;
    let begun = Instant::now();
    assert!(freed(&backend, &writer).await);
    for _ in 0..70 {
        let (number, _) = tasks.join_next().await.unwrap().unwrap();
        if number == 99 {
            // A reader that asks too late after its call is queued again, behind this one.
            assert!(may_be_passed_over(begun), "it overtook readers");
            return;
        }
    }
    // One after the other, a second each, they would take more than a minute.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: they were woken late", begun.elapsed());
    assert_eq!(waiting(&backend, &writer).await, 1);
}

/// Puts claims in the queue whose clients then die.
async fn dead_waiters(backend: &Arc<RedisBackend>, dead: &[Claim], before: usize) {
    for (n, claim) in dead.iter().enumerate() {
        let (sent, to) = (claim.clone(), backend.clone());
        let task = tokio::spawn(async move { to.contend(&sent, &endless()).await.map(drop) });
        until_waiting(backend, claim, before + n + 1).await;
        task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_waiters_are_passed_over_together() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["", "?wait=poll"] {
        let backend = Arc::new(connect(&format!("{}{options}", server.url())).await);
        let first = lasting("job");
        try_take(&backend, &first).await.unwrap();
        let dead: Vec<Claim> = (0..40).map(|_| mutex("job")).collect();
        dead_waiters(&backend, &dead, 0).await;
        let mut tasks = JoinSet::new();
        spawn_wait(&mut tasks, &backend, &mutex("job"), 0);
        until_waiting(&backend, &first, 41).await;
        let begun = Instant::now();
        assert!(freed(&backend, &first).await);
        let (_, granted) = tasks.join_next().await.unwrap().unwrap();
        let delay = granted - begun;
        // Not before their grace is over. One after the other they would take forty seconds.
        assert!(delay > CALL_GRACE.mul_f64(0.99) && delay < Duration::from_secs(8), "{options}: {delay:?}");
        server.flushall().await.unwrap();
    }
}

/// Returns a client that asks by polling alone, a claim that holds, and so many in the queue behind it.
async fn queue_of(server: &RedisServer, count: usize) -> (RedisBackend, Claim, Vec<Claim>) {
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let first = lasting("job");
    try_take(&backend, &first).await.unwrap();
    let queue: Vec<Claim> = (0..count).map(|_| mutex("job")).collect();
    for claim in &queue {
        backend.contend(claim, &endless()).await.unwrap();
    }
    (backend, first, queue)
}

/// Returns which claims of the queue are called.
async fn called(backend: &RedisBackend, at: &Claim) -> Vec<bool> {
    let seen = backend.inspect(&at.resource, None, &no_patience()).await.unwrap();
    seen.waiting.iter().map(|info| info.remaining.is_some_and(|left| left <= CALL_GRACE)).collect()
}

#[tokio::test]
async fn only_waiters_that_are_not_heard_from_are_called() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (backend, first, queue) = queue_of(&server, 5).await;
    let begun = Instant::now();
    assert!(freed(&backend, &first).await);
    tokio::time::sleep(PROBE_AFTER / 2).await;
    backend.contend(&queue[4], &endless()).await.unwrap();
    let seen = called(&backend, &first).await;
    if begun.elapsed() < PROBE_AFTER {
        assert_eq!(seen, [true, false, false, false, false], "the first has had no time to answer");
    }
    // It runs past the limit only where the look before it did.
    tokio::time::sleep((PROBE_AFTER + Duration::from_millis(20)).saturating_sub(begun.elapsed())).await;
    backend.contend(&queue[3], &endless()).await.unwrap();
    let seen = called(&backend, &first).await;
    if may_be_passed_over(begun) {
        return;
    }
    assert_eq!(seen, [true, true, true, false, false], "the last two have asked since the call");
}

#[tokio::test]
async fn whole_queue_is_called_behind_many_silent_waiters() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (backend, first, queue) = queue_of(&server, 1_200).await;
    let begun = Instant::now();
    assert!(freed(&backend, &first).await);
    for pause in [PROBE_AFTER, SILENT_AFTER] {
        tokio::time::sleep(pause + Duration::from_millis(20)).await;
        backend.contend(&queue[1_199], &endless()).await.unwrap();
    }
    let seen = called(&backend, &first).await;
    if may_be_passed_over(begun) {
        return;
    }
    assert!(seen[..1_199].iter().all(|called| *called) && !seen[1_199], "{seen:?}");
}

#[tokio::test]
async fn waiters_are_called_as_far_as_the_admission_rule_says() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (backend, first, queue) = queue_of(&server, 1_200).await;
    let called = async || called(&backend, &first).await.iter().take_while(|called| **called).count();
    let begun = Instant::now();
    assert!(freed(&backend, &first).await);
    let last = &queue[1_199];
    let seen = called().await;
    // By the time after the look: what is seen on a machine that is late says nothing.
    assert!(seen == 1 || begun.elapsed() >= CALL_GRACE, "{seen} are called");
    tokio::time::sleep(PROBE_AFTER + Duration::from_millis(20)).await;
    backend.contend(last, &endless()).await.unwrap();
    let seen = called().await;
    let in_time = begun.elapsed() < SILENT_AFTER;
    assert!(!in_time || seen == PROBED_PER_SILENT, "{seen} are called");
    // One that answers is not called again.
    backend.contend(&queue[5], &endless()).await.unwrap();
    tokio::time::sleep(SILENT_AFTER + Duration::from_millis(20)).await;
    backend.contend(last, &endless()).await.unwrap();
    let seen = backend.inspect(&first.resource, None, &no_patience()).await.unwrap();
    let in_time = in_time && begun.elapsed() < CALL_GRACE;
    let called: Vec<bool> =
        seen.waiting.iter().map(|info| info.remaining.is_some_and(|left| left <= CALL_GRACE)).collect();
    if !in_time {
        println!("the machine was too slow to see one step at a time");
        return;
    }
    let reach = (PROBED_PER_SILENT - 1) * PROBED_PER_SILENT;
    assert!(!called[5] && called[..reach].iter().filter(|called| !**called).count() == 1, "{called:?}");
    assert!(called[reach..].iter().all(|called| !called));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_waiters_do_not_look_while_called_waiters_answer() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let mut held = lasting("job");
    try_take(&holder, &held).await.unwrap();
    let (mut tasks, mut claims) = (JoinSet::new(), Vec::new());
    for number in 0..12 {
        let claim = lasting("job");
        spawn_wait(&mut tasks, &Arc::new(connect(&server.url()).await), &claim, number);
        until_waiting(&holder, &claim, number + 1).await;
        claims.push(claim);
    }
    let before = server.counts().await.unwrap();
    let mut lateness = Duration::ZERO;
    for claim in &claims[..3] {
        let begun = Instant::now();
        assert!(freed(&holder, &held).await);
        let (_, took) = handed_over(&mut tasks, begun).await;
        held = claim.clone();
        // Longer than a call may be unanswered before other waiters react, and before the queue passes
        // over it.
        lateness = lateness.max(took).max(Lateness::within(CALL_GRACE + CALL_GRACE / 2).await);
    }
    let scripts = server.counts().await.unwrap().since(&before).of("evalsha");
    tasks.abort_all();
    if lateness > PROBE_AFTER / 2 {
        println!("the machine was too slow for those who were called: it stood still for {lateness:?}");
        return;
    }
    assert!((6..=9).contains(&scripts), "{scripts} scripts for three releases and three grants");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_waiter_looks_after_a_called_waiter_leaves() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let held = lasting("job");
    try_take(&holder, &held).await.unwrap();
    // Has a place and never answers by itself.
    let leaver = mutex("job");
    let poller = connect(&format!("{}?wait=poll", server.url())).await;
    poller.contend(&leaver, &endless()).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let claim = lasting("job");
        spawn_wait(&mut tasks, &Arc::new(connect(&server.url()).await), &claim, number);
        until_waiting(&holder, &claim, number + 2).await;
    }
    let before = server.counts().await.unwrap();
    let begun = Instant::now();
    assert!(freed(&holder, &held).await);
    assert!(freed(&holder, &leaver).await);
    let (_, took) = handed_over(&mut tasks, begun).await;
    let lateness = took.max(Lateness::within(CALL_GRACE + CALL_GRACE / 2).await);
    let scripts = server.counts().await.unwrap().since(&before).of("evalsha");
    tasks.abort_all();
    if lateness > PROBE_AFTER / 2 {
        println!("the machine was too slow for those who were called: it stood still for {lateness:?}");
        return;
    }
    assert!((3..=5).contains(&scripts), "{scripts} scripts for two releases and a grant");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_behind_expiring_holders_is_granted_in_time() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let ttl = Duration::from_secs(5);
    let mut ends = Instant::now();
    for _ in 0..200 {
        try_take(&backend, &claim_of("page", Share::READER, ttl)).await.unwrap();
        ends = Instant::now() + ttl;
    }
    let writer = claim_of("page", Share::WRITER, LONG);
    assert!(take(&backend, &writer, &patience(LONG)).await.is_some());
    // Once each holder ahead made it later by a tenth of a second.
    let late = ends.elapsed();
    assert!(late < Duration::from_secs(12), "{late:?} late");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_holders_and_dead_waiters_cost_the_ttl_and_a_grace() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    // All thirty are in the queue before it ends.
    let ttl = Duration::from_secs(10);
    try_take(&backend, &claim_of("job", Share::MUTEX, ttl)).await.unwrap();
    let ends = Instant::now() + ttl;
    let dead: Vec<Claim> = (0..30).map(|_| mutex("job")).collect();
    dead_waiters(&backend, &dead, 0).await;
    assert!(take(&backend, &mutex("job"), &patience(LONG)).await.is_some());
    assert!(ends.elapsed() < Duration::from_secs(8), "{:?} late", ends.elapsed());
}

/// A reader holds, and `writer` waits; a reader behind it has room, but not its turn.
async fn behind_writer(server: &RedisServer, options: &str, name: &str) -> (Arc<RedisBackend>, Claim, Claim) {
    let backend = Arc::new(connect(&format!("{}{options}", server.url())).await);
    let holder = claim_of(name, Share::READER, LONG);
    try_take(&backend, &holder).await.unwrap();
    (backend, holder, claim_of(name, Share::WRITER, LONG))
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_waiter_does_not_block_a_free_share() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["", "?wait=poll"] {
        let (backend, _, writer) = behind_writer(&server, options, &format!("page{options}")).await;
        let unheard = Instant::now();
        let dead = tokio::spawn({
            let (backend, writer) = (backend.clone(), writer.clone());
            async move { backend.contend(&writer, &endless()).await.map(drop) }
        });
        until_waiting(&backend, &writer, 1).await;
        dead.abort();
        // Another process, which has received no notification.
        let other = connect(&format!("{}{options}", server.url())).await;
        let begun = Instant::now();
        let reader = claim_of(writer.resource.as_str(), Share::READER, LONG);
        assert!(take(&other, &reader, &patience(LONG)).await.is_some());
        // Not before it was silent for a while and has not answered; long before anybody would have
        // looked for safety.
        let (delay, silent) = (begun.elapsed(), unheard.elapsed());
        assert!(delay < Duration::from_secs(15), "{options}: {delay:?}");
        assert!(silent > (CALL_GRACE + CALL_GRACE).mul_f64(0.99), "{options}: {silent:?}");
        assert_eq!(waiting(&backend, &writer).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_waiter_answers_for_its_place() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let mut tasks = JoinSet::new();
    let mut queues = Vec::new();
    for options in ["", "?wait=poll"] {
        let (backend, holder, writer) = behind_writer(&server, options, &format!("book{options}")).await;
        spawn_wait(&mut tasks, &backend, &writer, 0);
        until_waiting(&backend, &writer, 1).await;
        let reader = claim_of(writer.resource.as_str(), Share::READER, LONG);
        let other = Arc::new(connect(&format!("{}{options}", server.url())).await);
        spawn_wait(&mut tasks, &other, &reader, 1);
        until_waiting(&backend, &writer, 2).await;
        queues.push((backend, holder, writer));
    }
    // By then it was challenged, and one that does not answer would be passed over.
    let before = server.counts().await.unwrap();
    let lateness = Lateness::within((CHALLENGE_AFTER + CALL_GRACE) * 2).await;
    let used = server.counts().await.unwrap().since(&before);
    assert!(used.of("publish") >= 1, "{}: nobody was challenged", used.of("publish"));
    if lateness > CALL_GRACE / 4 {
        println!("the machine was too slow for the grace of a call: it stood still for {lateness:?}");
        return;
    }
    for (backend, holder, writer) in &queues {
        let seen = backend.inspect(&writer.resource, None, &no_patience()).await.unwrap();
        let queue: Vec<_> = seen.waiting.iter().map(|info| info.share).collect();
        assert_eq!(queue, [Share::WRITER, Share::READER], "the writer lost its place");
        assert!(freed(backend, holder).await);
    }
    for _ in &queues {
        let (number, _) = tasks.join_next().await.unwrap().unwrap();
        assert_eq!(number, 0, "a reader passed a writer that lives");
    }
    tasks.abort_all();
}

#[tokio::test]
async fn a_dead_holder_is_followed_when_its_lease_ends() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    // At the same time, because it is about waiting.
    let ways = ["", "?order=unordered", "?wait=poll", "?order=unordered&wait=poll"].map(async |options| {
        let backend = connect(&format!("{}{options}", server.url())).await;
        let name = format!("job{options}");
        let dead = claim_of(&name, Share::MUTEX, Duration::from_secs(3));
        let begun = Instant::now();
        try_take(&backend, &dead).await.unwrap();
        let next = mutex(&name);
        // One that does not know the end looks after 15 seconds at the earliest.
        assert!(take(&backend, &next, &patience(Duration::from_secs(12))).await.is_some(), "{options}");
        let delay = begun.elapsed();
        assert!(delay > Duration::from_millis(2_990), "{options}: {delay:?}");
        assert!(freed(&backend, &next).await);
    });
    join_all(ways).await;
}

/// A waiter knows the end of the lease that it saw ahead, and not that of a waiter that is granted the lock next.
#[tokio::test]
async fn a_called_waiter_that_dies_once_granted_is_followed_when_its_lease_ends() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let long = || claim_of("job", Share::MUTEX, Duration::from_secs(120));
    let (first, third) = (long(), long());
    try_take(&holder, &first).await.unwrap();
    let mut tasks = JoinSet::new();
    let second = claim_of("job", Share::MUTEX, Duration::from_secs(4));
    for (number, claim) in [(2, &second), (3, &third)] {
        let backend = Arc::new(connect(&server.url()).await);
        spawn_wait(&mut tasks, &backend, claim, number);
        until_waiting(&holder, claim, number - 1).await;
    }
    let called = Instant::now();
    assert!(freed(&holder, &first).await);
    let (number, _) = tasks.join_next().await.unwrap().unwrap();
    if may_be_passed_over(called) {
        return;
    }
    assert_eq!(number, 2);
    // Without a message the third looks after 15 seconds at the earliest.
    let granted = tokio::time::timeout(Duration::from_secs(13), tasks.join_next()).await;
    assert_eq!(granted.unwrap().unwrap().unwrap().0, 3);
}

#[tokio::test]
async fn a_waiter_whose_subscription_hangs_looks_by_itself() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    // It accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let holder = connect(&server.url()).await;
    let backend = Arc::new(connect(&format!("{}?timeout=60s", server.url_at(proxy.addr()))).await);
    proxy.set_upstream(silent.local_addr().unwrap());
    let (first, second) = (mutex("job"), mutex("job"));
    try_take(&holder, &first).await.unwrap();
    let mut tasks = JoinSet::new();
    spawn_wait(&mut tasks, &backend, &second, 2);
    until_waiting(&holder, &second, 1).await;
    assert!(freed(&holder, &first).await);
    // One that is not woken looks within 20 seconds; one that waited for the subscription would look after a minute.
    tokio::time::timeout(Duration::from_secs(45), tasks.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn patience_that_ends_leaves_nothing_behind() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["", "?order=unordered", "?wait=poll"] {
        let backend = Arc::new(connect(&format!("{}{options}", server.url())).await);
        let first = mutex("job");
        try_take(&backend, &first).await.unwrap();
        let second = mutex("job");
        let begun = Instant::now();
        assert!(take(&backend, &second, &patience(Duration::from_millis(120))).await.is_none());
        // The end of the lease that is in the way is not waited for.
        assert!(begun.elapsed() >= Duration::from_millis(120) && begun.elapsed() < TTL / 2);
        assert_eq!(waiting(&backend, &first).await, 0);

        let cancellable = endless();
        let (waiter, ended, third) = (backend.clone(), cancellable.clone(), mutex("job"));
        let task = tokio::spawn(async move { take(&waiter, &third, &ended).await.is_none() });
        tokio::time::sleep(Duration::from_millis(60)).await;
        cancellable.end();
        assert!(task.await.unwrap());
        assert_eq!(waiting(&backend, &first).await, 0);
        assert!(freed(&backend, &first).await);
        let rest = server.command(&["KEYS", "*"]).await.unwrap();
        assert_eq!(rest, Reply::Many(vec![Reply::Bytes(b"{lh:job}:fence".to_vec())]), "{options}");
    }
}

#[tokio::test]
async fn one_that_leaves_calls_those_behind_it() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let permits = |k| claim_of("pool", Share::permits(k, 3).unwrap(), TTL);
    try_take(&backend, &permits(2)).await.unwrap();
    let cancellable = endless();
    let (waiter, ended, large) = (backend.clone(), cancellable.clone(), permits(3));
    let leaving = tokio::spawn(async move { take(&waiter, &large, &ended).await.is_none() });
    until_waiting(&backend, &permits(1), 1).await;
    let mut tasks = JoinSet::new();
    spawn_wait(&mut tasks, &backend, &permits(1), 0);
    until_waiting(&backend, &permits(1), 2).await;
    let begun = Instant::now();
    cancellable.end();
    assert!(leaving.await.unwrap());
    let (_, granted) = tasks.join_next().await.unwrap().unwrap();
    assert!(granted - begun < CHALLENGE_AFTER, "it challenged what it saw ahead");
}

#[tokio::test]
async fn poller_gets_the_time_of_its_next_request() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["?wait=poll", "?wait=poll&order=unordered"] {
        let backend = connect(&format!("{}{options}", server.url())).await;
        let before = server.counts().await.unwrap();
        let holder = claim_of("job", Share::MUTEX, Duration::from_secs(20));
        try_take(&backend, &holder).await.unwrap();
        let waiter = mutex("job");
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let Step::Busy(hint) = backend.contend(&waiter, &endless()).await.unwrap() else { panic!() };
            pauses.push(hint.ask_again_in.unwrap());
            assert_eq!(hint.ahead, Some(1));
        }
        assert!(pauses[0] <= Duration::from_millis(25), "{pauses:?}");
        assert!(
            pauses[9] >= Duration::from_millis(300) && pauses[9] <= Duration::from_millis(400),
            "{pauses:?}"
        );
        assert!(freed(&backend, &holder).await);
        assert!(matches!(backend.contend(&waiter, &endless()).await.unwrap(), Step::Granted(_)));
        assert!(freed(&backend, &waiter).await);
        let used = server.counts().await.unwrap().since(&before);
        assert_eq!((used.of("publish"), used.of("subscribe")), (0, 0), "a poller publishes nothing");
    }
}

#[tokio::test]
async fn a_poller_never_sleeps_past_the_first_end_ahead() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&format!("{}?wait=poll", server.url())).await;
    let ttl = Duration::from_secs(4);
    try_take(&backend, &claim_of("job", Share::MUTEX, ttl)).await.unwrap();
    let (granted, waiter) = (Instant::now(), mutex("job"));
    // It asks until the lease ends. Towards the end, less is left than it would pause by itself.
    loop {
        let left = ttl.saturating_sub(granted.elapsed());
        let Step::Busy(hint) = backend.contend(&waiter, &endless()).await.unwrap() else { break };
        let pause = hint.ask_again_in.unwrap();
        assert!(pause <= left + Duration::from_millis(3), "{pause:?}, and {left:?} are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_waiters_of_one_client_are_idle_on_two_connections() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let admin = server.counts().await.unwrap().connections;
    let backend = Arc::new(connect(&server.url()).await);
    let name = |n: usize| format!("resource {n}");
    let holders: Vec<_> = (0..1_000).map(|n| lasting(&name(n))).collect();
    for holder in &holders {
        try_take(&backend, holder).await.unwrap();
    }
    let mut tasks = JoinSet::new();
    for n in 0..1_000 {
        spawn_wait(&mut tasks, &backend, &lasting(&name(n)), n);
    }
    for holder in holders.iter().rev().step_by(100) {
        until_waiting(&backend, holder, 1).await;
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = server.counts().await.unwrap();
    assert_eq!(before.connections - admin, 2, "one for commands, one for subscriptions");
    // Longer than the longest time between two looks for safety.
    tokio::time::sleep(Duration::from_secs(21)).await;
    let used = server.counts().await.unwrap().since(&before);
    let sent = used.of("evalsha") + used.of("ping") + used.of("subscribe");
    assert!((4..=40).contains(&sent), "1000 idle waiters sent {sent} requests in 21 s: {:?}", used.commands);

    // One that is not woken looks for itself within twenty seconds, each at a time of its own: that ten
    // of them do so within eight happens once in ten thousand runs. A thousand that are woken may take a
    // busy machine longer than that.
    let claims: Vec<&Claim> = holders.iter().collect();
    for released in [&claims[..10], &claims[10..]] {
        let begun = Instant::now();
        backend.release(released).await;
        for _ in released {
            tasks.join_next().await.unwrap().unwrap();
        }
        let limit = Duration::from_secs(8);
        assert!(released.len() > 10 || begun.elapsed() < limit, "woken after {:?}", begun.elapsed());
    }
    assert!(tasks.is_empty());
}

#[tokio::test]
async fn subscriptions_end_without_waiters() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let before = server.counts().await.unwrap();
    let holder = lasting("job");
    try_take(&backend, &holder).await.unwrap();
    let (waiting, asking) = (mutex("job"), endless());
    let ending = async {
        until_subscribed(&server).await;
        asking.end();
    };
    assert!(tokio::join!(take(&backend, &waiting, &asking), ending).0.is_none());
    let begun = Instant::now();
    loop {
        let now = server.counts().await.unwrap();
        assert_eq!(now.since(&before).accepted, 1, "one for subscriptions");
        if now.connections == before.connections {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "it stays open");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let waiting = mutex("job");
    let limit = patience(Duration::from_secs(10));
    let taking = take(&backend, &waiting, &limit);
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(freed(&backend, &holder).await);
    };
    assert!(tokio::join!(taking, releasing).0.is_some());
}

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

/// A lease that nobody has to renew during a test.
const LASTING: Duration = Duration::from_secs(600);

fn lasting(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, LASTING)
}
