//! Sweeping: the removal of claims that ended by their time, in cells that are no longer used.
//!
//! Ground rules: each client that uses a cell does the same in passing, so nothing here is needed for a
//! lock to be right. A cell is changed on the condition that it is still what was read, and only where no
//! claim in it lived for a while, by the store's own clock: no holder or waiter is touched, and a second
//! sweeper finds less to do. The fence of a cell stays, and with it the cell, unless the store itself can
//! ensure that no later fence of that resource is lower.

use std::time::Duration;

use leasehold_core::{Failure, Resource};

use crate::cell::backend::CellBackend;
use crate::cell::cells::{CellStore, Found, Locked, Put, Write, WriteAnswer, WriteCondition, WriteOutcome};
use crate::cell::wait::timing::{BATCH_MAX, draw_version};

/// The outcome of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Cells that were looked at.
    pub seen: u64,
    /// Cells whose claims had ended, and were removed. The fence stays.
    pub emptied: u64,
    /// Cells that were removed as a whole.
    pub removed: u64,
}

impl<C: CellStore> CellBackend<C> {
    /// Goes through all cells once, and removes what is left in those in which no claim has lived for
    /// `unused_for`.
    ///
    /// Promises that nothing that is held or waited for is touched, and that the next fence of a resource
    /// is greater than each before. Safe alongside clients and other sweepers. Each batch is a few short
    /// requests.
    ///
    /// # Cancel safety
    /// May be dropped at any point; what was swept by then stays so.
    ///
    /// # Errors
    /// `Unsupported` where the store forgets by itself; otherwise a [`Failure`] of the store, after which
    /// the sweep can be begun anew.
    pub async fn sweep(&self, unused_for: Duration) -> Result<SweepReport, Failure> {
        self.sweep_under("", unused_for, |_| ()).await
    }

    /// Does as [`CellBackend::sweep`] for the cells whose names begin with `prefix` only, and calls `progress` with what
    /// is done after each batch.
    ///
    /// # Errors
    /// As [`CellBackend::sweep`].
    pub async fn sweep_under(
        &self,
        prefix: &str,
        unused_for: Duration,
        progress: impl Fn(SweepReport) + Send + Sync,
    ) -> Result<SweepReport, Failure> {
        let mut swept = SweepReport::default();
        let mut after: Option<Resource> = None;
        // The names rise from batch to batch, so this ends however the store changes meanwhile.
        loop {
            let found = self.cells.all(after.as_ref(), BATCH_MAX).await?;
            let is_last = found.len() < BATCH_MAX;
            after = found.last().map(|found| found.at.clone());
            let found: Vec<Found> =
                found.into_iter().filter(|found| found.at.as_str().starts_with(prefix)).collect();
            self.sweep_some(&found, unused_for, &mut swept).await?;
            progress(swept);
            if is_last {
                return Ok(swept);
            }
            tokio::time::sleep(BETWEEN_BATCHES).await;
        }
    }

    async fn sweep_some(
        &self,
        found: &[Found],
        unused_for: Duration,
        swept: &mut SweepReport,
    ) -> Result<(), Failure> {
        swept.seen += count(found.len());
        // A cell that has just lapsed may be that of a holder that is late, whose renewal finds that by
        // itself.
        let idle = |found: &&Found| !found.idle.is_zero() && found.idle >= unused_for;
        let unused: Vec<&Found> = found.iter().filter(idle).collect();
        if unused.is_empty() {
            return Ok(());
        }
        if let Some(forgotten) = self.cells.forget(&unused).await? {
            swept.removed += count(forgotten);
            return Ok(());
        }
        let stale: Vec<&Found> = unused.into_iter().filter(|found| !found.cell.text.is_empty()).collect();
        let writes = stale.iter().map(|found| emptied(found)).collect::<Result<Vec<Write>, Failure>>()?;
        if writes.is_empty() {
            return Ok(());
        }
        let writes: Vec<&Write> = writes.iter().collect();
        for done in self.cells.write(&writes, Locked::Skip).await {
            swept.emptied += u64::from(matches!(done?, WriteOutcome::Written { .. }));
        }
        Ok(())
    }
}

/// Returns the cell without its claims.
fn emptied(found: &Found) -> Result<Write, Failure> {
    let Found { at, cell, .. } = found;
    let when = WriteCondition::Seen { version: cell.version, epoch: cell.floor.epoch };
    Ok(Write {
        at: at.clone(),
        when,
        put: Put::nothing(cell.fence, draw_version()?),
        answer: WriteAnswer::Brief,
    })
}

fn count(cells: usize) -> u64 {
    u64::try_from(cells).unwrap_or(u64::MAX)
}

/// The pause in which clients are served between two batches.
const BETWEEN_BATCHES: Duration = Duration::from_millis(10);
