//! Coordination built from locks and registers: a multi-lock, a striped mutex, an election, a
//! versioned value, a condition, a latch, a barrier, a rate limit and single-flight loading.
//!
//! Ground rules: nothing here talks to a backend. All promises here follow from those of locks and registers.

mod barrier;
mod cache;
mod condition;
mod election;
mod flight;
#[cfg(test)]
mod fuzz;
mod latch;
mod members;
mod multi;
mod rate;
mod striped;
mod versioned;

pub use barrier::{Barrier, BarrierWaitResult};
pub use cache::{Cache, CacheError, Cached};
pub use condition::{Condition, WaitOutcome};
pub use election::{Election, Leader, Leadership, Observer};
pub(crate) use flight::Flights;
pub use flight::{FlightOutcome, LoadError, SingleFlight, ValueSource};
pub use latch::Latch;
pub use multi::{Loss, MultiGuard, MultiLock};
pub use rate::RateLimit;
pub use striped::{Stripe, StripeReport, StripeUse, StripedMutex};
pub use versioned::{UpdateOutcome, Versioned, VersionedValue};
