//! One history of a cell: its servers, its workers, its faults, and the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use leasehold_history::{History, Verdict};
use leasehold_torture::{Dense, Edge, Plan, Rig, RigError};

use super::targets::with_targets;
use super::{Cell, Findings, Run, judged};
use crate::inject::{Injection, Round, Scene, injection, schedule};
use crate::judge::bounds::checker;
use crate::judge::gaps;
use crate::results::{Did, Outcome as Found};
use crate::seen::{Hits, Seen, failures_without_fault};
use crate::world::{Effect, Network, Target, World};
use crate::{Expected, Outcome};

/// The time that servers may take to start, and everything to end, beside the time of the faults.
const AROUND: Duration = Duration::from_secs(240);

/// The workers of a history, half of them on each network.
const WORKERS: usize = 4;

/// Records one history, and judges it. Nothing is left running.
pub(super) async fn findings_of(cell: &Cell, run: &Run, seed: u64) -> Findings {
    let recording = Box::pin(record(cell, run, seed));
    match tokio::time::timeout(run.length * 2 + AROUND, recording).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => match error.downcast_ref::<leasehold_testkit::Error>() {
            Some(missing) if missing.is_missing() => Findings::not_run(missing.to_string()),
            _ => Findings::without_history(
                Found::Failed,
                false,
                format!("seed {seed}: {}", first_line(&error.to_string())),
            ),
        },
        Err(_) => Findings::without_history(Found::Failed, false, format!("seed {seed}: not over in time")),
    }
}

/// A message without the logs that follow it, which name paths.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Starts the workers. A server that has just started on a busy machine may take longer than a cell lets it, and
/// nothing is recorded before the store was opened: so that is tried again for a while.
async fn started(plan: &Plan) -> Result<Rig, RigError> {
    let end = Instant::now() + OPENED_WITHIN;
    loop {
        match Rig::start(plan.clone()).await {
            Err(RigError::Store(error))
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
                    && Instant::now() < end =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            ended => return ended,
        }
    }
}

/// The time after which a store that cannot be opened fails its cell.
const OPENED_WITHIN: Duration = Duration::from_secs(30);

async fn record(cell: &Cell, run: &Run, seed: u64) -> Outcome<Findings> {
    let mut fault = injection(cell.fault).ok_or("this fault has no way to happen")?;
    let mut world = World::start(cell.store, fault.needs(cell.store)).await?;
    let version = world.version().await;
    let mut rig = match started(&plan(cell, run, seed, &world, &*fault)).await {
        Ok(rig) => rig,
        Err(error) if is_refusal(cell.expected(), &error) => {
            let mut findings =
                Findings::without_history(Found::Refused, true, first_line(&error.to_string()));
            findings.version = version;
            return Ok(findings);
        }
        Err(error) => return Err(error.into()),
    };
    let happened = happen(cell, run, seed, &mut world, &mut rig, &mut *fault).await?;
    // What was granted before the last fault ended has ended by then, and every lock has been acquired again.
    tokio::time::sleep(cell.store.quiet()).await;
    // Another server may be the primary by now, and nothing is hurried any more.
    rig.look_at(world.patient_url());
    let (locks, processes, is_ordered) = (kinds(rig.plan()), all_processes(&rig), rig.is_ordered());
    let history = with_targets(rig.finish().await?, &processes, &happened.targets);
    let mut checker = checker(cell.store, cell.fault, run.allowance);
    (checker.clients, checker.is_ordered) = (processes, is_ordered);
    let verdict = checker.check(&history);
    keep(cell, run, seed, &history, &verdict)?;
    let mut gaps = gaps(&history, &verdict);
    if happened.faults == 0 {
        gaps.push(format!("no fault had an effect, of {} that were tried", happened.without_effect));
    }
    let hits = Hits::of(&history, cell.fault, &happened.idle);
    let unexplained_failures = failures_without_fault(&history, cell.store.recovery());
    let seen = Seen {
        hits: Some(hits),
        failures_without_fault: Some(unexplained_failures),
        ..Seen::of(&verdict, &history)
    };
    let mut findings = judged(cell.expected(), seen, &gaps);
    findings.locks = Some(locks);
    if !findings.expected {
        // One that no cell allows, if there is one.
        let found = verdict.violations.iter().find(|one| one.meanwhile.is_none());
        let found = found.or(verdict.violations.first());
        let found = found.map(|found| format!("{}: {}", found.invariant, found.what));
        let why = if findings.outcome == Found::NotJudged { None } else { found };
        findings.note = first_line(&format!("seed {seed}: {}", why.unwrap_or_else(|| gaps.join("; "))));
    }
    (findings.faults, findings.without_effect) = (happened.faults, happened.without_effect);
    (findings.did, findings.version) = (happened.did, version);
    let unjudged: BTreeSet<String> = verdict.unjudged.iter().map(|one| one.invariant.to_string()).collect();
    findings.unjudged = Some(unjudged.into_iter().collect());
    Ok(findings)
}

/// Returns the kinds of the locks that were taken, each once.
fn kinds(plan: &Plan) -> Vec<String> {
    let kinds: BTreeSet<&str> = plan.locks.iter().map(|lock| lock.kind.word()).collect();
    kinds.into_iter().map(str::to_owned).collect()
}

/// Returns the logical processes of each worker.
fn all_processes(rig: &Rig) -> Vec<Vec<u64>> {
    (0..rig.workers()).map(|worker| rig.logical_processes(worker)).collect()
}

