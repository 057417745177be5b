//! What all requests share.

use leasehold::Client;

use crate::config::Config;
use crate::holds::Holds;
use crate::token::Token;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct State {
    /// The client of the store.
    pub(crate) client: Client,
    /// The settings.
    pub(crate) config: Config,
    /// The token for changes.
    pub(crate) token: Token,
    /// The locks that are held for HTTP clients.
    pub(crate) holds: Holds,
}
