//! The blocking API: the same locks and coordination types, for threads that block.
//!
//! ```
//! use leasehold::blocking::Client;
//!
//! # fn main() -> leasehold::Result<()> {
//! let locks = Client::open("mem:")?;
//! let mutex = locks.mutex("orders/42").reentrant();
//! let outer = mutex.lock()?;
//! let inner = mutex.lock()?; // the same thread: granted at once
//! assert_eq!(outer.fence(), inner.fence());
//! inner.release()?;
//! outer.release()?; // the last one releases it
//! # Ok(())
//! # }
//! ```
//!
//! It uses the same engine: the asynchronous client carries out each call, on a runtime that all
//! blocking clients of a process share and that lives as long as the process. Leases are therefore
//! renewed while your threads compute.
//!
//! # Inside an asynchronous runtime
//! Inside an asynchronous task it works as well and does not panic, but it blocks the calling thread,
//! and with it every other task of that thread. Use [`tokio::task::spawn_blocking`], or better
//! [the asynchronous API](crate::Client).
//!
//! # After a fork
//! A child process has none of the locks of its parent: they count as lost there, and a client of the parent is
//! closed in the child, whose calls of it fail with `Closed`. Open another client in the child. The first call of
//! the child starts threads of its own, so what holds for threads after a fork holds there as well.
//!
//! Calls in a child need tokio without its feature `parking_lot`, which `full` includes: with it, tokio keeps a table
//! of the threads that sleep, and the table of a child lists threads that do not exist there. The first call of the
//! child can then hang, or end the child. `cargo tree -e features -i tokio` shows which crate turns the feature on. No
//! crate of leasehold does. A child that executes another program at once is not concerned.
//!
//! Promises, limits and errors are those of the asynchronous types of the same names.

mod client;
mod guard;
mod interrupt;
mod lock;
mod mirror;
mod mirrors;
mod observer;
mod primitives;
mod runtime;

pub use client::Client;
pub use guard::{BlockingGuard, Guard, Leadership, MultiGuard};
pub use interrupt::Interrupt;
pub use lock::{Lock, Mutex, RwLock, Semaphore};
pub use observer::Observer;
pub use primitives::{
    Barrier, Blocking, Election, Latch, MultiLock, RateLimit, SingleFlight, Stripe, StripedMutex, Versioned,
};
