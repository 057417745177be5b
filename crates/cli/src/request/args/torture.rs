//! The flags of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_torture::{FaultKind, Plan, Program, Torture};

use crate::request::args::{StoreArgs, duration};

/// Pause and kill processes that hold locks, and check what the store makes of it
///
/// Worker processes take locks, and each holder increments a counter that refuses stale fences. Meanwhile some of
/// them are paused for longer than a lease, or killed. Everything is recorded and then judged: whether two
/// holders were ever valid at one time, whether a stale holder changed the counter, whether each loss was
/// reported in time. Only processes of this command are paused and killed, the names of the locks begin with
/// leasehold-torture/, and no claim on them stays in the store.
#[derive(Debug, clap::Args)]
#[command(after_help = TORTURE_EXAMPLES)]
pub(crate) struct TortureArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The time for which the workers run, up to a day
    #[arg(long, value_name = "DURATION", value_parser = run_time, default_value = "1m")]
    pub(crate) duration: Duration,

    /// The worker processes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=100), default_value_t = 4)]
    pub(crate) processes: u16,

    /// The mutexes that they take, beside a read-write lock and a semaphore where the store has these
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), default_value_t = 3)]
    pub(crate) locks: u16,

    /// The ttl of the locks, from 20ms to 1h
    #[arg(long, value_name = "DURATION", value_parser = lease, default_value = "2s")]
    pub(crate) ttl: Duration,

    /// The most acquisitions in a second, of all workers together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000), default_value_t = 200)]
    pub(crate) rate: u32,

    /// The faults: pause, kill, both with a comma between them, or none
    #[arg(long, value_name = "FAULTS", value_parser = faults, default_value = "pause,kill")]
    pub(crate) faults: Faults,

    /// The seed of all that is drawn, such as the schedule of the faults [default: a random one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Write the report, the history, its exports and a timeline as SVG into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// Print JSON instead: the report as one object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The kinds of faults that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults(pub(crate) Vec<FaultKind>);

impl TortureArgs {
    /// Returns what is to be done to the store of this URL.
    pub(crate) fn torture(&self, url: String, program: Program) -> Torture {
        let mut plan = Plan::new(url);
        plan.locks = Plan::mutexes(usize::from(self.locks));
        plan.if_supported = Plan::shared_locks();
        plan.processes = usize::from(self.processes);
        plan.ttl = self.ttl;
        plan.rate = self.rate;
        plan.seed = self.seed.unwrap_or_else(leasehold_torture::random_seed);
        plan.program = program;
        let mut torture = Torture::new(plan);
        torture.duration = self.duration;
        torture.faults = self.faults.0.clone();
        torture
    }
}

fn faults(text: &str) -> Result<Faults, String> {
    if text == "none" {
        return Ok(Faults(Vec::new()));
    }
    let mut kinds = Vec::new();
    for part in text.split(',') {
        let kind: FaultKind = part.trim().parse()?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(Faults(kinds))
}

fn run_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time < SHORTEST || time > LONGEST {
        true => Err("write a time from 1s to 24h".to_owned()),
        false => Ok(time),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time < SHORTEST_LEASE || time > LONGEST_LEASE {
        true => Err("write a time from 20ms to 1h".to_owned()),
        false => Ok(time),
    }
}

/// Locks take no shorter one.
const SHORTEST_LEASE: Duration = Duration::from_millis(20);
/// Faults last for leases, and so does the end of a run.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

const TORTURE_EXAMPLES: &str = "\
Examples:
  leasehold torture --store redis://db
  leasehold torture --store postgres://app@db/app --duration 10m --report /tmp/torture
  leasehold torture --faults pause --seed 42 --json

Ctrl-C ends the run early, with a report of what was seen, and the exit code of
that report. A second Ctrl-C kills the workers at once: there is no report, and
the exit code is 130.

Exits with 0 if everything that could be judged was kept; with 1 if the store
forgot grants that were valid, or something removed them, and nothing worse was
seen; with 70 if a promise was broken; and with 77 if the run shows too little
to judge. Without a judgement it exits with 64 for flags that cannot be
understood or a directory that is not empty, with 69 if the store cannot be
opened, with 74 if the report cannot be written, and with 78 if the plan cannot
work on this store.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_once_or_not_at_all() {
        assert_eq!(faults("none"), Ok(Faults(Vec::new())));
        assert_eq!(faults("pause,pause"), Ok(Faults(vec![FaultKind::Pause])));
        assert_eq!(faults("kill, pause").unwrap().0.len(), 2);
        assert!(faults("partition").unwrap_err().contains("pause"));
        assert!(faults("").is_err());
    }
}
