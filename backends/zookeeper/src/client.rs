//! One ensemble of servers as this client sees it: sessions, claims, and what is known of resources.

use crate::config::ZooKeeperConfig;
use crate::net::session::Sessions;
use crate::protocol::names::Names;
use crate::state::leftovers::Leftovers;
use crate::state::places::Places;
use crate::state::recent::Recent;
use crate::state::session_pool::SessionPool;
use crate::state::uncontended::Quiet;

/// The state that the parts of the backend share.
#[derive(Debug)]
pub(crate) struct Ensemble {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) names: Names,
    /// The session for everything but claims.
    pub(crate) sessions: Sessions,
    /// Those that claims are in.
    pub(crate) fleet: SessionPool,
    pub(crate) places: Places,
    pub(crate) quiet: Quiet,
    pub(crate) recent: Recent,
    pub(crate) leftovers: Leftovers,
}
