//! The closed forms of the capacity model against the simulations, which know none of their formulas.

use leasehold_sim::capacity::dice::Dice;
use leasehold_sim::capacity::estimate::{estimate, utilisation};
use leasehold_sim::capacity::failover::{FailoverRules, Fault};
use leasehold_sim::capacity::failover_run::outlives;
use leasehold_sim::capacity::rules::SECOND;
use leasehold_sim::capacity::stores::{self, StoreModel, Waiting};
use leasehold_sim::capacity::workload::Workload;
use leasehold_sim::capacity::world::simulate;

/// The distance that a figure of the closed form may be from the simulation.
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

/// The sentences below the tables of failovers in `docs/book/src/capacity.md`.
#[test]
fn capacity_rule_of_thumb_never_names_too_short_a_ttl() {
    let thumb = |length: u64| (length + 14 * SECOND / 10) / 10 * 18;
    let rules = FailoverRules::DEFAULT;
    for length in (10..6_000).map(|tenths| tenths * SECOND / 10) {
        assert!(rules.survives(thumb(length), length, Fault::Refuses), "{length} ns, refuses");
        for timeout in [1, 2, 3, 5].map(|seconds| seconds * SECOND) {
            let ttl = thumb(length + 2 * timeout);
            let rules = FailoverRules { timeout, ..rules };
            assert!(rules.survives(ttl, length, Fault::Vanishes), "{length} ns, timeout of {timeout} ns");
        }
    }
}

#[test]
fn capacity_a_short_ttl_survives_no_machine_that_vanishes() {
    let shortest = FailoverRules::DEFAULT.shortest_ttl(0, Fault::Vanishes);
    assert_eq!(shortest, Some(222 * SECOND / 10));
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

/// Messages in a second of one client that holds so many locks: rows "10,000 held" and "100,000 held" of
/// `docs/book/src/bench.md`.
#[test]
fn capacity_closed_form_is_near_what_the_benchmark_counted() {
    let rows = [
        ("etcd", 10_000, 9.9),
        ("etcd", 100_000, 86.0),
        ("ZooKeeper", 10_000, 6.8),
        ("ZooKeeper", 100_000, 65.0),
    ];
    for (store, held, counted) in rows {
        let store = StoreModel::named(store).unwrap();
        let found = estimate(&store, &Workload::of(1).held(held)).requests;
        assert!((found - counted).abs() < 0.15 * counted, "{}, {held}: {found} and {counted}", store.name);
    }
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

const LENGTHS: [u64; 7] = [0, 1, 3, 5, 10, 20, 60];
const RUNS: u64 = 2_000;

/// Returns how many of some leases are lost by a failover that begins at any time between two renewals.
fn lost(rules: &FailoverRules, ttl: u64, fault: Fault, length: u64) -> u64 {
    let mut dice = Dice::new(SEED);
    let period = (ttl as f64 * rules.renew_at) as u64;
    (0..RUNS)
        .filter(|run| {
            // Just after a renewal was sent is the worst: a half of the runs tries that.
            let begins = if run % 2 == 0 { period + dice.below(rules.answer) } else { dice.below(period) };
            // A shorter one may end while an attempt to connect hangs, and a longer one after that.
            let length = length - dice.below(length.min(rules.timeout));
            !outlives(rules, ttl, fault, length, begins, &mut dice)
        })
        .count() as u64
}

#[test]
fn shortest_ttl_of_the_formula_survives_a_failover() {
    let rules = FailoverRules::DEFAULT;
    for fault in [Fault::Refuses, Fault::Vanishes] {
        for length in LENGTHS.map(|seconds| seconds * SECOND) {
            let ttl = rules.shortest_ttl(length, fault).unwrap();
            for ttl in [ttl, ttl + SECOND, ttl * 2] {
                assert_eq!(lost(&rules, ttl, fault, length), 0, "{fault:?} {length} {ttl}");
            }
        }
    }
}

#[test]
fn capacity_formula_of_failovers_is_not_generous() {
    let rules = FailoverRules::DEFAULT;
    // A machine that vanishes is a chain of bad luck, of which no run has all.
    let loses = |fault, length, percent| {
        let ttl = rules.shortest_ttl(length * SECOND, fault).unwrap() * percent / 100;
        lost(&rules, ttl, fault, length * SECOND) > 0
    };
    for length in [5, 10, 20, 60] {
        assert!(loses(Fault::Refuses, length, 80), "{length}");
    }
    // The worst is a failover that ends just after an attempt to connect began.
    assert!((5..40).any(|length| loses(Fault::Vanishes, length, 70)));
}

#[test]
fn formula_of_failovers_without_a_part_is_found() {
    let rules = FailoverRules::DEFAULT;
    let forgets = [
        ("renewals", FailoverRules { renew_at: 0.0, ..rules }, Fault::Refuses),
        ("half of the time to the renewal", FailoverRules { renew_at: 1.0 / 6.0, ..rules }, Fault::Refuses),
        ("what hangs", rules, Fault::Vanishes),
    ];
    for (what, wrong, fault) in forgets {
        let loses = |length: u64| {
            let ttl = wrong.shortest_ttl(length * SECOND, Fault::Refuses).unwrap();
            lost(&rules, ttl, fault, length * SECOND) > 0
        };
        assert!((5..40).any(loses), "a formula without {what} is not noticed");
    }
}

#[test]
fn capacity_failover_formula_goes_both_ways() {
    let rules = FailoverRules::DEFAULT;
    for fault in [Fault::Refuses, Fault::Vanishes] {
        for ttl in [30, 60, 120].map(|seconds| seconds * SECOND) {
            let length = rules.longest_failover(ttl, fault).unwrap();
            assert!(rules.survives(ttl, length, fault) && !rules.survives(ttl, length + SECOND / 5, fault));
            assert!(rules.shortest_ttl(length, fault).unwrap() <= ttl);
        }
    }
    assert_eq!(rules.longest_failover(SECOND, Fault::Vanishes), None);
}
