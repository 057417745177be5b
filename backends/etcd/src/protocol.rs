//! Requests and answers as values: messages, keys, transactions and versions. No I/O.

pub(crate) mod key_slots;
pub(crate) mod layout;
pub(crate) mod proof;
pub(crate) mod proto;
pub(crate) mod queue;
pub(crate) mod txn;
pub(crate) mod version;
