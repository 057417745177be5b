//! The backend: the calls of the seam, and what they share.

pub(crate) mod acquire;
pub(crate) mod at_once;
pub(crate) mod batch;
pub(crate) mod direct;
pub(crate) mod group_commit;
pub(crate) mod inspect;
pub(crate) mod registers;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod sweep;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    AtOnce, Backend, Claim, Clock, DirectRequests, Failure, Finding, Patience, Profile, Registers, Release,
    Renew, Renewal, Resource, ResourceSummary, Snapshot, SnapshotVersion, Step,
};

use crate::cell::backend::group_commit::GroupCommit;
use crate::cell::cells::{Cell, CellStore};
use crate::cell::state::client_knowledge::ClientKnowledge;
use crate::cell::state::decoded::DecodedCell;
use crate::cell::state::empty_cells::EmptyCells;
use crate::cell::wait::notifier::Notifier;
use crate::keyed_mutex::KeyedMutex;
use crate::pollers::Pollers;

/// Locks in the cells of a store.
///
/// Promises what the store's [`Profile`] says.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave a place in the queue, which ends by itself: within
/// the grace of a call once its turn comes, and within the profile's `place_ttl` otherwise.
#[derive(Debug)]
pub struct CellBackend<C> {
    pub(crate) cells: Arc<C>,
    pub(crate) commits: GroupCommit<C>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) knowledge: Arc<ClientKnowledge>,
    pub(crate) empty_cells: EmptyCells,
    pub(crate) pollers: Pollers,
    pub(crate) per_resource: KeyedMutex,
    silent: Notifier,
}

impl<C: CellStore> CellBackend<C> {
    /// Creates a backend over these cells. `clock` is the machine's own, and counts suspend.
    pub fn new(cells: C, clock: Arc<dyn Clock>) -> Self {
        let cells = Arc::new(cells);
        CellBackend {
            commits: GroupCommit::new(cells.clone()),
            cells,
            clock,
            knowledge: Arc::default(),
            empty_cells: EmptyCells::default(),
            pollers: Pollers::default(),
            per_resource: KeyedMutex::default(),
            silent: Notifier::new(),
        }
    }

    /// Returns the store.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Reads a cell that has just arrived.
    pub(crate) fn open(&self, resource: &Resource, cell: &Cell) -> Result<DecodedCell, Failure> {
        DecodedCell::open(
            resource,
            cell,
            self.cells.clock_source(),
            &self.knowledge.observed,
            self.clock.now(),
        )
    }

    /// Returns the notifier of the store, or one that never notifies.
    pub(crate) fn notifier(&self) -> &Notifier {
        self.cells.notifier().unwrap_or(&self.silent)
    }
}

#[async_trait]
impl<C: CellStore> Backend for CellBackend<C> {
    fn profile(&self) -> &Profile {
        self.cells.profile()
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        self.cells.writes_now().then_some(self)
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        self.cells.sends_now().then_some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.cells.registers()
    }

    fn supports_transfer(&self) -> bool {
        true
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.cells.part(claim)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.contend_step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.renew_batch(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.release_batch(batch).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_until(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.list_resources(prefix, after, limit).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.cells.diagnose(ttl).await
    }
}
