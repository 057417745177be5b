//! Redlock over so many servers, beside one server.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::RedisServer;

use super::locks::{CYCLES, LONG, used_memory};
use super::{Point, Series, median};
use crate::Outcome;
use crate::effort::sent;

pub(super) async fn measure() -> Outcome<Series> {
    let mut points = Vec::new();
    for size in [1, 3, 5, 7] {
        let mut servers = Vec::new();
        for _ in 0..size {
            servers.push(RedisServer::start().await?);
        }
        let url = match &servers[..] {
            [one] => one.url(),
            several => {
                let at: Vec<String> = several.iter().map(|server| server.addr().to_string()).collect();
                // Members begin to count once the longest ttl has passed.
                format!("redlock://{}?max-ttl=1s", at.join(","))
            }
        };
        let locks = Client::open(&url).await?;
        let mutex = locks.mutex(NAME).ttl(Duration::from_secs(1));
        mutex.lock().await?.release().await?;
        let mut before = Vec::new();
        for server in &servers {
            before.push(server.counts().await?);
        }
        let mut times = Vec::new();
        for _ in 0..CYCLES {
            let began = Instant::now();
            mutex.lock().await?.release().await?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let mut commands = 0;
        for (server, before) in servers.iter().zip(&before) {
            commands += sent(&server.counts().await?.since(before));
        }
        let mut memory = 0.0;
        for server in &servers {
            memory -= used_memory(server).await?;
        }
        let mut guards = Vec::new();
        for held in 0..HELD {
            guards.push(locks.mutex(format!("held/{held}")).ttl(Duration::from_secs(1)).lock().await?);
        }
        for server in &servers {
            memory += used_memory(server).await?;
        }
        drop(guards);
        locks.close(LONG).await;
        points.push(Point {
            size,
            values: vec![median(times), commands as f64 / CYCLES as f64, memory / HELD as f64],
        });
    }
    Ok(Series {
        name: "servers",
        title: "Redlock, uncontended (1: a single server without Redlock)",
        size: "servers",
        columns: &[
            "acquire and release, µs",
            "commands for both, of all servers",
            "bytes for a held lock, of all servers",
        ],
        points,
    })
}

const NAME: &str = "redlock";
/// Held at the same time, to see the memory of one.
const HELD: usize = 200;
