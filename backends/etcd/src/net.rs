//! Connections to the servers: requests, watches, limits and outages.

pub(crate) mod cluster;
pub(crate) mod error;
pub(crate) mod limiter;
pub(crate) mod member;
pub(crate) mod outage;
pub(crate) mod rounds;
pub(crate) mod secured;
pub(crate) mod watcher;
