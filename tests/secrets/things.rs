//! Every value of the library that a program can have, while it holds, while it waits, and after a release.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::ClaimId;
use leasehold::layer::Fault;
use leasehold::{Client, Event, EventSubscriber, LockRequest, MultiLock, Note, Owner, blocking};
use leasehold_tests::stores::Store;
use leasehold_tests::{opened, opened_by_threads, opened_with};

use crate::written::{Secret, Written};
use crate::{failures, token};

/// Nothing takes longer, on however busy a machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Records all texts of these values, and fails if an id of a claim or a part of a token is in one.
pub(crate) async fn show_no_id(store: &Store) {
    let (subscriber, mut seen) = (Arc::new(Events::default()), Seen::default());
    let builder = || Client::builder().subscriber(subscriber.clone()).note(Note::new("secrets").unwrap());
    seen.texts.shown("a builder", &builder());
    let (one, two) = (opened_with(builder, &store.url).await, opened(&store.url).await);
    record_requests(&mut seen, &one);
    holders_and_waiters(&mut seen, &one, &two).await;
    Box::pin(built_on_locks(&mut seen, &one, &two)).await;
    token::goes_over(&mut seen, &one, &two).await;
    failures::provoke(&mut seen, &one, &two).await;
    threads(&mut seen, &store.url, &one).await;
    seen.clients("at the end", &one, &two);
    seen.texts.shown("findings", &one.diagnose(Duration::from_secs(30)).await);
    seen.texts.record_outcome("deadlocks", &one.deadlocks().await);
    assert!(one.close(LIMIT).await && two.close(LIMIT).await);
    failures::after_the_end(&mut seen, &one).await;
    seen.clients("when they are closed", &one, &two);
    for text in subscriber.0.lock().unwrap().drain(..) {
        seen.texts.record_text("an event", &text);
    }
    assert!(seen.ids.len() > 3, "on {}: hardly any holder was seen", store.url);
    let mut secrets: Vec<_> = seen.ids.iter().map(|id| Secret::id("the id of a claim", *id)).collect();
    secrets.extend(seen.numbers.iter().map(|number| Secret::id("a part of a token", *number)));
    seen.texts.have_none_of(&store.url, &secrets);
}

/// The texts that were seen, and the secrets that must not be in them.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) texts: Written,
    /// Of claims.
    ids: HashSet<ClaimId>,
    /// Parts of tokens.
    numbers: HashSet<ClaimId>,
}

impl Seen {
    /// Keeps the ids of all claims that exist now, and records their texts.
    pub(crate) async fn look(&mut self, when: &str, one: &Client, two: &Client) {
        self.clients(when, one, two);
        let listed = two.list("", None, 1000).await;
        self.texts.record_outcome("a list", &listed);
        for summary in listed.unwrap() {
            let snapshot = two.inspect(summary.resource.as_str()).await.unwrap();
            self.texts.shown("a snapshot", &snapshot);
            for info in snapshot.holders.iter().chain(&snapshot.waiting) {
                self.ids.insert(info.id);
            }
        }
    }

    pub(crate) fn clients(&mut self, when: &str, one: &Client, two: &Client) {
        for (which, client) in [("first", one), ("second", two)] {
            self.texts.shown(&format!("the {which} client, {when}"), client);
            self.texts.shown(&format!("the backend of the {which}, {when}"), client.backend());
            self.texts.shown("a profile", client.profile());
            self.texts.shown("a layer", &Fault::over(client.backend().clone()));
        }
    }

    pub(crate) fn number(&mut self, hex: &str) {
        self.numbers.insert(ClaimId::from_hex(hex).unwrap());
    }
}

#[derive(Debug, Default)]
struct Events(std::sync::Mutex<Vec<String>>);

impl EventSubscriber for Events {
    fn on_event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

/// Waits until the condition is true, and fails if it never is.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, looking).await.is_ok(), "never: {what}");
}

/// Records values of which no operation was requested yet.
fn record_requests(seen: &mut Seen, locks: &Client) {
    let (texts, owner) = (&mut seen.texts, Owner::new());
    let second = Duration::from_secs(1);
    texts.shown("an owner", &owner);
    texts.shown("a mutex", &locks.mutex("m").owner(&owner).min_hold(second).max_hold(second).priority(3));
    texts.shown("a lock of readers", &locks.rwlock("r").detect_deadlocks(second));
    texts.shown("a semaphore", &locks.semaphore("s", 3).lock_delay(second));
    texts.shown("a part", &LockRequest::from(locks.mutex("m")));
    texts.shown("several", &MultiLock::new().and(locks.mutex("m")).and(locks.rwlock("r").read_request()));
    let striped = locks.striped_mutex("g", 4);
    texts.shown("stripes", &striped);
    texts.shown("a stripe", &striped.for_key("x"));
    texts.shown("their use", &striped.report());
    texts.shown("an election", &locks.election("e"));
    texts.shown("a rate limit", &locks.rate_limit("l", 3, second));
    texts.shown("a condition", &locks.condition("c"));
    texts.shown("a latch", &locks.latch("la", 2));
    texts.shown("a barrier", &locks.barrier("b", 2));
    texts.shown("a flight", &locks.single_flight("f"));
    texts.shown("a value", &locks.versioned("v"));
}

