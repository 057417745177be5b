//! The use of each kind of store by its URL: to open it, to make its tables, and to sweep it.
//!
//! Ground rules: a kind of store is one value here, and one row of the table in `schemes.rs`. The URL has one
//! of the schemes of that row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Backend, Effect, Failure, FailureKind, Fence};

use super::SweepReport;
#[cfg(any(feature = "memcached", feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::clock::SystemClock;
#[cfg(feature = "redis")]
use crate::layer::{Dual, Quorum, QuorumConfig};
use crate::local::{FileBackend, FileConfig, MemoryBackend};
use crate::per_process::{CHAIN, PerProcess};

/// A kind of store.
#[async_trait]
pub(super) trait Store: Sync {
    /// Opens a backend.
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure>;

    /// Returns the statements that create the tables, and grant the rights on them.
    fn schema(&self, url: &str) -> Result<String, Failure> {
        let scheme = scheme_of(url);
        Err(unsupported(format!(
            "stores of the scheme `{scheme}:` have no tables: there is nothing to create"
        )))
    }

    /// Removes what is left of locks whose names begin with `prefix` and that were not used for this time.
    async fn sweep(
        &self,
        url: &str,
        _prefix: &str,
        _unused_for: Duration,
        _progress: Progress<'_>,
    ) -> Result<SweepReport, Failure> {
        let scheme = scheme_of(url);
        Err(unsupported(format!(
            "stores of the scheme `{scheme}:` keep no rows of ended locks: there is nothing to sweep"
        )))
    }
}

/// A function that is called with what a sweep has done so far.
pub(super) type Progress<'a> = &'a (dyn Fn(SweepReport) + Send + Sync);

/// Returns the report of a sweep of rows.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn of_rows(swept: leasehold_backend::cell::SweepReport) -> SweepReport {
    let leasehold_backend::cell::SweepReport { seen, emptied, removed } = swept;
    SweepReport { seen, emptied, removed }
}

/// Returns the part of a URL before its colon.
pub(super) fn scheme_of(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn unsupported(text: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}

pub(super) struct Memory;

#[async_trait]
impl Store for Memory {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let name = url.strip_prefix("mem:").ok_or_else(|| {
            Failure::new(FailureKind::Invalid, Effect::None, "a memory is named by mem: with its colon")
        })?;
        memory(name)
    }
}

/// The memories of one process that have a name.
#[derive(Default)]
struct NamedMemories {
    /// Those in use, and those that were in use when a memory was last opened.
    open: HashMap<String, Arc<MemoryBackend>>,
    /// The highest fence of those that were dropped: no fence of a name comes twice.
    floor: Fence,
}

impl NamedMemories {
    fn open(&mut self, name: &str) -> Arc<MemoryBackend> {
        let unused: Vec<_> = self.open.extract_if(|_, memory| Arc::strong_count(memory) == 1).collect();
        self.floor = unused.iter().map(|(_, memory)| memory.highest_fence()).fold(self.floor, Fence::max);
        let new = || Arc::new(MemoryBackend::new().above(self.floor));
        self.open.entry(name.to_owned()).or_insert_with(new).clone()
    }
}

/// Returns the memory of this name, which all clients of the process that are open at the same time share.
fn memory(name: &str) -> Result<Arc<dyn Backend>, Failure> {
    static NAMED: [PerProcess<Mutex<Option<NamedMemories>>>; CHAIN] =
        [const { PerProcess::new(Mutex::new(None)) }; CHAIN];
    if name.is_empty() {
        return Ok(Arc::new(MemoryBackend::new()));
    }
    let Some(named) = PerProcess::of_this(&NAMED) else {
        let text =
            format!("no fork of a fork, and so on, of more than {CHAIN} has a named memory: use `mem:`");
        return Err(unsupported(text));
    };
    Ok(named.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().open(name))
}

pub(super) struct Files;

#[async_trait]
impl Store for Files {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        Ok(Arc::new(FileBackend::open(FileConfig::from_url(url)?)?))
    }
}

#[cfg(feature = "redis")]
pub(super) struct Redis;

#[cfg(feature = "redis")]
#[async_trait]
impl Store for Redis {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_redis::RedisConfig::parse(url)?;
        let Some((old, new)) = config.dual() else { return leasehold_redis::connect(config).await };
        let new = leasehold_redis::connect(new).await?;
        let old = leasehold_redis::connect(old).await?;
        Ok(Arc::new(Dual::of(old, new)?))
    }

    async fn sweep(
        &self,
        url: &str,
        prefix: &str,
        unused_for: Duration,
        progress: Progress<'_>,
    ) -> Result<SweepReport, Failure> {
        let config = leasehold_redis::RedisConfig::parse(url)?;
        let report = |swept| {
            let leasehold_redis::SweepReport { seen, removed } = swept;
            SweepReport { seen, emptied: 0, removed }
        };
        let step = |swept| progress(report(swept));
        Ok(report(leasehold_redis::sweep_under(config, prefix, unused_for, step).await?))
    }
}

#[cfg(feature = "redis")]
pub(super) struct Redlock;

#[cfg(feature = "redis")]
#[async_trait]
impl Store for Redlock {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_redis::RedlockConfig::parse(url)?;
        config.warn_of_exposed_password();
        let terms = QuorumConfig::new(config.min_ttl(), config.max_ttl());
        Ok(Arc::new(Quorum::over("redlock", config.members(), terms).await?))
    }

    async fn sweep(&self, _: &str, _: &str, _: Duration, _: Progress<'_>) -> Result<SweepReport, Failure> {
        Err(unsupported(
            "each member of a redlock keeps its part of every fence for good: nothing can be swept",
        ))
    }
}

