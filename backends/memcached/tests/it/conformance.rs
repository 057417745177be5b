//! The backend before all laws: the plain dialect on one server, the native one on three, or on as many as
//! `LEASEHOLD_MEMCACHED_SERVERS` says. The laws of one subject share its servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::SystemClock;
use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_memcached::MemcachedConfig;
use leasehold_testkit::MemcachedServer;

type Servers = Arc<Vec<MemcachedServer>>;

/// The servers of each subject, and how many laws have not been checked yet: the last one ends them.
static SHARED: Mutex<Option<HashMap<Kind, (Servers, usize)>>> = Mutex::new(None);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    servers: usize,
    dialect: &'static str,
}

struct Shared(Kind);

impl Shared {
    fn servers(&self) -> Option<Servers> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.get_or_insert_default();
        if let Some((servers, _)) = shared.get(&self.0) {
            return Some(servers.clone());
        }
        // In a thread of its own, since this one may run a runtime already.
        let count = self.0.servers;
        let started = std::thread::scope(|scope| {
            let start = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut servers = Vec::new();
                    for _ in 0..count {
                        servers.push(MemcachedServer::start().await?);
                    }
                    Ok(servers)
                })
            };
            scope.spawn(start).join().unwrap()
        });
        let servers = Arc::new(leasehold_testkit::require::or_skip("memcached", started)?);
        shared.insert(self.0, (servers.clone(), leasehold_conformance::laws().len()));
        Some(servers)
    }

    fn url(&self) -> Option<String> {
        let servers = self.servers()?;
        let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
        Some(format!("memcached://{}?dialect={}", hosts.join(","), self.0.dialect))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = shared.as_mut() else { return };
        if let Some((_, left)) = shared.get_mut(&self.0) {
            *left -= 1;
            if *left == 0 {
                shared.remove(&self.0);
            }
        }
    }
}

fn servers(otherwise: usize) -> usize {
    std::env::var("LEASEHOLD_MEMCACHED_SERVERS").map_or(otherwise, |servers| servers.parse().unwrap())
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_memcached::connect(MemcachedConfig::parse(url)?, Arc::new(SystemClock)).await
}

#[async_trait::async_trait]
impl Subject for Shared {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url()?;
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("conformance::taker", self.url()?).unwrap())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn writes(&self) -> fn(&str) -> bool {
        if self.0.dialect == "native" {
            return |_| true;
        }
        |name| name.len() <= 245 && name.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

mod native {
    use super::*;
    leasehold_conformance::suite!(Shared(Kind { servers: servers(3), dialect: "native" }));
}

mod plain {
    use super::*;
    leasehold_conformance::suite!(Shared(Kind { servers: 1, dialect: "plain" }));
}
