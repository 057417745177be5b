//! Hand-overs of one lock, between two clients that each have so many waiting tasks.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use super::locks::{LONG, used_memory};
use super::{Point, Series};
use crate::Outcome;
use crate::effort::{resident, sent, server_cpu};

pub(super) async fn measure(sizes: &[usize]) -> Outcome<Series> {
    let mut points = Vec::new();
    for &size in sizes {
        points.push(Point { size, values: pass_through(size).await? });
    }
    Ok(Series {
        name: "waiters",
        title: "One lock and its waiters, in two clients",
        size: "waiters",
        columns: &[
            "a grant, µs",
            "commands for a grant",
            "server's processor time for a grant, µs",
            "server's bytes for each waiter",
            "client's bytes for each waiter",
        ],
        points,
    })
}

/// Lets all waiters have the lock once, and returns what one of them costs.
async fn pass_through(size: usize) -> Outcome<Vec<f64>> {
    let server = RedisServer::start().await?;
    let clients = [Client::open(&server.url()).await?, Client::open(&server.url()).await?];
    let holder = Client::open(&server.url()).await?;
    let guard = holder.mutex(NAME).ttl(LONG).lock().await?;
    // What every client and server needs once is not counted.
    for client in &clients {
        client.mutex("first").lock().await?.release().await?;
    }
    let (memory, own) = (used_memory(&server).await?, resident()?);
    let mut waiting = JoinSet::new();
    for waiter in 0..size {
        let mutex = clients[waiter % 2].mutex(NAME);
        waiting.spawn(async move { mutex.lock().await?.release().await });
    }
    // Until all of them are in the queues, and the first looks are over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = used_memory(&server).await? - memory;
    let own = resident()?.saturating_sub(own) as f64;
    let (before, served, began) = (server.counts().await?, server_cpu(&server).await?, Instant::now());
    guard.release().await?;
    while let Some(ended) = waiting.join_next().await {
        ended??;
    }
    let took = began.elapsed().as_secs_f64();
    let served = server_cpu(&server).await?.saturating_sub(served).as_secs_f64();
    let commands = sent(&server.counts().await?.since(&before));
    for client in clients.iter().chain([&holder]) {
        client.close(LONG).await;
    }
    let each = |total: f64| total / size as f64;
    // A process gets its memory in pages, so that a few waiters cannot be measured by it.
    let own = if size < 1_000 { f64::NAN } else { own };
    Ok(vec![each(took * 1e6), each(commands as f64), each(served * 1e6), each(memory), each(own)])
}

const NAME: &str = "wanted";
