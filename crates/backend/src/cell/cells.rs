//! The interface that a store has to implement: one value per resource, and writes on a condition.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Claim, Effect, Failure, FailureKind, Fence, Finding, Profile, Registers, Resource};

use crate::cell::Notifier;
use crate::cell::wait::timing::draw_version;

/// A store that keeps one small value per resource and changes it only if no other client did.
///
/// # Errors
/// Every method fails with a [`Failure`] that says whether it may have taken effect. A deadlock, a
/// serialization error or a lost race is not a failure: the store did nothing, and says so with
/// [`WriteOutcome::Refused`].
#[async_trait]
pub trait CellStore: Debug + Send + Sync + 'static {
    /// Returns the promises of this store on this connection. Constant for its life.
    fn profile(&self) -> &Profile;

    /// Returns which clock ends claims. Constant for its life.
    fn clock_source(&self) -> ClockSource;

    /// Returns the longest text that a cell can carry, in bytes.
    fn max_text(&self) -> usize;

    /// Returns the notifier that passes the store's calls to waiters, if the store can notify clients.
    fn notifier(&self) -> Option<&Notifier> {
        None
    }

    /// Returns the store's registers, where it has any; see [`CellRegisters`](crate::cell::CellRegisters).
    fn registers(&self) -> Option<&dyn Registers> {
        None
    }

    /// Returns the part of the store that answers for this claim; see
    /// [`Backend::part`](leasehold_core::Backend::part).
    fn part(&self, _claim: &Claim) -> u64 {
        0
    }

    /// Returns the best number of commits to give the store at a time, if those that arrive meanwhile go
    /// together in the next one; `None` where each is best sent by itself, since the store gains nothing
    /// from many in one. Constant for its life.
    fn commits_at_once(&self) -> Option<usize> {
        None
    }

    /// Returns `true` if [`CellStore::write_now`] may write. Only for a store of one machine, under
    /// [`ClockSource::Store`]: its clients may draw the ids of claims in blocks. Constant for its life.
    fn writes_now(&self) -> bool {
        false
    }

    /// Makes one write on the thread of the caller, in microseconds; `None` if it would have to wait, and nothing
    /// was written.
    fn write_now(&self, write: &Write) -> Option<Result<WriteOutcome, Failure>> {
        _ = write;
        None
    }

    /// Returns `true` if the store numbers its states itself: then no version is drawn for it. Constant for its life.
    fn numbers_states(&self) -> bool {
        false
    }

    /// Returns `true` if [`CellStore::send_now`] may send. Only under [`ClockSource::Observer`]. Constant for its life.
    fn sends_now(&self) -> bool {
        false
    }

    /// Sends one write over the connection that is there, without a wait, and returns its outcome; `None` if it would
    /// have to wait, and nothing was sent. For the answer see [`DirectAnswer`](leasehold_core::DirectAnswer).
    fn send_now(&self, write: Write) -> Option<SentWrite> {
        _ = write;
        None
    }

    /// Returns the cells of these resources, in order; `None` where there is none. At least one is named.
    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>>;

    /// Makes each of these writes whose condition holds, and answers in order. There is at least one. Each
    /// cell occurs once, and cells that several tasks want at once come in the order of names. A store for
    /// which a commit is dear makes all of them in one.
    ///
    /// A write on [`WriteCondition::Free`] comes alone. One on [`WriteCondition::Seen`] comes alone or with others on
    /// the same condition.
    async fn write(&self, writes: &[&Write], locked: Locked) -> Vec<Result<WriteOutcome, Failure>>;

    /// Returns the cells in which claims may live, whose resource's name begins with `prefix`, in the order of names,
    /// beginning behind `after`. Fewer than `limit` mean that no more exist.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure>;

    /// Reads every cell, also those in which no claim lives, in the order of names, beginning behind
    /// `after`. Fewer than `limit` mean that no more exist.
    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        _ = (after, limit);
        Err(nothing_to_sweep())
    }

    /// Removes those of these cells that are still what was found, and in which no claim lives. Returns the number
    /// removed. The fence of a later cell of the same resource is greater than each before, no matter how any clock
    /// changes: a store that cannot ensure that answers `None`.
    async fn forget(&self, unused: &[&Found]) -> Result<Option<usize>, Failure> {
        _ = unused;
        Ok(None)
    }

    /// Examines which settings of this store help or harm locks with leases of `ttl`. See
    /// [`Backend::diagnose`](leasehold_core::Backend::diagnose).
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        _ = ttl;
        Vec::new()
    }
}

/// The outcome of a write that was sent, once it arrives.
pub type SentWrite = Pin<Box<dyn Future<Output = Result<WriteOutcome, Failure>> + Send>>;

/// The clock that ends claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The store's: every [`Cell`] says how old it is.
    Store,
    /// Each observer's own, over what does not change.
    Observer,
}

/// One cell as it was read.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The ledger; empty where it has no claims.
    pub text: String,
    /// The name of this state of the cell, among all that it ever had.
    pub version: u64,
    /// The last fence of this cell, kept next to the text. It is the fence of a claim that seized the cell.
    pub fence: Fence,
    /// The fence above which the next one must be: `fence`, under the store's present epoch.
    pub floor: Fence,
    /// The time since the origin by the store's own clock, when the read was carried out; zero where that
    /// clock went back. `None` under [`ClockSource::Observer`].
    pub age: Option<Duration>,
}

/// One conditional write.
#[derive(Clone, Debug)]
pub struct Write {
    /// The cell.
    pub at: Resource,
    /// The condition, and what becomes of origin and fence.
    pub when: WriteCondition,
    /// The new value.
    pub put: Put,
    /// The answer that the client has a use for.
    pub answer: WriteAnswer,
}

