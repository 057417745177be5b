//! One load for all, in order, and nothing old over anything newer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::layer::{Mode, Verb};
use leasehold::{
    Cache, CacheError, Cached, Client, ErrorKind, FlightOutcome, LoadError, SingleFlight, ValueSource,
};
use tokio::time::Instant;

use crate::world::{World, clients, on_schedules};

/// The source of values: it counts the loads, and how many run at a time.
#[derive(Debug, Default)]
struct Source {
    version: AtomicU64,
    loads: AtomicU64,
    now: AtomicU64,
    most: AtomicU64,
}

/// A load that runs until this is dropped.
struct Loading(Arc<Source>);

impl Loading {
    fn from(source: &Arc<Source>) -> (Loading, Vec<u8>) {
        source.loads.fetch_add(1, Ordering::SeqCst);
        let now = source.now.fetch_add(1, Ordering::SeqCst) + 1;
        source.most.fetch_max(now, Ordering::SeqCst);
        let version = source.version.load(Ordering::SeqCst);
        (Loading(source.clone()), version.to_string().into_bytes())
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

type LoadResult = Result<FlightOutcome, LoadError<String>>;

/// Requests a value, with a loader that takes `takes` and may fail.
async fn ask(flight: &SingleFlight, source: &Arc<Source>, takes: Duration, fails: bool) -> LoadResult {
    let source = source.clone();
    let load = move || async move {
        let (_loading, value) = Loading::from(&source);
        tokio::time::sleep(takes).await;
        if fails { Err("the source is ill".to_owned()) } else { Ok(Some(value)) }
    };
    flight.get_or_load(LONG, load).await
}

fn flight(locks: &Client) -> SingleFlight {
    locks.single_flight("page").with(|turn| Ok(turn.ttl(TTL))).unwrap()
}

fn version(loaded: &FlightOutcome) -> u64 {
    String::from_utf8(loaded.value.clone().unwrap()).unwrap().parse().unwrap()
}

/// While the store is away all callers of one process wait for it together, and get its failure
/// together.
#[tokio::test(start_paused = true)]
async fn callers_of_one_key_fail_together_during_an_outage() {
    let [client] = clients();
    let source = Arc::<Source>::default();
    client.fault_all(Mode::Refuse);
    let began = Instant::now();
    let callers: Vec<_> = (0..5)
        .map(|_| {
            let (flight, source) = (flight(&client.locks), source.clone());
            tokio::spawn(async move { ask(&flight, &source, Duration::ZERO, false).await })
        })
        .collect();
    for caller in callers {
        let error = caller.await.unwrap().unwrap_err();
        assert!(
            matches!(&error, LoadError::Store(error) if error.kind() == ErrorKind::Unavailable),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    client.fault_all(Mode::Pass);
    // A failure that was reported then is not reported to later callers.
    assert_eq!(
        ask(&flight(&client.locks), &source, Duration::ZERO, false).await.unwrap().origin,
        ValueSource::Loaded
    );
}

/// A loader that never ends delays others by the time that a loader may take, and no more, in its own
/// process and in others.
#[tokio::test(start_paused = true)]
async fn hung_loader_delays_others_by_its_time_limit_only() {
    let [one, two] = clients().map(|peer| peer.locks);
    let flight = |locks: &Client| locks.single_flight("page").within(Duration::from_secs(2));
    let hung = {
        let flight = flight(&one);
        tokio::spawn(async move {
            flight.get_or_load(LONG, std::future::pending::<Result<Option<Vec<u8>>, String>>).await
        })
    };
    while one.inspect("page!loading").await.unwrap().holders.is_empty() {
        tokio::task::yield_now().await;
    }
    for locks in [&one, &two] {
        let load = || async { Ok::<_, String>(Some(b"value".to_vec())) };
        let flight = flight(locks);
        let loaded = tokio::time::timeout(Duration::from_secs(600), flight.get_or_load(LONG, load));
        assert_eq!(loaded.await.unwrap().unwrap().value, Some(b"value".to_vec()));
    }
    assert!(!hung.is_finished());
    hung.abort();
}

/// Callers come, fail, are cancelled and die; the source changes and is invalidated. Never do two load
/// at a time, no load is made without a reason, and no caller that begins after an invalidation gets a
/// value that was loaded before it.
#[test]
fn single_flight_loads_once_and_returns_no_replaced_value() {
    on_schedules(|mut world| async move {
        let source = Arc::new(Source::default());
        // Loads that end without bringing a value; the next is made for a reason.
        let without = Arc::new(AtomicU64::new(0));
        let dead = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..2 + world.chance.below(3)).map(|_| world.client()).collect();
        let mut tasks = Vec::new();
        for client in &clients {
            let dies = world.chance.below(4) == 0;
            let callers: Vec<_> = (0..1 + world.chance.below(4))
                .map(|_| {
                    let (flight, source, mut chance) =
                        (flight(&client.locks), source.clone(), world.chance.fork());
                    let without = without.clone();
                    tokio::spawn(async move {
                        for _ in 0..3 {
                            tokio::time::sleep(chance.ms(150)).await;
                            let (takes, fails) = (chance.ms(60), chance.below(4) == 0);
                            let asking = ask(&flight, &source, takes, fails);
                            let patience = if chance.below(4) == 0 { chance.ms(80) } else { LONG };
                            match tokio::time::timeout(patience, asking).await {
                                Ok(Ok(loaded)) if loaded.origin != ValueSource::NotKept => {}
                                Ok(Ok(_) | Err(LoadError::Loader(_))) | Err(_) => {
                                    without.fetch_add(1, Ordering::SeqCst);
                                }
                                Ok(Err(error)) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            if dies {
                let (client, after, dead) = (client.clone(), world.chance.ms(300), dead.clone());
                tasks.push(tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    client.falls_silent();
                    dead.fetch_add(1, Ordering::SeqCst);
                    callers.iter().for_each(tokio::task::JoinHandle::abort);
                }));
            } else {
                tasks.extend(callers);
            }
        }
        // For a client that gets no answer, one invalidation may count as two.
        let changer = world.calm_client();
        let mut changes = 0;
        for _ in 0..world.chance.below(3) {
            tokio::time::sleep(world.chance.ms(200)).await;
            let flight = flight(&changer.locks);
            let newer = source.version.fetch_add(1, Ordering::SeqCst) + 1;
            flight.invalidate().await.unwrap();
            changes += 1;
            // A value that was being loaded during the invalidation does not come back.
            tokio::time::sleep(world.chance.ms(100)).await;
            if let Some(kept) = flight.get().await.unwrap() {
                assert!(version(&kept) >= newer, "{kept:?} is older than {newer}");
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let (without, dead) = (without.load(Ordering::SeqCst), dead.load(Ordering::SeqCst));
        let loads = source.loads.load(Ordering::SeqCst);
        assert!(loads <= 1 + changes + without + dead, "{loads} loads, {changes} {without} {dead}");
        assert_eq!(source.most.load(Ordering::SeqCst).max(1), 1, "two loaded at a time");
        let last = ask(&flight(&changer.locks), &source, Duration::ZERO, false).await.unwrap();
        assert_eq!(version(&last), source.version.load(Ordering::SeqCst));
    });
}

/// The caller comes after the invalidation, by its own client or by another one, and a flight of its own process is
/// under way since before.
#[tokio::test(start_paused = true)]
async fn caller_after_an_invalidation_gets_no_earlier_value() {
    for invalidator in [0, 1] {
        let clients: [_; 2] = clients();
        let source = Arc::new(Source::default());
        let flights = clients.each_ref().map(|client| flight(&client.locks));
        let asking = |takes| {
            let (flight, source) = (flights[0].clone(), source.clone());
            tokio::spawn(async move { ask(&flight, &source, takes, false).await })
        };
        let early = [(); 2].map(|()| asking(Duration::from_millis(100)));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(source.loads.load(Ordering::SeqCst), 1, "it has begun");
        source.version.store(1, Ordering::SeqCst);
        flights[invalidator].invalidate().await.unwrap();
        let late = [(); 2].map(|()| asking(Duration::ZERO));
        for caller in early {
            assert_eq!(version(&caller.await.unwrap().unwrap()), 0);
        }
        for (caller, origin) in late.into_iter().zip([ValueSource::Loaded, ValueSource::Kept]) {
            let late = caller.await.unwrap().unwrap();
            assert_eq!((version(&late), late.origin), (1, origin), "invalidated by client {invalidator}");
        }
        assert_eq!(version(&flights[0].get().await.unwrap().unwrap()), 1);
        assert_eq!(source.loads.load(Ordering::SeqCst), 2);
    }
}

/// They do not each load, one after the other, however often it is invalidated.
#[tokio::test(start_paused = true)]
async fn callers_from_before_a_load_share_a_value_that_is_not_kept() {
    let clients: [_; 2] = clients();
    let source = Arc::new(Source::default());
    let ours = flight(&clients[0].locks);
    let invalidating = {
        let theirs = flight(&clients[1].locks);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                theirs.invalidate().await.unwrap();
            }
        })
    };
    let callers: Vec<_> = (0..40)
        .map(|number| {
            let (flight, source) = (ours.clone(), source.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5 * number)).await;
                let asked = Instant::now();
                let loaded = ask(&flight, &source, Duration::from_millis(100), false).await.unwrap();
                (loaded.origin, asked.elapsed())
            })
        })
        .collect();
    for caller in callers {
        let (origin, took) = caller.await.unwrap();
        assert_eq!(origin, ValueSource::NotKept);
        assert!(took < Duration::from_millis(300), "{took:?}");
    }
    let loads = source.loads.load(Ordering::SeqCst);
    assert!(loads <= 4, "{loads}");
    invalidating.abort();
}

/// A loader that is slow beyond its lease is overtaken, and what it brings in the end replaces nothing.
#[tokio::test(start_paused = true)]
async fn a_slow_old_loader_does_not_replace_a_newer_value() {
    let [old, new] = clients();
    let source = Arc::new(Source::default());
    let slow = tokio::spawn({
        let (flight, source) = (flight(&old.locks), source.clone());
        async move { ask(&flight, &source, 4 * TTL, false).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    old.fault(Verb::Renew, Mode::Hang);
    old.fault(Verb::Release, Mode::Hang);
    source.version.store(7, Ordering::SeqCst);
    let quick = ask(&flight(&new.locks), &source, Duration::from_millis(5), false).await.unwrap();
    assert_eq!((version(&quick), quick.origin), (7, ValueSource::Loaded));
    let slow = slow.await.unwrap();
    assert_eq!((version(&slow), slow.origin), (0, ValueSource::NotKept));
    assert_eq!(version(&flight(&new.locks).get().await.unwrap().unwrap()), 7);
}

/// A dead loader's successors are the waiters, in their order.
#[tokio::test(start_paused = true)]
async fn failed_loader_is_replaced_in_arrival_order() {
    let world = World::at_once();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let client = world.calm_client();
        let order = order.clone();
        tasks.push(tokio::spawn(async move {
            let load = move || async move {
                order.lock().unwrap().push(number);
                tokio::time::sleep(Duration::from_millis(50)).await;
                if number < 3 { Err(format!("{number} fails")) } else { Ok(Some(vec![3])) }
            };
            flight(&client.locks).get_or_load(LONG, load).await
        }));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (number, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(loaded) => assert_eq!((number, loaded.value), (3, Some(vec![3]))),
            Err(error) => assert_eq!(error.to_string(), format!("load: {number} fails")),
        }
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

/// Fresh, then stale and loaded anew behind the callers' backs, then gone.
#[tokio::test(start_paused = true)]
async fn a_stale_value_is_given_out_while_it_is_loaded_anew() {
    let [client] = clients();
    let source = Arc::new(Source::default());
    let flight = flight(&client.locks).stale_for(Duration::from_secs(10)).early(0.0);
    let ttl = Duration::from_secs(5);
    let ask = || {
        let source = source.clone();
        flight.get_or_load(ttl, move || async move {
            let (_loading, value) = Loading::from(&source);
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, String>(Some(value))
        })
    };
    assert_eq!(ask().await.unwrap().origin, ValueSource::Loaded);
    tokio::time::sleep(ttl - Duration::from_millis(200)).await;
    assert_eq!(ask().await.unwrap().origin, ValueSource::Kept);
    tokio::time::sleep(Duration::from_millis(300)).await;
    source.version.store(1, Ordering::SeqCst);
    let asked = Instant::now();
    for _ in 0..5 {
        let stale = ask().await.unwrap();
        assert_eq!((version(&stale), stale.origin), (0, ValueSource::Stale));
    }
    assert!(asked.elapsed() < Duration::from_millis(50), "no caller waits for the loader");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let kept = ask().await.unwrap();
    assert_eq!((version(&kept), kept.origin), (1, ValueSource::Kept));
    assert_eq!(source.loads.load(Ordering::SeqCst), 2);
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(flight.get().await.unwrap().is_none());
    assert_eq!(ask().await.unwrap().origin, ValueSource::Loaded);
}

/// The longer a load takes, the earlier it is repeated; it is not repeated early if that is turned off.
#[tokio::test(start_paused = true)]
async fn a_fresh_value_is_loaded_early_by_chance() {
    let [client] = clients();
    for (eagerness, loads) in [(0.0, 1), (1.0, 2)] {
        let source = Arc::new(Source::default());
        let flight = client.locks.single_flight(format!("page {eagerness}")).early(eagerness);
        let ask = || {
            let source = source.clone();
            flight.get_or_load(Duration::from_secs(10), move || async move {
                let (_loading, value) = Loading::from(&source);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, String>(Some(value))
            })
        };
        ask().await.unwrap();
        tokio::time::sleep(Duration::from_millis(9_900)).await;
        // A tenth of a second is left and a load takes one: of forty callers none begins once in e^38.
        for _ in 0..40 {
            assert_eq!(ask().await.unwrap().origin, ValueSource::Kept);
        }
        assert_eq!(source.loads.load(Ordering::SeqCst), loads, "eagerness {eagerness}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(flight.get().await.unwrap().is_some(), eagerness > 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn missing_value_is_cached_for_its_negative_ttl() {
    let [client] = clients();
    let source = Arc::new(Source::default());
    let ask = |flight: SingleFlight| {
        let source = source.clone();
        async move {
            let load = move || async move {
                let _loading = Loading::from(&source);
                Ok::<_, String>(None)
            };
            let loaded = flight.early(0.0).get_or_load(LONG, load).await.unwrap();
            assert_eq!(loaded.value, None);
            loaded.origin
        }
    };
    let kept = client.locks.single_flight("kept").negative_for(Duration::from_secs(2));
    assert_eq!(ask(kept.clone()).await, ValueSource::Loaded);
    assert_eq!(ask(kept.clone()).await, ValueSource::Kept);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(ask(kept).await, ValueSource::Loaded);
    let never = client.locks.single_flight("never").negative_for(Duration::ZERO);
    assert_eq!(ask(never.clone()).await, ValueSource::NotKept);
    assert_eq!(ask(never).await, ValueSource::NotKept);
    assert_eq!(source.loads.load(Ordering::SeqCst), 4);
}

/// A cache as an application might write it.
#[derive(Debug, Default)]
struct Shelf(Mutex<HashMap<String, Put>>);

/// A value, its version, and the time until which it is kept.
type Put = (Vec<u8>, u64, Instant);

#[async_trait]
impl Cache for Shelf {
    async fn get(&self, key: &str) -> Result<Option<Cached>, CacheError> {
        let shelf = self.0.lock().unwrap();
        let found = shelf.get(key).filter(|(_, _, until)| *until > Instant::now());
        Ok(found.map(|(value, version, until)| Cached {
            value: value.clone(),
            version: version.to_string(),
            left: *until - Instant::now(),
        }))
    }

    async fn put(
        &self,
        key: &str,
        seen: Option<&str>,
        value: &[u8],
        keep: Duration,
    ) -> Result<Option<String>, CacheError> {
        static LAST: AtomicU64 = AtomicU64::new(1);
        if self.get(key).await?.map(|cached| cached.version).as_deref() != seen {
            return Ok(None);
        }
        let version = LAST.fetch_add(1, Ordering::SeqCst);
        self.0.lock().unwrap().insert(key.to_owned(), (value.to_vec(), version, Instant::now() + keep));
        Ok(Some(version.to_string()))
    }

    async fn remove(&self, key: &str, seen: &str) -> Result<bool, CacheError> {
        if self.get(key).await?.map(|cached| cached.version).as_deref() != Some(seen) {
            return Ok(false);
        }
        Ok(self.0.lock().unwrap().remove(key).is_some())
    }
}

#[tokio::test(start_paused = true)]
async fn single_flight_keeps_values_in_a_custom_cache() {
    let [one, two] = clients();
    let (source, shelf) = (Arc::new(Source::default()), Arc::new(Shelf::default()));
    let flights = [flight(&one.locks).cache(shelf.clone()), flight(&two.locks).cache(shelf.clone())];
    let asks = flights.iter().map(|flight| ask(flight, &source, Duration::from_millis(80), false));
    for loaded in futures_util::future::join_all(asks).await {
        assert_eq!(version(&loaded.unwrap()), 0);
    }
    assert_eq!(source.loads.load(Ordering::SeqCst), 1);
    assert_eq!(shelf.0.lock().unwrap().len(), 1);
    flights[0].invalidate().await.unwrap();
    assert!(flights[1].get().await.unwrap().is_none());
    assert!(flight(&one.locks).get().await.unwrap().is_none(), "the store of the locks keeps nothing");
}

#[tokio::test]
async fn single_flight_refuses_invalid_settings() {
    let locks = Client::open("mem:").await.unwrap();
    let load = || async { Ok::<_, String>(Some(vec![0; 1024 * 1024])) };
    let refused = |loaded: LoadResult| match loaded {
        Err(LoadError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
        other => panic!("{other:?}"),
    };
    refused(locks.single_flight("k").get_or_load(Duration::ZERO, load).await);
    refused(locks.single_flight("k").early(f64::NAN).get_or_load(LONG, load).await);
    refused(locks.single_flight("k").get_or_load(LONG, load).await);
}

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(500);