async fn holders_and_waiters(seen: &mut Seen, one: &Client, two: &Client) {
    let (name, owner) = ("secrets/line", Owner::new());
    let mutex = one.mutex(name).owner(&owner);
    let guard = mutex.lock().await.unwrap();
    let again = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = two.mutex(name).owner(&Owner::new());
        async move { lock.try_lock_for(LIMIT).await }
    });
    // Not every store shows its waiters.
    let looking = until("a client waits", || async { !one.inspect(name).await.unwrap().waiting.is_empty() });
    _ = tokio::time::timeout(Duration::from_secs(2), looking).await;
    seen.look("while one waits", one, two).await;
    for (what, value) in [("a guard", &guard), ("the same of its owner", &again)] {
        seen.texts.shown(what, value);
        seen.texts.shown("a state", &value.state());
        seen.texts.record_text("a tag", &value.tag());
    }
    seen.texts.shown("an owner that holds", &owner);
    // This comes last, since a lock that was proved cannot be transferred.
    seen.texts.shown("a proof", again.proof());
    seen.texts.record_outcome("a wait", &one.mutex(name).try_lock_for(Duration::from_millis(50)).await);
    seen.texts.record_outcome("a revocation", &two.revoke(name, "if you please").await);
    drop((guard, again));
    let next = waiting.await.unwrap();
    seen.look("when the next holds", one, two).await;
    seen.texts.record_outcome("the next guard", &next);
    seen.texts.record_outcome("a release", &next.unwrap().unwrap().release().await);
}

async fn built_on_locks(seen: &mut Seen, one: &Client, two: &Client) {
    let leadership = one.election("secrets/election").try_campaign_for("me", LIMIT).await;
    seen.texts.record_outcome("a leadership", &leadership);
    let election = two.election("secrets/election");
    seen.texts
        .record_outcome("a candidate", &election.try_campaign_for("you", Duration::from_millis(50)).await);
    seen.texts.record_outcome("a leader", &two.election("secrets/election").leader().await);
    seen.texts.shown("an observer", &two.election("secrets/election").observe());
    let multi = one.lock_all(["secrets/a", "secrets/b"]).try_lock_for(LIMIT).await;
    seen.texts.record_outcome("several guards", &multi);
    let permit = one.semaphore("secrets/permits", 2).try_acquire_for(LIMIT).await;
    seen.texts.record_outcome("a permit", &permit);
    let reader = one.rwlock("secrets/readers").try_upgradable_read_for(LIMIT).await;
    seen.texts.record_outcome("a reader", &reader);
    let stripe = one.striped_mutex("secrets/stripes", 2).try_lock_any_for(LIMIT).await;
    seen.texts.record_outcome("a stripe that is held", &stripe);
    seen.texts.record_outcome(
        "a rate limit",
        &one.rate_limit("secrets/rate", 2, Duration::from_secs(5)).try_acquire().await,
    );
    let value = one.versioned("secrets/value");
    seen.texts.record_outcome("an update", &value.update(|_| Some(b"public".to_vec())).await);
    seen.texts.record_outcome("a value", &value.read().await);
    seen.texts.record_outcome("a latch", &one.latch("secrets/latch", 2).count_down_as("me").await);
    let barrier = one.barrier("secrets/barrier", 2).wait_for(Duration::from_millis(200)).await;
    seen.texts.record_outcome("a barrier", &barrier);
    let guard = one.mutex("secrets/condition").try_lock_for(LIMIT).await.unwrap().unwrap();
    let condition = one.condition("secrets/waiters");
    seen.texts.record_outcome("a condition", &guard.wait_for(&condition, Duration::from_millis(200)).await);
    let flight = one.single_flight("secrets/flight");
    let loaded = flight
        .get_or_load(Duration::from_secs(5), || async { Ok::<_, std::io::Error>(Some(b"public".to_vec())) })
        .await;
    match &loaded {
        Ok(loaded) => seen.texts.shown("what was loaded", loaded),
        Err(error) => seen.texts.failed("what was not loaded", error),
    }
    seen.look("while much is held", one, two).await;
}

/// The same for threads.
async fn threads(seen: &mut Seen, url: &str, other: &Client) {
    let url = url.to_owned();
    let (guards, mut texts) = tokio::task::spawn_blocking(move || {
        let mut texts = Written::default();
        let locks = opened_by_threads(&url);
        let (mutex, semaphore) = (locks.mutex("secrets/thread"), locks.semaphore("secrets/threads", 2));
        let interrupt = blocking::Interrupt::new();
        texts.shown("a client of threads", &locks);
        texts.shown("a mutex of threads", &mutex.clone().reentrant().interrupted_by(&interrupt));
        texts.shown("a semaphore of threads", &semaphore);
        texts.shown("an interrupt", &interrupt);
        texts.shown("an election of threads", &locks.election("e"));
        texts.shown("a value of threads", &locks.versioned("v"));
        let guard = mutex.try_lock_for(LIMIT).unwrap().unwrap();
        texts.shown("a guard of threads", &guard);
        texts.record_outcome("a wait of threads", &mutex.try_lock_for(Duration::from_millis(20)));
        let election = locks.election("secrets/te");
        let leadership = election.campaign("me");
        texts.record_outcome("a leadership of threads", &leadership);
        texts.record_outcome(
            "a candidate of threads",
            &election.try_campaign_for("you", Duration::from_millis(20)),
        );
        drop(leadership);
        let several = locks.lock_all(["secrets/ta", "secrets/tb"]).try_lock_for(LIMIT).unwrap().unwrap();
        texts.shown("several guards of threads", &several);
        ((locks, guard, several), texts)
    })
    .await
    .unwrap();
    seen.look("while a thread holds", other, guards.0.asynchronous()).await;
    tokio::task::spawn_blocking(move || {
        let (locks, guard, several) = guards;
        texts.record_outcome("a release of threads", &guard.release());
        texts.record_outcome("a release of several", &several.release());
        texts.record_outcome("the end of a client of threads", &locks.close(LIMIT));
        texts
    })
    .await
    .map(|texts| seen.texts.also(texts))
    .unwrap();
}
