//! Grants never exceed the limit in any window of the period, by the server's clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::backend::{Claim, ClaimId, Failure, Patience, Release, Step};
use leasehold::{Backend, Client, Clock, ErrorKind, Moment};
use leasehold_conformance::{Around, Wrapped};

use crate::world::on_schedules;

/// The times of the grants on the server, and the grants that were released.
#[derive(Debug)]
struct Recorded {
    store: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    grants: Mutex<HashMap<ClaimId, (Moment, u32)>>,
}

impl Recorded {
    /// Fails if more than `count` were granted in one window, of those that were not released.
    fn holds(&self, count: u32, period: Duration) -> u32 {
        let mut grants: Vec<(Moment, u32)> = self.grants.lock().unwrap().values().copied().collect();
        grants.sort_unstable();
        for (at, &(begin, _)) in grants.iter().enumerate() {
            let window = grants[at..].iter().take_while(|(when, _)| when.since(begin) < period);
            let sum: u32 = window.map(|(_, weight)| weight).sum();
            assert!(sum <= count, "{sum} in one period: {grants:?}");
        }
        grants.iter().map(|(_, weight)| weight).sum()
    }
}

#[async_trait]
impl Around for Recorded {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let step = self.store.contend(claim, patience).await?;
        if let Step::Granted(_) = step {
            let granted = (self.clock.now(), claim.share.weight());
            self.grants.lock().unwrap().entry(claim.id).or_insert(granted);
        }
        Ok(step)
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        for claim in batch {
            self.grants.lock().unwrap().remove(&claim.id);
        }
        self.store.release(batch).await
    }
}

#[test]
fn never_more_in_any_window() {
    on_schedules(|mut world| async move {
        let clock = world.clock.clone();
        let recorded = Recorded { store: world.store.clone(), clock, grants: Mutex::default() };
        let recorded = Arc::new(Wrapped(recorded));
        world.store = recorded.clone();
        let count = 1 + world.chance.below(5) as u32;
        let period = Duration::from_millis(200 + world.chance.below(800));
        let got = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..2 + world.chance.below(4))
            .map(|_| {
                let (client, mut chance, got) = (world.client(), world.chance.fork(), got.clone());
                let dies = chance.below(4) == 0;
                tokio::spawn(async move {
                    let limit = client.locks.rate_limit("mails", count, period);
                    for _ in 0..6 {
                        tokio::time::sleep(chance.ms(200)).await;
                        let weight = 1 + chance.below(u64::from(count)) as u32;
                        let granted = match chance.below(4) {
                            // The wire may refuse what is only tried once; nothing is granted then.
                            0 => limit.try_acquire_many(weight).await.unwrap_or(false),
                            1 => limit.try_acquire_many_for(weight, chance.ms(500)).await.unwrap_or(false),
                            2 => {
                                let waiting = limit.acquire_many(weight);
                                matches!(tokio::time::timeout(chance.ms(500), waiting).await, Ok(Ok(())))
                            }
                            _ => limit.acquire_many(weight).await.is_ok(),
                        };
                        got.fetch_add(u32::from(granted) * weight, Ordering::SeqCst);
                    }
                    if dies {
                        client.falls_silent();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // A grant that was not delivered is released in the background.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let granted = recorded.holds(count, period);
        let got = got.load(Ordering::SeqCst);
        assert!(granted >= got && got > 0, "{got} grants arrived, and {granted} were granted");
    });
}

/// As fast as it may be, and no faster.
#[tokio::test(start_paused = true)]
async fn the_limit_is_reached() {
    let locks = Client::builder();
    let clock = crate::world::ticks();
    let store = leasehold::local::MemoryBackend::with_clock(clock.clone());
    let locks = locks.clock(clock).over(Arc::new(store)).unwrap();
    let limit = locks.rate_limit("mails", 3, Duration::from_millis(500));
    let begun = tokio::time::Instant::now();
    for _ in 0..30 {
        limit.acquire().await.unwrap();
    }
    let took = begun.elapsed();
    assert!((Duration::from_millis(4_500)..Duration::from_millis(4_900)).contains(&took), "{took:?}");
    locks.close(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn impossible_count_or_period_is_refused() {
    let locks = Client::open("mem:").await.unwrap();
    for (count, period) in [(0, 1), (9_001, 1), (3, 0), (3, 1_000_000)] {
        let limit = locks.rate_limit("r", count, Duration::from_secs(period));
        assert_eq!(limit.try_acquire().await.unwrap_err().kind(), ErrorKind::Invalid, "{count} {period}");
    }
}
