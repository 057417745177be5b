//! The search of a waiting owner for deadlocks: when it announces its wait, what the announcement says, what it costs
//! and which failures end it; in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use leasehold::backend::{Backend, ClaimId, Effect, Failure, FailureKind, LockSupport};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Guard, Owner, TokioClock};
use leasehold_conformance::Wrapped;
use leasehold_testkit::Warnings;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::{ms, waiting};
use crate::engine_late_grants::Profiled;
use crate::engine_supervision::odd::{Call, World, pass, refuse};

const PLACE: &str = "leasehold!waits";
const SOON: Duration = Duration::from_secs(30);

/// Returns a client over a wire that can fail, and two others.
fn clients() -> (Client, Arc<Fault>, Client, Client) {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    (open(wire.clone()), wire, open(store.clone()), open(store))
}

/// Returns the claims that announce waits.
async fn announced(locks: &Client) -> Vec<ClaimId> {
    locks.inspect(PLACE).await.unwrap().holders.iter().map(|holder| holder.id).collect()
}

#[tokio::test(start_paused = true)]
async fn wait_is_announced_once_it_has_lasted_and_until_it_ends() {
    let (locks, wire, other, _) = clients();
    let owner = Owner::new();
    let _held = locks.mutex("a").owner(&owner).lock().await.unwrap();
    let wanted = other.mutex("b").lock().await.unwrap();
    let wants = locks.mutex("b").owner(&owner).detect_deadlocks(ms(5_000));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(ms(4_900)).await;
    assert_eq!(announced(&other).await, []);
    tokio::time::sleep(ms(200)).await;
    let claims = announced(&other).await;
    assert_eq!(claims.len(), 1);
    let before = wire.calls(Verb::Inspect);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(announced(&other).await, claims, "it stays the same");
    let looks = wire.calls(Verb::Inspect) - before;
    assert!((10..90).contains(&looks), "two for each check, and fewer and fewer checks: {looks}");
    wanted.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
    assert_eq!(announced(&other).await, []);
}

