//! The laws that every leasehold backend keeps, as a test suite for any backend, ours or foreign.
//!
//! Ground rules: the suite knows backends only through the seam of `leasehold-core`, and runs whole. A
//! backend opts out of a law only through its [`Profile`](leasehold_core::Profile), and the suite checks
//! that the opt-out is true: a backend that admits no counted shares must refuse them, one that polls must
//! not block, and one without fences must show none.
//!
//! # How to run it
//!
//! Say how to connect to your store; [`suite!`] makes a test of each law.
//!
//! ```
//! use std::sync::Arc;
//! use leasehold_conformance::{Subject, suite};
//! use leasehold_core::Backend;
//! # struct MyServer;
//! # impl MyServer { fn connect(&self) -> Option<Arc<dyn Backend>> { None } }
//!
//! struct Mine {
//!     server: MyServer,
//! }
//!
//! #[async_trait::async_trait]
//! impl Subject for Mine {
//!     async fn open(&self) -> Option<Arc<dyn Backend>> {
//!         self.server.connect()
//!     }
//! }
//!
//! suite!(Mine { server: MyServer });
//! # leasehold_conformance::prove("profile::free_resource_is_granted_at_once", &conformance_subject());
//! ```
//!
//! The tests are named after the laws, so `cargo test wake::` runs those about waking. They may all run at
//! once on one store: each law uses names that no other uses. The suite brings its own runtime.
//!
//! - **Several ways to connect** (polling, notifying) are several subjects: one `suite!` each, in a module
//!   each.
//! - **Other processes**: implement [`Subject::taker`], and write one more test for the process that is
//!   killed and stopped; see [`taker`].
//! - **No server on this machine**: [`Subject::open`] answers `None`, and the law is passed over.
//! - A promise that is **not made** is reported on stderr, also by tests that pass: `LEASEHOLD-OPTED-OUT
//!   order::queue_of_ten_is_granted_in_order the mem backend cannot provide order "first come, first
//!   served"…`.
//!
//! `examples/tiny.rs` is a whole backend to begin from; it also shows how to go through [`laws`] without a
//! test harness.
//!
//! # The laws
//!
//! | group | the rule that a backend keeps |
//! |---|---|
//! | `profile` | it behaves as its profile says, no less and no more |
//! | `safety` | the weights of what is held together never exceed the smallest capacity, and fences rise in a race as well |
//! | `idempotence` | any call may be repeated with the same claim |
//! | `adoption` | where a claim can be transferred: another client continues it |
//! | `renewal` | a renewal never resurrects and never shortens |
//! | `residue` | after `Busy` with ended patience, and after a release, nothing remains |
//! | `patience` | a wait returns when its patience ends, and a grant before that is reported |
//! | `order` | fences rise strictly; FIFO means first come, first served |
//! | `own_only` | a release or a renewal never touches another's claim |
//! | `wake` | a waiter sees a release in time, and no wake-up is lost between check and wait |
//! | `view` | an inspection shows the present holders and waiters; names never collide |
//! | `processes` | processes take turns, and the others continue when one is killed or stopped |
//! | `batch` | each claim of a batch gets its own answer, in order |
//! | `registers` | if the backend has any: values change one after the other, whole, on the seen state |
//!
//! # What the suite cannot show
//!
//! It does not control the network to the server. The backend's own tests, with a connection that can be cut,
//! have to check three things: a lost answer is reported with
//! [`Effect::Unknown`](leasehold_core::Effect::Unknown), a server that is away is `Unavailable`, and a
//! failover does what the backend documents. Nor can the suite prove that a race is absent: it runs many
//! races, at random.
//!
//! # Machines that are busy
//!
//! Violations of safety are checked without regard to time. An event that must happen *in time* has a bound
//! far above its usual duration. It counts as broken only if the machine itself kept time meanwhile;
//! otherwise the law is tried again.

#![forbid(unsafe_code)]

mod around;
pub mod breaking;
pub mod calls;
mod client;
mod clock;
pub mod connection_limit;
pub mod dials;
pub mod faults;
pub mod full_disk;
mod law;
mod laws;
mod list;
pub mod locked_rows;
mod not_kept;
mod random;
mod referee;
pub mod shedlock;
mod subject;
pub mod sweep;
pub mod taker;
mod trial;

pub use around::{Around, Wrapped};
pub use clock::{SteadyClock, patience_for};
pub use law::{Law, Outcome};
pub use list::{laws, prove};
pub use subject::{Subject, TakerCommand};
