//! One ensemble of servers as this client sees it: sessions, claims, and what is known of resources.

use crate::config::ZooKeeperConfig;
use crate::leftovers::Leftovers;
use crate::names::Names;
use crate::places::Places;
use crate::recent::Recent;
use crate::session::Sessions;
use crate::session_pool::SessionPool;
use crate::uncontended::Quiet;

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
