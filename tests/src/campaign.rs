//! A crowd that wants one lock of an ensemble, while its servers, its network and its holders fail.
//!
//! Every contender is a client of its own. Each grant is reported to a [`Referee`], and writes to a
//! register that checks fences: a file, read and written back under the fence alone, so that an update
//! which another holder overtook would be missing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::fenced::{FencedFile, FencedFileError};
use leasehold::{Client, Fence};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{Ensemble, Referee, opened};

/// The lock that all contenders want.
pub const NAME: &str = "register";

/// A running crowd.
pub struct Campaign {
    pub ensemble: Ensemble,
    pub referee: Arc<Referee>,
    pub ttl: Duration,
    written: Arc<AtomicU64>,
    cycles: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    directory: TempDir,
}

impl Campaign {
    /// Starts the crowd, and other clients that use the store without contention.
    pub async fn start(ensemble: Ensemble, ttl: Duration) -> Campaign {
        let mut campaign = Campaign {
            ensemble,
            referee: Referee::new(),
            ttl,
            written: Arc::default(),
            cycles: Arc::default(),
            stop: Arc::default(),
            tasks: Vec::new(),
            directory: tempfile::tempdir().unwrap(),
        };
        let url = campaign.ensemble.url(ttl);
        for _ in 0..CONTENDERS {
            let contender = Contender {
                locks: opened(&url).await,
                referee: campaign.referee.clone(),
                register: campaign.register(),
                written: campaign.written.clone(),
                stop: campaign.stop.clone(),
                ttl,
            };
            campaign.tasks.push(tokio::spawn(contender.contend()));
        }
        for n in 0..OTHERS {
            let locks = opened(&url).await;
            let (stop, cycles) = (campaign.stop.clone(), campaign.cycles.clone());
            campaign.tasks.push(tokio::spawn(load(locks, format!("load/{n}"), ttl, stop, cycles)));
        }
        campaign
    }

    /// The register that checks fences.
    pub fn register(&self) -> PathBuf {
        self.directory.path().join("register")
    }

    /// One more write was acknowledged, in another process.
    pub fn written_elsewhere(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for so many grants, which must come.
    pub async fn moves_on(&self, grants: u64) {
        let before = self.referee.counts().grants;
        let began = std::time::Instant::now();
        while self.referee.counts().grants < before + grants {
            assert!(began.elapsed() < STANDSTILL, "the queue does not move: {:?}", self.referee.counts());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.referee.verdict();
    }

    /// Ends the crowd; nothing may be missing in the register. How many other locks were used meanwhile.
    pub async fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks.drain(..) {
            tokio::time::timeout(STANDSTILL, task).await.unwrap().unwrap();
        }
        self.referee.verdict();
        let value = std::fs::read_to_string(self.register()).unwrap().parse::<u64>().unwrap();
        assert_eq!(value, self.written.load(Ordering::Relaxed), "acknowledged writes are missing");
        self.cycles.load(Ordering::Relaxed)
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Contender {
    locks: Client,
    referee: Arc<Referee>,
    register: PathBuf,
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    ttl: Duration,
}

impl Contender {
    async fn contend(self) {
        let mutex = self.locks.mutex(NAME).ttl(self.ttl);
        while !self.stop.load(Ordering::Relaxed) {
            // Failures while servers are away are retried; the referee notices what must not happen.
            let Ok(Some(guard)) = mutex.try_lock_for(self.ttl * 2).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let guard = Arc::new(guard);
            self.referee.enter(&guard);
            match guard.fence().map(|fence| add_one(&self.register, fence)) {
                Some(Ok(())) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
                Some(Err(FencedFileError::Stale(_))) => self.referee.refused(&guard),
                other => panic!("{other:?}"),
            }
            // Some hold on for as long as a lease, so that faults find holders.
            let chance = getrandom::u32().unwrap();
            let hold = if chance.is_multiple_of(64) {
                self.ttl
            } else {
                Duration::from_millis(u64::from(chance >> 8) % 20)
            };
            tokio::select! {
                () = tokio::time::sleep(hold) => {}
                _ = guard.lost() => {}
            }
            self.referee.leave(&guard);
            if let Some(guard) = Arc::into_inner(guard) {
                // A loss is reported here once more, and is not a fault.
                let _ = guard.release().await;
            }
        }
        self.locks.close(Duration::from_secs(5)).await;
    }
}

/// Reads the register and writes it back, one higher, behind the fence alone.
pub fn add_one(register: &std::path::Path, fence: Fence) -> Result<(), FencedFileError> {
    let file = FencedFile::open(register, fence)?;
    let before: u64 = String::from_utf8_lossy(&file.read()?).trim().parse().unwrap_or(0);
    file.write((before + 1).to_string().as_bytes())
}

async fn load(locks: Client, name: String, ttl: Duration, stop: Arc<AtomicBool>, cycles: Arc<AtomicU64>) {
    let mutex = locks.mutex(&name).ttl(ttl);
    while !stop.load(Ordering::Relaxed) {
        match mutex.try_lock_for(ttl).await {
            Ok(Some(guard)) => {
                if guard.release().await.is_ok() {
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(None) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    locks.close(Duration::from_secs(5)).await;
}

const CONTENDERS: usize = 6;
const OTHERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than an election, and than a session of a dead client, on a machine that does other things as well.
const STANDSTILL: Duration = Duration::from_secs(60);
