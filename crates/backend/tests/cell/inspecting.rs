//! Observers of locks and of registers: the times that they are shown, and how often they look.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_backend::cell::ClockSource;
use leasehold_core::{Backend, Patience, Proof, Put, Renew, Renewal, Step, WaitMode};

use crate::store::{CACHE, Faults, Kind, LONG, Store, TABLE, claim, clock, try_take};

const PAUSE: Duration = Duration::from_millis(20);

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

#[tokio::test]
async fn moment_of_a_grant_is_shown_and_remains() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let backend = Store::new().open(kind, Faults::default());
        let seen = async || {
            let at = claim("job", LONG).resource;
            let snapshot = backend.inspect(&at, None, &Patience::none(clock())).await.unwrap();
            let all = snapshot.holders.into_iter().chain(snapshot.waiting);
            all.map(|shown| shown.since_unix_ms.unwrap()).collect::<Vec<u64>>()
        };
        let (held, waits, began) = (claim("job", LONG), claim("job", LONG), unix_ms());
        assert!(try_take(&backend, &held).await.is_some());
        let first = seen().await;
        assert!(began - 1_000 <= first[0] && first[0] <= unix_ms() + 1_000, "{first:?}, {began}");
        tokio::time::sleep(PAUSE).await;
        let step = backend.contend(&waits, &Patience::unlimited(clock())).await.unwrap();
        assert!(matches!(step, Step::Busy(_)), "{step:?}");
        tokio::time::sleep(PAUSE).await;
        let renewed = backend.renew(&[Renew { claim: &held, proof: &Proof::none() }]).await;
        assert!(matches!(renewed[..], [Renewal::Renewed]), "{renewed:?}");
        let later = seen().await;
        assert!(later.len() == 2 && later[0] < later[1], "{first:?} {later:?}");
        // By the clock of a store each look calculates it.
        assert!(kind.clock_source == ClockSource::Store || later[0] == first[0], "{first:?} {later:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn observer_of_a_lock_looks_twice_a_second() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let held = claim("job", LONG);
    assert!(try_take(&backend, &held).await.is_some());
    let seen = backend.inspect(&held.resource, None, &Patience::none(clock())).await.unwrap().version;
    let (before, patience) = (store.requests(), Patience::unlimited(clock()));
    let watching = backend.inspect(&held.resource, Some(&seen), &patience);
    assert!(tokio::time::timeout(Duration::from_secs(10), watching).await.is_err());
    let looks = store.requests() - before;
    assert!((19..=21).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn observer_that_may_miss_a_change_looks_more_often() {
    let store = Store::new();
    let backend = store.open(TABLE, Faults::default());
    let (registers, at) = (backend.registers().unwrap(), claim("job", LONG).resource);
    let nothing = registers.read(&at).await.unwrap().stamp;
    let put = Put { value: Some(b"value".to_vec()), keep: None };
    let seen = registers.swap(&at, &nothing, &put).await.unwrap().unwrap();
    for (is_connected, expected) in [(true, 3..=5), (false, 60..=70)] {
        if !is_connected {
            store.registers().disconnect();
        }
        let (before, patience) = (store.registers().requests(), Patience::unlimited(clock()));
        let watching = registers.changed(&at, &seen, &patience);
        assert!(tokio::time::timeout(Duration::from_secs(20), watching).await.is_err());
        let looks = store.registers().requests() - before;
        assert!(expected.contains(&looks), "{looks}, {is_connected}");
    }
}
