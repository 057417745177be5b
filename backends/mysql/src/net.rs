//! Connections to the server: opening, the pool, sessions, and what the server is.

pub(crate) mod dial;
pub(crate) mod pool;
pub(crate) mod server;
pub(crate) mod session;
