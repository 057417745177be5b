//! The release of claims: inline by the caller, or by one task for each client.

pub(super) mod inline;
pub(super) mod job;
pub(super) mod reaper;
pub(super) mod reaper_task;
pub(super) mod stall_watch;
