//! Two locks held as one, on a real server: the laws, and a fleet that moves.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use leasehold::layer::{Dual, Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, LossCause, Tuning};
use leasehold_conformance::{Around, Subject, TakerCommand, Wrapped};
use leasehold_core::{
    Backend, BreakOutcome, Claim, Effect, Failure, FailureKind, LossTrigger, Patience, Release, Resource,
    ResourceSummary, Snapshot, SnapshotVersion, Step,
};
use leasehold_redis::RedisConfig;
use leasehold_testkit::{Lateness, RedisServer};
use tokio::sync::OnceCell;

/// A server for one law, started when the law first connects.
struct Moving {
    options: &'static str,
    server: OnceCell<Option<RedisServer>>,
}

impl Moving {
    fn with(options: &'static str) -> Moving {
        Moving { options, server: OnceCell::new() }
    }
}

#[async_trait::async_trait]
impl Subject for Moving {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let server = self.server.get_or_init(RedisServer::start_or_skip).await.as_ref()?;
        Some(dual(&format!("{}{}", server.url(), self.options)).await.unwrap())
    }

    fn taker(&self) -> Option<TakerCommand> {
        let server = self.server.get()?.as_ref()?;
        Some(TakerCommand::test("dual::taker", format!("{}{}", server.url(), self.options)).unwrap())
    }
}

async fn dual(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    let Some((old, new)) = RedisConfig::parse(url)?.dual() else { panic!("{url} is not dual") };
    Ok(Arc::new(Dual::of(leasehold_redis::connect(old).await?, leasehold_redis::connect(new).await?)?))
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| dual(url).await);
}

mod plain {
    use super::*;
    leasehold_conformance::suite!(Moving::with("?dialect=dual:plain"));
}

mod redisson_poll {
    use super::*;
    leasehold_conformance::suite!(Moving::with("?dialect=dual:redisson&wait=poll&watchdog=1h"));
}

async fn client(server: &RedisServer, options: &str) -> Client {
    Client::open(&format!("{}{options}", server.url())).await.unwrap()
}

