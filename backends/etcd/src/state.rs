//! The claims and leases of this client. No I/O.

pub(crate) mod lease;
pub(crate) mod lease_table;
