//! Each method before all laws, on one server that all share: directly, and through poolers.
//!
//! A run takes what differs most: each method directly, and rows through a pooler that shares sessions.
//! `LEASEHOLD_POSTGRES=all` takes every way.
//!
//! Ground rules: a machine that runs other tests beside these may not answer for a second or two.
//! Connections that hold locks are given up after a silence that no such machine reaches, since most
//! laws hold a lock for as long as they run.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_postgres::PostgresConfig;
use leasehold_testkit::{Error, PgBouncer, PoolMode, PostgresServer, require};

/// The poolers between the backend and the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Sessions,
    Transactions,
    ManyTransactions,
}

/// When a way is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    IfAllAreAskedFor,
}

/// The one server, with its poolers.
struct Servers {
    sessions: Option<PgBouncer>,
    transactions: Option<PgBouncer>,
    /// As many sessions as there may be open transactions.
    many_transactions: Option<PgBouncer>,
    server: PostgresServer,
}

impl Servers {
    async fn start() -> Result<Servers, Error> {
        let server = PostgresServer::builder().setting("max_connections", "900").start().await?;
        let pooler = async |mode, sessions| match PgBouncer::start(&server, mode, sessions).await {
            Ok(pooler) => Ok(Some(pooler)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        };
        let sessions = pooler(PoolMode::Session, 500).await?;
        let transactions = pooler(PoolMode::Transaction, 8).await?;
        let many_transactions = pooler(PoolMode::Transaction, 300).await?;
        Ok(Servers { sessions, transactions, many_transactions, server })
    }
}

/// The servers, and the number of subjects that are alive: the last one ends them.
static SHARED: Mutex<Option<(Arc<Servers>, usize)>> = Mutex::new(None);

struct Through(When, Between, &'static str);

impl Through {
    fn servers(&self) -> Option<Arc<Servers>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_none() {
            // In a thread of its own, since this one may run a runtime already.
            let started = std::thread::scope(|scope| {
                let start = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(Servers::start())
                };
                scope.spawn(start).join().unwrap()
            });
            let servers = require::or_skip("postgres", started)?;
            *shared = Some((Arc::new(servers), suites() * leasehold_conformance::laws().len()));
        }
        shared.as_ref().map(|(servers, _)| servers.clone())
    }

    fn url(&self) -> Option<String> {
        let Through(when, between, options) = self;
        if *when == When::IfAllAreAskedFor && std::env::var("LEASEHOLD_POSTGRES").as_deref() != Ok("all") {
            return None;
        }
        let servers = self.servers()?;
        let pooler = match between {
            Between::Nothing => return Some(format!("{}?{options}", servers.server.url())),
            Between::Sessions => &servers.sessions,
            Between::Transactions => &servers.transactions,
            Between::ManyTransactions => &servers.many_transactions,
        };
        let Some(pooler) = pooler else {
            require::skip("pgbouncer", "pgbouncer is not installed (apt-get install pgbouncer)");
            return None;
        };
        Some(format!("{}?{options}", servers.server.url_at(pooler.addr())))
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, left)) = shared.as_mut() {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *shared = None;
            }
        }
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_postgres::connect(PostgresConfig::parse(url)?, Arc::new(SteadyClock::new())).await
}

#[async_trait::async_trait]
impl Subject for Through {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url()?;
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("conformance::taker", self.url()?).unwrap())
    }
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

/// Suites that are compiled in.
fn suites() -> usize {
    9
}

mod row {
    use super::*;
    leasehold_conformance::suite!(Through(When::Always, Between::Nothing, "table=direct"));
}

mod row_through_shared_sessions {
    use super::*;
    leasehold_conformance::suite!(Through(When::Always, Between::Transactions, "table=pooled"));
}

mod row_through_kept_sessions {
    use super::*;
    leasehold_conformance::suite!(Through(When::IfAllAreAskedFor, Between::Sessions, "table=kept"));
}

mod advisory {
    use super::*;
    const OPTIONS: &str = "table=advisory&method=advisory&silence=10s";
    leasehold_conformance::suite!(Through(When::Always, Between::Nothing, OPTIONS));
}

mod advisory_through_kept_sessions {
    use super::*;
    const OPTIONS: &str = "table=advisory_kept&method=advisory&silence=10s";
    leasehold_conformance::suite!(Through(When::IfAllAreAskedFor, Between::Sessions, OPTIONS));
}

mod for_update {
    use super::*;
    const OPTIONS: &str = "table=locked&method=for-update&silence=10s&transactions=300";
    leasehold_conformance::suite!(Through(When::Always, Between::Nothing, OPTIONS));
}

mod for_update_through_kept_sessions {
    use super::*;
    const OPTIONS: &str = "table=locked_kept&method=for-update&silence=10s&transactions=300";
    leasehold_conformance::suite!(Through(When::IfAllAreAskedFor, Between::Sessions, OPTIONS));
}

mod for_update_through_shared_sessions {
    use super::*;
    const OPTIONS: &str = "table=locked_pooled&method=for-update&silence=10s&transactions=300";
    leasehold_conformance::suite!(Through(When::IfAllAreAskedFor, Between::ManyTransactions, OPTIONS));
}

mod shedlock {
    use super::*;
    leasehold_conformance::suite!(Through(When::Always, Between::Nothing, "dialect=shedlock"));
}