/// The condition of a write. It also decides what becomes of the cell's origin and fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCondition {
    /// No cell exists, or no claim of the cell lives: it has lapsed, or its text is empty. The store itself
    /// makes the fence, above every fence that this cell ever had, and keeps it next to the text; `put.fence`
    /// is ignored. The origin becomes the present.
    Free,
    /// The cell has this version, with which this client left it empty. Fence and origin are as for
    /// [`WriteCondition::Free`], and no waiter is called. Only under [`ClockSource::Store`].
    Emptied(u64),
    /// The cell has this version, and a claim still lives in it by the store's clock, if the store keeps
    /// time. The origin becomes the present.
    ///
    /// Without an `epoch` the claim is alone in its cell and continues or ends: `put.fence` is the present
    /// fence, and no waiter is called. Since no fence is made, the epoch that the store is in does not
    /// matter. Only under [`ClockSource::Store`].
    Living {
        /// The version that the cell must have.
        version: u64,
        /// The epoch that the store must be in.
        epoch: Option<u64>,
    },
    /// The cell has this version in this epoch of the store, which is that of [`Cell::floor`]. The origin
    /// stays: the text was made from what was read.
    Seen {
        /// The version that the cell must have.
        version: u64,
        /// The epoch that the store must be in.
        epoch: u64,
    },
}

/// The treatment of a cell that a transaction of another program keeps locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// A write that is alone in its call waits for the transaction. Of several none waits longer than the
    /// store can help: one of a locked cell is refused.
    Wait,
    /// The write is refused without waiting, so that a locked cell delays the writes of no other cell.
    Skip,
}

/// The answer to a write that the client has a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAnswer {
    /// The bare outcome: made, or refused.
    Brief,
    /// The cell, too, if the condition does not hold: other clients use it, so that this is likely. And the
    /// version, if the write is made.
    Full,
}

/// The outcome of a write.
#[derive(Clone, Debug)]
pub enum WriteOutcome {
    /// The value is in place.
    Written {
        /// The version that the cell has now. `None` where the store numbers its states itself, and the same
        /// answer could not carry it.
        version: Option<u64>,
        /// The last fence of the cell: the one that the store made, or that of the value.
        fence: Fence,
    },
    /// The condition did not hold, or another writer was first. The cell, where the same answer could carry
    /// it: on [`WriteCondition::Free`], or where [`WriteAnswer::Full`] was asked for.
    Refused(Option<Cell>),
}

/// A value to be written.
#[derive(Clone, Debug)]
pub struct Put {
    /// The ledger; empty where no claims are left. The cell itself, or at least its fence, is kept all the
    /// same, unless fences of the store rise without it.
    pub text: String,
    /// The name of the new state: drawn at random, positive as a signed number. It says nothing to a store that
    /// [numbers](CellStore::numbers_states) its states itself.
    pub version: u64,
    /// The last fence of the cell.
    pub fence: Fence,
    /// The time for which the text matters: from the cell's origin where the store keeps time, else from
    /// the write. Zero without claims. Afterwards no claim lives, and the store may forget the text.
    pub keep: Duration,
    /// The waiters to notify.
    pub call: Call,
}

impl Put {
    /// Returns the write for a cell where no claim is left, and that calls no waiter.
    pub(crate) fn nothing(fence: Fence, version: u64) -> Put {
        Put { text: String::new(), version, fence, keep: Duration::ZERO, call: Call::None }
    }

    /// Returns what a store answers that has put this value in place, under the version of the value.
    pub fn outcome_written(&self, fence: Fence) -> WriteOutcome {
        WriteOutcome::Written { version: Some(self.version), fence }
    }
}

/// The waiters that a write concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// No waiter.
    None,
    /// These claims have to answer: their turn has come, or others have waited long for them. See
    /// [`address`](crate::cell::address).
    These(Vec<u32>),
    /// The first of these was called, and has answered: no other waiter needs to check it. The others have
    /// to answer now.
    Answered(u32, Vec<u32>),
    /// No waiter's turn has come, but something became free, from which one waiter may keep another.
    Freed,
    /// All waiters: more than can be named.
    All,
}

/// A cell as a sweeper finds it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The resource of the cell.
    pub at: Resource,
    /// The content of the cell.
    pub cell: Cell,
    /// The time for which no claim has lived in it, by the store's clock when it was read; zero where one
    /// may live.
    pub idle: Duration,
}

/// Draws the name of a new state, if the store does not number its states itself.
pub(crate) fn version_for(cells: &impl CellStore) -> Result<u64, Failure> {
    if cells.numbers_states() { Ok(0) } else { draw_version() }
}

/// Reads one cell.
pub(crate) async fn read_one(cells: &impl CellStore, at: &Resource) -> Result<Option<Cell>, Failure> {
    cells.read(&[at]).await.pop().unwrap_or_else(|| Err(unread()))
}

/// Makes one write.
pub(crate) async fn write_one(
    cells: &impl CellStore,
    write: &Write,
    locked: Locked,
) -> Result<WriteOutcome, Failure> {
    cells.write(&[write], locked).await.pop().unwrap_or_else(|| Err(unwritten()))
}

/// Returns the failure of a read that the store left out of its answer.
pub(crate) fn unread() -> Failure {
    Failure::unavailable("the store did not answer a read")
}

/// Returns the failure of a write that the store left out of its answer.
pub(crate) fn unwritten() -> Failure {
    Failure::unanswered("the store did not answer a write")
}

/// Returns the answer of a store that forgets by itself.
pub(crate) fn nothing_to_sweep() -> Failure {
    let text = "this store keeps nothing of locks that are over: there is nothing to sweep";
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}
