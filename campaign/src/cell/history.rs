//! One history of a cell: its servers, its workers, its faults, and the judgement.

use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use leasehold_history::{Checker, History, Verdict};
use leasehold_torture::{Edge, Plan, Rig};

use super::{Cell, Run, Told, told};
use crate::inject::{Injection, Round, Scene, injection, schedule};
use crate::results::Outcome as Found;
use crate::seen::Seen;
use crate::world::{Network, World};
use crate::{Expected, Outcome};

/// The time that servers may take to start, and everything to end, beside the time of the faults.
const AROUND: Duration = Duration::from_secs(240);

/// The workers of a history, half of them on each network.
const WORKERS: usize = 4;

/// Records one history, and judges it. Nothing is left running.
pub(super) async fn tell(cell: &Cell, run: &Run, seed: u64) -> Told {
    let recording = record(cell, run, seed);
    match tokio::time::timeout(run.length * 2 + AROUND, recording).await {
        Ok(Ok(told)) => told,
        Ok(Err(error)) => match error.downcast_ref::<leasehold_testkit::Error>() {
            Some(missing) if missing.is_missing() => Told::not_run(missing.to_string()),
            _ => Told::without_history(
                Found::Failed,
                false,
                format!("seed {seed}: {}", first_line(&error.to_string())),
            ),
        },
        Err(_) => Told::without_history(Found::Failed, false, format!("seed {seed}: not over in time")),
    }
}

/// A message without the logs that follow it, which name paths.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

async fn record(cell: &Cell, run: &Run, seed: u64) -> Outcome<Told> {
    let mut fault = injection(cell.fault).ok_or("this fault has no way to happen")?;
    let mut world = World::start(cell.store, fault.needs(cell.store)).await?;
    let version = world.version().await;
    let mut rig = match Rig::start(plan(cell, run, seed, &world, &*fault)).await {
        Ok(rig) => rig,
        Err(error) if matches!(cell.expected(), Expected::Refused(_)) => {
            let mut told = Told::without_history(Found::Refused, true, first_line(&error.to_string()));
            told.version = version;
            return Ok(told);
        }
        Err(error) => return Err(error.into()),
    };
    let faults = happen(cell, run, seed, &mut world, &mut rig, &mut *fault).await?;
    // What was granted before the last fault ended has ended by then.
    tokio::time::sleep(cell.store.ttl()).await;
    let history = rig.finish().await?;
    let verdict = checker(cell).check(&history);
    keep(cell, run, seed, &history, &verdict)?;
    let first = verdict.violations.first();
    let first =
        first.map_or(String::new(), |found| format!("seed {seed}: {}: {}", found.invariant, found.what));
    Ok(told(cell.expected(), Seen::of(&verdict), faults, version, first_line(&first)))
}

fn plan(cell: &Cell, run: &Run, seed: u64, world: &World, fault: &dyn Injection) -> Plan {
    let mut plan = Plan::new(world.direct_url());
    plan.processes = WORKERS;
    plan.ttl = cell.store.ttl();
    plan.limit = cell.store.ttl() * 5;
    plan.rate = 0;
    plan.hold = Duration::from_millis(10);
    plan.seed = seed;
    if let Some(program) = &run.program {
        plan.program = program.clone();
    }
    fault.shape(&mut plan);
    plan.worker_urls = (0..plan.processes).map(|worker| (worker, world.url(Network::of(worker)))).collect();
    plan
}

/// Lets the fault happen again and again until the time is over. Returns how often it did.
async fn happen(
    cell: &Cell,
    run: &Run,
    seed: u64,
    world: &mut World,
    rig: &mut Rig,
    fault: &mut dyn Injection,
) -> Outcome<u64> {
    let end = Instant::now() + run.length;
    let mut happened = 0;
    for round in schedule(cell.store, cell.fault, seed, fault) {
        let left = end.saturating_duration_since(Instant::now());
        if left <= round.rest && happened > 0 {
            break;
        }
        tokio::time::sleep(round.rest).await;
        one(cell, world, rig, fault, &round).await?;
        happened += 1;
    }
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    Ok(happened)
}

async fn one(
    cell: &Cell,
    world: &mut World,
    rig: &mut Rig,
    fault: &mut dyn Injection,
    round: &Round,
) -> Outcome {
    let label = format!("{} round {}", cell.fault, round.number);
    rig.note_fault(&label, Edge::Start);
    let begun = fault.inject(&mut Scene { world, rig }, round).await;
    if begun.is_ok() {
        tokio::time::sleep(round.lasts).await;
    }
    let ended = fault.heal(&mut Scene { world, rig }, round).await;
    rig.note_fault(&label, Edge::Stop);
    let what = begun.map_err(|error| format!("{label} could not begin: {error}"))?;
    ended.map_err(|error| format!("{label} ({what}) could not end: {error}").into())
}

fn checker(cell: &Cell) -> Checker {
    let mut checker = Checker::new();
    checker.recovery = cell.store.recovery();
    // The engine waits for two seconds for the last answer of a store that hangs. Besides, the machine is shared with
    // the servers of the cell: a task may wait for a core.
    checker.overstay = Duration::from_secs(3);
    checker.lateness = Duration::from_millis(500);
    checker
}

/// Writes the first history of a run, and each in which something is wrong, with what that is.
fn keep(cell: &Cell, run: &Run, seed: u64, history: &History, verdict: &Verdict) -> Outcome {
    let Some(folder) = run.folder.as_ref().filter(|_| seed == run.seed || !verdict.is_clean()) else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)?;
    let name = format!("{}-{}-{seed}", cell.store, cell.fault);
    history.write(BufWriter::new(File::create(folder.join(format!("{name}.jsonl")))?))?;
    let violations = folder.join(format!("{name}.violations.json"));
    if verdict.violations.is_empty() {
        // Those of an earlier run of the same seed are not those of this history.
        let _ = std::fs::remove_file(violations);
    } else {
        std::fs::write(violations, serde_json::to_string_pretty(verdict)?)?;
    }
    Ok(())
}
