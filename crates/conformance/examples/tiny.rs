//! A backend in a hundred lines, and how the laws are checked on it.
//!
//! It keeps the ledger of the contract behind a mutex and lets its callers poll. `cargo run --example tiny`
//! checks it law by law; in a test crate one line does: `leasehold_conformance::suite!(Tiny::default());`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{Outcome, SteadyClock, Subject, laws};
use leasehold_core::{
    Ask, Backend, Claim, ClaimInfo, Clock, Durability, Effect, Entry, Failure, FailureKind, FenceGrade,
    Grant, Hint, Ledger, Liveness, LockSupport, Moment, Patience, Profile, QueueOrder, Release, Renew,
    Renewal, Resource, ResourceSummary, Snapshot, SnapshotVersion, Step, Verdict, Wait,
};

/// A store, and at the same time every connection to it. Queues stay when they are empty, for their fences.
#[derive(Clone, Debug, Default)]
pub struct Tiny(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    profile: Profile,
    clock: SteadyClock,
    queues: Mutex<BTreeMap<Resource, Ledger>>,
}

/// All that the suite needs.
#[async_trait]
impl Subject for Tiny {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Backend for Tiny {
    fn profile(&self) -> &Profile {
        &self.0.profile
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        if claim.ttl > MAX_TTL {
            let detail = format!("{:?} is too long: ask for {MAX_TTL:?} at most", claim.ttl);
            return Err(Failure::new(FailureKind::Invalid, Effect::None, detail));
        }
        let (asked_at, patient) = (patience.now(), !patience.is_ended());
        let wait = if patient { Wait::Queued(PLACE) } else { Wait::No };
        let (share, note) = (claim.share, claim.note.clone());
        let ask = Ask { id: claim.id, share, lease: claim.ttl, wait, note };
        let now = self.0.clock.now();
        match self.queues().entry(claim.resource.clone()).or_default().contend(&ask, now) {
            Verdict::Granted(fence) => Ok(Step::Granted(Grant::new(asked_at).fence(Some(fence)))),
            Verdict::Busy { ahead, .. } => {
                Ok(Step::Busy(Hint { ask_again_in: patient.then_some(POLL), ahead: Some(ahead) }))
            }
            Verdict::Full => Err(Failure::unavailable("too many wait for it: try again later")),
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let (mut queues, now) = (self.queues(), self.0.clock.now());
        let mut renew = |claim: &Claim| {
            let queue = queues.get_mut(&claim.resource);
            let renewed = queue.is_some_and(|queue| queue.renew(claim.id, claim.ttl, now));
            if renewed { Renewal::Renewed } else { Renewal::Lost }
        };
        batch.iter().map(|renewed| renew(renewed.claim)).collect()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let (mut queues, now) = (self.queues(), self.0.clock.now());
        let mut release = |claim: &Claim| {
            let queue = queues.get_mut(&claim.resource);
            let freed = queue.is_some_and(|queue| queue.release(claim.id, now));
            if freed { Release::Freed } else { Release::Gone }
        };
        batch.iter().map(|claim| release(claim)).collect()
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        loop {
            let snapshot = self.look(resource);
            if patience.is_ended() || seen.is_none_or(|seen| *seen != snapshot.version) {
                return Ok(snapshot);
            }
            tokio::time::sleep(POLL.min(patience.left())).await;
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let names: Vec<Resource> = self.queues().keys().cloned().collect();
        let asked =
            |name: &Resource| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
        let summary = |resource: Resource| {
            let Snapshot { holders, waiting, .. } = self.look(&resource);
            ResourceSummary::new(resource, holders.len() as u32, waiting.len() as u32)
        };
        let found = names.into_iter().filter(asked).map(summary);
        Ok(found.filter(|summary| summary.holders + summary.waiting > 0).take(limit).collect())
    }
}

impl Tiny {
    fn queues(&self) -> MutexGuard<'_, BTreeMap<Resource, Ledger>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, resource: &Resource) -> Snapshot {
        let (mut queues, now) = (self.queues(), self.0.clock.now());
        let mut none = Ledger::default();
        let queue = queues.get_mut(resource).unwrap_or(&mut none);
        queue.expire(now);
        let state: Vec<_> = queue.entries().iter().map(|entry| (entry.id, entry.granted)).collect();
        let info = |entry: &Entry| {
            ClaimInfo::new(entry.id, entry.share)
                .fence(entry.granted)
                .remaining((entry.until != Moment::NEVER).then(|| now.until(entry.until)))
                .note(entry.note.clone())
        };
        let (holders, waiting): (Vec<_>, Vec<_>) =
            queue.entries().iter().map(info).partition(|one| one.fence.is_some());
        let (fence, version) =
            (queue.last_fence(), SnapshotVersion::new(format!("{:?} {state:?}", queue.last_fence())));
        Snapshot::new(resource.clone(), version).holders(holders).waiting(waiting).fence(Some(fence))
    }
}

impl Default for Shared {
    fn default() -> Self {
        let profile = Profile::new("tiny", Liveness::Lease { min: Duration::from_millis(100), max: MAX_TTL })
            .admission(LockSupport::Counted)
            .order(QueueOrder::Fifo)
            .fencing(FenceGrade::Strict)
            .durability(Durability::Strict)
            .place_ttl(PLACE)
            .renew_batch_max(100)
            .note_max(leasehold_core::Note::MAX_BYTES);
        Shared { profile, clock: SteadyClock::new(), queues: Mutex::default() }
    }
}

const MAX_TTL: Duration = Duration::from_secs(3600);
const PLACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// Prints the outcome of each law.
#[allow(dead_code, reason = "the tests of this crate include the backend alone")]
fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tiny = Tiny::default();
    let mut broken = 0;
    for law in laws() {
        let outcome = match runtime.block_on(law.check(&tiny)) {
            Outcome::Kept => "kept".to_owned(),
            Outcome::OptedOut(reason) => format!("not promised: {reason}"),
            Outcome::Absent => "nothing to check".to_owned(),
            Outcome::Broken(why) => {
                broken += 1;
                format!("BROKEN: {why}")
            }
        };
        println!("{:70} {outcome}", law.name);
    }
    if broken == 0 { Ok(()) } else { Err(std::io::Error::other(format!("{broken} laws are broken"))) }
}
