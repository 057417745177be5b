//! What is built from locks and registers: several as one, one cut into segments, an election, a value with a version,
//! a condition, a latch, a barrier, a limit of rate, loading by one for all.
//!
//! Ground rules: nothing here talks to a backend. Whatever is promised here follows from what locks and registers promise.

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
