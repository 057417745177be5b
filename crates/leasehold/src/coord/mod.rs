//! Coordination built from locks and registers: a multi-lock, a segmented lock, an election, a
//! versioned value, a condition, a latch, a barrier, a rate limit and single-flight loading.
//!
//! Ground rules: nothing here talks to a backend. All promises here follow from those of locks and registers.

mod barrier;
mod cache;
mod condition;
mod election;
mod flight;
mod latch;
mod members;
mod multi;
mod rate;
mod segmented;
mod versioned;

pub use barrier::{Barrier, Passage};
pub use cache::{Cache, CacheError, Cached};
pub use condition::{Condition, WaitOutcome};
pub use election::{Election, Leader, Leadership, Observer};
pub(crate) use flight::Flights;
pub use flight::{LoadError, Loaded, Origin, SingleFlight};
pub use latch::Latch;
pub use multi::{Loss, MultiGuard, MultiLock};
pub use rate::RateLimit;
pub use segmented::{Segment, SegmentReport, SegmentUse, Segmented};
pub use versioned::{Update, Versioned, VersionedValue};
