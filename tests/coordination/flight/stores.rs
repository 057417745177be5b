//! Single flight: one load serves all callers, and if the loader dies, the next caller in the queue loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Client, FlightOutcome, LoadError, SingleFlight, ValueSource};

use crate::fixture::{Fixture, LIVING, Part, Primitive, TTL, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "flight",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "loader",
        steps: 3,
        play: |stage, locks, name| {
            async move {
                let (flight, within) = (flight(locks, name, TTL), stage.clone());
                let load = move || async move {
                    within.at("loads").await;
                    Ok::<_, leasehold::Error>(Some(b"old".to_vec()))
                };
                stage.at("has not asked").await;
                match flight.get_or_load(KEPT, load).await {
                    Ok(_) => stage.at("has loaded").await,
                    Err(LoadError::Loader(error) | LoadError::Store(error)) => return Err(error),
                    Err(error) => panic!("{error}"),
                }
                Ok(())
            }
            .boxed()
        },
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

/// Longer than any test takes.
const KEPT: Duration = Duration::from_secs(600);

fn flight(locks: &Client, name: &str, ttl: Duration) -> SingleFlight {
    // No client loads early here, so that loads can be counted.
    locks.single_flight(name).early(0.0).with(|turn| Ok(turn.ttl(ttl))).unwrap()
}

fn is_carried_by(fixture: &Fixture) -> bool {
    fixture.one.backend().registers().is_some_and(|registers| registers.promise().forgets)
}

/// Loads this value, and counts the load.
async fn ask(
    flight: &SingleFlight,
    value: &'static [u8],
    loads: &Arc<AtomicU32>,
) -> Result<FlightOutcome, LoadError<leasehold::Error>> {
    let loads = loads.clone();
    let load = move || async move {
        loads.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Some(value.to_vec()))
    };
    within_limit("a value", flight.get_or_load(KEPT, load)).await
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let (one, two) =
        (flight(&fixture.one, &victim.name(), LIVING), flight(&fixture.two, &victim.name(), LIVING));
    let has_loaded = victim.step() > 1;
    victim.dies().await;
    let loads = Arc::new(AtomicU32::new(0));
    let (first, second) = tokio::join!(ask(&one, b"new", &loads), ask(&two, b"new", &loads));
    for outcome in [first.unwrap(), second.unwrap()] {
        assert_eq!(outcome.value.as_deref(), Some(if has_loaded { b"old" } else { b"new" }.as_slice()));
    }
    assert_eq!(
        loads.load(Ordering::SeqCst),
        u32::from(!has_loaded),
        "one client loads a value that was not loaded"
    );
    one.invalidate().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    let flights = [flight(&fixture.one, "flight/1", LIVING), flight(&fixture.two, "flight/1", LIVING)];
    let loads = Arc::new(AtomicU32::new(0));
    if !is_carried_by(fixture) {
        return match ask(&flights[0], b"", &loads).await {
            Err(LoadError::Store(error)) => assert_unsupported::<()>(Err(error)),
            other => panic!("{other:?}"),
        };
    }
    for generation in 1..=2 {
        let asking = (0..6).map(|number| ask(&flights[number % 2], b"value", &loads));
        for outcome in futures_util::future::join_all(asking).await {
            assert_eq!(outcome.unwrap().value.as_deref(), Some(b"value".as_slice()));
        }
        assert_eq!(loads.load(Ordering::SeqCst), generation, "one load a generation");
        let kept = flights[1].get().await.unwrap().unwrap();
        assert_eq!((kept.value.as_deref(), kept.origin), (Some(b"value".as_slice()), ValueSource::Kept));
        flights[0].invalidate().await.unwrap();
        assert_eq!(flights[1].get().await.unwrap(), None);
    }
}
