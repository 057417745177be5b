//! Connections to the servers: sessions, watches, TLS and four-letter words.

pub(crate) mod four_letter;
pub(crate) mod pulse;
pub(crate) mod session;
pub(crate) mod tunnel;
pub(crate) mod watching;
