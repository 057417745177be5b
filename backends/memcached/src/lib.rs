//! leasehold on one memcached server (1.6 or later), or on several.
//!
//! The server decides only which of two writers was first; what a queue of claims means is decided here.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod compat;
mod config;
#[cfg(test)]
mod fuzz;
mod net;
mod protocol;

use std::sync::Arc;

use leasehold_backend::cell::CellBackend;
use leasehold_backend::url::warn_of_exposed_password;
use leasehold_core::{Backend, Clock, Failure};

pub use config::{MemcachedConfig, URLS};

use backend::cells::Items;
use compat::plain::PlainBackend;
use config::Dialect;
use net::servers::Servers;

/// Connects to the servers, logs in, and asks what they are.
///
/// `clock` is the machine's own, and counts suspend. One of several servers is enough: what lives on the
/// others is unavailable until they are back.
///
/// # Errors
/// `Unavailable` where none can be reached, `Denied` where one refuses the login or its certificate is not
/// trusted, `Unsupported` where one is older than 1.6 or does not number its items. The text says what to
/// do.
pub async fn connect(config: MemcachedConfig, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>, Failure> {
    if config.exposes_password() {
        warn_of_exposed_password(&config, "use memcacheds://");
    }
    let dialect = config.dialect;
    let servers = Servers::new(Arc::new(config));
    servers.connect().await?;
    Ok(match dialect {
        Dialect::Native => Arc::new(CellBackend::new(Items::new(servers), clock)),
        Dialect::Plain => Arc::new(PlainBackend::new(servers)),
    })
}
