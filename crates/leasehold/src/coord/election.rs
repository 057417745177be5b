//! Leader election: one candidate leads, and all can see which one.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{Stream, unfold};
use leasehold_core::{Fence, LossCause, Moment, Note, Snapshot, SnapshotVersion};
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;

use crate::engine::Lease;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::kind::Kind;
use crate::lock::{Guard, Lock, Mutex, RwLock};

/// An election by name: candidates campaign, one leads, and any client can observe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let election = locks.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").await?; // waits for its turn
/// assert_eq!(election.leader().await?.unwrap().value, "10.0.0.7:8080");
/// leadership.proclaim("10.0.0.7:8081").await?;
/// let done = leadership.run(async { "led" }).await?; // stopped the moment leadership is lost
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # assert_eq!(done, "led");
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// Leadership is the mutex `name`: it is lost, reported and fenced as that is. The value that a leader
/// proclaims is visible as long as it leads and the store keeps it, and not after that. On a store that
/// keeps a queue, candidates lead in the order in which they campaigned.
///
/// # Does not promise
/// A leader that has lost leadership may still act: pass the fence to every resource that it writes to.
/// An observer may not see each value: of several changes in quick succession it may see only the last.
/// If the store loses a proclaimed value alone, as after [`Client::break_claim`](crate::Client::break_claim),
/// observers see the value of the campaign again, and the leader does not notice: proclaim it from time to
/// time if that matters. The same can happen in an outage if the ttl and the lock delay of leadership are together
/// longer than a quarter of the longest ttl of the store, or if the store takes no longer ttl of readers, as Redisson's
/// dialect does: a value is kept for longer than its leader where that is possible.
#[derive(Clone, Debug)]
pub struct Election {
    leader_lock: Mutex,
    /// The lock on which a leader proclaims: a reader's claim, whose note is the value. It
    /// ends with its process.
    value_lock: RwLock,
}

impl Election {
    pub(crate) fn new(leader_lock: Mutex, value_lock: RwLock) -> Election {
        Election { leader_lock, value_lock }
    }

    /// Returns the name of the resource on which leaders proclaim.
    pub(crate) fn value_lock_name(name: &str) -> String {
        format!("{name}!proclaimed")
    }

