//! One item for each resource, which holds the queue of its claims.

pub(crate) mod cells;
pub(crate) mod diagnose;
pub(crate) mod list;
pub(crate) mod registers;