#[tokio::test(start_paused = true)]
async fn owner_that_holds_nothing_announces_nothing() {
    let (locks, wire, other, _) = clients();
    let wanted = other.mutex("b").lock().await.unwrap();
    let wants = locks.mutex("b").owner(&Owner::new()).detect_deadlocks(ms(10));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(SOON).await;
    assert_eq!((announced(&other).await.len(), wire.calls(Verb::Inspect)), (0, 0));
    wanted.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn deadlock_is_found_by_the_check_that_announces_the_wait() {
    let (one, _, two, _) = clients();
    let (first, second) = (Owner::new(), Owner::new());
    let _a = one.mutex("a").owner(&first).lock().await.unwrap();
    let b = two.mutex("b").owner(&second).lock().await.unwrap();
    let wants = one.mutex("b").owner(&first).announce_wait(ms(10));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(SOON).await;
    let began = Instant::now();
    let error = two.mutex("a").owner(&second).detect_deadlocks(ms(10)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    assert!(began.elapsed() < ms(450), "{:?}", began.elapsed());
    b.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}

/// Another task of the owner takes it.
#[tokio::test(start_paused = true)]
async fn lock_that_is_taken_during_the_wait_belongs_to_what_is_held() {
    let (one, _, two, _) = clients();
    let (first, second) = (Owner::new(), Owner::new());
    let _a = one.mutex("a").owner(&first).lock().await.unwrap();
    let _b = two.mutex("b").owner(&second).lock().await.unwrap();
    let wants = one.mutex("b").owner(&first).detect_deadlocks(ms(10));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(SOON).await;
    let _c = one.mutex("c").owner(&first).lock().await.unwrap();
    let wants = two.mutex("c").owner(&second).detect_deadlocks(ms(10));
    let ends = async {
        tokio::select! {
            ended = waits => ended.unwrap(),
            ended = wants.lock() => ended,
        }
    };
    let error = tokio::time::timeout(SOON, ends).await.expect("it is found").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
}

/// One wait has given up, but its end takes long, and meanwhile the other one is announced anew.
#[tokio::test(start_paused = true)]
async fn wait_that_is_announced_anew_does_not_give_up_as_well() {
    let (two, wire, one, _) = clients();
    let (first, second) = (Owner::new(), Owner::new());
    let _a = one.mutex("a").owner(&first).lock().await.unwrap();
    let b = two.mutex("b").owner(&second).lock().await.unwrap();
    let wants_b = one.mutex("b").owner(&first).detect_deadlocks(ms(10));
    let mut wants_b = tokio::spawn(async move { wants_b.lock().await });
    tokio::time::sleep(SOON).await;
    wire.set(Verb::Release, Mode::LoseRequest);
    let wants_a = two.mutex("a").owner(&second).detect_deadlocks(ms(10));
    let wants_a = tokio::spawn(async move { wants_a.lock().await });
    tokio::time::sleep(ms(500)).await;
    assert!(!wants_a.is_finished(), "its announcement cannot be withdrawn");
    let _c = one.mutex("c").owner(&first).lock().await.unwrap();
    assert_eq!(wants_a.await.unwrap().unwrap_err().kind(), ErrorKind::Deadlock);
    let ended = tokio::time::timeout(ms(1), &mut wants_b).await;
    assert!(ended.is_err(), "the other wait continues: {ended:?}");
    wire.set_all(Mode::Pass);
    b.release().await.unwrap();
    drop(wants_b.await.unwrap().unwrap());
}

/// The store grants no shared locks, so each has a name of its own.
#[tokio::test(start_paused = true)]
async fn wait_is_announced_at_a_place_that_no_other_has() {
    let clock = Arc::new(TokioClock::new());
    let memory = MemoryBackend::with_clock(clock.clone());
    let profile = memory.profile().clone().admission(LockSupport::Exclusive);
    let store: Arc<dyn Backend> = Arc::new(Wrapped(Profiled(memory, profile)));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    let (one, two) = (open(wire.clone()), open(store));
    let (first, second) = (Owner::new(), Owner::new());
    let _a = one.mutex("a").owner(&first).lock().await.unwrap();
    let _b = two.mutex("b").owner(&second).lock().await.unwrap();
    let wants_b = one.mutex("b").owner(&first).announce_wait(ms(100));
    let _waits = tokio::spawn(async move { wants_b.lock().await });
    tokio::time::sleep(ms(90)).await;
    let requests = wire.calls(Verb::Contend);
    tokio::time::sleep(ms(20)).await;
    assert_eq!(wire.calls(Verb::Contend), requests + 1, "the first place that it asked for was free");
    tokio::time::sleep(SOON).await;
    assert_eq!(one.list(PLACE, None, 20).await.unwrap().len(), 1);
    let wants_a = two.mutex("a").owner(&second).detect_deadlocks(ms(10));
    let error = tokio::time::timeout(SOON, wants_a.lock()).await.expect("it is found").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
}

/// A reader waits behind a writer, which waits for another reader, which waits for the first one.
#[tokio::test(start_paused = true)]
async fn claim_ahead_in_the_queue_is_in_the_way() {
    let (one, _, two, three) = clients();
    let (first, second) = (Owner::new(), Owner::new());
    let _reads = one.rwlock("prices").owner(&first).read().await.unwrap();
    let has_job = two.mutex("job").owner(&second).lock().await.unwrap();
    let writes = three.rwlock("prices");
    let _writes = tokio::spawn(async move { writes.write().await });
    waiting(&three, "prices", 1).await;
    let wants_job = one.mutex("job").owner(&first).announce_wait(ms(10));
    let waits = tokio::spawn(async move { wants_job.lock().await });
    let reads = two.rwlock("prices").owner(&second).detect_deadlocks(ms(10));
    let error = tokio::time::timeout(SOON, reads.read()).await.expect("it is found").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    has_job.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}

/// Two owners of which each holds one lock and waits for that of the other one.
struct Circle {
    held: [Guard; 2],
    waits: [JoinHandle<leasehold::Result<Guard>>; 2],
}

/// Makes the owners of two clients wait for each other. They never give up.
async fn circle(clients: [&Client; 2]) -> Circle {
    let owners = [Owner::new(), Owner::new()];
    let a = clients[0].mutex("a").owner(&owners[0]).lock().await.unwrap();
    let b = clients[1].mutex("b").owner(&owners[1]).lock().await.unwrap();
    let waits = |number: usize, name: &str| {
        let wants = clients[number].mutex(name).owner(&owners[number]).announce_wait(ms(10));
        tokio::spawn(async move { wants.lock().await })
    };
    let waits = [waits(0, "b"), waits(1, "a")];
    tokio::time::sleep(SOON).await;
    Circle { held: [a, b], waits }
}

#[tokio::test(start_paused = true)]
async fn circle_that_nobody_leaves_is_logged_once() {
    let (one, _, two, _) = clients();
    let (warnings, _listening) = Warnings::listen("leasehold");
    let Circle { held, waits } = circle([&one, &two]).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(warnings.count("wait for each other"), 2, "each of them does so");
    drop(held);
    for waits in waits {
        drop(waits.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn wait_beside_a_circle_continues() {
    let (one, _, two, three) = clients();
    let _circle = circle([&one, &two]).await;
    let owner = Owner::new();
    let _c = three.mutex("c").owner(&owner).lock().await.unwrap();
    let d = one.mutex("d").lock().await.unwrap();
    let wants = three.mutex("d").owner(&owner).detect_deadlocks(ms(10));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(SOON).await;
    d.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}

/// One look proves nothing: what it saw may never have been true together.
#[tokio::test(start_paused = true)]
async fn circle_is_reported_if_a_second_look_finds_it_as_well() {
    let (one, wire, two, three) = clients();
    let deadlocks = async || {
        let (began, looks) = (Instant::now(), wire.calls(Verb::Inspect));
        let found = one.deadlocks().await.unwrap().len();
        (found, wire.calls(Verb::Inspect) - looks, began.elapsed() >= ms(250))
    };
    // A wait that is part of none.
    let owner = Owner::new();
    let _c = three.mutex("c").owner(&owner).lock().await.unwrap();
    let _d = three.mutex("d").lock().await.unwrap();
    let wants_d = three.mutex("d").owner(&owner).announce_wait(ms(10));
    let _waits = tokio::spawn(async move { wants_d.lock().await });
    tokio::time::sleep(SOON).await;
    assert_eq!(deadlocks().await, (0, 2, false), "the announcements, and the lock that is waited for");
    let Circle { held: [a, _b], waits: [_wants_b, wants_a] } = circle([&two, &three]).await;
    assert_eq!(deadlocks().await, (1, 4 + 3, true), "the second time at the circle alone");
    let ends = async {
        tokio::time::sleep(ms(100)).await;
        drop(a);
        wants_a.await.unwrap().unwrap()
    };
    let (found, _ends) = tokio::join!(deadlocks(), ends);
    assert_eq!(found.0, 0, "it has ended meanwhile");
}

#[tokio::test(start_paused = true)]
async fn store_without_room_for_announcements_refuses_the_search() {
    let clock = Arc::new(TokioClock::new());
    let memory = MemoryBackend::with_clock(clock.clone());
    let profile = memory.profile().clone().note_max(0);
    let wire = Arc::new(Fault::over(Arc::new(Wrapped(Profiled(memory, profile)))));
    let locks = Client::builder().clock(clock).over(wire.clone()).unwrap();
    assert_eq!(locks.deadlocks().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let searches = locks.mutex("a").owner(&Owner::new()).detect_deadlocks(ms(10));
    assert_eq!(searches.lock().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(Verb::ALL.iter().all(|verb| wire.calls(*verb) == 0), "nothing is sent");
}

/// The server keeps the announcement until its lease ends, which is short.
#[tokio::test(start_paused = true)]
async fn silent_server_delays_the_end_of_a_wait_for_a_short_time() {
    let (locks, wire, other, _) = clients();
    let owner = Owner::new();
    let held = locks.mutex("a").owner(&owner).lock().await.unwrap();
    let wanted = other.mutex("b").lock().await.unwrap();
    let wants = locks.mutex("b").ttl(ms(120_000)).owner(&owner).detect_deadlocks(ms(10));
    let waits = tokio::spawn(async move { wants.lock().await });
    tokio::time::sleep(SOON).await;
    assert_eq!(announced(&other).await.len(), 1);
    wire.set(Verb::Release, Mode::LoseRequest);
    wanted.release().await.unwrap();
    let began = Instant::now();
    let guard = waits.await.unwrap().unwrap();
    assert!(began.elapsed() <= ms(11_000), "{:?}", began.elapsed());
    wire.set_all(Mode::Pass);
    drop((held, guard));
}

/// The answers to a look at the announcements.
const WELL: u8 = 0;
const AWAY: u8 = 1;
const DENIED: u8 = 2;

/// Returns a world in which such looks are answered so.
fn world(looks: &Arc<AtomicU8>) -> World {
    let looks = looks.clone();
    World::new(move |call, _, about| match (call, about, looks.load(Ordering::SeqCst)) {
        (Call::Inspect, PLACE, AWAY) => refuse(),
        (Call::Inspect, PLACE, DENIED) => {
            Box::pin(async { Err(Failure::new(FailureKind::Denied, Effect::None, "nobody may look (odd)")) })
        }
        _ => pass(),
    })
}

#[tokio::test(start_paused = true)]
async fn outage_delays_the_search_and_a_denial_ends_it() {
    for answer in [AWAY, DENIED] {
        for gives_up in [true, false] {
            let (warnings, _listening) = Warnings::listen("leasehold");
            let looks = Arc::new(AtomicU8::new(answer));
            let world = world(&looks);
            let other = Client::builder().clock(world.clock.clone()).over(world.store.clone()).unwrap();
            let (first, second) = (Owner::new(), Owner::new());
            let _a = world.locks.mutex("a").owner(&first).lock().await.unwrap();
            let b = other.mutex("b").owner(&second).lock().await.unwrap();
            let wants_a = other.mutex("a").owner(&second).announce_wait(ms(10));
            let wants_a = tokio::spawn(async move { wants_a.lock().await });
            let wants_b = world.locks.mutex("b").owner(&first);
            let wants_b = match gives_up {
                true => wants_b.detect_deadlocks(ms(10)),
                false => wants_b.announce_wait(ms(10)),
            };
            let wants_b = tokio::spawn(async move { wants_b.lock().await });
            tokio::time::sleep(SOON).await;
            let ends = gives_up && answer == DENIED;
            assert_eq!(wants_b.is_finished(), ends, "{answer}, {gives_up}");
            let unannounced = if answer == DENIED { 2 - usize::from(gives_up) } else { 0 };
            assert_eq!(warnings.count("cannot be announced"), unannounced, "{answer}, {gives_up}");
            looks.store(WELL, Ordering::SeqCst);
            tokio::time::sleep(SOON).await;
            assert_eq!(wants_b.is_finished(), gives_up, "{answer}, {gives_up}");
            b.release().await.unwrap();
            let outcome = wants_b.await.unwrap().map_err(|error| error.kind());
            match (gives_up, answer) {
                (true, DENIED) => assert_eq!(outcome.unwrap_err(), ErrorKind::Denied),
                (true, _) => assert_eq!(outcome.unwrap_err(), ErrorKind::Deadlock),
                (false, _) => drop(outcome.unwrap()),
            }
            wants_a.abort();
        }
    }
}
