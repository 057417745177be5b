//! Connections to the servers, and which server has a resource.

pub(crate) mod dialer;
pub(crate) mod error;
pub(crate) mod link;
pub(crate) mod ring;
pub(crate) mod servers;
