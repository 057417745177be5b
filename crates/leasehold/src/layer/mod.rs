//! Backends around a backend: what is added to every store alike.

#[cfg(feature = "metrics")]
mod contention;
mod dual;
mod fault;
#[cfg(feature = "metrics")]
mod metrics;
mod quorum;

#[cfg(feature = "metrics")]
pub use contention::Contended;
pub use dual::Dual;
pub use fault::{Fault, Mode, Verb};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use quorum::{Quorum, Rearmed, Terms};