#[cfg(feature = "etcd")]
pub(super) struct Etcd;

#[cfg(feature = "etcd")]
#[async_trait]
impl Store for Etcd {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_etcd::EtcdConfig::parse(url)?;
        Ok(Arc::new(leasehold_etcd::EtcdBackend::connect(config).await?))
    }
}

#[cfg(feature = "memcached")]
pub(super) struct Memcached;

#[cfg(feature = "memcached")]
#[async_trait]
impl Store for Memcached {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_memcached::MemcachedConfig::parse(url)?;
        leasehold_memcached::connect(config, Arc::new(SystemClock)).await
    }
}

#[cfg(feature = "zookeeper")]
pub(super) struct ZooKeeper;

#[cfg(feature = "zookeeper")]
#[async_trait]
impl Store for ZooKeeper {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_zookeeper::ZooKeeperConfig::parse(url)?;
        Ok(Arc::new(leasehold_zookeeper::ZooKeeperBackend::connect(config).await?))
    }
}

#[cfg(feature = "sqlite")]
pub(super) struct Sqlite;

#[cfg(feature = "sqlite")]
#[async_trait]
impl Store for Sqlite {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_sqlite::SqliteConfig::parse(url)?;
        leasehold_sqlite::connect(config, Arc::new(SystemClock)).await
    }

    fn schema(&self, url: &str) -> Result<String, Failure> {
        Ok(leasehold_sqlite::schema(&leasehold_sqlite::SqliteConfig::parse(url)?))
    }

    async fn sweep(
        &self,
        url: &str,
        prefix: &str,
        unused_for: Duration,
        progress: Progress<'_>,
    ) -> Result<SweepReport, Failure> {
        let config = leasehold_sqlite::SqliteConfig::parse(url)?;
        let (clock, step) = (Arc::new(SystemClock), |swept| progress(of_rows(swept)));
        Ok(of_rows(leasehold_sqlite::sweep_under(config, clock, prefix, unused_for, step).await?))
    }
}

#[cfg(feature = "postgres")]
pub(super) struct Postgres;

#[cfg(feature = "postgres")]
#[async_trait]
impl Store for Postgres {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_postgres::PostgresConfig::parse(url)?;
        leasehold_postgres::connect(config, Arc::new(SystemClock)).await
    }

    fn schema(&self, url: &str) -> Result<String, Failure> {
        let config = leasehold_postgres::PostgresConfig::parse(url)?;
        Ok(leasehold_postgres::schema(&config) + &leasehold_postgres::grants(&config))
    }

    async fn sweep(
        &self,
        url: &str,
        prefix: &str,
        unused_for: Duration,
        progress: Progress<'_>,
    ) -> Result<SweepReport, Failure> {
        let config = leasehold_postgres::PostgresConfig::parse(url)?;
        let (clock, step) = (Arc::new(SystemClock), |swept| progress(of_rows(swept)));
        Ok(of_rows(leasehold_postgres::sweep_under(config, clock, prefix, unused_for, step).await?))
    }
}

#[cfg(feature = "mysql")]
pub(super) struct MySql;

#[cfg(feature = "mysql")]
#[async_trait]
impl Store for MySql {
    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>, Failure> {
        let config = leasehold_mysql::MySqlConfig::parse(url)?;
        leasehold_mysql::connect(config, Arc::new(SystemClock)).await
    }

    fn schema(&self, url: &str) -> Result<String, Failure> {
        let config = leasehold_mysql::MySqlConfig::parse(url)?;
        Ok(leasehold_mysql::schema(&config) + &leasehold_mysql::grants(&config))
    }

    async fn sweep(
        &self,
        url: &str,
        prefix: &str,
        unused_for: Duration,
        progress: Progress<'_>,
    ) -> Result<SweepReport, Failure> {
        let config = leasehold_mysql::MySqlConfig::parse(url)?;
        let (clock, step) = (Arc::new(SystemClock), |swept| progress(of_rows(swept)));
        Ok(of_rows(leasehold_mysql::sweep_under(config, clock, prefix, unused_for, step).await?))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Claim, ClaimId, Patience, Resource, Share, Step};

    use super::*;

    async fn fence_in(store: &Arc<dyn Backend>, number: u8) -> Fence {
        let id = ClaimId::from_bytes([number; 16]);
        let claim = Claim::new(id, Resource::new("job").unwrap(), Share::MUTEX, Duration::from_secs(30));
        let once = Patience::none(Arc::new(crate::clock::SystemClock));
        let Step::Granted(grant) = store.contend(&claim, &once).await.unwrap() else { panic!("it is free") };
        store.release(&[&claim]).await;
        grant.fence.unwrap()
    }

    #[tokio::test]
    async fn fences_of_a_named_memory_rise_when_it_is_opened_again() {
        let mut last = Fence::default();
        for number in 0..4 {
            let store = memory("opened again").unwrap();
            let shared = memory("opened again").unwrap();
            for store in [&store, &shared, &store] {
                let fence = fence_in(store, number).await;
                assert!(fence > last, "{fence} after {last}");
                last = fence;
            }
            // Another name does not need the floor, and may have it.
            fence_in(&memory("another").unwrap(), number).await;
        }
    }
}
