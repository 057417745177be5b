//! One lock more, beside so many that are held.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::RedisServer;

use super::{Point, Series, median};
use crate::Outcome;
use crate::effort::{resident, sent};
use crate::leases::hold_all;

pub(super) async fn measure(sizes: &[usize]) -> Outcome<Series> {
    let mut points = Vec::new();
    for &size in sizes {
        let server = RedisServer::start().await?;
        let locks = Client::open(&server.url()).await?;
        // What every client and server needs once is not counted.
        locks.mutex("first").lock().await?.release().await?;
        let (memory, own) = (used_memory(&server).await?, resident()?);
        let guards = hold_all(&locks, size, LONG).await?;
        let server_each = (used_memory(&server).await? - memory) / size as f64;
        let own_each = resident()?.saturating_sub(own) as f64 / size as f64;
        let before = server.counts().await?;
        let mut times = Vec::new();
        for cycle in 0..CYCLES {
            let began = Instant::now();
            locks.mutex(format!("one-more/{cycle}")).lock().await?.release().await?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let commands = sent(&server.counts().await?.since(&before)) as f64 / CYCLES as f64;
        drop(guards);
        locks.close(LONG).await;
        // A process gets its memory in pages, so that a few locks cannot be measured by it.
        let own_each = if size < 1_000 { f64::NAN } else { own_each };
        points.push(Point { size, values: vec![median(times), commands, server_each, own_each] });
    }
    Ok(Series {
        name: "locks",
        title: "One lock more, beside held ones",
        size: "held locks",
        columns: &[
            "acquire and release, µs",
            "commands for both",
            "server's bytes for each held lock",
            "client's bytes for each held lock",
        ],
        points,
    })
}

/// Long enough that no renewal comes between.
pub(super) const LONG: Duration = Duration::from_secs(600);
/// Cycles of which the median is taken.
pub(super) const CYCLES: usize = 500;

pub(super) async fn used_memory(server: &RedisServer) -> Outcome<f64> {
    let text = server.info_field("used_memory").await?.ok_or("redis does not report its memory")?;
    Ok(text.trim().parse()?)
}
