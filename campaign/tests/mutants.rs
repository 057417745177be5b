//! Clients that are broken on purpose are found guilty, each of what it does, and an honest one of nothing.
//!
//! The first tests have bounds of their own, and say which invariant finds a defect. The last ones run cells, by the
//! bounds and the expectations of the campaign itself: what they cannot find, no cell can.
//!
//! The store is SQLite, which needs no server and has leases. Workers hold locks beyond a lease now and then, so that
//! defects of renewals matter.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use leasehold::Client;
use leasehold_campaign::broken::Defect;
use leasehold_campaign::{Cell, CellOutcome, Fault, Record, Run, Seen, Store};
use leasehold_history::{Checker, History, Invariant, Operation, Verdict};
use leasehold_testkit::require;
use leasehold_torture::{Edge, Plan, Program, Rig};

const TTL: Duration = Duration::from_millis(600);
/// As many as an honest client has at least, while it is watched.
const HOLDS: u64 = 10;
/// Longer than workers take for anything, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

/// The trouble that an operator or the machine makes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// Workers are stopped past their lease.
    Pauses,
    /// Claims are ended by hand.
    Breaks,
}

fn worker_with(defect: Defect) -> Program {
    Program::new(env!("CARGO_BIN_EXE_campaign"), ["broken-worker".to_owned(), defect.to_string()])
}

async fn verdict(defect: Defect, trouble: Trouble, change: impl FnOnce(&mut Plan)) -> Verdict {
    let folder = leasehold_testkit::Directory::create_in_memory("mutants").unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut plan = Plan::new(&url);
    plan.locks = Plan::mutexes(1);
    (plan.processes, plan.tasks, plan.rate) = (3, 1, 0);
    (plan.ttl, plan.limit) = (TTL, TTL * 5);
    plan.program = worker_with(defect);
    change(&mut plan);
    let is_busy = plan.hold < TTL;
    let allowance = if plan.deaf { Duration::ZERO } else { allowance(defect) };
    let mut rig = Rig::start(plan).await.unwrap();
    let locks = Client::open(&url).await.unwrap();
    for round in 0..8 {
        let worker = round % 3;
        if trouble == Trouble::Pauses {
            rig.pause(worker).unwrap();
        }
        tokio::time::sleep(TTL * 3 / 2).await;
        match trouble {
            Trouble::Nothing => {}
            Trouble::Pauses => rig.resume(worker).unwrap(),
            Trouble::Breaks => break_all(&locks, rig.prefix()).await,
        }
    }
    // Innocence shows in many holds, however slow the machine is.
    if defect == Defect::None && is_busy {
        until(|| rig.progress().grants > HOLDS).await;
    }
    locks.close(TTL).await;
    judged(rig, &format!("{defect} under {trouble:?}"), allowance).await
}

/// Returns the time by which the bounds are wider: an honest client is not guilty because the machine is busy. One that
/// does not open the store is honest in everything else.
fn allowance(defect: Defect) -> Duration {
    match defect {
        Defect::None | Defect::StaysShut => Duration::from_secs(3),
        _ => Duration::ZERO,
    }
}

/// Ends a recording, and judges it by bounds that are wider by the allowance.
async fn judged(rig: Rig, what: &str, allowance: Duration) -> Verdict {
    let history = rig.finish().await.unwrap();
    let mut checker = Checker::new();
    // An honest client of this store polls twice a second, and a busy machine delays it.
    (checker.recovery, checker.overstay, checker.lateness) =
        (TTL * 3 + allowance, Duration::from_secs(5) + allowance, Duration::from_secs(1) + allowance);
    checker.handover = TTL + allowance;
    let verdict = checker.check(&history);
    println!("{what}: {:?} of {:?}", broken(&verdict), verdict.counts);
    verdict
}

async fn break_all(locks: &Client, prefix: &str) {
    for found in locks.list(prefix, None, 10).await.unwrap() {
        let name = found.resource.as_str();
        for holder in locks.inspect(name).await.unwrap().holders {
            // One that has released meanwhile is gone.
            let _ = locks.break_claim(name, &holder).await;
        }
    }
}

fn broken(verdict: &Verdict) -> BTreeSet<String> {
    verdict.violations.iter().map(|violation| violation.invariant.to_string()).collect()
}

fn guilty(verdict: &Verdict, invariant: Invariant) {
    assert!(broken(verdict).contains(&invariant.to_string()), "{:?}", verdict.counts);
}

