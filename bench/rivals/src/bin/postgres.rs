//! The crate distributed-lock on PostgreSQL, under the load that leasehold is measured by:
//! `leasehold-bench-rival-postgres URL TASKS LOCKS MILLISECONDS`, and the same answer as its sibling's.
//!
//! Each task locks and unlocks on lock `task % locks`, as fast as it can. Settings are the library's own.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use distributed_lock_core::prelude::*;
use distributed_lock_postgres::PostgresLockProvider;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, tasks, locks, millis] = arguments.as_slice() else {
        return Err("usage: leasehold-bench-rival-postgres URL TASKS LOCKS MILLISECONDS".into());
    };
    let (tasks, locks, millis): (usize, usize, u64) = (tasks.parse()?, locks.parse()?, millis.parse()?);
    let provider = PostgresLockProvider::new(url.as_str()).await?;
    // The first cycle connects.
    provider.create_lock("rival/first").acquire(None).await?.release().await?;
    let began = Instant::now();
    let end = began + Duration::from_millis(millis);
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let lock = provider.create_lock(&format!("rival/{}", task % locks.max(1)));
            tokio::spawn(async move {
                let mut cycles = 0u64;
                while Instant::now() < end {
                    lock.acquire(None).await?.release().await?;
                    cycles += 1;
                }
                Ok::<u64, Box<dyn Error + Send + Sync>>(cycles)
            })
        })
        .collect();
    let mut by_task = Vec::new();
    for task in running {
        by_task.push(task.await??);
    }
    println!("{{\"by_task\": {by_task:?}, \"seconds\": {}}}", began.elapsed().as_secs_f64());
    Ok(())
}
