//! The backend before all laws: on one server and on an ensemble of three, and in each dialect.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_testkit::ZooKeeperEnsemble;
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

/// The ensembles that laws share, by their number of servers.
static RUNNING: [Mutex<Shared>; 4] = [const { Mutex::new(Shared { checked: 0, ensemble: None }) }; 4];
/// By how many suites.
const SUITES: [usize; 4] = [0, 4, 0, 1];

struct Shared {
    /// The number of laws that have been checked: the last one ends the ensemble.
    checked: usize,
    ensemble: Option<Arc<ZooKeeperEnsemble>>,
}

struct ZooKeeper {
    servers: usize,
    options: &'static str,
}

impl ZooKeeper {
    fn of(servers: usize, options: &'static str) -> ZooKeeper {
        ZooKeeper { servers, options }
    }

    fn url(&self) -> Option<String> {
        let mut shared = shared(self.servers);
        if shared.ensemble.is_none() {
            // In a thread of its own, since this one may run a runtime already.
            let started = std::thread::scope(|scope| {
                let start = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(ZooKeeperEnsemble::start(self.servers))
                };
                scope.spawn(start).join().unwrap()
            });
            shared.ensemble = Some(Arc::new(leasehold_testkit::require::or_skip("zookeeper", started)?));
        }
        let url = shared.ensemble.as_ref().unwrap().url();
        // Servers on a busy machine are sometimes silent for as long as a shorter session tolerates: a connection
        // ends after a sixth of it, and a write waits for two of three servers.
        let session = if self.servers > 1 { "10s" } else { "4s" };
        Some(format!("{url}/laws?session={session}{}", self.options))
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        let mut shared = shared(self.servers);
        shared.checked += 1;
        if shared.checked == SUITES[self.servers] * leasehold_conformance::laws().len() {
            shared.ensemble = None;
        }
    }
}

fn shared(servers: usize) -> std::sync::MutexGuard<'static, Shared> {
    RUNNING[servers].lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(ZooKeeperBackend::connect(ZooKeeperConfig::parse(url)?).await?))
}

#[async_trait::async_trait]
impl Subject for ZooKeeper {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url()?;
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("conformance::taker", self.url()?).unwrap())
    }

    fn writes(&self) -> fn(&str) -> bool {
        if !self.options.contains("dialect=") {
            return |_| true;
        }
        |name| !name.contains('🔒') && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
    }
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

mod one_server {
    leasehold_conformance::suite!(super::ZooKeeper::of(1, ""));
}

mod three_servers {
    leasehold_conformance::suite!(super::ZooKeeper::of(3, ""));
}

mod curator {
    leasehold_conformance::suite!(super::ZooKeeper::of(1, "&dialect=curator&prefix=curator"));
}

mod kazoo {
    leasehold_conformance::suite!(super::ZooKeeper::of(1, "&dialect=kazoo&prefix=kazoo"));
}

/// A semaphore of one lease is a mutex, and so goes through every law, waits that end at any moment
/// among them.
mod curators_leases {
    leasehold_conformance::suite!(super::ZooKeeper::of(1, "&dialect=curator&mutex=semaphore&prefix=leases"));
}
