//! Each method before all laws, on one server that all share.
//!
//! A run takes what differs most; `LEASEHOLD_MYSQL=all` takes every way.
//!
//! Ground rules: a machine that runs other tests beside these may not answer for a second or two.
//! Connections that hold locks are given up after a silence that no such machine reaches, since most
//! laws hold a lock for as long as they run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_mysql::MySqlConfig;
use leasehold_testkit::{MariaDbServer, require};

/// The servers, and the number of subjects that are alive: the last one ends them.
static SHARED: Mutex<Option<(Arc<MariaDbServer>, usize)>> = Mutex::new(None);

struct On {
    when: When,
    options: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    IfAllAreAskedFor,
}

impl On {
    fn url(&self) -> Option<String> {
        let all = std::env::var("LEASEHOLD_MYSQL").is_ok_and(|which| which == "all");
        if self.when == When::IfAllAreAskedFor && !all {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_none() {
            // In a thread of its own, since this one may run a runtime already.
            let started = std::thread::scope(|scope| {
                let start = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(MariaDbServer::builder().setting("max-connections", "900").start())
                };
                scope.spawn(start).join().unwrap()
            });
            let server = require::or_skip("mariadb", started)?;
            *shared = Some((Arc::new(server), SUITES * leasehold_conformance::laws().len()));
        }
        shared.as_ref().map(|(server, _)| format!("{}?{}", server.url(), self.options))
    }
}

impl Drop for On {
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
    leasehold_mysql::connect(MySqlConfig::parse(url)?, Arc::new(SteadyClock::new())).await
}

#[async_trait::async_trait]
impl Subject for On {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url()?;
        Some(in_the_end(|| connect(&url)).await)
    }

    /// A commit of this server may take a few tenths of a second on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
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
const SUITES: usize = 5;

mod row {
    use super::*;
    leasehold_conformance::suite!(On { when: When::Always, options: "table=direct" });
}

mod get_lock {
    use super::*;
    const OPTIONS: &str = "table=named&method=get-lock&silence=10s";
    leasehold_conformance::suite!(On { when: When::Always, options: OPTIONS });
}

mod for_update {
    use super::*;
    const OPTIONS: &str = "table=locked&method=for-update&silence=10s&transactions=300";
    leasehold_conformance::suite!(On { when: When::Always, options: OPTIONS });
}

mod tooz {
    use super::*;
    const OPTIONS: &str = "table=tooz&method=get-lock&silence=10s&dialect=tooz";
    leasehold_conformance::suite!(On { when: When::IfAllAreAskedFor, options: OPTIONS });
}

mod shedlock {
    use super::*;
    leasehold_conformance::suite!(On { when: When::Always, options: "dialect=shedlock" });
}
