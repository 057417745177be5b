//! Which server serves a request: the only one, the primary that Sentinels name, or those of a cluster.

pub(crate) mod cluster;
pub(crate) mod sentinel;
pub(crate) mod server_info;
pub(crate) mod servers;
pub(crate) mod subscribers;
