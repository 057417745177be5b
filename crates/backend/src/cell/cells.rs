//! The interface that a store has to implement: one value per resource, and writes on a condition.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Claim, Effect, Failure, FailureKind, Fence, Finding, Profile, Registers, Resource};

use crate::cell::Notifier;
use crate::cell::wait::timing::draw_version;

/// A store that keeps one small value per resource and changes it only if no other client did.
///
/// # Errors
/// Every method fails with a [`Failure`] that says whether it may have taken effect. A deadlock, a
/// serialization error or a lost race is not a failure: the store did nothing, and says so with `Ok(false)`
/// or [`InsertOutcome::Held`].
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

    /// Puts a value where no cell exists, or where no claim of the cell lives, in one step of the store.
    ///
    /// The store itself makes the fence, above every fence that this cell ever had, and keeps it next to the
    /// text; the origin becomes the present. `put.fence` is ignored here.
    async fn try_insert(&self, at: &Resource, put: &Put) -> Result<InsertOutcome, Failure>;

    /// Returns the best number of commits to give the store at a time, if those that arrive meanwhile go
    /// together in the next one; `None` where each is best sent by itself, since the store gains nothing
    /// from many in one. Constant for its life.
    fn commits_at_once(&self) -> Option<usize> {
        None
    }

    /// Makes each of these changes whose condition holds, and answers in order the fence of its claim, or
    /// `None` where it did not hold. Each cell occurs once, in the order of names. A store for which a
    /// commit is dear makes all of them in one: they are what several tasks want at once. Several changes
    /// never wait for a transaction, as in [`CellStore::swap_unlocked`]. Only under [`ClockSource::Store`].
    async fn amend(&self, amends: &[&CellUpdate]) -> Vec<Result<Option<Fence>, Failure>> {
        let mut answers = Vec::with_capacity(amends.len());
        for CellUpdate { at, seen, kind, put } in amends {
            answers.push(match kind {
                AmendKind::Retake => self.try_insert(at, put).await.map(|outcome| match outcome {
                    InsertOutcome::Taken { fence, .. } => Some(fence),
                    InsertOutcome::Held(_) => None,
                }),
                AmendKind::Keep => {
                    let (at, seen, epoch, put) = (at.clone(), *seen, put.fence.epoch, put.clone());
                    let fence = put.fence;
                    let swap = Swap { at, seen, epoch, basis: Origin::Renewed, put };
                    let swapped = self.swap(&[swap]).await.pop();
                    let swapped = swapped
                        .unwrap_or_else(|| Err(Failure::unanswered("the store did not answer a write")));
                    swapped.map(|is_done| is_done.then_some(fence))
                }
            });
        }
        answers
    }

    /// Returns the cells of these resources, in order; `None` where there is none.
    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>>;

    /// Changes each cell that fulfils its condition, and answers in order whether it did. Each cell occurs
    /// once.
    async fn swap(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>>;

    /// Changes cells as [`CellStore::swap`] does, without waiting for any transaction: a locked cell is left
    /// alone, like one whose condition does not hold. So a transaction that locks a cell does not delay the
    /// changes of others. A store whose cells cannot be locked has nothing to add.
    async fn swap_unlocked(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        self.swap(swaps).await
    }

    /// Cells in which claims may live, whose resource's name begins with `prefix`, in the order of names,
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

    /// Removes those of these cells that are still what was found, and in which no claim lives; how many.
    /// The fence of a later cell of the same resource is greater than each before, no matter how any clock
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

/// A value to be written.
#[derive(Clone, Debug)]
pub struct Put {
    /// The ledger; empty where no claims are left. The cell itself, or at least its fence, is kept all the
    /// same, unless fences of the store rise without it.
    pub text: String,
    /// The name of the new state: drawn at random, positive as a signed number. A store that numbers its
    /// states itself ignores it.
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
    pub(crate) fn nothing(fence: Fence) -> Result<Put, Failure> {
        let version = draw_version()?;
        Ok(Put { text: String::new(), version, fence, keep: Duration::ZERO, call: Call::None })
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

/// The answer to [`CellStore::try_insert`].
#[derive(Clone, Debug)]
pub enum InsertOutcome {
    /// The value is in place, in this state of the cell, and the claim in it holds under this fence.
    Taken {
        /// The version that the cell has now.
        version: u64,
        /// The fence that the store made.
        fence: Fence,
    },
    /// Claims live in it, or another writer was first. The cell, where the same answer could carry it.
    Held(Option<Cell>),
}

/// One conditional write.
#[derive(Clone, Debug)]
pub struct Swap {
    /// The cell.
    pub at: Resource,
    /// The version that it must have.
    pub seen: u64,
    /// The epoch that the store must be in: that of [`Cell::floor`] when it was read.
    pub epoch: u64,
    /// Further conditions, and the origin.
    pub basis: Origin,
    /// The new value.
    pub put: Put,
}

/// A change of a cell that this client was the last to write. The origin becomes the present, and no waiter
/// is called.
#[derive(Clone, Debug)]
pub struct CellUpdate {
    /// The cell.
    pub at: Resource,
    /// The version that it must have: the one that this client gave it.
    pub seen: u64,
    /// The outcome for its claim.
    pub kind: AmendKind,
    /// The new value, under the version that is to be the cell's. Where it is retaken, `put.fence` is
    /// ignored.
    pub put: Put,
}

/// The effect of a change of a client's own cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmendKind {
    /// The client left it empty, and puts a claim into it. The store makes the fence, as for
    /// [`CellStore::try_insert`].
    Retake,
    /// A claim is alone in it, and continues or ends: as [`Origin::Renewed`] with no waiter to call.
    Keep,
}

/// The effect of a write on the origin of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The origin stays: the text was made from what was read.
    Kept,
    /// The origin becomes the present, on the condition that a claim still lives by the store's clock. Only
    /// under [`ClockSource::Store`]. With no waiter to call, it is of a claim alone in its cell, which
    /// continues or ends: the fence is the present one, and since no new one is made, the epoch that the
    /// store is in does not matter.
    Renewed,
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

/// Returns the answer of a store that forgets by itself.
pub(crate) fn nothing_to_sweep() -> Failure {
    let text = "this store keeps nothing of locks that are over: there is nothing to sweep";
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}
