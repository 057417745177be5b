//! The monitor in virtual time, over the memory store, also while that fails.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "all of it is tests, which the lint does not see in helper functions"
)]

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::deadlock::{Announced, Places, Tag};
use leasehold::backend::{Backend, Effect, Failure, FailureKind, Patience, Snapshot, SnapshotVersion};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Guard, Note, Resource, Share, TokioClock};
use leasehold_conformance::{Around, Wrapped};
use leasehold_monitor::{
    DeadlockReport, EdgeKind, Filter, Monitor, NodeKind, Options, Overview, Sort, SortKey, WaitGraph,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A memory store in virtual time whose requests can fail, and a client of it.
fn store() -> (Arc<Fault>, Client) {
    let memory = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
    let fault = Arc::new(Fault::over(Arc::new(memory)));
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(fault.clone()).unwrap();
    (fault, locks)
}

async fn held(locks: &Client, name: &str, note: &str) -> Guard {
    locks.mutex(name).note(Note::new(note).unwrap()).lock().await.unwrap()
}

/// Waits for a picture that fits.
async fn until(
    pictures: &mut watch::Receiver<Arc<Overview>>,
    fits: impl Fn(&Overview) -> bool,
) -> Arc<Overview> {
    let limit = Duration::from_secs(3600);
    let found = tokio::time::timeout(limit, pictures.wait_for(|picture| fits(picture))).await;
    found.expect("within an hour").expect("the monitor lives").clone()
}

fn names(picture: &Overview) -> Vec<&str> {
    picture.locks.iter().map(|row| row.name.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_monitor_that_nobody_watches_asks_for_nothing() {
    let (fault, locks) = store();
    let monitor = Monitor::start(locks, Options::default());
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(fault.calls(Verb::Inspect), 0);
    let pictures = monitor.overview();
    sleep(Duration::from_secs(60)).await;
    let watched = fault.calls(Verb::Inspect);
    assert!((20..=40).contains(&watched), "one listing every two seconds, and not {watched}");
    drop(pictures);
    sleep(Duration::from_secs(3600)).await;
    assert!(fault.calls(Verb::Inspect) <= watched + 1);
}

#[tokio::test(start_paused = true)]
async fn a_picture_has_holders_and_queues_until_they_end() {
    let (_, locks) = store();
    let guard = held(&locks, "b", "ann").await;
    let other = held(&locks, "a", "ben").await;
    let waiter = locks.mutex("b").note(Note::new("cid").unwrap());
    let waiting = tokio::spawn(async move { waiter.lock().await });
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    let seen = until(&mut pictures, |picture| {
        picture.locks.len() == 2
            && picture.locks.iter().all(|row| row.agrees())
            && picture.locks[1].waiting == 1
    })
    .await;
    assert_eq!(names(&seen), ["a", "b"]);
    let row = &seen.locks[1];
    assert_eq!((row.holders, row.known_holders()[0].note.as_str()), (1, "ann"));
    assert_eq!(row.known_waiting()[0].note.as_str(), "cid");
    assert!(
        row.since_unix_ms().is_some() && row.remaining().is_some() && row.waiting_since_unix_ms().is_some()
    );
    assert!(!seen.truncated && seen.outage.is_none() && seen.at_unix_ms.is_some());
    let json = serde_json::to_value(row).unwrap();
    assert_eq!((&json["name"], &json["waiting"], &json["note"]), (&"b".into(), &1.into(), &"ann".into()));
    other.release().await.unwrap();
    until(&mut pictures, |picture| names(picture) == ["b"]).await;
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    until(&mut pictures, |picture| {
        picture.locks.iter().any(|row| row.known_holders().iter().any(|info| info.note.as_str() == "cid"))
    })
    .await;
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_picture_counts_the_looks_of_a_whole_refresh() {
    let (fault, locks) = store();
    let _guard = held(&locks, "a", "ann").await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    until(&mut pictures, |picture| picture.cost.looks == 1).await;
    // The picture after a listing is seen before the look is answered.
    fault.set(Verb::Inspect, Mode::LateReply(Duration::from_millis(100)));
    for _ in 0..6 {
        pictures.changed().await.unwrap();
        assert_eq!(pictures.borrow_and_update().cost.looks, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_locks_are_listed_seldom() {
    let (fault, locks) = store();
    let mut guards = Vec::new();
    for number in 0..10_050 {
        let mutex = locks.mutex(format!("lock/{number:05}")).ttl(Duration::from_secs(3600));
        guards.push(mutex.lock().await.unwrap());
    }
    let before = fault.calls(Verb::Inspect);
    let options = Options { interval: Duration::from_millis(500), ..Options::default() };
    let monitor = Monitor::start(locks.clone(), options);
    let mut pictures = monitor.overview();
    let asks = tokio::spawn({
        let began = Instant::now();
        async move {
            // Requests for more do not break the bound.
            while began.elapsed() < Duration::from_secs(60) {
                monitor.refresh();
                sleep(Duration::from_millis(50)).await;
            }
            monitor
        }
    });
    let seen = until(&mut pictures, |picture| picture.number >= 2).await;
    assert_eq!((seen.locks.len(), seen.truncated), (10_000, true));
    let monitor = asks.await.unwrap();
    let last = pictures.borrow().number;
    assert!((5..=13).contains(&last), "a listing every five seconds at most, and not {last} in a minute");
    let calls = fault.calls(Verb::Inspect) - before;
    assert!(calls <= 60 * 52 + 300, "{calls} requests in a minute");
    // What is on the screen is looked at without waiting for its turn.
    let screen: Vec<Resource> =
        (9_900..9_920).map(|number| Resource::new(&format!("lock/{number:05}")).unwrap()).collect();
    monitor.focus(screen.clone());
    let began = Instant::now();
    until(&mut pictures, |picture| {
        let rows = picture.locks.iter().filter(|row| screen.contains(&row.name));
        rows.filter(|row| row.detail.is_some()).count() == screen.len()
    })
    .await;
    assert!(began.elapsed() <= Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_outage_leaves_the_last_picture_with_the_error() {
    let (fault, locks) = store();
    let guard = held(&locks, "a", "ann").await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    let before = until(&mut pictures, |picture| picture.number >= 1).await;
    fault.set(Verb::Inspect, Mode::Refuse);
    let first = until(&mut pictures, |picture| picture.outage.is_some()).await;
    let later = until(&mut pictures, |picture| picture.number >= first.number + 3).await;
    let outage = later.outage.clone().unwrap();
    assert_eq!(outage.kind, Some(ErrorKind::Unavailable));
    assert!(outage.text.contains("cannot be reached"), "{}", outage.text);
    assert_eq!(outage.since_unix_ms, first.outage.as_ref().unwrap().since_unix_ms, "it is one outage");
    assert_eq!((names(&later), later.at_unix_ms), (vec!["a"], first.at_unix_ms));
    assert!(before.at_unix_ms <= later.at_unix_ms);
    fault.set(Verb::Inspect, Mode::Pass);
    until(&mut pictures, |picture| picture.outage.is_none() && picture.number > later.number).await;
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_reported_while_it_is_waited_for() {
    let (fault, locks) = store();
    let guard = held(&locks, "a", "ann").await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    until(&mut pictures, |picture| picture.number >= 1).await;
    fault.set(Verb::Inspect, Mode::Hang);
    let began = Instant::now();
    let silent = until(&mut pictures, |picture| picture.outage.is_some()).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let outage = silent.outage.clone().unwrap();
    assert_eq!(outage.kind, None);
    assert!(outage.text.contains("has not answered for 5 s"), "{}", outage.text);
    let calls = fault.calls(Verb::Inspect);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fault.calls(Verb::Inspect), calls, "no second request behind one that hangs");
    assert_eq!(names(&pictures.borrow_and_update()), ["a"]);
    let fresh = monitor.fresh().await;
    assert!(fresh.outage.is_some(), "a caller is not left waiting");
    fault.set(Verb::Inspect, Mode::Pass);
    until(&mut pictures, |picture| picture.outage.is_none()).await;
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_answer_to_a_look_between_two_listings_ends_its_outage() {
    let (fault, locks) = store();
    let guard = held(&locks, "a", "ann").await;
    let options = Options { interval: Duration::from_secs(1800), ..Options::default() };
    let monitor = Monitor::start(locks.clone(), options);
    let mut pictures = monitor.overview();
    let number = until(&mut pictures, |picture| picture.number >= 1).await.number;
    fault.set(Verb::Inspect, Mode::LateReply(Duration::from_secs(8)));
    monitor.focus(vec![Resource::new("b").unwrap()]);
    until(&mut pictures, |picture| picture.outage.is_some()).await;
    let began = Instant::now();
    let answered = until(&mut pictures, |picture| picture.outage.is_none()).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(answered.number, number, "no other listing was needed");
    // So does the answer to another look.
    fault.set(Verb::Inspect, Mode::Refuse);
    monitor.focus(vec![Resource::new("d").unwrap()]);
    until(&mut pictures, |picture| picture.outage.is_some()).await;
    fault.set(Verb::Inspect, Mode::Pass);
    monitor.focus(vec![Resource::new("e").unwrap()]);
    let answered = until(&mut pictures, |picture| picture.outage.is_none()).await;
    assert_eq!(answered.number, number, "no other listing was needed");
    // An outage that a listing has found stays: the picture is as old as before.
    fault.set(Verb::Inspect, Mode::Refuse);
    monitor.refresh();
    let refused = until(&mut pictures, |picture| picture.outage.is_some()).await;
    fault.set(Verb::Inspect, Mode::Pass);
    monitor.focus(vec![Resource::new("c").unwrap()]);
    pictures.changed().await.unwrap();
    assert_eq!(pictures.borrow_and_update().outage, refused.outage);
    guard.release().await.unwrap();
}

/// A request fails after five seconds, as on a server that hangs.
#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_in_a_row() {
    let (fault, locks) = store();
    let guard = held(&locks, "a", "ann").await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    until(&mut pictures, |picture| picture.number >= 1).await;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let (calls, number) = (fault.calls(Verb::Inspect), pictures.borrow().number);
        fault.set(Verb::Inspect, Mode::Hang);
        let ended = Instant::now();
        while fault.calls(Verb::Inspect) == calls {
            sleep(Duration::from_millis(100)).await;
        }
        pauses.push(ended.elapsed().as_secs());
        sleep(Duration::from_secs(5)).await;
        fault.set(Verb::Inspect, Mode::Refuse);
        until(&mut pictures, |picture| picture.number > number).await;
    }
    assert_eq!(pauses[1..], [5, 10, 20, 40, 40]);
    fault.set(Verb::Inspect, Mode::Pass);
    let end = Instant::now();
    until(&mut pictures, |picture| picture.outage.is_none()).await;
    assert!(end.elapsed() <= Duration::from_secs(41), "{:?}", end.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fresh_picture_is_made_for_a_caller_that_does_not_watch() {
    let (fault, locks) = store();
    let guard = held(&locks, "a", "ann").await;
    let monitor = Monitor::start(locks.clone(), Options::default());
    let first = monitor.fresh().await;
    assert_eq!(names(&first), ["a"]);
    assert!(first.locks[0].detail.is_some());
    let calls = fault.calls(Verb::Inspect);
    for _ in 0..100 {
        assert_eq!(monitor.fresh().await.number, first.number);
    }
    assert_eq!(fault.calls(Verb::Inspect), calls, "a picture serves all callers of its interval");
    guard.release().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let last = monitor.fresh().await;
    assert_eq!(names(&last), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn followers_share_one_request_and_a_record_of_holders() {
    let (fault, locks) = store();
    let monitor = Monitor::start(locks.clone(), Options { history: 2, ..Options::default() });
    let name = Resource::new("a").unwrap();
    let (mut one, other) = (monitor.follow(&name), monitor.follow(&name));
    while one.changed().await.snapshot.is_none() {}
    for note in ["ann", "ben", "cid"] {
        let guard = held(&locks, "a", note).await;
        while one.changed().await.snapshot.as_ref().is_none_or(|seen| seen.holders.is_empty()) {}
        guard.release().await.unwrap();
        while one.changed().await.snapshot.as_ref().is_none_or(|seen| !seen.holders.is_empty()) {}
    }
    let seen = other.current();
    let notes: Vec<&str> = seen.history.holdings().map(|holding| holding.note.as_str()).collect();
    assert_eq!(notes, ["ben", "cid"], "only so many are kept");
    assert!(seen.history.holdings().all(|holding| holding.ending.is_some() && holding.fence.is_some()));
    let calls = fault.calls(Verb::Inspect);
    sleep(Duration::from_secs(60)).await;
    let calls = fault.calls(Verb::Inspect) - calls;
    assert!(calls <= 32, "one request in each interval for both, and not {calls}");
    fault.set(Verb::Inspect, Mode::Refuse);
    while one.changed().await.outage.is_none() {}
    assert!(one.current().snapshot.is_some(), "the last state stays");
    fault.set(Verb::Inspect, Mode::Pass);
    while one.changed().await.outage.is_some() {}
    drop((one, other));
    sleep(Duration::from_secs(60)).await;
    let calls = fault.calls(Verb::Inspect);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(fault.calls(Verb::Inspect), calls, "nobody follows");
}

/// A memory store of which one lock cannot be read.
#[derive(Debug)]
struct Unreadable {
    inner: MemoryBackend,
    name: &'static str,
}

#[async_trait::async_trait]
impl Around for Unreadable {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        if resource.as_str() == self.name {
            return Err(Failure::new(FailureKind::Foreign, Effect::None, "it is of another program"));
        }
        self.inner.inspect(resource, seen, patience).await
    }
}

#[tokio::test(start_paused = true)]
async fn lock_that_cannot_be_read_hides_no_other() {
    let inner = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
    let store = Arc::new(Wrapped(Unreadable { inner, name: "00" }));
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(store).unwrap();
    let mut guards = Vec::new();
    for number in 0..=20 {
        guards.push(held(&locks, &format!("{number:02}"), "ann").await);
    }
    let (one, other) = (tag_of(&locks, "01").await, tag_of(&locks, "02").await);
    let waits =
        (announces(&locks, 1, "02", one, "ann").await, announces(&locks, 2, "01", other, "ben").await);
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    let seen = until(&mut pictures, |picture| picture.number >= 2).await;
    let unread = seen.locks.iter().filter(|row| row.detail.is_none()).map(|row| row.name.as_str());
    assert_eq!(unread.collect::<Vec<_>>(), ["00"]);
    assert_eq!(seen.outage, None, "the store answers");
    assert!(!seen.deadlocks.found().is_empty(), "deadlocks are searched");
    // What changes is seen, too: the lock that cannot be read is not in front of it.
    drop(guards.pop());
    let next = held(&locks, "20", "ben").await;
    until(&mut pictures, |picture| {
        picture.locks.iter().any(|row| row.known_holders().iter().any(|info| info.note.as_str() == "ben"))
    })
    .await;
    drop((next, guards, waits));
}

/// Announces a wait for `name`, of an owner that holds the claim of `tag`.
async fn announces(locks: &Client, number: u64, name: &str, tag: Tag, note: &str) -> Guard {
    let place = Places::of(locks.profile()).unwrap().names.remove(0);
    let announced = Announced {
        place: place.clone(),
        id: leasehold::backend::ClaimId::from_bytes([0; 16]),
        number,
        resource: Resource::new(name).unwrap(),
        share: Share::MUTEX,
        asks: None,
        holds: vec![tag],
        note: note.to_owned(),
    };
    locks.rwlock(place.as_str()).note(announced.to_note()).read().await.unwrap()
}

async fn tag_of(locks: &Client, name: &str) -> Tag {
    Tag::of(locks.inspect(name).await.unwrap().holders[0].id)
}

#[tokio::test(start_paused = true)]
async fn a_deadlock_is_found_and_drawn_as_a_circle() {
    let (fault, locks) = store();
    let monitor = Monitor::start(locks.clone(), Options::default());
    let mut pictures = monitor.overview();
    let none = until(&mut pictures, |picture| picture.number >= 1).await;
    assert_eq!(none.deadlocks.found(), []);
    assert_eq!(fault.calls(Verb::Inspect), 1, "without an announcement nothing is searched");
    let guards = (held(&locks, "a", "ann").await, held(&locks, "b", "ben").await);
    let (a, b) = (tag_of(&locks, "a").await, tag_of(&locks, "b").await);
    let waits = (announces(&locks, 1, "b", a, "ann").await, announces(&locks, 2, "a", b, "ben").await);
    let seen = until(&mut pictures, |picture| !picture.deadlocks.found().is_empty()).await;
    assert_eq!(names(&seen), ["a", "b"], "announcements are not locks of users");
    let graph = WaitGraph::of(seen.deadlocks.found(), &seen.locks);
    let count = |kind: NodeKind| graph.nodes.iter().filter(|node| node.kind == kind).count();
    assert_eq!((count(NodeKind::Lock), count(NodeKind::Party), graph.edges.len()), (2, 2, 4));
    // From any party, four steps lead back to it.
    let step = |from: usize| graph.edges.iter().find(|edge| edge.from == from).map(|edge| edge.to);
    let start = graph.nodes.iter().position(|node| node.kind == NodeKind::Party).unwrap();
    let end = (0..4).try_fold(start, |at, _| step(at));
    assert_eq!(end, Some(start));
    assert!(graph.edges.iter().any(|edge| edge.kind == EdgeKind::HeldBy && edge.is_deadlocked));
    drop((guards, waits));
    let over = until(&mut pictures, |picture| picture.deadlocks.found().is_empty()).await;
    assert!(matches!(over.deadlocks, DeadlockReport::Found { .. }));
}

#[tokio::test(start_paused = true)]
async fn only_names_with_the_prefix_are_listed() {
    let (_, locks) = store();
    let guards = (held(&locks, "a/1", "").await, held(&locks, "b/1", "").await);
    let options = Options { prefix: Some("b/".to_owned()), ..Options::default() };
    let monitor = Monitor::start(locks.clone(), options);
    let seen = monitor.fresh().await;
    assert_eq!(names(&seen), ["b/1"]);
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn rows_are_sorted_and_chosen() {
    let (_, locks) = store();
    let mut guards = Vec::new();
    for (name, note, ttl) in [("b", "Ann at db1", 60), ("a", "ben at db1", 20), ("c", "cid at db2", 40)] {
        let mutex = locks.mutex(name).note(Note::new(note).unwrap()).ttl(Duration::from_secs(ttl));
        guards.push(mutex.lock().await.unwrap());
    }
    let monitor = Monitor::start(locks.clone(), Options::default());
    let seen = monitor.fresh().await;
    let arranged = |filter: &str, sort: Sort| -> String {
        let order = Filter::new(filter).arrange(&seen.locks, sort);
        order.into_iter().map(|at| seen.locks[at].name.as_str()).collect()
    };
    assert_eq!(arranged("", Sort::default()), "abc");
    assert_eq!(arranged("", Sort { key: SortKey::Name, reversed: true }), "cba");
    assert_eq!(arranged("", Sort::by(SortKey::Left)), "acb");
    assert_eq!(arranged("", Sort::by(SortKey::Waited)), "abc", "what is not known is ordered by name");
    assert_eq!(arranged("ANN", Sort::default()), "b");
    assert_eq!(arranged("db1 ben", Sort::default()), "a");
    assert_eq!(arranged("nobody", Sort::default()), "");
    assert_eq!(SortKey::ALL.map(|key| SortKey::named(key.as_str())), SortKey::ALL.map(Some));
    // The look at "c" is older than the others: of its 40 s, 10 s are left at the time of theirs.
    let mut rows = seen.locks.clone();
    rows[2].detail.as_mut().unwrap().at_unix_ms -= 30_000;
    let order = Filter::default().arrange(&rows, Sort::by(SortKey::Left));
    assert_eq!(order, [2, 0, 1], "sorted by what is left now");
}
