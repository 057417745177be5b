//! The claims of this client, and what it knows of sessions and containers.

pub(crate) mod claim_table;
pub(crate) mod leftovers;
pub(crate) mod recent;
pub(crate) mod session_pool;
pub(crate) mod uncontended;
pub(crate) mod validity;
