//! The backend: the calls of the seam, and what they share.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Backend, Claim, Clock, Failure, Finding, Patience, Profile, Registers, Release, Renew, Renewal, Resource,
    Snapshot, Step, Summary, Version,
};

use crate::bells::Bells;
use crate::cells::{Cell, Cells};
use crate::group_commit::GroupCommit;
use crate::left::Left;
use crate::mine::Mine;
use crate::page::Page;
use crate::pollers::Pollers;
use crate::sightings::Sightings;
use crate::turns::Turns;

/// Locks in the cells of a store.
///
/// Promises what the store's [`Profile`] says.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave a place in the line, which ends by itself: within
/// the grace of a call once its turn comes, and within the profile's `place_ttl` otherwise.
#[derive(Debug)]
pub struct CellBackend<C> {
    pub(crate) cells: Arc<C>,
    pub(crate) commits: GroupCommit<C>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) mine: Mine,
    pub(crate) left: Left,
    pub(crate) pollers: Pollers,
    pub(crate) turns: Turns,
    sightings: Sightings,
    silent: Bells,
}

impl<C: Cells> CellBackend<C> {
    /// Creates a backend over these cells. `clock` is the machine's own, and counts suspend.
    pub fn new(cells: C, clock: Arc<dyn Clock>) -> Self {
        let cells = Arc::new(cells);
        CellBackend {
            commits: GroupCommit::new(cells.clone()),
            cells,
            clock,
            mine: Mine::default(),
            left: Left::default(),
            pollers: Pollers::default(),
            turns: Turns::default(),
            sightings: Sightings::default(),
            silent: Bells::new(),
        }
    }

    /// Returns the store.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Reads a cell that has just arrived.
    pub(crate) fn open(&self, resource: &Resource, cell: &Cell) -> Result<Page, Failure> {
        Page::open(resource, cell, self.cells.timekeeping(), &self.sightings, self.clock.now())
    }

    /// Returns the bells of the store, or some that nobody ever rings.
    pub(crate) fn bells(&self) -> &Bells {
        self.cells.bells().unwrap_or(&self.silent)
    }
}

#[async_trait]
impl<C: Cells> Backend for CellBackend<C> {
    fn profile(&self) -> &Profile {
        self.cells.profile()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.cells.registers()
    }

    fn adopts(&self) -> bool {
        true
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.cells.part(claim)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.extend(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.end(batch).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&Version>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.observe(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<Summary>, Failure> {
        self.summarize(prefix, after, limit).await
    }

    async fn examine(&self, ttl: Duration) -> Vec<Finding> {
        self.cells.examine(ttl).await
    }
}