    /// Sets how long leadership lasts after the last sign of life of the leader, as
    /// [`Lock::ttl`](crate::Lock::ttl).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.leader_lock = self.leader_lock.ttl(ttl);
        self.value_lock = self.value_lock.ttl(ttl);
        self
    }

    /// Changes other settings of the lock that leadership is: required fences, an owner, a maximum time. A
    /// [linger time](crate::Lock::linger) has no effect: a candidate that has left must not lead.
    ///
    /// # Errors
    /// Any error of `setting`.
    pub fn with(mut self, setting: impl FnOnce(Mutex) -> Result<Mutex>) -> Result<Self> {
        self.leader_lock = setting(self.leader_lock)?;
        Ok(self)
    }

    /// Waits until this candidate leads. Observers then see `value`: an address, a name.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); `Invalid` for a value longer than 980 bytes, or a name longer than 501
    /// bytes. `Unsupported` for a value that the store cuts or changes, as the table of ShedLock does with one that is
    /// longer than its column, or has control characters. A store that does not promise to show the whole value is
    /// asked what it shows once this candidate leads. If it shows another value, or does not answer, leadership is given
    /// up again.
    pub async fn campaign(&self, value: &str) -> Result<Leadership> {
        self.lead(self.candidate(value)?.lock().await?).await
    }

    /// Leads if the election has no leader; `None` if another candidate leads.
    ///
    /// # Cancel safety
    /// As [`Election::campaign`].
    ///
    /// # Errors
    /// As [`Election::campaign`] and [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_campaign(&self, value: &str) -> Result<Option<Leadership>> {
        match self.candidate(value)?.try_lock().await? {
            Some(leader_lock) => self.lead(leader_lock).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits up to `limit` until this candidate leads; `None` if another candidate leads then.
    ///
    /// # Cancel safety
    /// As [`Election::campaign`].
    ///
    /// # Errors
    /// As [`Election::campaign`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_campaign_for(&self, value: &str, limit: Duration) -> Result<Option<Leadership>> {
        match self.candidate(value)?.try_lock_for(limit).await? {
            Some(leader_lock) => self.lead(leader_lock).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the present leader.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Client::inspect`](crate::Client::inspect).
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let (leader_lock, value_lock) = self.look().await?;
        Ok(leader(&leader_lock, &value_lock))
    }

    /// Follows the changes of leadership.
    pub fn observe(&self) -> Observer {
        Observer { election: self.clone(), seen: None, last_reported: None }
    }

    fn candidate(&self, value: &str) -> Result<Mutex> {
        // Otherwise it could lead, and no observer could look.
        self.value_lock.named("campaign")?;
        let note = note(value, value)?;
        // A grant that came too late for its candidate would be seen as a leader while it lingers.
        // Its minimum hold begins when it leads for its caller.
        Ok(self.leader_lock.clone().note(note).linger(Duration::ZERO).min_hold(Duration::ZERO))
    }

    async fn lead(&self, leader_lock: Guard) -> Result<Leadership> {
        check_shown(&self.leader_lock, &leader_lock).await.map_err(|error| error.with_op("campaign"))?;
        leader_lock.extend_min_hold(self.leader_lock.min_hold_time());
        // Its claim names this leader, and no successor of the same process.
        leader_lock.hold().pin();
        let (hold, lease) = (leader_lock.hold(), leader_lock.hold().lease().clone());
        let min_hold_end = hold.min_hold_end(Moment::START);
        let proclaimed = Proclaimed { value: None, min_hold_end, leader_lock: lease };
        let value_lock = self.value_lock.clone().outliving(&self.leader_lock);
        let (proclaimed, shorter_value_lock) = (AsyncMutex::new(proclaimed), self.value_lock.clone());
        Ok(Leadership { leader_lock, proclaimed, value_lock, shorter_value_lock })
    }
}

/// A guard of the leadership, like [`Guard`] for a lock. Dropping it resigns in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let leadership = locks.election("billing").campaign("10.0.0.7:9000").await?;
/// leadership.proclaim("10.0.0.7:9000 ready").await?;
/// let done = leadership.run(async { "a day's work" }).await?; // stopped the moment it leads no longer
/// # assert_eq!(done, "a day's work");
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "leadership is given up when this is dropped"]
pub struct Leadership {
    // Dropped before `proclaimed`: without it, this leader would be seen under the value of its campaign again. A
    // successor is not seen under this leader's value, because its claim has another tag.
    leader_lock: Guard,
    proclaimed: AsyncMutex<Proclaimed>,
    value_lock: RwLock,
    /// The same, with the ttl of the election.
    shorter_value_lock: RwLock,
}

/// The claim whose note is the value that a leader has proclaimed. Dropped, it stays for the minimum hold of the
/// leader lock, and for its lock delay after a loss.
#[derive(Debug)]
struct Proclaimed {
    value: Option<Guard>,
    min_hold_end: Option<Moment>,
    leader_lock: Arc<Lease>,
}

impl Drop for Proclaimed {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if self.leader_lock.keeps_lock_delay() {
            // It lasts longer than the claim of the leader, whose loss was before.
            value.leave_to_lease();
        } else if let Some(end) = self.min_hold_end {
            value.hold().extend_min_hold(end);
        }
    }
}

impl Leadership {
    /// Returns the lock that leadership is: its fence, its loss signal, its state.
    pub fn guard(&self) -> &Guard {
        &self.leader_lock
    }

    /// Returns the fence of this leadership; `None` if the store has no fences.
    pub fn fence(&self) -> Option<Fence> {
        self.leader_lock.fence()
    }

    /// Checks, by the clock, that it still leads now.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        self.leader_lock.check()
    }

    /// Returns the time for which it leads without another renewal.
    pub fn remaining(&self) -> Duration {
        self.leader_lock.remaining()
    }

    /// Waits until leadership is lost; for ever if it never is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> LossCause {
        self.leader_lock.lost().await
    }

    /// Returns a token that is cancelled when leadership ends, as
    /// [`Guard::cancellation_token`](crate::Guard::cancellation_token).
    pub fn cancellation_token(&self) -> CancellationToken {
        self.leader_lock.cancellation_token()
    }

    /// Changes the value that observers see.
    ///
    /// # Cancel safety
    /// If the future is dropped, the value may or may not be visible.
    ///
    /// # Errors
    /// `Lost` if it does not lead any longer; `Unsupported` on a store that has no readers, and for a value that the
    /// store cuts or changes; `Invalid` for a value longer than 980 bytes; otherwise as
    /// [`RwLock::read`](crate::RwLock::read).
    pub async fn proclaim(&self, value: &str) -> Result<()> {
        self.leader_lock.check()?;
        let note = note(value, &format!("{} {value}", self.leader_lock.tag()))?;
        let mut proclaimed = self.proclaimed.lock().await;
        let next = match self.value_lock.clone().note(note.clone()).read().await {
            // A store may take one ttl of readers only, as Redisson's dialect does.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.shorter_value_lock.clone().note(note.clone()).read().await?
            }
            next => next?,
        };
        check_shown(&self.value_lock, &next).await.map_err(|error| error.with_op("proclaim"))?;
        // The new value becomes visible before the old one is removed; of two, the later one counts.
        proclaimed.value = Some(next);
        self.leader_lock.check()
    }

    /// Runs `work` for as long as it leads, and drops it the moment leadership is lost, as [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; it still leads.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.leader_lock.run(work).await
    }

    /// Gives leadership up and waits until that is confirmed. With a [minimum time to hold](crate::Lock::min_hold),
    /// observers see this leader and its last value until that time is over.
    ///
    /// # Cancel safety
    /// It is given up even if the future is dropped.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        let Leadership { leader_lock, proclaimed, .. } = self;
        let resigned = leader_lock.release().await;
        drop(proclaimed);
        resigned
    }
}

/// The leader, as seen by an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value that it proclaims.
    pub value: String,
    /// The fence of its leadership; `None` if the store has no fences.
    pub fence: Option<Fence>,
}

/// A subscription to an election.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let election = locks.election("billing");
/// let mut observer = election.observe();
/// assert_eq!(observer.next().await?, None); // nobody leads
/// let leadership = election.campaign("10.0.0.7:9000").await?;
/// assert_eq!(observer.next().await?.unwrap().value, "10.0.0.7:9000");
/// # leadership.resign().await
/// # }
/// ```
#[derive(Debug)]
pub struct Observer {
    election: Election,
    /// The versions of the lock and of the value that were seen last.
    seen: Option<(SnapshotVersion, SnapshotVersion)>,
    /// The leader that was returned last.
    last_reported: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader as soon as it differs from the one returned before, or proclaims another
    /// value. The first call returns the present leader; `None` means that there is none.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Client::changed`](crate::Client::changed); the next call continues from where this one was.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            if let Some((leader_lock, value_lock)) = &self.seen {
                self.election.changed(leader_lock, value_lock).await?;
            }
            let (leader_lock, value_lock) = self.election.look().await?;
            let leader = leader(&leader_lock, &value_lock);
            self.seen = Some((leader_lock.version, value_lock.version));
            if self.last_reported.as_ref() != Some(&leader) {
                self.last_reported = Some(leader.clone());
                return Ok(leader);
            }
        }
    }

    /// Returns the same as a stream, which does not end.
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader>>> + Send {
        unfold(self, |mut observer| async move { Some((observer.next().await, observer)) })
    }
}

