//! The laws of the seam, in a database file: in order and unordered, within a process and between processes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_sqlite::SqliteConfig;
use tempfile::TempDir;

struct Sqlite {
    directory: TempDir,
    options: &'static str,
}

impl Sqlite {
    fn with(options: &'static str) -> Sqlite {
        Sqlite { directory: directory_in_memory(), options }
    }

    fn url(&self) -> String {
        format!("sqlite:{}/locks.db{}", self.directory.path().display(), self.options)
    }
}

/// Returns a directory whose files need no disk, where there is one: a shared disk sometimes takes a second to
/// sync, which is longer than the leases here.
fn directory_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_sqlite::connect(SqliteConfig::parse(url)?, Arc::new(SteadyClock::new())).await
}

#[async_trait]
impl Subject for Sqlite {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(connect(&self.url()).await.unwrap())
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("taker", self.url()).unwrap())
    }
}

mod fifo {
    use super::*;
    leasehold_conformance::suite!(Sqlite::with(""));
}

mod unordered {
    use super::*;
    leasehold_conformance::suite!(Sqlite::with("?order=unordered&synchronous=normal&table=other"));
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}
