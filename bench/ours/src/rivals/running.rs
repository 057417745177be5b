//! The rounds of one scenario.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_testkit::peers::{self, Peer};
use leasehold_testkit::require;
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use super::Lengths;
use super::results::{Contested, Measured};
use super::scenarios::{Contestant, Load, Program, Scenario};
use super::stores::{Store, Work};
use super::trips;
use crate::Outcome;
use crate::effort::now_nanos;
use crate::handover::{HOLD, latencies};
use crate::report::quantile;
use crate::waiter::Hold;

/// Measures a scenario. What cannot be measured is in the result, with the reason.
pub(super) fn measure(scenario: &Scenario, lengths: Lengths, runtime: &Runtime) -> Measured {
    let (rounds, length) = if scenario.load.is_contended() { lengths.contended } else { lengths.rounds };
    let mut measured = Measured {
        id: scenario.id.to_owned(),
        rounds,
        millis: u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
        ..Measured::default()
    };
    let store = match runtime.block_on(Store::start(scenario.needs)) {
        Ok(store) => store,
        Err(error) => {
            measured.missing = Some(first_line(&error.to_string()));
            return measured;
        }
    };
    let running = scenario.contestants.iter().map(|contestant| Running::new(contestant, scenario.load));
    let mut running: Vec<Running> = match running.collect() {
        Ok(running) => running,
        Err(error) => {
            measured.missing = Some(first_line(&error.to_string()));
            return measured;
        }
    };
    let context = Context { store: &store, runtime, length };
    match scenario.load {
        Load::Idle { .. } => {
            (measured.rounds, measured.millis) =
                (1, u64::try_from(lengths.idle.as_millis()).unwrap_or(u64::MAX));
            running.iter_mut().for_each(|one| one.attempt(|one| one.idle(&context, lengths.idle)));
        }
        Load::Trips => {
            (measured.rounds, measured.millis) = (trips::TIMES, 0);
            running.iter_mut().for_each(|one| one.attempt(|one| one.count_trips(&context)));
        }
        Load::Cycles { .. } | Load::HandOver { .. } => {
            running.iter_mut().for_each(|one| one.attempt(|one| one.start(&context)));
            // Another contestant begins each round, so that none always follows the same one.
            let count = running.len();
            for (round, place) in (0..rounds).flat_map(|round| (0..count).map(move |place| (round, place))) {
                running[(round + place) % count].attempt(|one| one.round(&context));
            }
        }
    }
    measured.contestants = running.into_iter().map(|one| one.contested).collect();
    measured
}

struct Context<'a> {
    store: &'a Store,
    runtime: &'a Runtime,
    length: Duration,
}

impl Context<'_> {
    fn work(&self) -> Outcome<Option<Work>> {
        self.runtime.block_on(self.store.work())
    }
}

/// A contestant with its processes.
struct Running<'a> {
    contestant: &'a Contestant,
    load: Load,
    processes: Vec<Peer>,
    contested: Contested,
    /// The messages of its processes, of which the last one is part of the reason where it fails.
    stderr: NamedTempFile,
}

