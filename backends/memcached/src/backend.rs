//! One item for each resource, which holds the queue of its claims.

pub(crate) mod diagnose;
pub(crate) mod dump;
pub(crate) mod native;
pub(crate) mod registers;
