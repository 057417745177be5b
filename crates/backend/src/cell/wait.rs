//! Waiters: the time of their next look, by notification or polling, and the limits of every wait.

pub(crate) mod notifier;
pub(crate) mod polling;
pub(crate) mod timing;