impl<'a> Running<'a> {
    fn new(contestant: &'a Contestant, load: Load) -> Outcome<Running<'a>> {
        let contested = Contested { name: contestant.name.to_owned(), ..Contested::default() };
        Ok(Running { contestant, load, processes: Vec::new(), contested, stderr: NamedTempFile::new()? })
    }

    /// Does the next step, unless an earlier one failed. After a failure it is left out.
    fn attempt(&mut self, step: impl FnOnce(&mut Self) -> Outcome<()>) {
        if self.contested.missing.is_some() {
            return;
        }
        if let Err(error) = step(self) {
            let said = std::fs::read_to_string(self.stderr.path()).unwrap_or_default();
            let said = said.trim().lines().next_back().map_or(String::new(), |line| format!(": {line}"));
            self.contested.missing = Some(first_line(&format!("{}{said}", first_line(&error.to_string()))));
            self.contested.values.clear();
            self.processes.clear();
        }
    }

    /// Starts its processes, and lets them run once, unmeasured.
    fn start(&mut self, context: &Context<'_>) -> Outcome<()> {
        let (processes, tasks, locks) = match self.load {
            Load::Cycles { processes, tasks, locks } => (processes, tasks, locks),
            Load::HandOver { processes, tasks } | Load::Idle { processes, tasks } => (processes, tasks, 1),
            Load::Trips => return Ok(()),
        };
        for _ in 0..processes {
            let process = self.spawn(context, tasks, locks)?;
            self.processes.push(process);
        }
        self.cycles(context.length / 2, Duration::ZERO).map(drop)
    }

    fn spawn(&mut self, context: &Context<'_>, tasks: usize, locks: usize) -> Outcome<Peer> {
        let at = (self.contestant.at)(context.store);
        if self.contestant.kind == "command" {
            check_installed(&at)?;
        }
        let mut command = program(self.contestant.program)?;
        command.args([self.contestant.kind, &at, &tasks.to_string(), &locks.to_string()]);
        command.stderr(self.stderr.reopen()?);
        let peer = Peer::start(command)?;
        let ready = peer.answer().map_err(|error| format!("it did not start: {error}"))?;
        let version = ready.strip_prefix("ready").ok_or_else(|| format!("it said {ready}"))?;
        self.contested.version = version.trim().to_owned();
        Ok(peer)
    }

    /// Runs all its processes at the same time.
    fn cycles(&mut self, length: Duration, hold: Duration) -> Outcome<Answer> {
        let line = format!("cycle {} {}", length.as_millis(), hold.as_micros());
        for process in &mut self.processes {
            process.send_line(&line)?;
        }
        let mut all = Answer::default();
        for process in &self.processes {
            all.add(&Answer::read(&process.answer()?)?);
        }
        Ok(all)
    }

    fn round(&mut self, context: &Context<'_>) -> Outcome<()> {
        if let Load::HandOver { .. } = self.load {
            let until = now_nanos() + u64::try_from(context.length.as_nanos())?;
            let mut answer = self.cycles(context.length, HOLD)?;
            answer.holds.sort();
            let micros = latencies(&answer.holds, until)?;
            self.note("p50_us", quantile(&micros, 0.5));
            self.note("p99_us", quantile(&micros, 0.99));
            return Ok(());
        }
        let before = context.work()?;
        let answer = self.cycles(context.length, Duration::ZERO)?;
        let after = context.work()?;
        let cycles = answer.by_task.iter().sum::<u64>();
        if cycles == 0 {
            return Err("no task took a lock in a round".into());
        }
        let cycles = cycles as f64;
        self.note("rate", cycles / answer.seconds);
        // A command's own processes are not part of that time.
        if self.contestant.kind != "command" {
            self.note("client_us", answer.cpu * 1e6 / cycles);
        }
        if let (Some(before), Some(after)) = (before, after) {
            self.note("server_us", (after.cpu - before.cpu) * 1e6 / cycles);
            self.note("commands", (after.commands - before.commands) / cycles);
        }
        if let [_, _, ..] = answer.by_task[..] {
            let most = answer.by_task.iter().max().copied().unwrap_or(0);
            let least = answer.by_task.iter().min().copied().unwrap_or(0);
            self.note("luckiest", most as f64 / least.max(1) as f64);
            self.note("starved", answer.by_task.iter().filter(|cycles| **cycles == 0).count() as f64);
        }
        Ok(())
    }

    /// Counts what waiters cost that get nothing. One process holds, and the others wait.
    fn idle(&mut self, context: &Context<'_>, length: Duration) -> Outcome<()> {
        let Load::Idle { processes, tasks } = self.load else { return Ok(()) };
        let mut holder = self.spawn(context, 1, 1)?;
        // The others take the lock once as they start, so the holder comes last.
        for _ in 0..processes {
            let process = self.spawn(context, tasks, 1)?;
            self.processes.push(process);
        }
        holder.ask("hold")?;
        for process in &mut self.processes {
            process.ask("wait")?;
        }
        context.runtime.block_on(async { tokio::time::sleep(SETTLE).await });
        let (before, began) = (context.work()?.unwrap_or_default(), Instant::now());
        context.runtime.block_on(async { tokio::time::sleep(length).await });
        let after = context.work()?.unwrap_or_default();
        self.note("commands_per_second", (after.commands - before.commands) / began.elapsed().as_secs_f64());
        self.note("connections", after.connections);
        for process in &self.processes {
            // One that was granted the lock has ended.
            if let Some(line) = process.answer_within(Duration::ZERO)? {
                return Err(format!("a process said {line} while it waited").into());
            }
        }
        self.processes.clear();
        Ok(())
    }

    fn count_trips(&mut self, context: &Context<'_>) -> Outcome<()> {
        check_installed(&(self.contestant.at)(context.store))?;
        for trips in trips::count(context.store, self.contestant.at, context.runtime)? {
            self.note("round_trips", trips as f64);
        }
        Ok(())
    }

    fn note(&mut self, measure: &str, value: f64) {
        self.contested.values.entry(measure.to_owned()).or_default().push(value);
    }
}

/// After this time all waiters wait, and the first looks are over.
const SETTLE: Duration = Duration::from_secs(4);

/// The work of a contestant's processes in a round.
#[derive(Debug, Default)]
struct Answer {
    seconds: f64,
    cpu: f64,
    by_task: Vec<u64>,
    holds: Vec<Hold>,
}

impl Answer {
    fn read(line: &str) -> Outcome<Answer> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [seconds, cpu, cycles, holds] = words[..] else {
            return Err(format!("not an answer of the protocol: {}", first_line(line)).into());
        };
        let by_task = cycles.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let holds = if holds == "-" { String::new() } else { holds.replace(':', " ").replace(',', "\n") };
        Ok(Answer { seconds: seconds.parse()?, cpu: cpu.parse()?, by_task, holds: Hold::read_all(&holds)? })
    }

