//! The shared parts of the backends of leasehold.
//!
//! - [`url`]: the URLs of lock servers: hosts, credentials, options and the files of TLS.
//! - [`pollers`]: the claims that poll, and the number of requests of each.
//! - [`changes`]: the loop that waits for a change of what a store shows.
//! - [`random`]: random numbers of the operating system.
//! - [`connecting`]: failures of connections that could not be opened.
//! - `connection` (feature `connection`): one connection that many requests share.
//! - [`diagnose`]: checks of `doctor` that stores of different forms share.
//! - `cell` (feature `cell`): a whole backend over any store that can compare and set one value for each
//!   resource.
//! - `sql` (feature `cell`): the common parts of SQL databases, whether they keep cells as rows or locks in sessions.
//! - `session` (feature `session`): a whole backend over any server whose connections hold locks. It uses the idle
//!   connections of `sql`, and from `cell` the check of a claim and the pauses of one that polls.
//!
//! Programs that use locks depend on `leasehold` and not on this crate.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cell")]
pub mod cell;
pub mod changes;
pub mod connecting;
#[cfg(feature = "connection")]
pub mod connection;
pub mod diagnose;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "cell")]
mod keyed_mutex;
pub mod pollers;
pub mod random;
#[cfg(feature = "session")]
pub mod session;
#[cfg(feature = "cell")]
pub mod sql;
pub mod url;
