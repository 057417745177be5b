//! Distributed locks whose guards report their loss.
//!
//! ```
//! use leasehold::Client;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let locks = Client::open("mem:").await?;
//! let mutex = locks.mutex("orders/42").ttl(Duration::from_secs(30));
//! let guard = mutex.lock().await?; // waits in the queue; renewed in the background
//! let done = guard.run(async { 2 + 2 }).await?; // stopped when the lock is lost
//! assert_eq!(done, 4);
//! guard.release().await?; // or drop it: then the runtime releases it in the background
//! # Ok(())
//! # }
//! ```
//!
//! A lock that is held by lease can be lost. If the process is paused or the network stops, the lease ends by
//! the clock of its holder *before* the server can grant the lock to another client. If the server loses its
//! data, the holder finds out at its next renewal. A grant also carries a [`Fence`], a number that rises, so
//! that a protected resource can refuse a holder that has not noticed the loss yet. Exclusion is a promise
//! about timing; fencing is the promise about safety. [`fenced`] has resources that check fences.
//!
//! # Waiting with a limit
//! Waits have the same forms on all types:
//!
//! - `lock`, `campaign`, `acquire`, `upgrade` wait without a limit.
//! - `try_lock`, `try_campaign`, … do not wait. `try_lock_for`, `try_campaign_for`, … wait up to a
//!   limit. `Ok(None)` or `Ok(false)` means that the request was not granted, and that nothing of it is left; if
//!   the store does not answer, it is an error.
//! - [`Barrier::wait_for`] and [`Guard::wait_for`] wait up to a limit whose end has an effect of its
//!   own: the barrier breaks, and the lock is acquired again.
//!
//! A wait that takes nothing, such as [`Latch::wait`], [`Guard::lost`] or [`Guard::revoked`], has no form
//! with a limit: drop its future, as `tokio::time::timeout` does. A thread cannot drop a future, so in
//! `blocking` these are `wait_within`, `lost_within` and `revoked_within`.
//!
//! `tokio::time::timeout` is also safe around every other wait. It cannot distinguish a lock that is held from a
//! store that does not answer.
//!
//! What a dropped future or guard leaves on a server is removed in the background, by a task of the client's
//! runtime. Before a program ends, await [`Guard::release`] or [`Client::close`]: what was not sent by then ends
//! with its ttl.
//!
//! # Stores
//! A URL names the store that a client uses, see [`Client::open`]. The promises of that store are
//! its [`Profile`]; requirements of the caller are compared with it before anything is sent.
//!
//! # Features
//! Files and memory need no feature. `redis` is a default feature; `redis-tls` adds TLS to it. `etcd`,
//! `zookeeper`, `postgres`, `mysql`, `sqlite` and `memcached` add the other stores. `blocking` adds the module
//! of that name, for threads that block. `metrics` exports counters.
//!
//! # Serde
//! With the feature `serde`, what is displayed can be serialized: [`Snapshot`], [`ResourceSummary`],
//! [`Finding`], [`Fence`] and others. Their forms are listed on the front page of [`backend`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod alarm;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
mod coord;
mod diagnose;
mod engine;
mod error;
mod events;
pub mod fenced;
pub mod layer;
pub mod local;
mod lock;
mod mutant;
mod open;
mod panics;
mod per_process;
#[cfg(leasehold_sim)]
pub mod probe;
mod random;
mod watch;

pub use client::{Client, ClientBuilder};
pub use clock::{SystemClock, TokioClock};
pub use coord::{
    Barrier, BarrierWaitResult, Cache, CacheError, Cached, Condition, Election, FlightOutcome, Latch, Leader,
    Leadership, LoadError, Loss, MultiGuard, MultiLock, Observer, RateLimit, SingleFlight, Stripe,
    StripeReport, StripeUse, StripedMutex, UpdateOutcome, ValueSource, Versioned, VersionedValue,
    WaitOutcome,
};
pub use engine::{Owner, Snapshots, State, Tuning};
pub use error::{Error, ErrorKind, Result};
pub use events::{AcquireFailure, AcquireSource, Event, EventSubscriber};
pub use lock::{
    Guard, Lock, LockRequest, Mutex, Revocation, RwLock, Semaphore, TransferToken, Upgradable, kind,
};
#[cfg(feature = "etcd")]
pub use open::EtcdProof;
#[cfg(feature = "zookeeper")]
pub use open::ZooKeeperProof;
#[cfg(feature = "mysql")]
pub use open::mysql;
#[cfg(feature = "postgres")]
pub use open::postgres;
pub use open::{SweepReport, schema, sweep, sweep_under, url_options};

pub use leasehold_core::deadlock::{Deadlock, DeadlockedWait};
pub use leasehold_core::{
    Backend, BreakOutcome, ClaimInfo, Clock, Durability, Fence, FenceGrade, Finding, LockSupport, LossCause,
    Moment, Note, Profile, QueueOrder, Resource, ResourceSummary, Severity, Share, Snapshot, SnapshotVersion,
    WaitMode,
};

/// The contract between the engine and the backends, for authors of backends.
pub use leasehold_core as backend;
