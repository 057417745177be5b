//! The laws of the seam, in a database file: in order and unordered, within a process and between processes.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_sqlite::SqliteConfig;
use leasehold_testkit::Directory;

struct Sqlite {
    /// In memory: a shared disk sometimes takes longer to sync than the leases here last.
    directory: Directory,
    options: &'static str,
}

impl Sqlite {
    fn with(options: &'static str) -> Sqlite {
        Sqlite { directory: Directory::create_in_memory("sqlite").unwrap(), options }
    }

    fn url(&self) -> String {
        format!("sqlite:{}/locks.db{}", self.directory.path().display(), self.options)
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_sqlite::connect(SqliteConfig::parse(url)?, Arc::new(SteadyClock::new())).await
}

#[async_trait]
impl Subject for Sqlite {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url();
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("conformance::taker", self.url()).unwrap())
    }
}

mod fifo {
    use super::*;
    leasehold_conformance::suite!(Sqlite::with(""));
}

mod unordered {
    use super::*;
    leasehold_conformance::suite!(Sqlite::with("?order=unordered&table=other"));
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}
