//! The laws of the seam, on a primary with two replicas that three Sentinels watch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::calls::in_the_end;
use leasehold_conformance::{Subject, TakerCommand};
use leasehold_core::{Backend, Failure};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::RedisSentinel;

/// The group that all laws share.
static RUNNING: Mutex<Shared> = Mutex::new(Shared { checked: 0, group: None });
/// By how many suites.
const SUITES: usize = 2;

struct Shared {
    /// The number of laws that have been checked: the last one ends the group.
    checked: usize,
    group: Option<RedisSentinel>,
}

struct Elected(&'static str);

impl Elected {
    fn url(&self) -> Option<String> {
        let mut shared = shared();
        if shared.group.is_none() {
            // In a thread of its own, since this one may run a runtime already.
            let started = std::thread::scope(|scope| {
                let start = || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    // The laws are about one primary; a busy machine must not make it another.
                    let builder = RedisSentinel::builder().down_after(Duration::from_secs(60));
                    runtime.block_on(builder.start())
                };
                scope.spawn(start).join().unwrap()
            });
            shared.group = Some(leasehold_testkit::require::or_skip("redis", started)?);
        }
        let url = shared.group.as_ref().unwrap().url();
        Some(format!("{url}{}", self.0))
    }
}

impl Drop for Elected {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.checked += 1;
        if shared.checked == SUITES * leasehold_conformance::laws().len() {
            shared.group = None;
        }
    }
}

fn shared() -> MutexGuard<'static, Shared> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(RedisBackend::connect(RedisConfig::parse(url)?).await?))
}

#[async_trait]
impl Subject for Elected {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let url = self.url()?;
        Some(in_the_end(|| connect(&url)).await)
    }

    fn taker(&self) -> Option<TakerCommand> {
        Some(TakerCommand::test("conformance_sentinel::taker", self.url()?).unwrap())
    }
}

/// Plays the part of another process, where the suite asks for one.
#[test]
fn taker() {
    leasehold_conformance::taker::serve_if_asked(async |url| connect(url).await);
}

mod alone {
    leasehold_conformance::suite!(super::Elected(""));
}

mod confirmed_by_a_replica {
    leasehold_conformance::suite!(super::Elected("?replicas=1"));
}
