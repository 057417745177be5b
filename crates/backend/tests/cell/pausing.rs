//! The pauses of claims that poll, or that lose races.

use std::time::Duration;

use leasehold_core::{Backend, Claim, FailureKind, Patience, Release, Step, WaitMode};
use tokio::time::Instant;

use crate::store::{CACHE, Faults, Kind, LONG, Store, TABLE, claim, clock, try_take};

/// The longest of the first pause of a claim.
const FIRST: Duration = Duration::from_millis(25);

/// Asks once, and returns when to ask again.
async fn pause(backend: &dyn Backend, claim: &Claim) -> Duration {
    match backend.contend(claim, &Patience::unlimited(clock())).await.unwrap() {
        Step::Busy(hint) => hint.ask_again_in.unwrap(),
        Step::Granted(grant) => panic!("{grant:?}"),
    }
}

/// The requests of a claim are counted until it holds, or has ended.
#[tokio::test]
async fn pauses_of_a_claim_begin_anew_if_it_no_longer_polls() {
    let store = Store::new();
    let [here, there] = [0; 2].map(|_| store.open(CACHE, Faults::default()));
    let (held, waits) = (claim("job", LONG), claim("job", LONG));
    assert!(try_take(&there, &held).await.is_some());
    for end in ["tried", "released", "lost"] {
        assert!(pause(&here, &waits).await <= FIRST, "before it is {end}");
        while pause(&here, &waits).await < FIRST * 2 {}
        match end {
            "tried" => assert!(try_take(&here, &waits).await.is_none()),
            "released" => assert!(matches!(here.release(&[&waits]).await[..], [Release::Freed])),
            _ => {
                assert!(matches!(there.release(&[&held]).await[..], [Release::Freed]));
                let step = here.contend(&waits, &Patience::unlimited(clock())).await.unwrap();
                assert!(matches!(step, Step::Granted(_)), "{step:?}");
                store.forget("job");
                assert!(try_take(&there, &held).await.is_some());
            }
        }
    }
    assert!(pause(&here, &waits).await <= FIRST, "it was lost");
}

#[tokio::test(start_paused = true)]
async fn claim_that_loses_every_race_pauses_and_gives_up() {
    for (kind, is_held) in [(CACHE, false), (Kind { waiting: WaitMode::Polls, ..TABLE }, true)] {
        let store = Store::new();
        if is_held {
            assert!(try_take(&store.open(kind, Faults::default()), &claim("job", LONG)).await.is_some());
        }
        let loses = store.open(kind, Faults { lost_races: 1_000, ..Faults::default() });
        let began = Instant::now();
        let failure = loses.contend(&claim("job", LONG), &Patience::unlimited(clock())).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
        assert!((10..12).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}

/// The first refusal shows that claims live in it.
#[tokio::test(start_paused = true)]
async fn cell_with_claims_is_taken_for_free_once() {
    for kind in [Kind { waiting: WaitMode::Polls, ..TABLE }, CACHE] {
        let store = Store::new();
        let backend = store.open(kind, Faults::default());
        assert!(try_take(&backend, &claim("job", LONG)).await.is_some());
        store.overtake("job", 20);
        let before = store.seizures();
        pause(&backend, &claim("job", LONG)).await;
        assert_eq!((store.seizures() - before, store.still_to_overtake("job")), (1, 0), "{kind:?}");
    }
}
