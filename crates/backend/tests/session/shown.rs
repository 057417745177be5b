//! Holders are shown to other clients a moment after the grant: what that costs, and who waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_backend::session::{Capacity, SHOWN_AFTER};
use leasehold_core::{
    Backend, BreakOutcome, Claim, ClaimId, Clock, ManualClock, Moment, Patience, Release, Resource, Share,
    WaitMode,
};
use tokio::time::Instant;

use crate::calls::{ONE, claim, clock, hold, release};
use crate::store::{MemoryBackend, RuntimeClock, Server};

/// Returns a client whose time is that of the runtime.
fn client_in_virtual_time(server: &Arc<Server>) -> MemoryBackend {
    server.client_by(Capacity::Many, WaitMode::Polls, Arc::new(RuntimeClock::new()))
}

/// Returns claims that are shown in this order, if they are granted at the same time.
fn claims_in_order<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Claim> {
    let claim = |(number, name): (u128, &str)| {
        let id = ClaimId::from_bytes((number + 1).to_be_bytes());
        Claim::new(id, Resource::new(name).unwrap(), Share::MUTEX, Duration::from_secs(60))
    };
    (0..).zip(names).map(claim).collect()
}

/// Waits until the names of which a holder is shown are these.
async fn shown_become(server: &Server, names: &[&str]) {
    let shown = async {
        while server.shown() != names {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(5), shown).await.is_ok(), "{:?}", server.shown());
}

#[tokio::test(start_paused = true)]
async fn only_a_kept_lock_is_shown_and_never_after_its_release() {
    let server = Server::new();
    server.show_later(Duration::from_millis(20));
    let backend = server.client(Capacity::Many, WaitMode::Polls);
    for _ in 0..100 {
        let brief = claim("brief");
        hold(&backend, &brief).await;
        assert!(matches!(release(&backend, &brief).await, Release::Freed));
    }
    assert!(server.shown().is_empty(), "what was released at once was never shown");
    let (kept, other) = (claim("kept"), claim("other"));
    hold(&backend, &kept).await;
    hold(&backend, &other).await;
    shown_become(&server, &["kept", "other"]).await;
    assert!(matches!(release(&backend, &kept).await, Release::Freed));
    assert_eq!(server.shown(), ["other"]);
    // Released at any point of the writing, nothing is left of it.
    for pause in 0..50 {
        let next = claim("next");
        hold(&backend, &next).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        assert!(matches!(release(&backend, &next).await, Release::Freed));
        assert_eq!(server.shown(), ["other"], "{pause} ms after the grant");
    }
    server.end_all();
    hold(&backend, &claim("last")).await;
    shown_become(&server, &["last"]).await;
}

#[tokio::test(start_paused = true)]
async fn lock_too_new_when_others_are_shown_is_shown_after_them() {
    let (server, clock) = (Server::new(), Arc::new(ManualClock::new()));
    server.show_later(Duration::ZERO);
    let backend = server.client_by(Capacity::Many, WaitMode::Polls, clock.clone());
    hold(&backend, &claim("first")).await;
    clock.advance(SHOWN_AFTER / 2);
    hold(&backend, &claim("second")).await;
    for shown in [&["first"][..], &["first", "second"]] {
        clock.advance(SHOWN_AFTER / 2);
        shown_become(&server, shown).await;
    }
}

/// Another task shows what is left, once there is a reason to begin one.
#[tokio::test(start_paused = true)]
async fn panic_of_what_shows_holders_delays_them_and_keeps_no_release() {
    let server = Server::new();
    server.show_later(Duration::ZERO);
    server.panic_once();
    let backend = client_in_virtual_time(&server);
    let (first, second) = (claim("first"), claim("second"));
    hold(&backend, &first).await;
    hold(&backend, &second).await;
    tokio::time::sleep(SHOWN_AFTER * 2).await;
    assert!(!server.will_panic());
    let released = tokio::time::timeout(Duration::from_secs(1), release(&backend, &first)).await;
    assert!(matches!(released, Ok(Release::Freed)), "{released:?}");
    hold(&backend, &claim("third")).await;
    shown_become(&server, &["third"]).await;
    shown_become(&server, &["second", "third"]).await;
}

#[tokio::test(start_paused = true)]
async fn holder_that_cannot_be_shown_hides_nobody_and_is_repeated() {
    let server = Server::new();
    server.show_later(Duration::ZERO);
    server.refuse_to_show(Some("bad"));
    let backend = client_in_virtual_time(&server);
    for claim in &claims_in_order(["bad", "good"]) {
        hold(&backend, claim).await;
    }
    tokio::time::sleep(SHOWN_AFTER * 3).await;
    assert_eq!(server.shown(), ["good"]);
    server.refuse_to_show(None);
    shown_become(&server, &["bad", "good"]).await;
}

