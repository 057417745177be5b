//! One process of an endurance run: it takes locks of many names, one after the other, and says what it does.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Client;
use serde::{Deserialize, Serialize};

use crate::{Chance, Outcome};

/// The orders to a process, one line of its standard input, so that no URL is in a list of arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) url: String,
    pub(super) names: u32,
    pub(super) ttl: Duration,
    pub(super) seed: u64,
    /// The time between two acquisitions of one task.
    pub(super) pause: Duration,
}

/// The counts of a process, which it prints twice a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) acquired: u64,
    pub(super) failed: u64,
    pub(super) tasks: u64,
}

const TASKS: u64 = 4;

/// Runs a process until its standard input is closed.
pub fn work() -> ExitCode {
    end_at_a_panic();
    match read_and_work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("endure-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the process when any task or thread panics: the runtime would hide it, and the run sees such an end.
fn end_at_a_panic() {
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        shown(panic);
        std::process::exit(101);
    }));
}

fn read_and_work() -> Outcome {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let orders: Orders = serde_json::from_str(&line)?;
    let over = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let over = over.clone();
        move || {
            // Anything else than the end is not expected, and ends it as well.
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            over.store(true, Ordering::SeqCst);
        }
    });
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(take_locks(orders, over))
}

#[derive(Default)]
struct Counts {
    acquired: AtomicU64,
    failed: AtomicU64,
}

async fn take_locks(orders: Orders, over: Arc<AtomicBool>) -> Outcome {
    let Some(locks) = opened(&orders.url, &over).await else { return Ok(()) };
    let counts = Arc::new(Counts::default());
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let chance = Chance::seeded(orders.seed, &format!("task {task}"));
        tasks.push(tokio::spawn(one(locks.clone(), orders.clone(), chance, counts.clone(), over.clone())));
    }
    while !over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let done = Done {
            acquired: counts.acquired.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64,
        };
        let mut output = std::io::stdout().lock();
        if writeln!(output, "{}", serde_json::to_string(&done)?).and_then(|()| output.flush()).is_err() {
            // Nobody reads any more.
            break;
        }
    }
    over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await?;
    }
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

/// Opens the store. A hundred processes that begin at once keep a few cores busy for longer than a connection may take,
/// so it is tried again until it succeeds or the run is over.
async fn opened(url: &str, over: &AtomicBool) -> Option<Client> {
    loop {
        match Client::open(url).await {
            Ok(locks) => return Some(locks),
            Err(_) if over.load(Ordering::SeqCst) => return None,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

async fn one(locks: Client, orders: Orders, mut chance: Chance, counts: Arc<Counts>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::SeqCst) {
        let name = format!("endurance/{}", chance.draw() % u64::from(orders.names));
        let mutex = locks.mutex(&name).ttl(orders.ttl);
        let held = match mutex.try_lock_for(orders.ttl * 2).await {
            Ok(Some(guard)) => {
                tokio::time::sleep(chance.between(Duration::ZERO, Duration::from_millis(10))).await;
                guard.release().await.is_ok()
            }
            Ok(None) | Err(_) => false,
        };
        (if held { &counts.acquired } else { &counts.failed }).fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(chance.between(orders.pause / 2, orders.pause * 3 / 2)).await;
    }
}
