//! Requests and answers as values: keys, scripts, replies and errors. No I/O.

pub(crate) mod acl;
pub(crate) mod channel_scope;
pub(crate) mod error;
pub(crate) mod floor;
pub(crate) mod keys;
pub(crate) mod reply;
pub(crate) mod scripts;
pub(crate) mod slots;
