//! The acquisition of a lock: the local queue, its contender on the server, upgrades and transfers.

pub(super) mod at_once;
pub(super) mod contender;
pub(super) mod linger;
pub(super) mod local_queue;
pub(super) mod queue;
pub(super) mod requester;
pub(super) mod span;
pub(super) mod transfer;
pub(super) mod upgrade;
