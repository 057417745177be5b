//! The data that all requests share.

use std::sync::Arc;

use leasehold::Client;
use leasehold_monitor::Monitor;

use crate::config::Config;
use crate::holds::Holds;
use crate::lately::Lately;
use crate::token::Token;
use crate::watchers::Watchers;

/// The data that all requests share.
#[derive(Debug)]
pub(crate) struct State {
    /// The client of the store.
    pub(crate) client: Client,
    /// The settings.
    pub(crate) config: Config,
    /// The token for changes.
    pub(crate) token: Token,
    /// The picture of the store, which all readers share.
    pub(crate) monitor: Arc<Monitor>,
    /// The waits, holds and losses of the last half hour.
    pub(crate) lately: Arc<Lately>,
    /// The locks that are held for HTTP clients.
    pub(crate) holds: Holds,
    /// The places of streams that only read.
    pub(crate) watchers: Watchers,
}
