//! Clients that are broken on purpose, each in one way, for tests of the judgement: it has to find each of them guilty.
//!
//! Ground rules: nothing but tests starts them. Each defect is one that a real client could have.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use leasehold::backend::{
    Backend, Claim, ClaimId, Failure, Fence, Grant, Hint, Patience, Release, Renew, Renewal, Share, Step,
};
use leasehold::{Client, Clock, Moment};
use leasehold_conformance::{Around, Wrapped};
use leasehold_torture::worker;

/// A defect of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Nothing: the control of the controls.
    None,
    /// A renewal that was never answered counts as one that was granted. None is even sent.
    ExtendsWithoutAnswer,
    /// The store says that the claim is lost, and the client does not believe it.
    IgnoresLoss,
    /// Each grant has a lower fence than the one before it.
    FencesFall,
    /// All grants have one fence.
    FencesRepeat,
    /// A waiter sleeps for an hour, no matter what happens.
    DropsWakeUps,
    /// A client that finds a lock taken releases it for its holder.
    ReleasesOthers,
    /// The validity is counted from long after the request.
    CountsFromLater,
    /// A release is answered without being sent.
    ForgetsReleases,
    /// Of some renewals it says that the store no longer knew the claim.
    MakesUpLosses,
    /// A release frees the lock, and the client says that the store no longer knew the claim.
    MakesUpGoneReleases,
    /// A claim that waits is not withdrawn when its caller leaves.
    StaysInQueue,
    /// A process that was killed leaves something behind with which no other one opens the store.
    StaysShut,
    /// A writer leaves room for readers.
    AdmitsReadersBesideWriters,
    /// A semaphore has room for many more than its permits.
    CountsNoPermits,
    /// After the first request without an answer, the client reaches the store no more.
    NeverComesBack,
    /// Leases are measured by the wall clock.
    MeasuresByWallClock,
}

impl Defect {
    /// Every defect, but none.
    pub const ALL: [Defect; 16] = [
        Defect::ExtendsWithoutAnswer,
        Defect::IgnoresLoss,
        Defect::FencesFall,
        Defect::FencesRepeat,
        Defect::DropsWakeUps,
        Defect::ReleasesOthers,
        Defect::CountsFromLater,
        Defect::ForgetsReleases,
        Defect::MakesUpLosses,
        Defect::MakesUpGoneReleases,
        Defect::StaysInQueue,
        Defect::StaysShut,
        Defect::AdmitsReadersBesideWriters,
        Defect::CountsNoPermits,
        Defect::NeverComesBack,
        Defect::MeasuresByWallClock,
    ];

