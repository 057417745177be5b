//! The connection to the database, on a thread of its own.

pub(crate) mod worker;
