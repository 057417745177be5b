//! The use of each kind of store by its URL: to open it, to make its tables, and to sweep it.
//!
//! Ground rules: a kind of store is one value here, and one row of the table in `schemes.rs`. The URL has one
//! of the schemes of that row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Backend, Effect, Failure, FailureKind};

use super::SweepReport;
#[cfg(any(feature = "memcached", feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::clock::SystemClock;
#[cfg(feature = "redis")]
use crate::layer::{Dual, Quorum, QuorumConfig};
use crate::local::{FileBackend, FileConfig, MemoryBackend};

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
        Ok(memory(name))
    }
}

/// Returns the memory of this name, which all clients of the process that are open at the same time share.
fn memory(name: &str) -> Arc<dyn Backend> {
    static NAMED: Mutex<Option<HashMap<String, Weak<MemoryBackend>>>> = Mutex::new(None);
    if name.is_empty() {
        return Arc::new(MemoryBackend::new());
    }
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let named = named.get_or_insert_default();
    named.retain(|_, memory| memory.strong_count() > 0);
    if let Some(memory) = named.get(name).and_then(Weak::upgrade) {
        return memory;
    }
    let memory = Arc::new(MemoryBackend::new());
    named.insert(name.to_owned(), Arc::downgrade(&memory));
    memory
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
