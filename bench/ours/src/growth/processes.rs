//! One lock, and so many processes that want it.

use std::time::Duration;

use leasehold_testkit::RedisServer;

use super::locks::used_memory;
use super::{Point, Series, median};
use crate::Outcome;
use crate::effort::{now_nanos, sent, server_cpu};
use crate::handover::{HOLD, latencies, spawn};
use crate::waiter::{Hold, Means};

pub(super) async fn measure(most: usize) -> Outcome<Series> {
    let mut points = Vec::new();
    for size in [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|size| *size <= most) {
        points.push(Point { size, values: line(size).await? });
    }
    Ok(Series {
        name: "processes",
        title: "One lock that processes hand to each other",
        size: "processes",
        columns: &[
            "from a release to the next grant, µs",
            "commands for a grant",
            "server's processor time for a grant, µs",
            "server's bytes for each process",
        ],
        points,
    })
}

/// Lets so many processes hand a lock to each other, and returns what a hand-over costs.
async fn line(size: usize) -> Outcome<Vec<f64>> {
    let server = RedisServer::start().await?;
    let (before, served) = (server.counts().await?, server_cpu(&server).await?);
    let memory = used_memory(&server).await?;
    // They take the longer to start the more they are.
    let start = Duration::from_millis(300 + 25 * size as u64);
    // Each holds a few times.
    let length = HOLD * 20 * u32::try_from(size)?.max(20);
    let from = now_nanos() + u64::try_from(start.as_nanos())?;
    let until = from + u64::try_from(length.as_nanos())?;
    let children = (0..size).map(|_| spawn(Means::Client, &server.url(), from, until));
    let children = children.collect::<Outcome<Vec<_>>>()?;
    // Half of them are past their first holds then, and all are connected.
    tokio::time::sleep(start + length / 2).await;
    let memory = (used_memory(&server).await? - memory) / size as f64;
    let mut holds = Vec::new();
    for child in children {
        let output = tokio::time::timeout(start + length + LATE, child.wait_with_output()).await??;
        if !output.status.success() {
            return Err(format!("a process failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        holds.extend(Hold::read_all(&String::from_utf8_lossy(&output.stdout))?);
    }
    holds.sort();
    let grants = holds.len() as f64;
    let served = server_cpu(&server).await?.saturating_sub(served).as_secs_f64() * 1e6 / grants;
    let commands = sent(&server.counts().await?.since(&before)) as f64 / grants;
    // One process alone hands nothing over: the time between two of its holds is that of a cycle.
    Ok(vec![median(latencies(&holds, until)?), commands, served, memory])
}

/// The time by which they may take longer than planned.
const LATE: Duration = Duration::from_secs(60);
