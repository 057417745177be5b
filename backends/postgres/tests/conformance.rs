//! Each method before all laws, on one server that all share: directly, and through poolers.
//!
//! A run takes what differs most: rows directly, called and in line; and rows through a pooler that shares sessions.
//! `LEASEHOLD_POSTGRES=all` takes every way.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_postgres::PostgresConfig;
use leasehold_testkit::{Error, PgBouncer, PoolMode, PostgresServer, require};

/// What is between the backend and the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Pooler(PoolMode),
}

/// The one server, with its poolers.
struct Servers {
    sessions: Option<PgBouncer>,
    transactions: Option<PgBouncer>,
    server: PostgresServer,
}

impl Servers {
    async fn start() -> Result<Servers, Error> {
        let server = PostgresServer::builder().start().await?;
        let pooler = async |mode, sessions| match PgBouncer::start(&server, mode, sessions).await {
            Ok(pooler) => Ok(Some(pooler)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        };
        let sessions = pooler(PoolMode::Session, 150).await?;
        let transactions = pooler(PoolMode::Transaction, 8).await?;
        Ok(Servers { sessions, transactions, server })
    }
}

/// How many subjects are alive: the last one ends the server.
static SHARED: Mutex<Option<(Arc<Servers>, usize)>> = Mutex::new(None);

struct Through {
    between: Between,
    options: &'static str,
}

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
        let servers = self.servers()?;
        let addr = match self.between {
            Between::Nothing => servers.server.addr(),
            Between::Pooler(mode) => {
                let pooler =
                    if mode == PoolMode::Session { &servers.sessions } else { &servers.transactions };
                match pooler {
                    Some(pooler) => pooler.addr(),
                    None => {
                        require::skip("pgbouncer", "pgbouncer is not installed (apt-get install pgbouncer)");
                        return None;
                    }
                }
            }
        };
        Some(format!("{}?{}", servers.server.url_at(addr), self.options))
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
        Some(connect(&self.url()?).await.unwrap())
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("taker", self.url()?).unwrap())
    }
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

/// Suites that are compiled in.
fn suites() -> usize {
    3
}

mod row {
    use super::*;
    leasehold_conformance::suite!(Through { between: Between::Nothing, options: "table=direct" });
}

mod row_through_shared_sessions {
    use super::*;
    leasehold_conformance::suite!(Through {
        between: Between::Pooler(PoolMode::Transaction),
        options: "table=pooled"
    });
}

mod shedlock {
    use super::*;
    leasehold_conformance::suite!(Through { between: Between::Nothing, options: "dialect=shedlock" });
}
