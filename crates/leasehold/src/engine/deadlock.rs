//! Deadlocks: the graph of what waits for what, and the search for circles in it.

pub(super) mod detector;
pub(super) mod graph;
