//! Layers, which add the same to every store: backends around a backend, and an event subscriber for metrics.

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
pub use quorum::{Quorum, QuorumConfig, RearmReport};