/// Workers that hold a lock for longer than its lease.
fn long_holds(plan: &mut Plan) {
    plan.hold = TTL * 3;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_is_not_guilty() {
    for trouble in [Trouble::Nothing, Trouble::Pauses] {
        let verdict = verdict(Defect::None, trouble, |_| {}).await;
        assert!(verdict.is_clean() && verdict.counts.grants > HOLDS, "{verdict:#?}");
    }
    let verdict = verdict(Defect::None, Trouble::Nothing, long_holds).await;
    assert!(verdict.is_clean(), "{:#?}", verdict.violations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validity_that_grows_without_an_answer_is_found() {
    guilty(&verdict(Defect::ExtendsWithoutAnswer, Trouble::Nothing, long_holds).await, Invariant::I4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_ignored_is_found() {
    guilty(&verdict(Defect::IgnoresLoss, Trouble::Breaks, long_holds).await, Invariant::I4);
}

/// A holder that looks at the lock again and again finds a loss of which nobody is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_of_which_nobody_is_told_is_found() {
    let deaf = |plan: &mut Plan| {
        long_holds(plan);
        plan.deaf = true;
    };
    guilty(&verdict(Defect::None, Trouble::Pauses, deaf).await, Invariant::I12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_that_fall_or_repeat_are_found() {
    for defect in [Defect::FencesFall, Defect::FencesRepeat] {
        guilty(&verdict(defect, Trouble::Nothing, |_| {}).await, Invariant::I2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_that_is_dropped_is_found() {
    // With several locks, some are free when a limit is over.
    let locks = |plan: &mut Plan| (plan.locks, plan.tasks) = (Plan::mutexes(4), 2);
    guilty(&verdict(Defect::DropsWakeUps, Trouble::Nothing, locks).await, Invariant::I6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_another_client_releases_is_found() {
    guilty(&verdict(Defect::ReleasesOthers, Trouble::Nothing, long_holds).await, Invariant::I4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validity_that_is_counted_from_later_is_found() {
    guilty(&verdict(Defect::CountsFromLater, Trouble::Pauses, long_holds).await, Invariant::I4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_not_sent_is_found() {
    let verdict = verdict(Defect::ForgetsReleases, Trouble::Nothing, |plan| plan.ttl = TTL * 8).await;
    assert!(!verdict.is_clean(), "{:?}", verdict.counts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_of_an_acquisition_that_was_dropped_is_found() {
    let dropping = |plan: &mut Plan| (plan.cancels, plan.cancelled_within) = (2, Some(TTL / 4));
    guilty(&verdict(Defect::StaysInQueue, Trouble::Nothing, dropping).await, Invariant::I10);
    let honest = verdict(Defect::None, Trouble::Nothing, dropping).await;
    assert!(honest.is_clean(), "{:#?}", honest.violations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_made_up_is_found() {
    let long_leases = |plan: &mut Plan| {
        (plan.ttl, plan.hold, plan.locks) = (TTL * 5, TTL * 5, Plan::mutexes(3));
    };
    guilty(&verdict(Defect::MakesUpLosses, Trouble::Nothing, long_leases).await, Invariant::I13);
    let verdict = verdict(Defect::MakesUpGoneReleases, Trouble::Nothing, |plan| plan.ttl = TTL * 5).await;
    guilty(&verdict, Invariant::I13);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_locks_that_admit_too_many_are_found() {
    let shared = |plan: &mut Plan| plan.locks = Plan::shared_locks();
    for defect in [Defect::AdmitsReadersBesideWriters, Defect::CountsNoPermits] {
        guilty(&verdict(defect, Trouble::Nothing, shared).await, Invariant::I4);
    }
    let honest = verdict(Defect::None, Trouble::Nothing, shared).await;
    assert!(honest.is_clean(), "{:#?}", honest.violations);
}

/// Runs a cell with such workers, which has to show something. Returns its record and the texts of its violations, or
/// nothing where its server is not installed.
async fn cell(defect: Defect, store: Store, fault: u8) -> Option<(Record, Vec<String>)> {
    let folder = leasehold_testkit::Directory::create_in_memory("mutants").unwrap();
    let record = record(defect, store, fault, Some(folder.path())).await?;
    let is_judged = !matches!(record.outcome, CellOutcome::NotJudged | CellOutcome::Failed);
    assert!(is_judged, "the cell shows nothing: {record:#?}");
    let violations = format!("{}-{}-{}.violations.json", record.store, record.fault, record.seed);
    let verdict = std::fs::read_to_string(folder.path().join(violations)).unwrap_or_default();
    let verdict: serde_json::Value = serde_json::from_str(&verdict).unwrap_or_default();
    let violations = verdict["violations"].as_array().into_iter().flatten();
    let texts = violations.map(|one| one["what"].as_str().unwrap().to_owned()).collect();
    Some((record, texts))
}

/// Runs a cell with such workers. Returns nothing where its server is not installed.
async fn record(defect: Defect, store: Store, fault: u8, folder: Option<&Path>) -> Option<Record> {
    // A round of F5 takes longer than others: a server ends and comes back. In F15 the kinds of rounds take turns, and in F20 each
    // of many acquisitions counts.
    let seconds = match fault {
        5 => 12,
        15 | 20 => 10,
        _ => 6,
    };
    // In this history wall clocks are set back twice, so that leases measured by them last for a day, until they are set
    // forward again.
    let seed = if fault == 15 { 14 } else { 1 };
    let mut run = Run::of(seed, Duration::from_secs(seconds));
    run.program = Some(worker_with(defect));
    run.allowance = allowance(defect);
    run.folder = folder.map(Path::to_owned);
    let record = Cell::new(store, Fault::number(fault)).run(&run).await;
    println!("{defect}: {record:?}");
    if record.outcome == CellOutcome::NotRun {
        require::skip(store.word(), &record.note);
        return None;
    }
    Some(record)
}

/// Returns `true` if a history shows what the defect does, and not only that somebody was late.
fn is_shown(defect: Defect, seen: &Seen, texts: &[String]) -> bool {
    let says = |part: &str| texts.iter().any(|text| text.contains(part));
    match defect {
        Defect::None | Defect::StaysShut => false,
        // Without a fault of the store, no two holders at one time are expected.
        Defect::ExtendsWithoutAnswer | Defect::CountsFromLater => seen.timing > 0,
        Defect::IgnoresLoss | Defect::ReleasesOthers => seen.unexplained.is_some_and(|count| count > 0),
        Defect::FencesFall | Defect::FencesRepeat => seen.fences > 0,
        Defect::DropsWakeUps => says("nothing woke them before"),
        // Also the release of what was granted to an acquisition that was dropped.
        Defect::ForgetsReleases => {
            says("locks that were released while somebody waited were not granted")
                || says("after an acquisition of them was dropped")
        }
        Defect::StaysInQueue => says("after an acquisition of them was dropped"),
        Defect::AdmitsReadersBesideWriters => seen.timing > 0 && says("(shared)") && says("(exclusive)"),
        Defect::CountsNoPermits => seen.timing > 0 && says("(permits 1/2)"),
        Defect::NeverComesBack => says("a client was granted nothing"),
        Defect::MakesUpLosses | Defect::MakesUpGoneReleases => says("was reported as lost to the store"),
        // A step of the wall clock is no reason for two holders.
        Defect::MeasuresByWallClock => {
            seen.unexplained.is_some_and(|count| count > 0) || says("was reported as expired")
        }
    }
}

/// Each defect, in a cell whose fault matters to it, has another outcome than an honest client, and is found by what it
/// does: a client that is late on a busy machine has another outcome, too.
async fn is_found_in(store: Store, fault: u8, defects: &[Defect]) {
    let Some((honest, _)) = cell(Defect::None, store, fault).await else { return };
    assert!(honest.expected, "{honest:#?}");
    // A history is mostly waiting, so two are recorded at one time. With more, acquisitions that are dropped after some
    // milliseconds have not reached the store by then, and leave nothing.
    for defects in defects.chunks(2) {
        let broken: Vec<_> = defects.iter().map(|defect| tokio::spawn(cell(*defect, store, fault))).collect();
        for (defect, broken) in defects.iter().zip(broken) {
            let Some((broken, texts)) = broken.await.unwrap() else { return };
            let is_found = !broken.expected && is_shown(*defect, &broken.seen, &texts);
            assert!(is_found, "{defect} is not found in {store} F{fault}: {broken:#?} {texts:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_pauses_finds_defects_of_renewals() {
    let defects = [Defect::ExtendsWithoutAnswer, Defect::CountsFromLater, Defect::MakesUpLosses];
    is_found_in(Store::Sqlite, 1, &defects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_finds_shared_locks_that_admit_too_many() {
    is_found_in(Store::Sqlite, 4, &[Defect::AdmitsReadersBesideWriters, Defect::CountsNoPermits]).await;
}

/// Half of the workers are cut off in each round, and none of them comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_partitions_finds_clients_that_never_come_back() {
    is_found_in(Store::Redis, 8, &[Defect::NeverComesBack]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_dropped_acquisitions_finds_defects_of_claims() {
    let defects = [
        Defect::FencesFall,
        Defect::FencesRepeat,
        Defect::ForgetsReleases,
        Defect::DropsWakeUps,
        Defect::MakesUpGoneReleases,
    ];
    // Not `StaysInQueue`: on a busy machine too few acquisitions are dropped in the queue to be sure of it.
    // `place_of_an_acquisition_that_was_dropped_is_found` drops them later.
    is_found_in(Store::Sqlite, 20, &defects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_kills_finds_stores_that_stay_shut() {
    let Some(broken) = record(Defect::StaysShut, Store::Sqlite, 4, None).await else { return };
    assert!(!broken.expected && broken.note.contains("no start of worker"), "{broken:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_lost_notifications_finds_dropped_wake_ups() {
    is_found_in(Store::Redis, 13, &[Defect::DropsWakeUps]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_half_releases_finds_releases_that_are_not_sent() {
    is_found_in(Store::Redis, 21, &[Defect::ForgetsReleases, Defect::MakesUpGoneReleases]).await;
}

/// Two holders at one time are expected here, until the renewal after the fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_lost_data_finds_losses_that_are_ignored() {
    is_found_in(Store::Redis, 5, &[Defect::IgnoresLoss]).await;
}

/// Two holders at one time are expected here, after the fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_deleted_locks_finds_releases_of_others() {
    is_found_in(Store::Sqlite, 17, &[Defect::ReleasesOthers]).await;
}

/// Steps of the wall clock reach a client, and one that measures leases by it is not expected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cell_with_clocks_of_clients_finds_leases_by_the_wall_clock() {
    is_found_in(Store::Sqlite, 15, &[Defect::MeasuresByWallClock]).await;
}

/// Records two workers of which the clock of the first one is changed, until holders have lost the lock. Returns the
/// history.
async fn with_a_clock_apart(jump: Duration, rate: f64) -> History {
    let folder = leasehold_testkit::Directory::create_in_memory("mutants").unwrap();
    let mut plan = Plan::new(format!("sqlite:{}", folder.path().join("locks.db").display()));
    plan.locks = Plan::mutexes(1);
    (plan.processes, plan.tasks, plan.rate, plan.cancels) = (2, 1, 0, 0);
    (plan.ttl, plan.limit, plan.hold) = (TTL, TTL * 20, TTL * 8);
    (plan.own_clocks, plan.program) = (true, worker_with(Defect::None));
    let mut rig = Rig::start(plan).await.unwrap();
    rig.note_fault("F15 round 0", Edge::Start);
    rig.change_clock(0, jump, rate).unwrap();
    // A change that reaches the worker late, because the machine is busy, shows no early end.
    let wanted = if jump.is_zero() { 2 } else { 6 };
    let begun = std::time::Instant::now();
    while rig.progress().losses < wanted {
        assert!(begun.elapsed() < LIMIT, "no holder loses the lock");
        tokio::time::sleep(TTL).await;
        if !jump.is_zero() {
            // Again and again, because the worker may not hold the lock.
            rig.change_clock(0, jump, rate).unwrap();
        }
    }
    rig.finish().await.unwrap()
}

/// Judges a history by the bounds of F15.
fn judged_apart(history: &History) -> Verdict {
    let mut checker = Checker::new();
    (checker.recovery, checker.overstay, checker.lateness) =
        (TTL * 20, Duration::from_secs(5), Duration::from_secs(5));
    checker.handover = TTL * 20;
    let verdict = checker.check(history);
    println!("{:?} of {:?}", broken(&verdict), verdict.counts);
    verdict
}

/// Returns a history whose ends of validity are wrong.
fn with_ends(history: &History, wrong: impl Fn(u64, u64) -> u64) -> History {
    History::new(history.events().iter().cloned().map(|mut event| {
        event.values.valid_until = event.values.valid_until.map(|end| wrong(event.moment(), end));
        event
    }))
}

/// A slow client believes in its lease after the store has given the lock to another. Told by its own clock, as if that
/// were the machine's, nobody would see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clock_of_a_client_is_found_by_the_time_of_the_machine() {
    const RATE: f64 = 0.1;
    let history = with_a_clock_apart(Duration::ZERO, RATE).await;
    let verdict = judged_apart(&history);
    assert_eq!(broken(&verdict), BTreeSet::from(["I4".to_owned()]), "{:#?}", verdict.violations);
    assert!(verdict.violations.iter().all(|one| one.meanwhile.is_some()), "{:#?}", verdict.violations);
    let is_slow = |at: u64, end: u64| end.saturating_sub(at) > TTL.as_nanos() as u64;
    // Half of it, because the process may have been stopped between its look at the clock and the stamp.
    let left = |at: u64, end: u64| ((end - at) as f64 * RATE / 2.0) as u64;
    let planted = with_ends(&history, |at, end| if is_slow(at, end) { at + left(at, end) } else { end });
    assert!(!broken(&judged_apart(&planted)).contains("I4"));
}

/// A jump ends leases early. By the ends that were stated before it, these losses would be false.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jump_of_a_clock_of_a_client_is_seen_as_an_end() {
    let history = with_a_clock_apart(TTL * 40, 1.0).await;
    let verdict = judged_apart(&history);
    assert!(verdict.is_clean(), "{:#?}", verdict.violations);
    let planted =
        History::new(history.events().iter().filter(|one| one.operation != Operation::Restate).cloned());
    // A late loss is not a false one.
    assert!(!broken(&Checker::new().check(&history)).contains("I13"));
    guilty(&Checker::new().check(&planted), Invariant::I13);
}

/// The resource's own control: without its check of fences, a paused holder overwrites what another one wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_that_checks_no_fence_is_found() {
    let folder = leasehold_testkit::Directory::create_in_memory("mutants").unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut plan = Plan::new(&url);
    plan.locks = Plan::mutexes(1);
    (plan.processes, plan.tasks, plan.rate) = (2, 1, 0);
    (plan.ttl, plan.limit, plan.hold) = (TTL, TTL * 20, TTL * 8);
    plan.fenced = false;
    plan.program = worker_with(Defect::None);
    let mut rig = Rig::start(plan).await.unwrap();
    let locks = Client::open(&url).await.unwrap();
    let (victim, before) = loop {
        let pausing = tokio::time::timeout(LIMIT, pause_in_an_update(&mut rig, &locks));
        let victim = pausing.await.expect("a worker in the middle of an update");
        // The other worker is granted the lock after the lease, and reads what the first one is about to overwrite.
        let before = rig.progress();
        until(|| rig.progress().reads > before.reads || rig.progress().writes > before.writes).await;
        if rig.progress().reads > before.reads {
            break (victim, before);
        }
        // The write was on its way when its worker was stopped.
        rig.resume(victim).unwrap();
    };
    rig.resume(victim).unwrap();
    until(|| rig.progress().writes > before.writes + 1).await;
    locks.close(TTL).await;
    let verdict = judged(rig, "without fences", Duration::ZERO).await;
    let broken = broken(&verdict);
    assert!(broken.contains("I1") && broken.contains("I3"), "{broken:?}");
    assert!(!broken.contains("I4"), "the lock itself is innocent: {broken:?}");
}

/// Stops a worker between its read and its write. With one lock there is such a worker while there was one read more
/// than there were writes; one that has written before it is stopped continues, and the next one is tried.
async fn pause_in_an_update(rig: &mut Rig, locks: &Client) -> usize {
    let name = format!("{}mutex-1", rig.prefix());
    loop {
        until(|| rig.progress().reads > rig.progress().writes).await;
        let holders = locks.inspect(&name).await.unwrap().holders;
        let of = |worker: &usize| {
            let word = rig.process_id(*worker).map(|id| format!("pid={id}"));
            holders
                .iter()
                .any(|holder| holder.note.as_str().split(' ').any(|part| Some(part) == word.as_deref()))
        };
        let Some(worker) = (0..rig.workers()).find(of) else { continue };
        rig.pause(worker).unwrap();
        let progress = rig.progress();
        let still_holds =
            locks.inspect(&name).await.unwrap().holders.iter().any(|now| now.id == holders[0].id);
        if still_holds && progress.reads == progress.writes + 1 {
            return worker;
        }
        rig.resume(worker).unwrap();
    }
}

/// Waits for a condition that a worker brings about.
async fn until(is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "the workers do nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
