//! The closed form of the capacity model against the simulation, which knows none of its formulas.

use leasehold_sim::capacity::estimate::{estimate, utilisation};
use leasehold_sim::capacity::rules::SECOND;
use leasehold_sim::capacity::stores::{self, StoreModel, Waiting};
use leasehold_sim::capacity::workload::Workload;
use leasehold_sim::capacity::world::simulate;

/// How far a figure of the closed form may be from the simulation.
const TOLERANCE: f64 = 0.10;
const SEED: u64 = 4711;

/// Loads below 80 % of what a server can do.
fn loads() -> Vec<(&'static str, Workload)> {
    let of = Workload::of;
    vec![
        ("many locks of few processes", of(5).held(20_000)),
        ("few locks of many processes", of(1_000).held(2_000)),
        ("locks with a short ttl", of(50).held(2_000).ttl(3 * SECOND)),
        ("locks on three servers", of(100).held(6_000).shards(3)),
        ("free locks", of(100).cycles(500.0)),
        ("a waiter in each process", of(1_000).waiters(1_000, 1)),
        ("many waiters of few processes", of(20).waiters(2_000, 4)),
        ("locks that go around", of(100).handing(50, 4, SECOND)),
        ("everything", of(200).held(10_000).cycles(200.0).waiters(1_000, 2)),
        ("everything on two servers", of(200).held(10_000).cycles(200.0).waiters(1_000, 2).shards(2)),
    ]
}

/// Returns a line for each figure of each load in which the closed form for `claimed` is not what the
/// simulation of `actual` counts.
fn disagreements(claimed: &StoreModel, actual: &StoreModel) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, load) in loads() {
        assert!(utilisation(actual, &load) < 0.8, "{name} is too much for {}", actual.name);
        let counted = simulate(actual, &load, 60 * SECOND, SEED);
        assert_eq!(counted.held.lost, 0, "{name} on {}", actual.name);
        let found = estimate(claimed, &load).differences(&counted.figures, TOLERANCE);
        lines.extend(found.into_iter().map(|line| format!("{}, {name}: {line}", actual.name)));
    }
    lines
}

#[test]
fn capacity_closed_form_agrees_with_the_simulation() {
    let found: Vec<String> = stores::all().iter().flat_map(|store| disagreements(store, store)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn capacity_closed_form_with_a_wrong_constant_is_found_out() {
    let redis = stores::redis;
    let costs = |change: fn(&mut StoreModel)| {
        let mut wrong = redis();
        change(&mut wrong);
        wrong
    };
    let wrong = [
        ("a batch of another size", costs(|store| store.batch_max = 100)),
        ("renewals that cost a quarter more", costs(|store| store.costs.renew *= 1.25)),
        ("requests that cost a quarter less", costs(|store| store.costs.request *= 0.75)),
        ("cycles that cost a quarter more", costs(|store| store.costs.cycle *= 1.25)),
        ("looks that cost a half more", costs(|store| store.costs.look *= 1.5)),
        ("hand-overs that cost a quarter less", costs(|store| store.costs.hand_over *= 0.75)),
        ("another pace", costs(|store| store.pace = Some(26 * SECOND))),
        ("waiters that poll", costs(|store| store.waiting = Waiting::Polls)),
        ("batches by slot", costs(|store| store.slots = Some(16_384))),
        ("a request beside each batch", costs(|store| store.beside = 1)),
    ];
    for (what, wrong) in wrong {
        assert!(!disagreements(&wrong, &redis()).is_empty(), "{what} is not noticed");
    }
    let slow = StoreModel { sync: Some(500.0), ..stores::postgres() };
    let quick = StoreModel { sync: Some(5_000.0), ..stores::postgres() };
    assert!(!disagreements(&slow, &quick).is_empty(), "slow syncs are not noticed");
}

#[test]
fn capacity_simulation_with_one_seed_is_one_run() {
    let load = Workload::of(50).held(2_000).cycles(100.0).waiters(100, 2);
    for store in stores::all() {
        let (one, other) = (simulate(&store, &load, 20 * SECOND, 3), simulate(&store, &load, 20 * SECOND, 3));
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "{}", store.name);
    }
}

#[test]
fn capacity_overload_loses_locks_and_the_closed_form_says_so() {
    let redis = stores::redis();
    let load = Workload::of(20).held(40_000).ttl(SECOND);
    let each = utilisation(&redis, &load) / load.held as f64;
    let too_many = Workload { held: (1.5 / each) as u64, ..load.clone() };
    assert!(utilisation(&redis, &too_many) > 1.2);
    let counted = simulate(&redis, &too_many, 20 * SECOND, SEED);
    assert!(counted.held.suspects > 0 && counted.held.lost > 0, "{counted:?}");
    let enough = Workload { held: (0.7 / each) as u64, ..load };
    assert_eq!(simulate(&redis, &enough, 20 * SECOND, SEED).held.lost, 0);
}
