//! Faults of a store: lost races, requests and answers; forgotten and foreign cells; and the cost of each
//! step when nothing fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_backend::cell::MIN_TTL;
use leasehold_core::{
    Backend, CALL_GRACE, Claim, Clock, Effect, FailureKind, Fence, ManualClock, Patience, Proof, QueueOrder,
    Release, Renew, Renewal, Step, WaitMode,
};

use crate::store::{CACHE, Faults, Kind, LONG, Store, TABLE, claim, clock, try_take};

async fn renew(backend: &dyn Backend, claims: &[Claim]) -> Vec<Renewal> {
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    backend.renew(&batch).await
}

/// Takes, holds and releases as the engine does: the same claim again after every failure.
async fn cycle(backend: &dyn Backend, name: &str, inside: &AtomicU32, last: &std::sync::Mutex<Fence>) {
    let claim = claim(name, LONG);
    let patience = Patience::unlimited(clock());
    let grant = loop {
        match backend.contend(&claim, &patience).await {
            Ok(Step::Granted(grant)) => break grant,
            Ok(Step::Busy(hint)) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
            Err(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
        }
    };
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside {name}");
    {
        let mut last = last.lock().unwrap();
        assert!(grant.fence.unwrap() > *last, "{:?} after {last:?}", grant.fence);
        *last = grant.fence.unwrap();
    }
    let renewal = renew(backend, std::slice::from_ref(&claim)).await.pop().unwrap();
    assert!(matches!(renewal, Renewal::Renewed | Renewal::Unknown(_)), "{renewal:?}");
    inside.fetch_sub(1, Ordering::SeqCst);
    for tries in 0.. {
        assert!(tries < 100, "a release never succeeds");
        match backend.release(&[&claim]).await.pop().unwrap() {
            Release::Unknown(_) => {}
            // A release whose answer was lost finds nothing the second time.
            Release::Gone => return assert!(tries > 0, "a held claim was gone"),
            Release::Freed => return,
        }
    }
}

async fn survives(kind: Kind) {
    let store = Store::new();
    let faults = Faults { lost_races: 100, lost_requests: 50, lost_answers: 150 };
    let states: Arc<Vec<(AtomicU32, std::sync::Mutex<Fence>)>> =
        Arc::new((0..3).map(|_| Default::default()).collect());
    let mut tasks = Vec::new();
    for n in 0..6 {
        let (backend, states) = (store.open(kind, faults), states.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                let at = (n + round) % 3;
                let (inside, last) = &states[at];
                cycle(&backend, &format!("r{at}"), inside, last).await;
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    let listed = store.open(kind, Faults::default()).list("", None, 10).await.unwrap();
    assert_eq!(listed, [], "what is released leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_requests_and_replies_never_grant_two_by_store_clock() {
    survives(TABLE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_requests_and_replies_never_grant_two_by_observer_clocks() {
    survives(CACHE).await;
}

#[tokio::test]
async fn uncontended_acquire_and_release_take_one_request_each() {
    for kind in [TABLE, CACHE] {
        let store = Store::new();
        let backend = store.open(kind, Faults::default());
        for patience in [Patience::none(clock()), Patience::unlimited(clock()), Patience::none(clock())] {
            let (claim, before) = (claim("quiet", LONG), store.requests());
            let step = backend.contend(&claim, &patience).await.unwrap();
            assert!(matches!(step, Step::Granted(_)), "{step:?}");
            assert_eq!(store.requests() - before, 1, "{kind:?}");
            assert!(matches!(backend.release(&[&claim]).await[..], [Release::Freed]));
            assert_eq!(store.requests() - before, 2, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn released_cell_is_reacquired_even_after_others_changed_it() {
    let store = Store::new();
    let (here, there) = (store.open(TABLE, Faults::default()), store.open(TABLE, Faults::default()));
    let mut last = Fence::default();
    let mut take = async |backend: &dyn Backend| {
        let claim = claim("left", LONG);
        let fence = try_take(backend, &claim).await?.fence.unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        Some(claim)
    };
    for expected in [0, 1, 2] {
        let claim = take(&here).await.unwrap();
        assert_eq!(store.retakes(), expected);
        assert!(matches!(here.release(&[&claim]).await[..], [Release::Freed]));
    }
    // Somebody else has it; what was left is then no longer known to be empty.
    let others = take(&there).await.unwrap();
    assert!(take(&here).await.is_none());
    assert_eq!(store.retakes(), 3);
    assert!(take(&here).await.is_none());
    assert_eq!(store.retakes(), 3);
    assert!(matches!(there.release(&[&others]).await[..], [Release::Freed]));
    let claim = take(&here).await.unwrap();
    assert!(matches!(here.release(&[&claim]).await[..], [Release::Freed]));
    // It was deleted by hand.
    store.forget("left");
    let alone = self::claim("left", LONG);
    assert!(try_take(&here, &alone).await.is_some());
}

#[tokio::test]
async fn ten_thousand_renewals_are_a_hundred_requests() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let claims: Vec<Claim> = (0..10_000).map(|n| claim(&format!("many/{n}"), LONG)).collect();
    for claim in &claims {
        assert!(try_take(&backend, claim).await.is_some());
    }
    for _ in 0..2 {
        let before = store.requests();
        let answers = renew(&backend, &claims).await;
        assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
        assert_eq!(store.requests() - before, 100);
    }
    // Another client knows nothing of them, and needs to look.
    let other = store.open(TABLE, Faults::default());
    let before = store.requests();
    assert!(renew(&other, &claims).await.iter().all(|answer| matches!(answer, Renewal::Renewed)));
    assert_eq!(store.requests() - before, 200);
    assert!(renew(&backend, &claims).await.iter().all(|answer| matches!(answer, Renewal::Renewed)));
}

#[tokio::test]
async fn unobserved_lease_expires_by_the_clock_of_the_store() {
    let store = Store::new();
    let ttl = Duration::from_millis(300);
    let asked = std::time::Instant::now();
    let first = try_take(&store.open(TABLE, Faults::default()), &claim("dead", ttl)).await.unwrap();
    tokio::time::sleep(ttl / 2).await;
    let (newcomer, next) = (store.open(TABLE, Faults::default()), claim("dead", ttl));
    let grant = loop {
        if let Some(grant) = try_take(&newcomer, &next).await {
            break grant;
        }
        assert!(asked.elapsed() < LONG, "a dead claim is never passed over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(asked.elapsed() >= ttl);
    assert!(grant.fence > first.fence);
}

#[tokio::test]
async fn unobserved_lease_expires_one_span_after_a_newcomer_saw_it() {
    let (store, clock) = (Store::new(), Arc::new(ManualClock::new()));
    let ttl = Duration::from_secs(30);
    let open = || store.open_by(CACHE, clock.clone());
    let first = try_take(&open(), &claim("dead", ttl)).await.unwrap();
    clock.advance(ttl * 2);
    let (newcomer, next) = (open(), claim("dead", ttl));
    assert!(try_take(&newcomer, &next).await.is_none(), "it may have been renewed a moment ago");
    clock.advance(ttl - Duration::from_millis(1));
    assert!(try_take(&newcomer, &next).await.is_none(), "a span is not over");
    // The drift of the clocks, and the granularity of the store.
    clock.advance(Duration::from_millis(20));
    let grant = try_take(&newcomer, &next).await.expect("a dead claim is passed over");
    assert!(grant.fence > first.fence);
}

#[tokio::test]
async fn cell_lost_by_the_store_is_lost_to_its_holder_only() {
    let store = Store::new();
    let (here, there) = (store.open(TABLE, Faults::default()), store.open(TABLE, Faults::default()));
    let (old, new) = (claim("lost", LONG), claim("lost", LONG));
    assert!(try_take(&here, &old).await.is_some());
    store.forget("lost");
    assert!(try_take(&there, &new).await.is_some());
    assert!(matches!(renew(&here, std::slice::from_ref(&old)).await[..], [Renewal::Lost]));
    assert!(matches!(here.release(&[&old]).await[..], [Release::Gone]));
    assert!(matches!(renew(&there, std::slice::from_ref(&new)).await[..], [Renewal::Renewed]));
    assert!(matches!(there.release(&[&new]).await[..], [Release::Freed]));
}

#[tokio::test]
async fn a_text_that_is_not_ours_is_left_untouched() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let (held, next) = (claim("spoilt", LONG), claim("spoilt", LONG));
    assert!(try_take(&backend, &held).await.is_some());
    store.spoil("spoilt", "shopping list");
    let failure = backend.contend(&next, &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign);
    assert!(failure.to_string().contains("left untouched"), "{failure}");
    assert!(backend.list("", None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn sweep_removes_ended_claims_and_nothing_else() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let held = claim("a", LONG);
    let first = try_take(&backend, &held).await.unwrap();
    let waiting = claim("a", LONG);
    let patience = Patience::unlimited(clock());
    let place = tokio::time::timeout(Duration::from_millis(50), backend.contend(&waiting, &patience)).await;
    assert!(place.is_err(), "it waits");
    let ended = claim("b", Duration::from_millis(200));
    let before = try_take(&backend, &ended).await.unwrap();
    let freed = claim("c", LONG);
    try_take(&backend, &freed).await.unwrap();
    assert!(matches!(backend.release(&[&freed]).await[..], [Release::Freed]));
    tokio::time::sleep(Duration::from_millis(250)).await;

    let swept = backend.sweep(LONG).await.unwrap();
    assert_eq!((swept.seen, swept.emptied), (3, 0), "it was used a moment ago");
    let others = backend.sweep_under("other/", Duration::ZERO, |_| ()).await.unwrap();
    assert_eq!((others.seen, others.emptied), (0, 0), "no name begins with that");
    let swept = backend.sweep(Duration::ZERO).await.unwrap();
    assert_eq!((swept.seen, swept.emptied, swept.removed), (3, 1, 0));
    assert_eq!(backend.sweep(Duration::ZERO).await.unwrap().emptied, 0, "there is nothing left");

    let seen = backend.inspect(&held.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting.len(), seen.fence), (1, 1, first.fence));
    assert!(matches!(renew(&backend, &[held, ended]).await[..], [Renewal::Renewed, Renewal::Lost]));
    let after = try_take(&backend, &claim("b", LONG)).await.unwrap();
    assert!(after.fence > before.fence, "{after:?} after {before:?}");
}

/// Beside clients that lock one name in turns, some claims have lost their holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sweepers_disturb_neither_clients_nor_each_other() {
    let store = Store::new();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sweepers: Vec<_> = (0..2)
        .map(|_| {
            let (backend, is_over) = (store.open(TABLE, Faults::default()), is_over.clone());
            tokio::spawn(async move {
                let mut emptied = 0;
                while !is_over.load(Ordering::SeqCst) {
                    emptied += backend.sweep(Duration::ZERO).await.unwrap().emptied;
                    tokio::task::yield_now().await;
                }
                emptied
            })
        })
        .collect();
    let backend = store.open(TABLE, Faults::default());
    for n in 0..20 {
        let left = claim(&format!("left/{n}"), Duration::from_millis(200));
        try_take(&backend, &left).await.unwrap();
    }
    let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(std::sync::Mutex::new(Fence::default())));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let faults = Faults { lost_races: 50, ..Faults::default() };
            let (backend, inside, last) = (store.open(TABLE, faults), inside.clone(), last.clone());
            tokio::spawn(async move {
                for _ in 0..100 {
                    cycle(&backend, "job", &inside, &last).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
    is_over.store(true, Ordering::SeqCst);
    let mut emptied = 0;
    for sweeper in sweepers {
        emptied += sweeper.await.unwrap();
    }
    emptied += backend.sweep(Duration::ZERO).await.unwrap().emptied;
    assert_eq!(emptied, 20, "each that was left, once");
}

/// The second of two requests is the change itself: the refusal of the first has shown the cell.
#[tokio::test]
async fn release_to_a_waiter_that_joined_takes_two_requests() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let store = Store::new();
        let clients = [0; 3].map(|_| store.open(kind, Faults::default()));
        let claims = [0; 3].map(|_| claim("job", LONG));
        let patience = || Patience::unlimited(clock());
        assert!(try_take(&clients[0], &claims[0]).await.is_some());
        for turn in 0..10 {
            let [old, new] = [turn % 3, (turn + 1) % 3];
            // It joins after the holder was granted, so the holder does not know of it.
            let joined = clients[new].contend(&claims[new], &patience()).await.unwrap();
            assert!(matches!(joined, Step::Busy(_)), "{joined:?}");
            let before = store.requests();
            assert!(matches!(clients[old].release(&[&claims[old]]).await[..], [Release::Freed]));
            // The first holder has not waited, so it expects nobody.
            assert_eq!(store.requests() - before, if turn == 0 { 3 } else { 2 }, "{kind:?}, {turn}");
            let granted = clients[new].contend(&claims[new], &patience()).await.unwrap();
            assert!(matches!(granted, Step::Granted(_)), "{granted:?}");
        }
        // Nobody joined the last one.
        let before = store.requests();
        assert!(matches!(clients[1].release(&[&claims[1]]).await[..], [Release::Freed]));
        assert_eq!(store.requests() - before, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn one_release_of_an_ended_claim_and_its_successor_ends_the_successor() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let (ended, held) = (claim("job", MIN_TTL), claim("job", LONG));
    assert!(try_take(&backend, &ended).await.is_some());
    while try_take(&backend, &held).await.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let released = backend.release(&[&ended, &held]).await;
    assert!(matches!(released[..], [Release::Gone, Release::Freed]), "{released:?}");
    assert!(try_take(&backend, &claim("job", LONG)).await.is_some());
}

/// A cache knows no leases: what it still has may have ended.
#[tokio::test]
async fn claim_that_has_ended_by_the_clock_of_its_client_is_gone() {
    let (store, clock) = (Store::new(), Arc::new(ManualClock::new()));
    let backend = store.open_by(CACHE, clock.clone());
    let ended = claim("job", LONG);
    assert!(try_take(&backend, &ended).await.is_some());
    clock.advance(LONG);
    let released = backend.release(&[&ended]).await;
    assert!(matches!(released[..], [Release::Gone]), "{released:?}");
}

#[tokio::test]
async fn renewal_for_a_shorter_time_than_the_one_before_it_shortens_nothing() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let ttl = Duration::from_secs(3);
    let brief = claim("job", ttl);
    let mut long = brief.clone();
    long.ttl = LONG;
    assert!(try_take(&backend, &brief).await.is_some());
    for renewed in [long, brief] {
        assert!(matches!(renew(&backend, &[renewed]).await[..], [Renewal::Renewed]));
    }
    tokio::time::sleep(ttl + MIN_TTL).await;
    assert!(try_take(&backend, &claim("job", LONG)).await.is_none());
}

#[tokio::test]
async fn claim_whose_patience_ends_during_its_request_leaves_no_place() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let store = Store::new();
        let backend = store.open(kind, Faults::default());
        assert!(try_take(&backend, &claim("job", LONG)).await.is_some());
        let (waits, patience) = (claim("job", LONG), Patience::unlimited(clock()));
        let gate = store.stall_an_answer();
        let end = async {
            store.until_answer_stalls().await;
            patience.end();
            gate.add_permits(1);
        };
        let (step, ()) = tokio::join!(backend.contend(&waits, &patience), end);
        assert!(matches!(step, Ok(Step::Busy(hint)) if hint.ask_again_in.is_none()), "{kind:?}");
        let seen = backend.inspect(&waits.resource, None, &Patience::none(clock())).await.unwrap();
        assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0), "{kind:?}");
    }
}

/// The store has made the write long before its answer arrives.
#[tokio::test]
async fn grant_of_a_waiter_counts_from_before_its_request() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let (store, clock) = (Store::new(), Arc::new(ManualClock::new()));
        let backend = store.open_by(kind, clock.clone());
        let (held, waits) = (claim("job", LONG), claim("job", LONG));
        assert!(try_take(&backend, &held).await.is_some());
        let patience = Patience::unlimited(clock.clone());
        assert!(matches!(backend.contend(&waits, &patience).await, Ok(Step::Busy(_))));
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
        let (gate, asked_at) = (store.stall_an_answer(), clock.now());
        let answer = async {
            store.until_answer_stalls().await;
            clock.advance(Duration::from_secs(1));
            gate.add_permits(1);
        };
        let (step, ()) = tokio::join!(backend.contend(&waits, &patience), answer);
        let Ok(Step::Granted(grant)) = step else { panic!("{step:?}") };
        assert_eq!(grant.asked_at, asked_at, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn place_that_could_not_be_removed_may_still_exist() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let store = Store::new();
        let backend = store.open(kind, Faults::default());
        assert!(try_take(&backend, &claim("job", LONG)).await.is_some());
        let (waits, patience) = (claim("job", LONG), Patience::unlimited(clock()));
        let gate = store.stall_an_answer();
        let end = async {
            store.until_answer_stalls().await;
            patience.end();
            // Others change the cell all the time, so each removal of the place is refused.
            store.overtake("job", u32::MAX);
            gate.add_permits(1);
        };
        let (step, ()) = tokio::join!(backend.contend(&waits, &patience), end);
        let failure = step.unwrap_err();
        assert_eq!(failure.effect, Effect::Unknown, "{kind:?}: {failure}");
    }
}

/// Each observer counts the grace of a call by its own clock, and a client that has written the call has seen it.
#[tokio::test]
async fn silent_waiter_is_passed_over_a_grace_after_its_written_call() {
    let (store, clock) = (Store::new(), Arc::new(ManualClock::new()));
    let [here, there] = [0; 2].map(|_| store.open_by(CACHE, clock.clone()));
    let (lease, patience) = (Duration::from_secs(10), Patience::unlimited(clock.clone()));
    let [held, dead, lives] = [0; 3].map(|_| claim("job", lease));
    assert!(try_take(&there, &held).await.is_some());
    assert!(matches!(there.contend(&dead, &patience).await, Ok(Step::Busy(_))));
    assert!(matches!(here.contend(&lives, &patience).await, Ok(Step::Busy(_))));
    clock.advance(lease);
    // The lease is over, so this calls the waiter in front, which does not answer.
    assert!(matches!(here.contend(&lives, &patience).await, Ok(Step::Busy(_))));
    clock.advance(CALL_GRACE);
    let step = here.contend(&lives, &patience).await;
    assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
}

/// The look after the refusal has shown that the claim is not alone any more.
#[tokio::test]
async fn renewal_that_found_others_reads_first_from_then_on() {
    let store = Store::new();
    let kind = Kind { waiting: WaitMode::Polls, ..TABLE };
    let [here, there] = [0; 2].map(|_| store.open(kind, Faults::default()));
    let (held, waits) = (claim("job", LONG), claim("job", LONG));
    assert!(try_take(&here, &held).await.is_some());
    assert!(matches!(there.contend(&waits, &Patience::unlimited(clock())).await, Ok(Step::Busy(_))));
    for expected in [3, 2, 2] {
        let before = store.requests();
        assert!(matches!(renew(&here, std::slice::from_ref(&held)).await[..], [Renewal::Renewed]));
        assert_eq!(store.requests() - before, expected);
    }
}

#[tokio::test]
async fn claim_passes_those_that_wait_only_if_the_order_is_free() {
    for (order, passes) in [(QueueOrder::Unordered, true), (QueueOrder::Fifo, false)] {
        let store = Store::new();
        let backend = store.open(Kind { waiting: WaitMode::Polls, order, ..TABLE }, Faults::default());
        let (held, waits) = (claim("job", LONG), claim("job", LONG));
        assert!(try_take(&backend, &held).await.is_some());
        assert!(matches!(backend.contend(&waits, &Patience::unlimited(clock())).await, Ok(Step::Busy(_))));
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
        assert_eq!(try_take(&backend, &claim("job", LONG)).await.is_some(), passes, "{order:?}");
    }
}
