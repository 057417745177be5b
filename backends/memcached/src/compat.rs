//! The locks of other libraries: one item for each lock, there while it is held.

pub(crate) mod inspect;
pub(crate) mod plain;
pub(crate) mod token;
