//! Crates on databases: `leasehold-bench-rivals-sql KIND URL TASKS LOCKS`, see `bench/peer`.
//!
//! Settings are those of each library.

#![forbid(unsafe_code)]

use std::time::Duration;

use distributed_lock_core::prelude::*;
use distributed_lock_mysql::MySqlLockProvider;
use distributed_lock_postgres::PostgresLockProvider;
use leasehold_bench_peer::{Arguments, Contestant, Outcome, locked_version, serve};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgPool, PgPoolOptions};

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments = Arguments::read()?;
    let names = (0..arguments.tasks).map(|task| arguments.name_of(task));
    let scheme = arguments.at.split(':').next().unwrap_or_default();
    match (arguments.kind.as_str(), scheme) {
        ("sqlx", _) => {
            let connections = u32::try_from(arguments.tasks)?;
            let pool = PgPoolOptions::new().max_connections(connections).connect(&arguments.at).await?;
            let locks = Sqlx { pool, locks: names.map(PgAdvisoryLock::new).collect() };
            serve(locks, &arguments, locked_version(LOCKED, "sqlx")).await
        }
        ("distributed-lock", "mysql") => {
            let provider = MySqlLockProvider::new(arguments.at.as_str()).await?;
            let locks = names.map(|name| provider.create_lock(&name)).collect();
            let locks = Provided { locks, limit: Some(MARIADB_LIMIT) };
            serve(locks, &arguments, locked_version(LOCKED, "distributed-lock-mysql")).await
        }
        ("distributed-lock", _) => {
            let provider = PostgresLockProvider::new(arguments.at.as_str()).await?;
            let locks = names.map(|name| provider.create_lock(&name)).collect();
            let locks = Provided { locks, limit: None };
            serve(locks, &arguments, locked_version(LOCKED, "distributed-lock-postgres")).await
        }
        (unknown, _) => Err(format!("no rival is called {unknown}").into()),
    }
}

/// Without a limit it asks for one below zero, which MariaDB answers with NULL.
const MARIADB_LIMIT: Duration = Duration::from_secs(60);
const LOCKED: &str = include_str!("../../Cargo.lock");

/// The crate sqlx: advisory locks on connections of its pool, one for each task.
struct Sqlx {
    pool: PgPool,
    locks: Vec<PgAdvisoryLock>,
}

impl Contestant for Sqlx {
    type Held = PoolConnection<sqlx::Postgres>;

    async fn lock(&self, task: usize) -> Outcome<Self::Held> {
        let connection = self.pool.acquire().await?;
        let guard = self.locks[task].acquire(connection).await?;
        // Released by `force_release`, since a guard borrows its lock.
        Ok(guard.leak())
    }

    async fn unlock(&self, task: usize, held: Self::Held) -> Outcome<()> {
        let (_, released) = self.locks[task].force_release(held).await?;
        if released { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}

/// The crate distributed-lock.
struct Provided<L> {
    locks: Vec<L>,
    /// The longest wait.
    limit: Option<Duration>,
}

impl<L> Contestant for Provided<L>
where
    L: DistributedLock + Send + Sync + 'static,
    L::Handle: Send + 'static,
{
    type Held = L::Handle;

    async fn lock(&self, task: usize) -> Outcome<L::Handle> {
        Ok(self.locks[task].acquire(self.limit).await?)
    }

    async fn unlock(&self, _: usize, held: L::Handle) -> Outcome<()> {
        Ok(held.release().await?)
    }
}
