//! Connections to the server: opening, TLS, the pool, and what the server is.

pub(crate) mod dial;
pub(crate) mod pool;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod tls;