impl Election {
    /// Reads the leader lock, and the value from before: a leader that is there afterwards had not given it up.
    async fn look(&self) -> Result<(Snapshot, Snapshot)> {
        let value_lock = self.value_lock.inspect().await?;
        Ok((self.leader_lock.inspect().await?, value_lock))
    }

    /// Waits until one of the two changes, for up to [`CHANGE_WAIT_MAX`].
    async fn changed(&self, leader_lock: &SnapshotVersion, value_lock: &SnapshotVersion) -> Result<()> {
        let leader_lock = pin!(self.leader_lock.changed(leader_lock, CHANGE_WAIT_MAX));
        let value_lock = pin!(self.value_lock.changed(value_lock, CHANGE_WAIT_MAX));
        match select(leader_lock, value_lock).await {
            Either::Left((outcome, _)) | Either::Right((outcome, _)) => outcome.map(drop),
        }
    }
}

/// The time for which one request waits for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest value: a note, less its prefix.
const MAX_VALUE: usize = 980;

fn note(value: &str, text: &str) -> Result<Note> {
    if value.len() > MAX_VALUE {
        let text = format!("a value of {} bytes is too long: {MAX_VALUE} at most", value.len());
        return Err(Error::new(ErrorKind::Invalid, "campaign", text));
    }
    Note::new(text).map_err(Error::from)
}

/// Checks that others see the note of a claim as it is.
///
/// # Errors
/// `Unsupported` if the store cuts or changes it; the failure of a look at what it shows.
async fn check_shown<K: Kind>(lock: &Lock<K>, claim: &Guard) -> Result<()> {
    // If an owner has it already, it has the note of the first guard.
    let note = &claim.hold().lease().claim.note;
    if lock.engine().profile().shows(note.as_str().len()).is_ok() {
        return Ok(());
    }
    let (seen, tag) = (lock.inspect().await?, claim.tag());
    match seen.holders.iter().find(|holder| holder.id.tag() == tag) {
        Some(holder) if holder.note != *note => {
            let text = "this store does not show the value as it is: choose a shorter one, without control characters";
            Err(Error::new(ErrorKind::Unsupported, "campaign", text).on(claim.resource()))
        }
        // What is not held any more is found by the next check of the guard.
        _ => Ok(()),
    }
}

fn leader(leader_lock: &Snapshot, value_lock: &Snapshot) -> Option<Leader> {
    let holder = leader_lock.holders.first()?;
    let tag = holder.id.tag();
    // Holders are listed in the order of their grants. A claim that an earlier leader left behind
    // carries another tag.
    let proclaimed = value_lock.holders.iter().rev().find_map(|claim| {
        let (of, value) = claim.note.as_str().split_once(' ')?;
        (of == tag).then(|| value.to_owned())
    });
    let value = proclaimed.unwrap_or_else(|| holder.note.as_str().to_owned());
    Some(Leader { value, fence: holder.fence })
}
