//! One lock that is followed closely.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Error, Resource, Snapshot};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::history::History;
use crate::options::Options;
use crate::overview::Outage;
use crate::text::unix_ms_now;

/// A lock that is followed for as long as this, or a clone of it, lives.
#[derive(Clone, Debug)]
pub struct Followed {
    _task: Arc<FollowTask>,
    receiver: watch::Receiver<Arc<FollowedLock>>,
}

/// The state of a lock that is followed, as it was seen last, and its past holders.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowedLock {
    /// The lock.
    pub name: Resource,
    /// The time of the last look by this machine's clock, in milliseconds of the Unix epoch; `None` before the
    /// first.
    pub at_unix_ms: Option<u64>,
    /// The state that was seen last.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The claims that held it since it is followed.
    pub history: History,
    /// The reason why the state is not newer; `None` if the store has answered.
    pub outage: Option<Outage>,
}

/// The task that follows a lock, for all of its followers.
#[derive(Debug)]
pub(crate) struct FollowTask {
    receiver: watch::Receiver<Arc<FollowedLock>>,
    task: JoinHandle<()>,
}

impl Followed {
    pub(crate) fn of(task: Arc<FollowTask>) -> Followed {
        // The receiver of the task has never seen anything, and neither has its clone.
        let receiver = task.receiver.clone();
        Followed { _task: task, receiver }
    }

    /// Returns what was seen last.
    pub fn current(&self) -> Arc<FollowedLock> {
        self.receiver.borrow().clone()
    }

    /// Waits until the lock was looked at again, and returns what was seen. The first call returns what is known
    /// already, once there is anything.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Arc<FollowedLock> {
        // Without its task, which ends with the runtime only, nothing more is seen.
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.receiver.borrow_and_update().clone()
    }
}

impl FollowTask {
    pub(crate) fn start(client: &Client, name: &Resource, options: &Options) -> FollowTask {
        let lock = FollowedLock {
            name: name.clone(),
            at_unix_ms: None,
            snapshot: None,
            history: History::new(options.history),
            outage: None,
        };
        let (sender, receiver) = watch::channel(Arc::new(lock.clone()));
        let interval = options.interval.clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let follower = Follower { client: client.clone(), interval, sender, lock };
        FollowTask { receiver, task: tokio::spawn(follower.run()) }
    }
}

impl Drop for FollowTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct Follower {
    client: Client,
    interval: Duration,
    sender: watch::Sender<Arc<FollowedLock>>,
    lock: FollowedLock,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.look().await {
                Ok(snapshot) => {
                    pause = FIRST_PAUSE;
                    self.record(snapshot);
                }
                Err(error) => {
                    self.lock.outage = Some(Outage::of(&error, self.failing_since()));
                    self.publish();
                    sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Waits for another state than the last one, or for the end of the interval; reports a long silence.
    async fn look(&mut self) -> Result<Snapshot, Error> {
        let (client, name, interval) = (self.client.clone(), self.lock.name.clone(), self.interval);
        let seen = self.lock.snapshot.as_ref().map(|snapshot| snapshot.version.clone());
        let began = Instant::now();
        let mut asked = std::pin::pin!(async move {
            match seen {
                Some(seen) => client.changed(&name, &seen, interval).await,
                None => client.inspect(&name).await,
            }
        });
        loop {
            match timeout(interval + SILENCE, &mut asked).await {
                Ok(answer) => return answer,
                Err(_) => {
                    self.lock.outage = Some(Outage::silent(self.failing_since(), began.elapsed()));
                    self.publish();
                }
            }
        }
    }

    fn record(&mut self, snapshot: Snapshot) {
        let now = unix_ms_now();
        self.lock.history.record(&snapshot, self.lock.at_unix_ms, now);
        self.lock.snapshot = Some(Arc::new(snapshot));
        self.lock.at_unix_ms = Some(now);
        self.lock.outage = None;
        self.publish();
    }

    fn failing_since(&self) -> u64 {
        self.lock.outage.as_ref().map_or_else(unix_ms_now, |outage| outage.since_unix_ms)
    }

    fn publish(&self) {
        self.sender.send_replace(Arc::new(self.lock.clone()));
    }
}

const SHORTEST_LOOK: Duration = Duration::from_secs(1);
const LONGEST_LOOK: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// The time without an answer after which that is reported.
const SILENCE: Duration = Duration::from_secs(5);
