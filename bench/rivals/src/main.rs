//! Crates without a database: `leasehold-bench-rivals KIND AT TASKS LOCKS`, see `bench/peer`.
//!
//! Settings are those of each library, but that none gives up waiting.

#![forbid(unsafe_code)]

use std::time::Duration;

use distributed_lock_core::prelude::*;
use distributed_lock_file::{FileDistributedLock, FileLockHandle, FileLockProvider};
use leasehold_bench_peer::{Arguments, Contestant, Outcome, locked_version, serve};
use rslock::{Lock, LockManager};

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments = Arguments::read()?;
    match arguments.kind.as_str() {
        "rslock" => {
            let mut manager = LockManager::new(arguments.at.split(',').collect());
            manager.set_retry(u32::MAX, RETRY_DELAY);
            let names = (0..arguments.tasks).map(|task| arguments.name_of(task)).collect();
            serve(Rslock { manager, names }, &arguments, locked_version(LOCKED, "rslock")).await
        }
        "distributed-lock" => {
            let provider = FileLockProvider::new(&arguments.at)?;
            let lock = |task| provider.create_lock(&arguments.name_of(task));
            let locks = Files((0..arguments.tasks).map(lock).collect());
            serve(locks, &arguments, locked_version(LOCKED, "distributed-lock-file")).await
        }
        unknown => Err(format!("no rival is called {unknown}").into()),
    }
}

const LOCKED: &str = include_str!("../Cargo.lock");
const TTL: Duration = Duration::from_secs(30);
/// The library's own; a task pauses for a part of it that is drawn by chance.
const RETRY_DELAY: Duration = Duration::from_millis(200);

struct Rslock {
    manager: LockManager,
    names: Vec<String>,
}

impl Contestant for Rslock {
    type Held = Lock;

    async fn lock(&self, task: usize) -> Outcome<Lock> {
        Ok(self.manager.lock(self.names[task].as_str(), TTL).await?)
    }

    async fn unlock(&self, _: usize, held: Lock) -> Outcome<()> {
        self.manager.unlock(&held).await;
        Ok(())
    }
}

/// The crate distributed-lock on files.
struct Files(Vec<FileDistributedLock>);

impl Contestant for Files {
    type Held = FileLockHandle;

    async fn lock(&self, task: usize) -> Outcome<FileLockHandle> {
        Ok(self.0[task].acquire(None).await?)
    }

    async fn unlock(&self, _: usize, held: FileLockHandle) -> Outcome<()> {
        Ok(held.release().await?)
    }
}
