//! The rig with real workers, on files.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_testkit::Lateness;
use leasehold_torture::history::{Checker, History, Invariant, Operation, Stage};
use leasehold_torture::{Dense, Edge, LockKind, LockPlan, Plan, Program, Rig, RigError, Torture, worker};

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    match word.as_str() {
        "torture-worker" => return worker::run(),
        // The tests cannot be listed or chosen.
        "--list" => return ExitCode::SUCCESS,
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        faults_on_workers_are_recorded_and_nothing_is_left().await;
        shared_locks_are_recorded_with_their_modes().await;
        dense_locks_change_hands_quickly_beside_the_others().await;
        holders_acquire_again_what_they_hold().await;
        a_worker_that_ends_by_itself_is_noticed().await;
        a_worker_that_is_killed_from_outside_ends_when_it_ended().await;
        a_run_ends_when_it_has_recorded_enough().await;
        plans_that_cannot_work_start_nothing().await;
    });
    ExitCode::SUCCESS
}

struct Store {
    _folder: tempfile::TempDir,
    plan: Plan,
    lateness: Lateness,
}

fn store() -> Store {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = Plan::new(format!("file://{}/store", folder.path().display()));
    plan.processes = 2;
    plan.ttl = Duration::from_secs(1);
    Store { _folder: folder, plan, lateness: Lateness::watch() }
}