    /// Adds another process that ran at the same time.
    fn add(&mut self, other: &Answer) {
        self.seconds = self.seconds.max(other.seconds);
        self.cpu += other.cpu;
        self.by_task.extend(&other.by_task);
        self.holds.extend(&other.holds);
    }
}

/// Returns the program of a contestant, with what it needs, which is fetched where it is not there yet.
fn program(program: Program) -> Outcome<Command> {
    let source = |name: &str| Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../rivals/peers")).join(name);
    let with = |mut command: Command, source: PathBuf| {
        command.arg(source);
        command
    };
    Ok(match program {
        Program::Own => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("peer");
            command
        }
        Program::Crates => beside("leasehold-bench-rivals")?,
        Program::SqlCrates => beside("leasehold-bench-rivals-sql")?,
        Program::Python(packages) => with(peers::python(packages)?, source("peer.py")),
        Program::Node => with(peers::node(&["redlock@4", "ioredis@5"])?, source("peer.js")),
        Program::Java => with(peers::java(&crate::consensus::peers::JARS)?, source("CuratorPeer.java")),
    })
}

/// Fails with the package to install, unless the command of these words exists.
fn check_installed(words: &str) -> Outcome<()> {
    let words: Vec<String> = serde_json::from_str(words)?;
    let program = words.first().map_or("", String::as_str);
    let package = match program {
        "etcdctl" => "etcd-client",
        "flock" => "util-linux",
        "psql" => "postgresql-client",
        _ => "coreutils",
    };
    require::program(program, package)?;
    Ok(())
}

fn beside(name: &str) -> Outcome<Command> {
    let program = std::env::current_exe()?.with_file_name(name);
    if !program.is_file() {
        return Err("it was not built: see what cargo said".into());
    }
    Ok(Command::new(program))
}

fn first_line(text: &str) -> String {
    text.trim().lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_processes_add_up() {
        let mut all = Answer::default();
        all.add(&Answer::read("0.5 0.25 3,4 10:20,30:40").unwrap());
        all.add(&Answer::read("0.4 0.25 5 -").unwrap());
        assert_eq!((all.seconds, all.cpu, &all.by_task[..]), (0.5, 0.5, &[3, 4, 5][..]));
        assert_eq!(all.holds, [Hold { granted: 10, released: 20 }, Hold { granted: 30, released: 40 }]);
        assert!(Answer::read("ready").is_err());
    }

    #[test]
    fn failure_of_one_step_leaves_the_contestant_out() {
        let contestant = &super::super::scenarios::SCENARIOS[0].contestants[0];
        let mut running = Running::new(contestant, Load::Trips).unwrap();
        running.note("rate", 1.0);
        running.attempt(|_| Err("it broke\nat a line".into()));
        running.attempt(|one| {
            one.note("rate", 2.0);
            Ok(())
        });
        assert_eq!(running.contested.missing.as_deref(), Some("it broke"));
        assert!(running.contested.values.is_empty());
    }
}