    /// Returns the defect of this name.
    pub fn named(name: &str) -> Option<Defect> {
        Defect::ALL.into_iter().chain([Defect::None]).find(|defect| defect.to_string() == name)
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

static DEFECT: OnceLock<Defect> = OnceLock::new();
/// `true` once a request of a client that never comes back had no answer.
static IS_AWAY: AtomicBool = AtomicBool::new(false);
/// The batches of renewals so far.
static RENEWALS: AtomicU64 = AtomicU64::new(1);
/// The room of a semaphore that counts no permits.
const ROOM: u32 = 1_000;
/// One of so many is said to be lost.
const LOST_OF: u64 = 4;

/// Runs a worker whose client has a defect.
pub fn work(name: &str) -> ExitCode {
    let Some(defect) = Defect::named(name) else {
        eprintln!("unknown defect {name:?}");
        return ExitCode::from(2);
    };
    let _ = DEFECT.set(defect);
    worker::run_with(|url, builder| {
        Box::pin(async move {
            let defect = DEFECT.get().copied().unwrap_or(Defect::None);
            let is_shut = defect == Defect::StaysShut && was_killed_before(url);
            let client = Client::open(if is_shut { "nothing:" } else { url }).await?;
            let inner = client.backend().clone();
            let broken = Broken { inner, defect, waiting: Mutex::default(), _client: client };
            let builder = match defect {
                Defect::MeasuresByWallClock => builder.clock(Arc::new(WallClock)),
                _ => builder,
            };
            builder.over(Arc::new(Wrapped(broken)))
        })
    })
}

/// The clock that anybody may set.
#[derive(Debug)]
struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Moment {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment::START.after(since)
    }
}

/// Returns `true` if a process that opened this database before lives no more. Each leaves a file beside it.
fn was_killed_before(url: &str) -> bool {
    let opened = Path::new(url.trim_start_matches("sqlite:")).with_extension("opened");
    let id = std::process::id().to_string();
    let left = std::fs::create_dir_all(&opened).and_then(|()| std::fs::write(opened.join(id), ""));
    let others = left.and_then(|()| std::fs::read_dir(&opened)).into_iter().flatten().flatten();
    others.map(|other| Path::new("/proc").join(other.file_name())).any(|process| !process.exists())
}

/// A backend around a backend, with a defect.
#[derive(Debug)]
struct Broken {
    inner: Arc<dyn Backend>,
    defect: Defect,
    /// The claims that wait.
    waiting: Mutex<HashSet<ClaimId>>,
    /// Its engine does nothing, and lives as long.
    _client: Client,
}

impl Broken {
    fn waiting(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn falsified(&self, mut grant: Grant) -> Grant {
        let Some(fence) = grant.fence else { return grant };
        grant.fence = match self.defect {
            Defect::FencesFall => Some(Fence { epoch: fence.epoch, seq: u64::MAX - fence.seq, sub: 0 }),
            Defect::FencesRepeat => Some(Fence { epoch: 1, seq: 1, sub: 0 }),
            _ => Some(fence),
        };
        if self.defect == Defect::CountsFromLater {
            grant.asked_at = grant.asked_at.after(Duration::from_secs(60));
        }
        grant
    }

    /// Returns the claim as it is sent.
    fn sent(&self, claim: &Claim) -> Claim {
        let share = match (self.defect, claim.share) {
            // Two of them have no room beside each other.
            (Defect::AdmitsReadersBesideWriters, Share::WRITER) => Share::permits(u32::MAX / 2 + 1, u32::MAX),
            (Defect::CountsNoPermits, share) if share != Share::MUTEX && share.capacity() < ROOM => {
                Share::permits(share.weight(), ROOM)
            }
            (_, share) => Ok(share),
        };
        claim.clone().share(share.unwrap_or(claim.share))
    }

    /// Ends the claims of the holders of what this claim waits for.
    async fn end_others(&self, claim: &Claim, patience: &Patience) {
        let Ok(seen) = self.inner.inspect(&claim.resource, None, patience).await else { return };
        for holder in seen.holders {
            let other = claim.clone().id(holder.id);
            let _ = self.inner.release(&[&other]).await;
        }
    }
}

#[async_trait]
impl Around for Broken {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        if self.defect == Defect::NeverComesBack && IS_AWAY.load(Ordering::Relaxed) {
            return Err(Failure::unavailable("the connection has ended, and nobody opens another one"));
        }
        let claim = &self.sent(claim);
        // A backend that waits by itself would hear what wakes it.
        let deaf = Patience::none(patience.clock().clone());
        let patience = if self.defect == Defect::DropsWakeUps { &deaf } else { patience };
        let step = self.inner.contend(claim, patience).await;
        if step.as_ref().is_err_and(Failure::is_transient) {
            IS_AWAY.store(true, Ordering::Relaxed);
        }
        match step? {
            Step::Granted(grant) => {
                self.waiting().remove(&claim.id);
                Ok(Step::Granted(self.falsified(grant)))
            }
            Step::Busy(hint) => {
                self.waiting().insert(claim.id);
                if self.defect == Defect::ReleasesOthers {
                    self.end_others(claim, patience).await;
                }
                let hour = Some(Duration::from_secs(3_600));
                let deaf = Hint { ask_again_in: hour, ..hint };
                Ok(Step::Busy(if self.defect == Defect::DropsWakeUps { deaf } else { hint }))
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        match self.defect {
            Defect::ExtendsWithoutAnswer => batch.iter().map(|_| Renewal::Renewed).collect(),
            Defect::IgnoresLoss => {
                let answers = self.inner.renew(batch).await;
                let deaf = |answer| if matches!(answer, Renewal::Lost) { Renewal::Renewed } else { answer };
                answers.into_iter().map(deaf).collect()
            }
            Defect::MakesUpLosses if RENEWALS.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOST_OF) => {
                batch.iter().map(|_| Renewal::Lost).collect()
            }
            _ => self.inner.renew(batch).await,
        }
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        match self.defect {
            Defect::ForgetsReleases => batch.iter().map(|_| Release::Freed).collect(),
            Defect::MakesUpGoneReleases => {
                let answers = self.inner.release(batch).await;
                let deny = |answer| if matches!(answer, Release::Freed) { Release::Gone } else { answer };
                answers.into_iter().map(deny).collect()
            }
            Defect::StaysInQueue => {
                let is_waiting: Vec<bool> =
                    batch.iter().map(|claim| self.waiting().remove(&claim.id)).collect();
                let held = batch.iter().copied().zip(&is_waiting).filter(|(_, waits)| !**waits);
                let held: Vec<&Claim> = held.map(|(claim, _)| claim).collect();
                let mut answers = self.inner.release(&held).await.into_iter();
                let mut answer = |waits| if waits { None } else { answers.next() }.unwrap_or(Release::Freed);
                is_waiting.into_iter().map(&mut answer).collect()
            }
            _ => self.inner.release(batch).await,
        }
    }
}
