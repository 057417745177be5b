//! The server's own benchmark, `redis-benchmark`, on the commands that leasehold sends.
//!
//! It repeats one command, so the two halves of a cycle are measured one after the other: acquires of
//! locks that are free, each with another name, and releases of locks that are held. Its placeholder
//! draws another number for each key, so a lock's keys do not belong together here; the scripts do the
//! same work all the same.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_testkit::{RedisServer, require};
use tokio::process::Command;

use crate::Outcome;
use crate::captured::{CapturedCycle, Template};

/// `redis-benchmark` with so many connections, each with so many requests under way.
#[derive(Debug)]
pub(crate) struct Benchmark {
    program: PathBuf,
    clients: usize,
    pipeline: usize,
    /// Cycles per second as last measured, from which the next number of requests is guessed.
    guess: f64,
}

impl Benchmark {
    pub(crate) fn new(clients: usize, pipeline: usize) -> Outcome<Benchmark> {
        let program = require::program("redis-benchmark", "redis-tools")?;
        Ok(Benchmark { program, clients, pipeline, guess: 3_000.0 })
    }

    /// Cycles per second.
    pub(crate) async fn rate(
        &mut self,
        server: &RedisServer,
        captured: &CapturedCycle,
        length: Duration,
    ) -> Outcome<f64> {
        let requests = ((self.guess * length.as_secs_f64()) as usize).max(1_000);
        server.flushall().await?;
        let acquires = self.repeat(server, &captured.acquire, requests, FRESH).await?;
        server.flushall().await?;
        let held = (requests * HELD_PER_RELEASE).min(HELD_MAX);
        hold_many(server, captured, held).await?;
        let releases = self.repeat(server, &captured.release, requests, held).await?;
        server.flushall().await?;
        self.guess = 1.0 / (1.0 / acquires + 1.0 / releases);
        Ok(self.guess)
    }

    /// Commands per second.
    async fn repeat(
        &self,
        server: &RedisServer,
        template: &Template,
        requests: usize,
        range: usize,
    ) -> Outcome<f64> {
        let numbers = [
            ("-p", usize::from(server.port())),
            ("-c", self.clients),
            ("-P", self.pipeline),
            ("-n", requests),
            ("-r", range),
        ];
        let mut command = Command::new(&self.program);
        command.args(["-h", "127.0.0.1", "--csv"]);
        for (option, number) in numbers {
            command.arg(option).arg(number.to_string());
        }
        let output = command.args(template.args(PLACEHOLDER, ID)).kill_on_drop(true).output().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The first column repeats the command, in which there may be commas; the rate is the seventh
        // from the end.
        let rate = text.lines().next_back().and_then(|line| line.rsplit(',').nth(6));
        let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
        rate.ok_or_else(|| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("redis-benchmark ended without a rate: {text}{complaint}").into()
        })
    }
}

const PLACEHOLDER: &str = "__rand_int__";
const ID: &str = "0123456789abcdef0123456789abcdef";
/// A number of names of which hardly one is drawn twice.
const FRESH: usize = 1_000_000_000;
/// A number of held locks for each release of which few are drawn twice.
const HELD_PER_RELEASE: usize = 8;
const HELD_MAX: usize = 200_000;

/// Makes as many held locks as will be drawn from, by copies of what one acquire has written.
async fn hold_many(server: &RedisServer, captured: &CapturedCycle, count: usize) -> Outcome<()> {
    server.command(&captured.acquire.args("source", ID)).await?;
    let (from, to) = (captured.release.keys("source")?, captured.release.keys(PLACEHOLDER)?);
    let mut arguments = vec!["EVAL".to_owned(), COPY.to_owned(), "0".to_owned(), count.to_string()];
    arguments.extend(from.into_iter().zip(to).flat_map(|(from, to)| [from, to]));
    server.command(&arguments).await?;
    Ok(())
}

const COPY: &str = "
for k = 2, #ARGV, 2 do
  if redis.call('EXISTS', ARGV[k]) == 1 then
    local head, tail = string.match(ARGV[k + 1], '^(.*)__rand_int__(.*)$')
    for i = 0, ARGV[1] - 1 do
      redis.call('COPY', ARGV[k], head .. string.format('%012.0f', i) .. tail)
    end
  end
end";
