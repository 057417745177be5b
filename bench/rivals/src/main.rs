//! Another library under the load that leasehold is measured by:
//! `leasehold-bench-rivals URL TASKS LOCKS MILLISECONDS`.
//!
//! So many tasks lock and unlock on so many locks, each on lock `task % locks`, as fast as they can. It
//! prints one JSON object: the cycles of each task, and the seconds that passed. Settings are the
//! library's own, but that it never gives up waiting.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use rslock::LockManager;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, tasks, locks, millis] = arguments.as_slice() else {
        return Err("usage: leasehold-bench-rivals URL TASKS LOCKS MILLISECONDS".into());
    };
    let (tasks, locks, millis): (usize, usize, u64) = (tasks.parse()?, locks.parse()?, millis.parse()?);
    let mut manager = LockManager::new(vec![url.as_str()]);
    manager.set_retry(u32::MAX, RETRY_DELAY);
    // The first cycle connects.
    let first = manager.lock("rival/first", TTL).await?;
    manager.unlock(&first).await;
    let began = Instant::now();
    let end = began + Duration::from_millis(millis);
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (manager, name) = (manager.clone(), format!("rival/{}", task % locks.max(1)));
            tokio::spawn(async move {
                let mut cycles = 0u64;
                while Instant::now() < end {
                    let lock = manager.lock(name.as_str(), TTL).await?;
                    manager.unlock(&lock).await;
                    cycles += 1;
                }
                Ok::<u64, rslock::LockError>(cycles)
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

const TTL: Duration = Duration::from_secs(30);
/// The library's own; a task pauses for a part of it that is drawn by chance.
const RETRY_DELAY: Duration = Duration::from_millis(200);
