//! Requests and answers as values: commands, replies and facts. No I/O.

pub(crate) mod command;
pub(crate) mod facts;
pub(crate) mod reply;
