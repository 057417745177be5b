//! An optional seam: decisions that a store makes on the thread of the caller.

use std::fmt::Debug;

use crate::{Claim, DirectReply, Moment, Release};

/// The calls of a store that decides without asking anyone: no server, no other thread, no disk that has to
/// answer. What it writes, if anything, goes into the memory of the operating system.
///
/// A task, a channel and a switch of threads cost more than such a decision. So the engine makes these calls
/// on the thread of the caller, before it takes the slow path over
/// [`Backend::contend`](crate::Backend::contend) and [`Backend::release`](crate::Backend::release).
///
/// Promises:
/// 1. A call takes microseconds, waits for nothing, and calls nothing of the engine.
/// 2. It decides as the calls of [`Backend`](crate::Backend) do: the same safety, the same order, the same
///    wake-ups.
/// 3. A copied machine, such as a virtual machine that is restored twice, has a copy of the store. So the two copies
///    may draw the same id for a new claim, and that does no harm. The same holds for two copies of a process that
///    was restored twice from one checkpoint.
/// 4. `Declined` and `None` are always right: they change nothing, and the engine takes the slow path.
///
/// The engine calls it on any thread, inside of the client's runtime or not, and with that runtime entered.
/// A panic counts as an answer of unknown effect.
pub trait AtOnce: Debug + Send + Sync {
    /// Grants a claim that no call has named before, if its resource is free for it now and no claim waits
    /// ahead of it. The grant counts from `asked_at`.
    ///
    /// [`Busy`](DirectReply::Busy) and [`Declined`](DirectReply::Declined) both send the engine to the slow path.
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply;

    /// Ends a claim as [`Backend::release`](crate::Backend::release) does.
    fn release_now(&self, claim: &Claim) -> Option<Release>;
}
