//! The command that runs while a lock is held: its start, its environment, its hooks and its end.

pub(crate) mod child;
pub(crate) mod descendants;
pub(crate) mod environment;
pub(crate) mod followers;
pub(crate) mod hook;
pub(crate) mod job;
pub(crate) mod keeper;
pub(crate) mod keeper_lines;
pub(crate) mod keeper_listener;
pub(crate) mod lease_watch;
pub(crate) mod lock_hold;
pub(crate) mod outer_run;
pub(crate) mod section;
pub(crate) mod select;
pub(crate) mod variable_lengths;
