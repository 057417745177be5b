//! The backend before all laws, on an ensemble of its own that all laws share: of one server, or of as many as
//! `LEASEHOLD_ZOOKEEPER_SERVERS` says.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_testkit::ZooKeeperEnsemble;
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

/// The one ensemble, and how many laws have not been checked yet: the last one ends it.
static SHARED: Mutex<Option<(Arc<ZooKeeperEnsemble>, usize)>> = Mutex::new(None);

struct Shared;

impl Shared {
    fn server(&self) -> Option<Arc<ZooKeeperEnsemble>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_none() {
            let servers = std::env::var("LEASEHOLD_ZOOKEEPER_SERVERS");
            let servers = servers.map_or(1, |servers| servers.parse().unwrap());
            // In a thread of its own, since this one may run a runtime already.
            let started = std::thread::scope(|scope| {
                let start = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(ZooKeeperEnsemble::start(servers))
                };
                scope.spawn(start).join().unwrap()
            });
            let server = leasehold_testkit::require::or_skip("zookeeper", started)?;
            *shared = Some((Arc::new(server), leasehold_conformance::laws().len()));
        }
        shared.as_ref().map(|(server, _)| server.clone())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, left)) = shared.as_mut() {
            *left -= 1;
            if *left == 0 {
                *shared = None;
            }
        }
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(ZooKeeperBackend::connect(ZooKeeperConfig::parse(url)?).await?))
}

fn url(server: &ZooKeeperEnsemble) -> String {
    format!("{}/laws?session=2s", server.url())
}

#[async_trait::async_trait]
impl Subject for Shared {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let server = self.server()?;
        Some(connect(&url(&server)).await.unwrap())
    }

    fn taker(&self) -> Option<TakerCommand> {
        let server = self.server()?;
        Some(TakerCommand::test("taker", url(&server)).unwrap())
    }
}

#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

leasehold_conformance::suite!(Shared);