/// The release of each of them waits until it was shown, or is left for later.
#[tokio::test(start_paused = true)]
async fn server_slow_to_show_holders_is_given_up_soon() {
    const SLOW: Duration = Duration::from_millis(500);
    let (some_at_once, server) = (100, Server::new());
    server.show_later(SLOW);
    let backend = client_in_virtual_time(&server);
    let names: Vec<String> = (0..some_at_once * 9 / 2).map(|number| format!("job/{number}")).collect();
    for claim in &claims_in_order(names.iter().map(String::as_str)) {
        hold(&backend, claim).await;
    }
    // It took a second for two requests, and half of one for another.
    tokio::time::sleep(SHOWN_AFTER + SLOW * 4).await;
    assert_eq!(server.shown().len(), some_at_once * 3);
    tokio::time::sleep(SLOW * 8).await;
    assert_eq!(server.shown().len(), names.len());

    // So is one that refuses one of them, so that each has a request of its own.
    let server = Server::new();
    server.show_later(SLOW);
    server.refuse_to_show(Some("bad"));
    let backend = client_in_virtual_time(&server);
    for claim in &claims_in_order(["bad", "a", "b", "c"]) {
        hold(&backend, claim).await;
    }
    tokio::time::sleep(SHOWN_AFTER + SLOW * 4).await;
    assert_eq!(server.shown(), ["a"], "after the request for all, and one for each of the first two");
}

#[tokio::test(start_paused = true)]
async fn free_lock_costs_one_request_and_its_release_another() {
    for capacity in [Capacity::Many, ONE] {
        for waiting in [WaitMode::Polls, WaitMode::Blocks] {
            let server = Server::new();
            server.show_later(Duration::ZERO);
            let backend = server.client_by(capacity, waiting, Arc::new(RuntimeClock::new()));
            let held = claim("a");
            hold(&backend, &held).await;
            assert!(matches!(release(&backend, &held).await, Release::Freed));
            assert_eq!((server.requests(), server.removals()), (2, 0), "{capacity:?}, {waiting:?}");
        }
    }
}

/// A clock that counts how often it is read.
#[derive(Debug)]
struct Counting(RuntimeClock, AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Moment {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.now()
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_wakes_up_to_show_holders_once_all_are_shown() {
    let (server, clock) = (Server::new(), Arc::new(Counting(RuntimeClock::new(), AtomicU64::new(0))));
    server.show_later(Duration::ZERO);
    let backend = server.client_by(Capacity::Many, WaitMode::Polls, clock.clone());
    hold(&backend, &claim("a")).await;
    shown_become(&server, &["a"]).await;
    tokio::time::sleep(SHOWN_AFTER * 2).await;
    let before = clock.1.load(Ordering::SeqCst);
    let minute = Duration::from_secs(60);
    tokio::time::sleep(minute).await;
    let readings = clock.1.load(Ordering::SeqCst) - before;
    let if_it_did = minute.as_millis() / SHOWN_AFTER.as_millis();
    assert!(u128::from(readings) < if_it_did / 2, "{readings}, signs of life included");
    hold(&backend, &claim("b")).await;
    shown_become(&server, &["a", "b"]).await;
}

#[tokio::test(start_paused = true)]
async fn who_looks_waits_for_holders_that_are_shown_soon() {
    let server = Server::new();
    server.show_later(Duration::ZERO);
    let (backend, other) = (client_in_virtual_time(&server), client_in_virtual_time(&server));
    let (first, patience) = (claim("a"), Patience::none(clock()));
    hold(&backend, &first).await;
    let seen = other.inspect(&first.resource, None, &patience).await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [first.id]);
    hold(&backend, &claim("b")).await;
    let listed = other.list("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.resource.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    hold(&backend, &claim("c")).await;
    let looks = server.looks();
    let outcome = other.break_claim(&first).await.unwrap();
    let BreakOutcome::Ended { also_released } = outcome else { panic!("{outcome:?}") };
    assert_eq!(also_released.iter().map(Resource::as_str).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(server.looks(), looks, "there is nobody to look for");
}

#[tokio::test(start_paused = true)]
async fn who_looks_does_not_wait_for_ever_for_what_nobody_shows() {
    let server = Server::new();
    server.occupy("a");
    let other = client_in_virtual_time(&server);
    let (resource, patience, began) = (Resource::new("a").unwrap(), Patience::none(clock()), Instant::now());
    assert!(other.inspect(&resource, None, &patience).await.unwrap().holders.is_empty());
    assert!(other.list("", None, 10).await.unwrap().is_empty());
    let took = began.elapsed();
    assert!(took >= SHOWN_AFTER * 10 && took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_looks_does_not_wait_for_locks_that_are_taken_later() {
    let server = Server::new();
    server.show_later(Duration::ZERO);
    let (backend, other) = (client_in_virtual_time(&server), client_in_virtual_time(&server));
    hold(&backend, &claim("first")).await;
    let began = Instant::now();
    let takes = async {
        for number in 0.. {
            hold(&backend, &claim(&format!("next/{number}"))).await;
            tokio::time::sleep(SHOWN_AFTER / 5).await;
        }
    };
    let listed = tokio::select! {
        listed = other.list("first", None, 10) => listed.unwrap(),
        () = takes => panic!("that has no end"),
    };
    assert_eq!(listed.len(), 1);
    assert!(began.elapsed() < SHOWN_AFTER * 5, "{:?}", began.elapsed());
}
