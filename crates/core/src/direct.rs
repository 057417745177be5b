//! An optional seam: requests and releases that are sent on the thread of the caller, who waits for the answer.

use std::fmt::Debug;
use std::pin::Pin;

use crate::{Claim, Grant, Moment, Release};

/// Requests that a backend can send without waiting, over an open connection.
///
/// A task and two channels cost as much as a request. So the engine lets the caller of an uncontended lock send the
/// request and wait for the answer, before it takes the slow path over
/// [`Backend::contend`](crate::Backend::contend).
///
/// A caller that awaits a release sends it in the same way.
///
/// The engine calls it on any thread, with the client's runtime entered. A panic counts as an answer of unknown effect.
pub trait DirectRequests: Debug + Send + Sync {
    /// Sends the request for a claim that no call has named before, and returns its answer. It asks once, and leaves
    /// no place in the queue. A grant counts from `asked_at`.
    ///
    /// `None` is always right: nothing was sent, and the engine takes the slow path. A backend returns it if it would
    /// have to wait before it sends, for a connection or a permit. It must not block.
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer>;

    /// Sends the release of a claim, and returns its answer.
    ///
    /// `None` is always right, as for [`DirectRequests::ask_directly`]. The release is on its way when this returns,
    /// whether its answer is waited for or not. Only if the store refuses it for a reason that passes, as on a server
    /// that has just been started, it is sent again, by the backend or the engine, and then only while the answer is
    /// polled. Clients that wait for the lock wait for that, until the lease ends at the latest.
    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease>;
}

/// The answer to a direct request, once it arrives.
///
/// Promises:
/// 1. It holds nothing that another call needs: no permit, no lock, no connection. It may be left unpolled for any
///    time without an effect on other calls.
/// 2. It may be dropped at any time. The request may have taken effect by then, or may do so later. A release of the
///    claim that begins after that takes effect after the request; if the connection ends in between, the claim may
///    remain until its lease ends.
/// 3. It ends within the time that the backend gives any request.
pub type DirectAnswer = Pin<Box<dyn Future<Output = DirectReply> + Send>>;

/// The answer to a release that was sent, once it arrives.
///
/// It holds nothing that another call needs, it may be left unpolled or dropped at any time, and it ends within the
/// time that the backend gives any request.
pub type DirectRelease = Pin<Box<dyn Future<Output = Release> + Send>>;

/// The outcome of a request for a new claim. No variant will be added, so a match is complete.
#[derive(Clone, Debug)]
pub enum DirectReply {
    /// The claim holds.
    Granted(Grant),
    /// The resource is not free for the claim. Nothing of the claim exists, and it has no place in the queue.
    Busy {
        /// The number of claims ahead, holders included, if it is known.
        ahead: Option<u32>,
    },
    /// The request had no effect: nothing of the claim exists. [`Backend::contend`](crate::Backend::contend) says why,
    /// or can do more.
    Declined,
    /// No answer; the claim may hold.
    Unknown,
}
