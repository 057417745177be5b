//! The contract of leasehold: the values that cross the seam between engine and backend, and the
//! pure machines that both sides can trust.
//!
//! Ground rules of this crate: no runtime, no sockets, no clock of its own and no randomness of its own.
//! Time comes in as a [`Moment`], identity as bytes. Plain property tests can therefore test all of it, and a
//! foreign backend depends on nothing else of leasehold.
//!
//! Start reading at [`Backend`]: it is the seam. A store may have three more: [`AtOnce`] for what it decides
//! without asking anyone, [`DirectRequests`] for requests that need no task, and [`Registers`].
//! [`Ledger`] is the admission rule as an executable specification: memory and file stores run it, and the
//! others are tested against it.
//!
//! With the feature `serde`, what is displayed can be serialized, in stable forms:
//!
//! | type | form |
//! |---|---|
//! | [`Fence`], [`Share`], [`Resource`], [`Note`] | their text |
//! | [`Severity`], [`FenceGrade`], [`Durability`], [`QueueOrder`], [`WaitMode`], [`LockSupport`], [`LossCause`] | the name of the variant, in small letters with hyphens |
//! | [`Snapshot`] | `name`, `state` (`free` or `held`), `fence`, `holders`, `waiting` |
//! | [`ClaimInfo`] | `tag`, `share`, `weight`, `capacity`, `fence`, `since_unix_ms`, `remaining_ms`, `note` |
//! | [`ResourceSummary`] | `name`, and the numbers `holders` and `waiting` |
//! | [`Finding`] | `topic`, `severity`, `found`, `meaning`, `advice` |
//! | [`Deadlock`](deadlock::Deadlock) | `waits`: each with `waits_for`, `share`, `weight`, `capacity`, `holds`, `note` |
//!
//! Values and names can be read as well. A claim is written with its public tag, and cannot be read, because
//! its id is a secret. Fields may be added.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod at_once;
mod backend;
mod backoff;
mod call_watch;
mod claim;
mod clock;
pub mod deadlock;
mod direct;
mod failure;
mod fence;
mod finding;
#[cfg(test)]
mod fuzz;
mod grant;
mod ledger;
mod note;
mod patience;
mod profile;
pub mod quorum;
mod register;
mod resource;
#[cfg(feature = "serde")]
mod serde_forms;
mod share;
mod snapshot;

pub use at_once::AtOnce;
pub use backend::{Backend, BreakOutcome, Hint, Release, Renew, Renewal, Step};
pub use backoff::{Backoff, doubled, jittered, part_of, spread};
pub use call_watch::{CallWatch, stagger};
pub use claim::{Claim, ClaimId};
pub use clock::{Clock, ManualClock, Moment};
pub use direct::{DirectAnswer, DirectRelease, DirectReply, DirectRequests};
pub use failure::{Effect, Failure, FailureKind};
pub use fence::{Fence, FenceGrade, ParseFenceError};
pub use finding::{Finding, Severity};
pub use grant::{Grant, LossCause, LossSignal, LossSubscription, LossTrigger, Proof};
pub use ledger::{
    Ask, CALL_GRACE, CHALLENGE_AFTER, DamagedLedger, Entry, Ledger, MAX_QUEUE, PROBE_AFTER,
    PROBED_PER_SILENT, SILENT_AFTER, Verdict, Wait,
};
pub use note::{Note, NoteTooLong};
pub use patience::Patience;
pub use profile::{Durability, Liveness, LockSupport, Profile, QueueOrder, Unmet, WaitMode};
pub use register::{Put, RegisterPromise, Registered, Registers, Stamp};
pub use resource::{InvalidResource, Resource};
pub use share::{InvalidShare, Share};
pub use snapshot::{ClaimInfo, ResourceSummary, Snapshot, SnapshotVersion};
