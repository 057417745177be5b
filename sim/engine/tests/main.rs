//! The whole engine under a deterministic scheduler, in virtual time.
//!
//! A seed decides everything: what the tasks do, what goes wrong, when and in which order. See
//! `docs/adr/0031-deterministic-engine-simulation.md`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "it is a test, which the lint does not see in helpers"
)]

mod aims;
mod dice;
mod judge;
mod mutants;
mod polled;
mod program;
mod store;
mod subscriber;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use judge::{INJECTED, Verdict};
use world::Run;

/// Runs one seed. A panic in one of its tasks fails it.
fn run(how: Run) -> Verdict {
    caught(|| world::run(how))
}

/// Runs a program. A panic in one of its tasks fails it.
fn caught(program: impl FnOnce() -> Verdict + panic::UnwindSafe) -> Verdict {
    PANIC.with_borrow_mut(|panic| panic.clear());
    let ran = panic::catch_unwind(program);
    let panicked = PANIC.with_borrow(Clone::clone);
    let mut verdict = ran.unwrap_or_else(|_| Verdict { failure: Some(String::new()), ..Verdict::default() });
    if !panicked.is_empty() {
        let failure = verdict.failure.take().unwrap_or_default();
        verdict.failure = Some(format!("{panicked} {failure}"));
    }
    verdict
}

thread_local! {
    static PANIC: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Records panics instead of printing them, since a mutant may cause thousands.
fn hear_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("seeds")) {
                if info.payload().downcast_ref::<String>().is_some_and(|text| text == INJECTED) {
                    return;
                }
                PANIC.with_borrow_mut(|panic| panic.push_str(&format!("a task panicked: {info}")));
            } else {
                before(info);
            }
        }));
    });
}

/// Runs seeds on as many threads as there are cores, until one fails with these words or all have passed.
/// Returns the lowest seed that failed, and how many ran.
fn search(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> Verdict + Sync,
    says: &str,
    counts: &Mutex<BTreeMap<&'static str, u64>>,
) -> (Option<(u64, String)>, u64) {
    hear_panics();
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None::<(u64, String)>);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = || loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count || failed.lock().unwrap().is_some() {
                    return;
                }
                let verdict = run(first + number);
                for (what, times) in verdict.counts {
                    *counts.lock().unwrap().entry(what).or_default() += times;
                }
                if let Some(failure) = verdict.failure.filter(|failure| failure.contains(says)) {
                    let mut failed = failed.lock().unwrap();
                    if failed.as_ref().is_none_or(|(seed, _)| *seed > first + number) {
                        *failed = Some((first + number, failure));
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("seeds {thread}"));
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
    (failed.into_inner().unwrap(), next.into_inner().min(count))
}

/// Returns the command that shows a failure again.
fn replay(seed: u64) -> String {
    format!(
        "LEASEHOLD_SIM_SEED={seed} cargo test -p leasehold-engine-sim --test engine replay -- --ignored --nocapture"
    )
}

fn of_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_seed_keeps_the_promises() {
    let first = of_environment("LEASEHOLD_SIM_FIRST").unwrap_or(0);
    let count = of_environment("LEASEHOLD_SIM_SEEDS").unwrap_or(SEEDS);
    let began = std::time::Instant::now();
    let counts = Mutex::default();
    let (failed, ran) = search(first, count, |seed| run(Run { seed, ..Run::default() }), "", &counts);
    let counts = counts.into_inner().unwrap();
    println!("{ran} seeds in {:?}: {counts:?}", began.elapsed());
    if let Some((seed, failure)) = failed {
        panic!("seed {seed}: {failure}\nsee it again: {}", replay(seed));
    }
    assert!(counts.get("granted").is_some_and(|grants| *grants > count), "the runs do something: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    hear_panics();
    for seed in 0..50 {
        let runs = [(); 2].map(|()| run(Run { seed, keeps_log: true, ..Run::default() }));
        let differs = runs[0].log.iter().zip(&runs[1].log).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!((runs[0].hash, runs[0].log.len()), (runs[1].hash, runs[1].log.len()), "seed {seed}");
        assert!(runs[0].log.len() > 3, "seed {seed}");
    }
}

#[test]
#[ignore = "shows one seed: LEASEHOLD_SIM_SEED"]
fn replay_of_one_seed() {
    let seed = of_environment("LEASEHOLD_SIM_SEED").expect("LEASEHOLD_SIM_SEED is the number of a seed");
    let mutant = std::env::var("LEASEHOLD_SIM_MUTANT").unwrap_or_default();
    let verdict = run(Run {
        seed,
        mutant: mutant.leak(),
        keeps_log: true,
        panics_in: of_environment("LEASEHOLD_SIM_PANIC"),
    });
    verdict.log.iter().for_each(|line| println!("{line}"));
    println!("seed {seed}: {:?}", verdict.failure);
}

#[test]
#[ignore = "lists the kinds of failures of many seeds: LEASEHOLD_SIM_FIRST, LEASEHOLD_SIM_SEEDS"]
fn survey() {
    hear_panics();
    let first = of_environment("LEASEHOLD_SIM_FIRST").unwrap_or(0);
    let count = of_environment("LEASEHOLD_SIM_SEEDS").unwrap_or(SEEDS);
    let mut kinds = BTreeMap::<String, (u64, u64, String)>::new();
    let work = std::thread::Builder::new().name("seeds".to_owned()).spawn(move || {
        for seed in first..first + count {
            let panics_in = of_environment("LEASEHOLD_SIM_PANICS").map(|each| seed % each);
            let Some(failure) = run(Run { seed, panics_in, ..Run::default() }).failure else { continue };
            // The words of a failure are its kind; names and numbers are not.
            let words = failure
                .split_whitespace()
                .filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b','));
            let kind: Vec<_> = words.take(9).collect();
            let known = kinds.entry(kind.join(" ")).or_insert_with(|| {
                println!("after {} seeds, seed {seed}: {failure}", seed - first + 1);
                (0, seed, failure)
            });
            known.0 += 1;
        }
        for (kind, (times, seed, failure)) in kinds {
            println!("{times} times: {kind}\n    seed {seed}: {failure}");
        }
    });
    work.unwrap().join().unwrap();
}

/// Checks that a panic concerns that call only: the promises are kept to all that are not in it.
#[test]
fn a_panic_of_foreign_code_harms_that_call_alone() {
    hear_panics();
    let work = std::thread::Builder::new().name("seeds".to_owned()).spawn(|| {
        let mut panicked = 0;
        for seed in 0..PANICS {
            let panics_in = panics_in(seed);
            let verdict = run(Run { seed, panics_in: Some(panics_in), ..Run::default() });
            panicked += verdict.counts.get("panicked").copied().unwrap_or_default();
            if let Some(failure) = verdict.failure {
                return Err(format!(
                    "seed {seed} with LEASEHOLD_SIM_PANIC={}: {failure}; {}",
                    panics_in,
                    replay(seed)
                ));
            }
        }
        Ok(panicked)
    });
    let panicked = work.unwrap().join().unwrap();
    assert!(panicked.as_ref().is_ok_and(|panicked| *panicked > PANICS / 4), "{panicked:?}");
}

/// Returns which call of foreign code panics in the run of this seed.
fn panics_in(seed: u64) -> u64 {
    seed * 7 % if seed.is_multiple_of(2) { 1_500 } else { 600 }
}

const PANICS: u64 = 1_000;

/// The most seeds that finding each mutant takes.
const MUTANT_SEEDS: u64 = 20_000;

/// The number of seeds that are run each time. `LEASEHOLD_SIM_SEEDS` sets another number.
const SEEDS: u64 = 10_000;
