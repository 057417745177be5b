//! Programs on a store of two parts, of which one does not answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{Around, Wrapped};
use simulated::backend::{Backend, Claim, Failure, Release, Renew, Renewal};
use simulated::local::MemoryBackend;
use simulated::{State, probe};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::{aimed, client, store};
use crate::judge::Verdict;

/// A store whose resources named `dead` do not answer renewals and releases for `patience`, and then fail.
#[derive(Debug)]
struct Parted {
    memory: Arc<MemoryBackend>,
    patience: Duration,
}

impl Parted {
    async fn ask(&self, mut about: impl Iterator<Item = &Claim>) -> Result<(), Failure> {
        if about.any(is_dead) {
            sleep(self.patience).await;
            return Err(Failure::unanswered("this part is away"));
        }
        Ok(())
    }
}

fn parted(patience: Duration) -> Arc<dyn Backend> {
    Arc::new(Wrapped(Parted { memory: store(), patience }))
}

fn is_dead(claim: &Claim) -> bool {
    claim.resource.as_str().starts_with("dead")
}

#[async_trait]
impl Around for Parted {
    fn inner(&self) -> &dyn Backend {
        &*self.memory
    }

    fn part(&self, claim: &Claim) -> u64 {
        u64::from(is_dead(claim))
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        match self.ask(batch.iter().map(|renew| renew.claim)).await {
            Ok(()) => self.memory.renew(batch).await,
            Err(failure) => Renewal::unknown_for(batch.len(), &failure),
        }
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        match self.ask(batch.iter().copied()).await {
            Ok(()) => self.memory.release(batch).await,
            Err(failure) => Release::unknown_for(batch.len(), &failure),
        }
    }
}

/// Lets releases hang in one part, and checks that they delay none in the other.
pub(crate) fn one_part_hangs_in_releases(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let locks = client(parted(dice.ms(500, 10_000)));
        for number in 0..dice.between(70, 150) {
            drop(locks.mutex(format!("dead/{number}")).lock().await.unwrap());
            yield_now().await;
        }
        for _ in 0..dice.between(1, 5) {
            let guard = locks.mutex("live").lock().await.unwrap();
            let began = Instant::now();
            let released = guard.release().await;
            if released.is_err() || began.elapsed() > PROMPT {
                return Some(format!("a release in a healthy part took {:?}: {released:?}", began.elapsed()));
            }
            sleep(dice.ms(1, 300)).await;
        }
        None
    })
}

/// Lets renewals hang in one part, and checks that they make no lease of the other suspect.
pub(crate) fn one_part_hangs_in_renewals(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let locks = client(parted(dice.ms(500, 10_000)));
        let ttl = dice.ms(1_000, 5_000);
        let mut guards = Vec::new();
        for number in 0..dice.between(2, 6) {
            let part = if number % 2 == 0 { "live" } else { "dead" };
            guards.push(locks.mutex(format!("{part}/{number}")).ttl(ttl).lock().await.unwrap());
            sleep(dice.ms(0, 5)).await;
        }
        let end = Instant::now() + ttl * 4;
        while Instant::now() < end {
            sleep(PROMPT).await;
            for guard in guards.iter().step_by(2) {
                let seen = probe::look(guard);
                if seen.marked != State::Valid {
                    return Some(format!("a lease of a healthy part is in doubt: {seen:?}"));
                }
            }
        }
        None
    })
}

/// A healthy part answers at once; timers count in milliseconds.
const PROMPT: Duration = Duration::from_millis(10);
