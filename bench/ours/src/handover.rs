//! From a release to the next grant, with eight waiters in eight processes.

use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use leasehold_testkit::RedisServer;
use tokio::process::{Child, Command};

use crate::Outcome;
use crate::effort::now_nanos;
use crate::plan::Plan;
use crate::report::{Measure, Report, Series, Unit, quantile};
use crate::waiter::{Hold, Means, NAME};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let server = RedisServer::start().await?;
    let directory = tempfile::tempdir()?;
    server.command(&["RPUSH", NAME, "token"]).await?;
    let store = format!("file://{}", directory.path().join("store").display());
    let plain = directory.path().join("plain.lock").display().to_string();
    let polling = format!("{}?wait=poll", server.url());
    let line = Line { length: plan.handing };
    let (mut redis, mut token) = (Latencies::default(), Latencies::default());
    let (mut polled, mut files, mut flock) =
        (Latencies::default(), Latencies::default(), Latencies::default());
    for _ in 0..plan.handing_rounds {
        redis.push(&line.run(Means::Client, &server.url()).await?);
        token.push(&line.run(Means::Token, &server.url()).await?);
        polled.push(&line.run(Means::Client, &polling).await?);
        files.push(&line.run(Means::Client, &store).await?);
        flock.push(&line.run(Means::Flock, &plain).await?);
    }
    redis.add_to_report(report, REDIS, "a token by RPUSH and BLPOP, crate redis", &token);
    redis.add_to_report(report, REDIS, "leasehold with ?wait=poll", &polled);
    files.add_to_report(report, FILES, "flock, blocking", &flock);
    Ok(())
}

const WAITERS: usize = 8;
/// Long enough for all others to be in line again before the next release.
pub(crate) const HOLD: Duration = Duration::from_millis(2);
/// Until then all processes are connected.
const START: Duration = Duration::from_millis(300);

const REDIS: [Measure; 2] = [
    Measure { group: GROUP, what: "Redis, half of all are faster (p50)", unit: Unit::Micros },
    Measure { group: GROUP, what: "Redis, 99 of 100 are faster (p99)", unit: Unit::Micros },
];
const FILES: [Measure; 2] = [
    Measure { group: GROUP, what: "files, half of all are faster (p50)", unit: Unit::Micros },
    Measure { group: GROUP, what: "files, 99 of 100 are faster (p99)", unit: Unit::Micros },
];
const GROUP: &str = "handover: from a release to the next grant, 8 waiters in 8 processes";

/// Quantiles in microseconds, one a round.
#[derive(Default)]
pub(crate) struct Latencies {
    half: Series,
    most: Series,
}

impl Latencies {
    pub(crate) fn push(&mut self, micros: &[f64]) {
        self.half.push(quantile(micros, 0.5));
        self.most.push(quantile(micros, 0.99));
    }

    pub(crate) fn add_to_report(
        &self,
        report: &mut Report,
        measures: [Measure; 2],
        reference: &str,
        other: &Latencies,
    ) {
        let [half, most] = measures;
        report.compare(half, &self.half, reference, &other.half, None);
        report.compare(most, &self.most, reference, &other.most, None);
    }
}

/// Processes that hand a lock to each other.
struct Line {
    length: Duration,
}

impl Line {
    /// Returns the times from each release to the next grant, in microseconds.
    async fn run(&self, means: Means, at: &str) -> Outcome<Vec<f64>> {
        let from = now_nanos() + u64::try_from(START.as_nanos())?;
        let until = from + u64::try_from(self.length.as_nanos())?;
        let waiters: Vec<Child> =
            (0..WAITERS).map(|_| spawn(means, at, from, until)).collect::<Outcome<_>>()?;
        let mut holds = Vec::new();
        for waiter in waiters {
            let output =
                tokio::time::timeout(START + self.length + LATE, waiter.wait_with_output()).await??;
            if !output.status.success() {
                return Err(format!("a waiter failed: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            holds.extend(Hold::read_all(&String::from_utf8_lossy(&output.stdout))?);
        }
        holds.sort();
        latencies(&holds, until)
    }
}

/// The time by which a line may take longer than planned.
const LATE: Duration = Duration::from_secs(20);

pub(crate) fn spawn(means: Means, at: &str, from: u64, until: u64) -> Outcome<Child> {
    let means = means.to_possible_value().ok_or("these means have no name")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["waiter", "--means", means.get_name(), "--at", at]);
    for (option, number) in
        [("--from", from), ("--until", until), ("--hold", u64::try_from(HOLD.as_micros())?)]
    {
        command.arg(option).arg(number.to_string());
    }
    Ok(command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

/// Returns the times between holds, for as long as no waiter has left the line.
pub(crate) fn latencies(holds: &[Hold], until: u64) -> Outcome<Vec<f64>> {
    let mut micros = Vec::with_capacity(holds.len());
    for pair in holds.windows(2) {
        let (before, next) = (pair[0], pair[1]);
        let Some(between) = next.granted.checked_sub(before.released) else {
            return Err("two processes held the lock at the same time".into());
        };
        if before.released < until {
            micros.push(between as f64 / 1e3);
        }
    }
    if micros.is_empty() { Err("the lock was never handed over".into()) } else { Ok(micros) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(granted: u64, released: u64) -> Hold {
        Hold { granted, released }
    }

    #[test]
    fn the_time_between_holds_is_what_counts() {
        let holds: Vec<_> = (0..10).map(|round| hold(round * 3_000, round * 3_000 + 1_000)).collect();
        assert_eq!(latencies(&holds, u64::MAX).unwrap(), [2.0; 9]);
        assert_eq!(latencies(&holds, 25_000).unwrap().len(), 8, "the last release came too late");
        assert!(latencies(&holds[..1], u64::MAX).is_err(), "nothing lies between");
    }

    #[test]
    fn two_holders_at_once_end_the_run() {
        let overlap = [hold(0, 10), hold(5, 20)];
        assert!(latencies(&overlap, u64::MAX).unwrap_err().to_string().contains("at the same time"));
    }
}
