//! Notifications that wake waiters.

pub(crate) mod calls;
pub(crate) mod listener;
