//! A whole [`Backend`](leasehold_core::Backend) over any server whose *connections* hold locks: advisory
//! locks, named locks, rows locked by an open transaction.
//!
//! The server decides which session holds. Everything else is written here, once: which claims share a
//! connection and which exclude each other on it, how many connections exist, which claims wait and how a
//! wait is cancelled, signs of life, and the loss of a connection, which is the loss of all its locks at
//! once.
//!
//! # What a server brings
//!
//! [`Sessions`] opens sessions and reads the holders; a [`Session`] locks, unlocks, gives a sign of life,
//! and cancels a request that waits. Dropping it closes the connection.
//!
//! # When a lock is lost
//!
//! The end of a connection is reported at once by a session that reads it all the time, and by another one with the
//! next request that it is asked; every holder on it learns of it then. Silence, because the
//! network is partitioned, is not reported: so each session is asked for a sign of life five times in the
//! time for which a holder may count on it (the profile's
//! [`Liveness::Heartbeat`](leasehold_core::Liveness)), counted from before the last request that was
//! answered. In a new session it is counted from the end of the opening, because every lock is asked for later.
//! The server must keep a silent session for longer than that, by what is set for the session when
//! it is opened. So a holder knows of that loss before the server can give the lock to another client.
//! A session that is over here is closed only when its holders know of the loss. A connection that something else
//! ends is different: the server frees its locks at once, and the holders learn of it afterwards.
//!
//! # Ground rules
//!
//! A connection of which anything is in doubt is closed, and never used again: a request without an answer,
//! a wait that could not be cancelled, an unlock that the server denies. All waits and retries
//! are bounded.

mod acquire;
mod backend;
mod claims;
mod combiner;
mod diagnose;
mod inspect;
mod open_session;
mod release;
mod session_pool;
mod sessions;
mod showing;

pub use backend::SessionBackend;
pub use combiner::Combiner;
pub use diagnose::break_finding;
pub use sessions::{
    Answer, Capacity, Holder, LONGEST_WAIT, SHOWN_AFTER, Session, SessionRequest, Sessions, Sharing,
    collision, foreign_holder,
};