/// Waits until the rig has seen so many more grants.
async fn grants(rig: &Rig, more: u64) {
    let (begun, before) = (Instant::now(), rig.progress().grants);
    while rig.progress().grants < before + more {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}, {:?}", rig.progress(), rig.last_error());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a process has ended, and only what its parent may ask for is left of it.
async fn ended(process: rustix::process::Pid) {
    let (begun, stat) = (Instant::now(), format!("/proc/{}/stat", process.as_raw_pid()));
    let lives = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']));
    while lives(std::fs::read_to_string(&stat).unwrap_or_default()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was killed, and runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Checks that nothing is violated. A machine that stands still may keep a worker from returning by its limit.
async fn is_clean(history: &History, lateness: Lateness) {
    history.validate().unwrap();
    assert_eq!(History::read(history.to_text().as_bytes()).unwrap(), *history);
    let mut checker = Checker::new();
    (checker.overstay, checker.lateness) = (Duration::from_secs(5), Duration::from_secs(5));
    let (late, mut violations) = (lateness.end().await, checker.check(history).violations);
    violations.retain(|violation| late < STOOD_STILL || violation.invariant != Invariant::I6);
    assert!(violations.is_empty(), "{violations:#?}");
}

async fn faults_on_workers_are_recorded_and_nothing_is_left() {
    let store = store();
    let mut rig = Rig::start(store.plan.clone()).await.unwrap();
    grants(&rig, 5).await;
    rig.pause(0).unwrap();
    assert!(rig.pause(0).is_err(), "it is paused already");
    rig.note_fault("store slow", Edge::Start);
    rig.resume(0).unwrap();
    rig.note_fault("store slow", Edge::Stop);
    let first = rig.process_id(1).unwrap();
    rig.kill(1).unwrap();
    assert_eq!(rig.process_id(1), None);
    assert!(rig.kill(1).is_err() && rig.pause(7).is_err());
    grants(&rig, 5).await;
    rig.respawn(1).unwrap();
    assert_ne!(rig.process_id(1).unwrap(), first);
    grants(&rig, 5).await;
    let prefix = rig.prefix().to_owned();
    let history = rig.finish().await.unwrap();
    is_clean(&history, store.lateness).await;
    let faults: Vec<(&str, Stage, bool)> = history
        .faults()
        .map(|event| {
            let label = event.values.label.as_deref().unwrap();
            (label, event.stage, event.values.target.is_empty())
        })
        .collect();
    let expected = [
        ("pause worker 0", Stage::Invoke, false),
        ("store slow", Stage::Invoke, true),
        ("pause worker 0", Stage::Ok, false),
        ("store slow", Stage::Ok, true),
        ("kill worker 1", Stage::Info, false),
    ];
    assert_eq!(faults, expected);
    assert!(history.keys().iter().all(|key| key.starts_with(&prefix)));
    let residues = || history.events().iter().filter(|event| event.operation == Operation::Residue);
    assert_eq!(residues().filter(|event| event.stage == Stage::Ok).count(), 3, "one for each lock");
}

async fn shared_locks_are_recorded_with_their_modes() {
    let mut store = store();
    store.plan.locks = vec![LockPlan::new("rw", LockKind::ReadWrite)];
    store.plan.if_supported = Plan::shared_locks();
    let rig = Rig::start(store.plan.clone()).await.unwrap();
    assert_eq!((rig.plan().locks.len(), rig.is_ordered()), (3, true));
    grants(&rig, 60).await;
    let history = rig.finish().await.unwrap();
    is_clean(&history, store.lateness).await;
    let text = history.to_text();
    for mode in ["\"exclusive\"", "\"shared\"", "\"permits 1/2\""] {
        assert!(text.contains(mode), "{mode}");
    }
}

async fn dense_locks_change_hands_quickly_beside_the_others() {
    let mut store = store();
    // The other lock is held until the end, and longer than one wait for it.
    store.plan.locks = Plan::mutexes(1);
    store.plan.hold = store.plan.ttl * 60;
    let dense = Dense::default();
    store.plan.dense = Some(dense);
    assert_eq!(store.plan.all_tasks(), store.plan.tasks + dense.tasks);
    let mut rig = Rig::start(store.plan.clone()).await.unwrap();
    grants(&rig, 300).await;
    // The task that keeps the lock does not end in time.
    (0..2).for_each(|worker| rig.kill(worker).unwrap());
    let history = rig.finish().await.unwrap();
    is_clean(&history, store.lateness).await;
    let keys = history.keys();
    let dense_keys = keys.iter().filter(|key| key.contains("/dense-")).count();
    assert_eq!((dense_keys, keys.len()), (dense.locks, dense.locks + 1));
    let residues = history.events().iter().filter(|event| event.operation == Operation::Residue);
    assert!(residues.count() > dense.locks, "what is left is looked for under each of them");
}

async fn holders_acquire_again_what_they_hold() {
    let store = store();
    let rig = Rig::start(store.plan.clone()).await.unwrap();
    grants(&rig, 400).await;
    let history = rig.finish().await.unwrap();
    is_clean(&history, store.lateness).await;
    let unjudged = Checker::new().check(&history).unjudged;
    assert!(unjudged.iter().all(|one| one.invariant != Invariant::I8), "{unjudged:?}");
    let counts = |operation| {
        let events = history.events().iter();
        let done = events.filter(move |event| event.operation == operation && event.stage == Stage::Ok);
        done.filter_map(|event| event.values.count).collect::<Vec<_>>()
    };
    let (acquired, released) = (counts(Operation::Acquire), counts(Operation::Release));
    assert!(
        acquired.contains(&2) && released.contains(&1) && released.contains(&0),
        "{acquired:?}, {released:?}"
    );
}

async fn a_worker_that_ends_by_itself_is_noticed() {
    let mut store = store();
    store.plan.program = Program::new("/bin/sh", ["-c", "echo no such luck >&2; exit 3"]);
    let error = Rig::start(store.plan.clone()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, RigError::Worker { worker: 0, .. }) && text.contains("ended at its start"),
        "{text}"
    );
    store.plan.program = Program::new("/nowhere/at/all", [""; 0]);
    let text = Rig::start(store.plan.clone()).await.unwrap_err().to_string();
    assert!(text.contains("cannot be started (/nowhere/at/all)"), "{text}");
}

async fn a_worker_that_is_killed_from_outside_ends_when_it_ended() {
    let mut rig = Rig::start(store().plan).await.unwrap();
    grants(&rig, 5).await;
    let process = rustix::process::Pid::from_raw(i32::try_from(rig.process_id(0).unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    ended(process).await;
    grants(&rig, 100).await;
    rig.note_fault("later", Edge::Once);
    assert!(rig.pause(0).is_err(), "it is noticed now");
    grants(&rig, 5).await;
    let history = rig.finish().await.unwrap();
    history.validate().unwrap();
    let at = |label: &str| {
        let is_it = |one: &str| one.starts_with(label);
        let found = history.faults().find(|event| event.values.label.as_deref().is_some_and(is_it));
        found.map(|event| (event.moment(), event.index)).unwrap()
    };
    assert!(at("exit of worker 0").0 < at("later").0, "it is dated by the end of its pipe");
    assert!(at("exit of worker 0").1 > at("later").1, "it was noticed later");
}

async fn a_run_ends_when_it_has_recorded_enough() {
    let store = store();
    let mut torture = Torture::new(store.plan.clone());
    (torture.duration, torture.faults) = (Duration::from_secs(600), Vec::new());
    torture.most_events = 300;
    let report = leasehold_torture::torture(torture, |_, _| (), std::future::pending()).await.unwrap();
    assert!(report.was_stopped && report.history.events().len() >= 300, "{}", report.text());
    assert!(report.text().contains("300 events were recorded"), "{}", report.text());
    assert!(report.broken().next().is_none(), "{}", report.text());
}

async fn plans_that_cannot_work_start_nothing() {
    let refused = async |plan: Plan| Rig::start(plan).await.unwrap_err();
    assert!(matches!(refused(Plan::new("mem:")).await, RigError::Plan(text) if text.contains("file:")));
    assert!(matches!(refused(Plan::new("nothing:")).await, RigError::Store(_)));
    let mut plan = store().plan;
    plan.processes = 0;
    assert!(matches!(refused(plan).await, RigError::Plan(_)));
    let mut plan = store().plan;
    let mut dense = Dense::default();
    dense.tasks = 0;
    plan.dense = Some(dense);
    assert!(matches!(refused(plan).await, RigError::Plan(text) if text.contains("dense")));
    let mut plan = store().plan;
    plan.locks.clear();
    assert!(matches!(refused(plan).await, RigError::Plan(_)));
}

/// A machine that stands still for so long may have kept a worker from running for longer.
const STOOD_STILL: Duration = Duration::from_secs(1);
