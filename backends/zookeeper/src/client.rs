//! One ensemble of servers as this client sees it: sessions, claims, and what is known of resources.

use crate::config::ZooKeeperConfig;
use crate::net::session::Sessions;
use crate::protocol::names::Names;
use crate::state::claim_table::ClaimTable;
use crate::state::leftovers::Leftovers;
use crate::state::recent::Recent;
use crate::state::session_pool::SessionPool;
use crate::state::uncontended::Uncontended;
use crate::state::validity::Validity;

/// The state that the parts of the backend share.
#[derive(Debug)]
pub(crate) struct Ensemble {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) validity: Validity,
    pub(crate) names: Names,
    /// The session for everything but claims.
    pub(crate) sessions: Sessions,
    /// Those that claims are in.
    pub(crate) session_pool: SessionPool,
    pub(crate) claims: ClaimTable,
    pub(crate) uncontended: Uncontended,
    pub(crate) recent: Recent,
    pub(crate) leftovers: Leftovers,
}