/// Returns `true` if the store refuses to lock, as it was expected to. A server that does not answer refuses nothing.
fn is_refusal(expected: Expected, error: &RigError) -> bool {
    let is_of_store =
        matches!(error, RigError::Store(error) if error.kind() == leasehold::ErrorKind::Unsupported);
    is_of_store && matches!(expected, Expected::Refused(_))
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
    if run.is_dense {
        plan.dense = Some(Dense::default());
    }
    // Readers that are granted beside a writer are found by locks that have readers alone.
    plan.if_supported = Plan::shared_locks();
    fault.shape(&mut plan);
    if let Some(clock) = world.clock.as_ref().filter(|_| world.needs.client_clock) {
        let behind = (0..plan.processes).filter(|worker| Network::of(*worker) == Network::Odd);
        let of = |worker| clock.variables().map(|(name, value)| (worker, name, value));
        plan.variables = behind.flat_map(of).collect();
    }
    plan.worker_urls = (0..plan.processes).map(|worker| (worker, world.url(Network::of(worker)))).collect();
    plan
}

/// The faults of one history.
#[derive(Default)]
struct Happened {
    faults: u64,
    without_effect: u64,
    did: Option<Did>,
    /// The target of each, by its label.
    targets: BTreeMap<String, Target>,
    /// The labels of those that had no effect.
    idle: BTreeSet<String>,
}

impl Happened {
    fn add(&mut self, label: String, effect: Effect) {
        if effect.count == 0 {
            self.idle.insert(label.clone());
        }
        self.targets.insert(label, effect.target);
        if effect.count == 0 {
            self.without_effect += 1;
            return;
        }
        self.faults += 1;
        let did = self.did.get_or_insert(Did { first: effect.what, things: 0 });
        did.things += effect.count;
    }
}

/// Lets the fault happen again and again until the time is over.
async fn happen(
    cell: &Cell,
    run: &Run,
    seed: u64,
    world: &mut World,
    rig: &mut Rig,
    fault: &mut dyn Injection,
) -> Outcome<Happened> {
    let end = Instant::now() + run.length;
    let mut happened = Happened::default();
    for round in schedule(cell.store, cell.fault, seed, fault) {
        let left = end.saturating_duration_since(Instant::now());
        if left <= round.rest && round.number > 0 {
            break;
        }
        tokio::time::sleep(round.rest).await;
        let label = format!("{} round {}", cell.fault, round.number);
        let effect = one(&label, world, rig, fault, &round).await?;
        happened.add(label, effect);
    }
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    Ok(happened)
}

/// Begins and ends one fault, and writes into the history what it did.
async fn one(
    label: &str,
    world: &mut World,
    rig: &mut Rig,
    fault: &mut dyn Injection,
    round: &Round,
) -> Outcome<Effect> {
    rig.note_fault(label, Edge::Start);
    let before = world.touched();
    let begun = fault.inject(&mut Scene { world, rig }, round).await;
    if let Ok(effect) = &begun {
        if !effect.is_of_traffic {
            note(rig, label, effect);
        }
        tokio::time::sleep(round.lasts).await;
    }
    let ended = fault.heal(&mut Scene { world, rig }, round).await;
    let begun = begun.map(|effect| effect.counted(before, world.touched()));
    if let Ok(effect) = begun.as_ref()
        && effect.is_of_traffic
    {
        note(rig, label, effect);
    }
    rig.note_fault(label, Edge::Stop);
    let effect = begun.map_err(|error| format!("{label} could not begin: {error}"))?;
    ended.map_err(|error| format!("{label} ({}) could not end: {error}", effect.what))?;
    Ok(effect)
}

/// Writes into the history what a fault did, and to how many things.
fn note(rig: &Rig, label: &str, effect: &Effect) {
    rig.note_fault(&format!("{label}: {} ({})", effect.what, effect.count), Edge::Once);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cell_that_cannot_start_is_not_refused() {
        let refusal = Expected::Refused("a reason");
        let ended = RigError::Worker { worker: 0, what: "ended at its start".to_owned() };
        assert!(!is_refusal(refusal, &ended));
        let unknown = leasehold::Client::open("nothing:").await.unwrap_err();
        assert!(!is_refusal(refusal, &RigError::Store(unknown)));
    }

    #[test]
    fn a_round_that_did_nothing_is_no_fault() {
        let mut happened = Happened::default();
        happened.add("F18 round 0".to_owned(), Effect::new("leases are revoked", 0_u64));
        assert_eq!((happened.faults, happened.without_effect, &happened.did), (0, 1, &None));
        happened.add("F18 round 1".to_owned(), Effect::new("leases are revoked", 3_u64));
        happened.add("F18 round 2".to_owned(), Effect::new("leases are revoked", 2_u64));
        let did = Did { first: "leases are revoked".to_owned(), things: 5 };
        assert_eq!((happened.faults, happened.without_effect, happened.did), (2, 1, Some(did)));
        assert_eq!(happened.targets.len(), 3);
        assert_eq!(happened.idle, BTreeSet::from(["F18 round 0".to_owned()]));
    }

    /// Nothing passes while the network is cut off, so nothing is dropped, although there are connections.
    #[tokio::test]
    async fn a_partition_of_an_idle_network_is_no_fault() {
        let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = leasehold_testkit::Proxy::start(upstream.local_addr().unwrap()).await.unwrap();
        let _client = tokio::net::TcpStream::connect(proxy.addr()).await.unwrap();
        let _served = upstream.accept().await.unwrap();
        let before = proxy.touched();
        proxy.blackhole(leasehold_testkit::Way::Both);
        proxy.heal().unwrap();
        assert_eq!((proxy.connections(), proxy.dropped_bytes()), (1, 0));
        let mut happened = Happened::default();
        let effect = Effect::of_traffic("the Even network drops Both").counted(before, proxy.touched());
        happened.add("F8 round 0".to_owned(), effect);
        assert_eq!((happened.faults, happened.without_effect, &happened.did), (0, 1, &None));
    }
}