/// The three kinds of process of a fleet that moves, none of which is ever inside with another.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_moves_in_three_steps_without_two_holders() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (old, both, new) = ("?dialect=plain", "?dialect=dual:plain", "");
    let (inside, entered, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), "job");
    for step in [[old, old, both], [both, old, both], [both, both, new], [new, both, new]] {
        entered.store(0, Ordering::SeqCst);
        let mut tasks = Vec::new();
        for options in step {
            let locks = client(&server, options).await;
            let (inside, entered) = (inside.clone(), entered.clone());
            tasks.push(tokio::spawn(async move {
                let mutex = locks.mutex(over).ttl(Duration::from_secs(60));
                for _ in 0..15 {
                    let guard = mutex.lock().await.unwrap();
                    assert!(
                        !inside.swap(true, Ordering::SeqCst),
                        "two are inside, one of them by {options:?}"
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    entered.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(entered.load(Ordering::SeqCst), 45, "{step:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dual_waiter_for_the_old_lock_keeps_the_new_one_and_releases() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (old, both, new) = (
        client(&server, "?dialect=plain").await,
        client(&server, "?dialect=dual:plain").await,
        client(&server, "").await,
    );
    let guard = old.mutex("job").lock().await.unwrap();
    assert!(both.mutex("job").try_lock().await.unwrap().is_none());
    assert!(new.mutex("job").try_lock().await.unwrap().is_some(), "a look leaves nothing behind");
    let short = both.mutex("job").ttl(Duration::from_secs(10));
    let waiting = tokio::spawn(async move { short.lock().await });
    // Longer than a lease of the new lock. A machine that stands still may keep the waiter from renewing it.
    let late = Lateness::within(Duration::from_secs(12)).await;
    let granted = new.mutex("job").try_lock().await.unwrap();
    assert!(granted.is_none() || late > Duration::from_secs(3), "the next waiter has it");
    drop(granted);
    waiting.abort();
    // Its lease lasts longer than that.
    let long = both.mutex("job").ttl(Duration::from_secs(300));
    assert!(long.try_lock_for(Duration::from_secs(1)).await.unwrap().is_none(), "it had to time out");
    let free = new.mutex("job").try_lock_for(Duration::from_secs(60)).await.unwrap();
    free.expect("a waiter that gave up holds nothing").release().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = both.mutex("job");
        async move { mutex.lock().await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().unwrap();
    assert!(guard.fence().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_one_is_the_loss_of_both() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    // It is renewed, and the loss seen, long before the lease would end.
    let locks = Client::builder().tuning(Tuning::default().renew_at(0.05));
    let locks = locks.open(&format!("{}?dialect=dual:plain", server.url())).await.unwrap();
    for keys in [&["DEL", "job"][..], &["DEL", "{lh:job}:held"]] {
        let guard = locks.mutex("job").ttl(Duration::from_secs(30)).lock().await.unwrap();
        server.command(keys).await.unwrap();
        let cause = tokio::time::timeout(Duration::from_secs(60), guard.lost()).await.unwrap();
        assert_eq!(cause, LossCause::Gone, "{keys:?}");
        drop(guard);
        let again = locks.mutex("job").try_lock_for(Duration::from_secs(60)).await.unwrap().unwrap();
        again.release().await.unwrap();
    }
}

/// Opens two stores in memory, and a client that holds their locks together. The new one is behind a fault.
fn moving() -> (Arc<MemoryBackend>, Arc<Fault>, Arc<MemoryBackend>, Client) {
    let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
    let fault = Arc::new(Fault::over(new.clone()));
    let dual = Dual::of(old.clone(), fault.clone()).unwrap();
    (old, fault, new, Client::builder().over(Arc::new(dual)).unwrap())
}

/// The work ran beside another holder of that half, perhaps.
#[tokio::test]
async fn release_after_the_loss_of_either_half_is_an_error() {
    for is_old in [true, false] {
        let (old, _, new, locks) = moving();
        let guard = locks.mutex("job").lock().await.unwrap();
        let operator = Client::builder().over(if is_old { old } else { new }).unwrap();
        let held = operator.inspect("job").await.unwrap().holders.remove(0);
        operator.break_claim("job", &held).await.unwrap();
        let other = operator.mutex("job").try_lock().await.unwrap().expect("that half is free");
        let error = guard.release().await.unwrap_err();
        assert!(error.is_lost(), "{is_old}: {error}");
        drop(other);
    }
}

/// The first attempt frees the old half, so the second does not find it.
#[tokio::test]
async fn repeated_release_of_both_halves_is_not_a_loss() {
    let (_, fault, _, locks) = moving();
    let guard = locks.mutex("job").lock().await.unwrap();
    fault.set(Verb::Release, Mode::Refuse);
    let before = fault.calls(Verb::Release);
    let releasing = tokio::spawn(guard.release());
    while fault.calls(Verb::Release) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fault.set(Verb::Release, Mode::Pass);
    releasing.await.unwrap().unwrap();
}

/// The release of the new half may still arrive, and would end a later grant of the same claim.
#[tokio::test]
async fn try_that_gave_its_new_half_back_without_an_answer_is_not_repeated() {
    let (old, fault, new, locks) = moving();
    let other = Client::builder().over(old).unwrap();
    let held = other.mutex("job").lock().await.unwrap();
    fault.set(Verb::Release, Mode::LoseRequest);
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert_eq!(fault.calls(Verb::Contend), 1);
    fault.set(Verb::Release, Mode::Pass);
    let after = Client::builder().over(new).unwrap();
    let free = after.mutex("job").try_lock_for(Duration::from_secs(60)).await.unwrap();
    free.expect("it is released in the end").release().await.unwrap();
    held.release().await.unwrap();
}

/// A failure of the old store while the new lock is held is reported as an unknown outcome, and leaves
/// nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_between_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let config = |options: &str| RedisConfig::parse(&format!("{}{options}", server.url())).unwrap();
    let old = leasehold_redis::connect(config("?dialect=plain")).await.unwrap();
    let new = leasehold_redis::connect(config("")).await.unwrap();
    let fault = Arc::new(Fault::over(old));
    let dual = Dual::of(fault.clone(), new.clone()).unwrap();
    let locks = Client::builder().over(Arc::new(dual)).unwrap();
    let after = Client::builder().over(new).unwrap();
    fault.set(Verb::Contend, Mode::Refuse);
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("may have"), "{error}");
    // The new lock is released.
    let guard = after.mutex("job").try_lock_for(Duration::from_secs(60)).await;
    guard.unwrap().unwrap().release().await.unwrap();
}

/// Redisson's watchdog would shorten the lease of this reader.
#[tokio::test(flavor = "multi_thread")]
async fn claim_that_the_old_lock_refuses_leaves_the_new_one_free() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let locks = client(&server, "?dialect=dual:redisson").await;
    let error = locks.rwlock("job").ttl(Duration::from_secs(60)).read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(!error.may_have_happened(), "{error}");
    let after = client(&server, "").await;
    after.mutex("job").try_lock().await.unwrap().expect("it was given back").release().await.unwrap();
}

#[tokio::test]
async fn dual_refuses_stores_it_cannot_hold_together() {
    let directory = tempfile::tempdir().unwrap();
    let session =
        leasehold::local::FileBackend::open(leasehold::local::FileConfig::new(directory.path())).unwrap();
    let lease = leasehold::local::MemoryBackend::new();
    let failure = Dual::of(Arc::new(lease), Arc::new(session)).unwrap_err();
    assert!(failure.detail().contains("session"), "{failure}");
}

/// A connection of a memory store. Like a connection that keeps its locks, it releases only what it took
/// itself, and takes away what another one has only when an operator breaks it.
#[derive(Debug)]
struct Connection {
    store: Arc<MemoryBackend>,
    took_it: bool,
    on_look: OnLook,
    loss: Mutex<Option<LossTrigger>>,
}

/// The effect of a look at the lock `a`.
#[derive(Debug)]
enum OnLook {
    Nothing,
    /// It ends in these stores before the answer.
    Ends([Arc<MemoryBackend>; 2]),
    Fails(FailureKind),
}

impl Connection {
    fn to(store: &Arc<MemoryBackend>) -> Connection {
        Connection { store: store.clone(), took_it: true, on_look: OnLook::Nothing, loss: Mutex::default() }
    }
}

#[async_trait]
impl Around for Connection {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let step = self.store.contend(claim, patience).await?;
        let Step::Granted(grant) = step else { return Ok(step) };
        let (trigger, signal) = LossTrigger::new();
        *self.loss.lock().unwrap() = Some(trigger);
        Ok(Step::Granted(grant.lost(Some(signal))))
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        if self.took_it { self.store.release(batch).await } else { vec![Release::Gone; batch.len()] }
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        match &self.on_look {
            OnLook::Ends(stores) if resource.as_str() == "a" => {
                for store in stores {
                    for held in store.inspect(resource, None, patience).await?.holders {
                        let claim = Claim::new(held.id, resource.clone(), held.share, Duration::from_secs(1));
                        drop(store.release(&[&claim]).await);
                    }
                }
            }
            OnLook::Fails(kind) if resource.as_str() == "a" => {
                return Err(Failure::new(*kind, Effect::None, "it is not a lock"));
            }
            _ => {}
        }
        self.store.inspect(resource, seen, patience).await
    }
}

#[tokio::test]
async fn break_through_both_stores_ends_the_claim_in_each() {
    let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
    let client = |took_it| {
        let connect = |store| Arc::new(Wrapped(Connection { took_it, ..Connection::to(store) }));
        let dual = Dual::of(connect(&old), connect(&new)).unwrap();
        Client::builder().over(Arc::new(dual)).unwrap()
    };
    let (holder, operator) = (client(true), client(false));
    let guard = holder.mutex("job").lock().await.unwrap();
    let seen = operator.inspect("job").await.unwrap().holders.remove(0);
    let outcome = operator.break_claim("job", &seen).await.unwrap();
    assert_eq!(outcome, BreakOutcome::Ended { also_released: Vec::new() });
    for store in [old, new] {
        let left = Client::builder().over(store).unwrap().inspect("job").await.unwrap();
        assert!(left.holders.is_empty(), "{left:?}");
    }
    drop(guard);
}

/// Lists the locks `a`, `b` and `c`, two of them at most.
async fn listed(
    on_look: impl FnOnce([Arc<MemoryBackend>; 2]) -> OnLook,
) -> Result<Vec<ResourceSummary>, Failure> {
    let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
    let locks = Client::builder().over(Arc::new(Dual::of(old.clone(), new.clone()).unwrap())).unwrap();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.mutex(name).lock().await.unwrap());
    }
    let on_look = on_look([old.clone(), new.clone()]);
    let dual = Dual::of(old, Arc::new(Wrapped(Connection { on_look, ..Connection::to(&new) }))).unwrap();
    dual.list("", None, 2).await
}

fn names(listed: &[ResourceSummary]) -> Vec<&str> {
    listed.iter().map(|summary| summary.resource.as_str()).collect()
}

/// A page that is not full says that it is the last.
#[tokio::test]
async fn lock_that_ends_while_it_is_listed_does_not_end_the_listing() {
    assert_eq!(names(&listed(|_| OnLook::Nothing).await.unwrap()), ["a", "b"]);
    assert_eq!(names(&listed(OnLook::Ends).await.unwrap()), ["b", "c"]);
}

#[tokio::test]
async fn key_that_is_not_a_lock_is_left_out_of_a_listing() {
    let of = |kind| listed(move |_| OnLook::Fails(kind));
    assert_eq!(names(&of(FailureKind::Foreign).await.unwrap()), ["b", "c"]);
    assert_eq!(of(FailureKind::Unavailable).await.unwrap_err().kind, FailureKind::Unavailable);
}

/// The names of each store may be on another page.
#[tokio::test]
async fn listing_has_the_names_of_both_stores_in_order() {
    let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
    let dual = Dual::of(old.clone(), new.clone()).unwrap();
    let (before, after) = (Client::builder().over(old).unwrap(), Client::builder().over(new).unwrap());
    let mut guards = Vec::new();
    for (locks, held) in [(&before, ["a", "b", "g"]), (&after, ["c", "d", "e"])] {
        for name in held {
            guards.push(locks.mutex(name).lock().await.unwrap());
        }
    }
    let all = ["a", "b", "c", "d", "e", "g"];
    for limit in 0..=7 {
        let listed = dual.list("", None, limit).await.unwrap();
        assert_eq!(names(&listed), all[..limit.min(6)], "{limit}");
        let behind = Resource::new("b").unwrap();
        let listed = dual.list("", Some(&behind), limit).await.unwrap();
        assert_eq!(names(&listed), all[2..(2 + limit).min(6)], "{limit}");
    }
}

#[tokio::test]
async fn loss_that_either_store_signals_is_the_loss_of_both() {
    for is_old in [true, false] {
        let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
        let (old, new) = [&old, &new].map(|store| Arc::new(Wrapped(Connection::to(store)))).into();
        let dual = Dual::of(old.clone(), new.clone()).unwrap();
        let locks = Client::builder().over(Arc::new(dual)).unwrap();
        let guard = locks.mutex("job").lock().await.unwrap();
        assert!(guard.check().is_ok());
        let half = if is_old { old } else { new };
        half.loss.lock().unwrap().as_ref().unwrap().fire(LossCause::Gone);
        assert_eq!(guard.lost().now_or_never(), Some(LossCause::Gone), "{is_old}");
    }
}
