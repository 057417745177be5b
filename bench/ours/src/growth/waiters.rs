//! Hand-overs of one lock, between two clients that each have so many waiting tasks.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

use super::locks::LONG;
use super::{Point, Series};
use crate::Outcome;
use crate::effort::{sent, server_cpu};

pub(super) async fn measure(sizes: &[usize]) -> Outcome<Series> {
    let mut points = Vec::new();
    for &size in sizes {
        points.push(Point { size, values: pass_through(size).await? });
    }
    Ok(Series {
        name: "waiters",
        title: "One lock and its waiters, in two clients",
        size: "waiters",
        columns: &["a grant, µs", "commands for a grant", "server's processor time for a grant, µs"],
        points,
    })
}

/// Lets all waiters have the lock once, and returns what one of them costs.
async fn pass_through(size: usize) -> Outcome<Vec<f64>> {
    let server = RedisServer::start().await?;
    let clients = [Client::open(&server.url()).await?, Client::open(&server.url()).await?];
    let holder = Client::open(&server.url()).await?;
    let guard = holder.mutex(NAME).ttl(LONG).lock().await?;
    let mut waiting = JoinSet::new();
    for waiter in 0..size {
        let mutex = clients[waiter % 2].mutex(NAME);
        waiting.spawn(async move { mutex.lock().await?.release().await });
    }
    // Until all of them are in the queues, and the first looks are over.
    tokio::time::sleep(Duration::from_secs(2)).await;
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
    Ok(vec![each(took * 1e6), each(commands as f64), each(served * 1e6)])
}

const NAME: &str = "wanted";
