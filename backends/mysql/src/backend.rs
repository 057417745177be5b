//! The three ways to lock: rows with a lease, named locks, and locked rows.

pub(crate) mod cells;
pub(crate) mod diagnose;
pub(crate) mod opening;
pub(crate) mod session;
