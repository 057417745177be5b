//! The laws every leasehold backend keeps, as a test suite.
//!
//! Ground rules: the suite knows backends only through the seam of `leasehold-core`, and runs whole. A backend opts
//! out of a law only through its [`Profile`](leasehold_core::Profile), and the suite checks that the opt-out is true.

#![forbid(unsafe_code)]

mod chance;
mod client;
mod clock;
mod law;
mod laws;
mod list;
mod referee;
mod stop;
mod subject;
pub mod taker;
mod trial;

pub use clock::{SteadyClock, patience_for};
pub use law::{Law, Outcome};
pub use list::{laws, prove};
pub use subject::{Subject, TakerCommand};
