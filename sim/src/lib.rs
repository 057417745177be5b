//! Leasehold's protocols as small machines, each searched through to its last state.
//!
//! One file a protocol. It says in words what the parties do, holds their steps as pure functions over
//! small values, lets an adversary choose the order of everything, and names what must hold. Each keeps
//! its broken variants: a rule is in the protocol because a test shows what happens without it.
//!
//! Ground rules: no time, no randomness, no I/O; every bound is written; a search that finds nothing
//! has to show that it went somewhere, by properties that must be *reached*. `docs/book/src/models.md` lists
//! what was measured.
//!
//! One module is of another kind: [`capacity`] is arithmetic and a simulation in virtual time, with chance from
//! a seed.
#![forbid(unsafe_code)]

pub mod cancel;
pub mod capacity;
pub mod epoch;
pub mod lease;
pub mod local_handoff;
pub mod observer;
pub mod parking;
pub mod quorum;
pub mod redlock;
pub mod search;
