//! One reader more, beside so many that hold the same lock.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::RedisServer;

use super::locks::{CYCLES, LONG, used_memory};
use super::{Point, Series, median};
use crate::Outcome;
use crate::effort::{sent, server_cpu};

pub(super) async fn measure(sizes: &[usize]) -> Outcome<Series> {
    let mut points = Vec::new();
    for &size in sizes {
        let server = RedisServer::start().await?;
        let (holder, other) = (Client::open(&server.url()).await?, Client::open(&server.url()).await?);
        // The scripts, which every server keeps once, are not counted.
        holder.rwlock("first").read().await?.release().await?;
        let memory = used_memory(&server).await?;
        let mut guards = Vec::with_capacity(size);
        for _ in 0..size {
            guards.push(holder.rwlock(NAME).ttl(LONG).read().await?);
        }
        let each = (used_memory(&server).await? - memory) / size as f64;
        let (before, served) = (server.counts().await?, server_cpu(&server).await?);
        let mut times = Vec::new();
        for _ in 0..CYCLES {
            let began = Instant::now();
            other.rwlock(NAME).read().await?.release().await?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let served = server_cpu(&server).await?.saturating_sub(served).as_secs_f64() * 1e6 / CYCLES as f64;
        let commands = sent(&server.counts().await?.since(&before)) as f64 / CYCLES as f64;
        drop(guards);
        for client in [holder, other] {
            client.close(LONG).await;
        }
        points.push(Point { size, values: vec![median(times), commands, served, each] });
    }
    Ok(Series {
        name: "readers",
        title: "One reader more, beside readers of the same lock",
        size: "readers",
        columns: &[
            "acquire and release, µs",
            "commands for both",
            "server's processor time for both, µs",
            "server's bytes for each reader",
        ],
        points,
    })
}

const NAME: &str = "read";
