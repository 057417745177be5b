//! The backend over a [`ShedTable`]: the calls of the seam, and which requests are repeated.
//!
//! Ground rules: nothing is remembered of a row. Its condition is part of each statement, so what ran out
//! and was taken by another client is never touched, by any late or repeated request.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Backend, Claim, ClaimInfo, Failure, Finding, Grant, Hint, Note, Patience, Profile, Proof, Release, Renew,
    Renewal, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion, Step,
};

use super::owner::{LockedBy, owner_text};
use super::{End, Row, RowRequest, ShedTable, Taken, row_name};
use crate::cell::list::Listing;
use crate::cell::wait::polling::pause;
use crate::cell::wait::timing::{BATCH_MAX, check};
use crate::pollers::Pollers;

/// Locks in ShedLock's table.
///
/// Promises what [`shed_profile`](crate::cell::shed_profile) says.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave the claim holding until its ttl ends.
#[derive(Debug)]
pub struct ShedBackend<T> {
    table: T,
    pollers: Pollers,
}

impl<T: ShedTable> ShedBackend<T> {
    /// Creates a backend over this table.
    pub fn new(table: T) -> Self {
        ShedBackend { table, pollers: Pollers::default() }
    }

    fn hold(&self, claim: &Claim) -> RowRequest {
        let widths = self.table.widths();
        RowRequest {
            name: row_name(&claim.resource, widths),
            by: owner_text(claim, widths.locked_by),
            ttl: claim.ttl,
        }
    }

    async fn release_batch(&self, claims: &[&Claim]) -> Vec<Release> {
        claims.iter().for_each(|claim| self.pollers.forget(claim.id));
        let mut ends: Vec<(usize, End)> = claims
            .iter()
            .map(|claim| self.hold(claim))
            .map(|RowRequest { name, by, .. }| End { name, by, since: None })
            .enumerate()
            .collect();
        let mut releases = vec![Release::Gone; claims.len()];
        for _ in 0..MAX_TRIES {
            let asked: Vec<End> = ends.iter().map(|(_, end)| end.clone()).collect();
            let mut missed = Vec::new();
            for ((at, _), freed) in ends.into_iter().zip(self.table.free(&asked).await) {
                match freed {
                    Ok(true) => releases[at] = Release::Freed,
                    Ok(false) => missed.push(at),
                    Err(failure) => releases[at] = Release::Unknown(failure),
                }
            }
            if missed.is_empty() {
                return releases;
            }
            ends = self.still_there(claims, missed, &mut releases).await;
            if ends.is_empty() {
                return releases;
            }
        }
        let busy =
            || Release::Unknown(Failure::unavailable("it changed hands whenever it was to be released"));
        ends.into_iter().for_each(|(at, _)| releases[at] = busy());
        releases
    }

    /// Returns the claims that are held all the same: by another program that was looked at, or under
    /// another note.
    async fn still_there(
        &self,
        claims: &[&Claim],
        missed: Vec<usize>,
        releases: &mut [Release],
    ) -> Vec<(usize, End)> {
        let names: Vec<String> =
            missed.iter().map(|at| row_name(&claims[*at].resource, self.table.widths())).collect();
        let mut there = Vec::new();
        for (at, row) in missed.into_iter().zip(self.table.held_rows(&names).await) {
            match row {
                Ok(Some(Row { name, by, since, .. })) if LockedBy::read(&by).id == claims[at].id => {
                    there.push((at, End { name, by, since: Some(since) }));
                }
                Ok(_) => {}
                Err(failure) => releases[at] = Release::Unknown(failure),
            }
        }
        there
    }

    async fn inspect_once(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let row = self.table.held_rows(&[row_name(resource, self.table.widths())]).await.pop();
        let row = row.ok_or_else(|| Failure::unavailable("the table did not answer"))??;
        let mut snapshot = Snapshot::new(resource.clone(), SnapshotVersion::new("-"));
        let Some(row) = row else { return Ok(snapshot) };
        let LockedBy { id, note } = LockedBy::read(&row.by);
        // Of an id only its public name may be shown.
        snapshot.version = SnapshotVersion::new(format!("{}-{}", id.tag(), row.since));
        snapshot.holders.push(
            ClaimInfo::new(id, Share::MUTEX)
                .since_unix_ms(u64::try_from(row.since / 1_000).ok())
                .remaining(Some(row.left))
                .note(Note::clipped(note.as_str())),
        );
        Ok(snapshot)
    }
}

#[async_trait]
impl<T: ShedTable> Backend for ShedBackend<T> {
    fn profile(&self) -> &Profile {
        self.table.profile()
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        check(self.table.profile(), claim)?;
        for _ in 0..MAX_TRIES {
            let asked_at = patience.now();
            let row = match self.table.take(&self.hold(claim)).await? {
                Taken::Yes => {
                    self.pollers.forget(claim.id);
                    let proof = Proof::none();
                    return Ok(Step::Granted(Grant::new(asked_at).proof(proof)));
                }
                Taken::No(row) => row,
            };
            let Some(row) = row else { continue };
            let ask_again_in = match patience.is_ended() {
                true => {
                    self.pollers.forget(claim.id);
                    None
                }
                false => Some(pause(claim, self.pollers.count(claim.id), row.left)),
            };
            return Ok(Step::Busy(Hint { ask_again_in, ahead: Some(1) }));
        }
        Err(Failure::unavailable("it changed hands whenever it was asked for: try again"))
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut renewals = vec![Renewal::Lost; batch.len()];
        let mut holds = Vec::with_capacity(batch.len());
        for (at, Renew { claim, .. }) in batch.iter().enumerate() {
            match check(self.table.profile(), claim) {
                Ok(()) => holds.push((at, self.hold(claim))),
                Err(failure) => renewals[at] = Renewal::Unknown(failure),
            }
        }
        for some in holds.chunks(BATCH_MAX) {
            let asked: Vec<RowRequest> = some.iter().map(|(_, hold)| hold.clone()).collect();
            for ((at, _), extended) in some.iter().zip(self.table.extend(&asked).await) {
                match extended {
                    Ok(true) => renewals[*at] = Renewal::Renewed,
                    Ok(false) => {}
                    Err(failure) => renewals[*at] = Renewal::Unknown(failure),
                }
            }
        }
        renewals
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut releases = Vec::with_capacity(batch.len());
        for some in batch.chunks(BATCH_MAX) {
            releases.extend(self.release_batch(some).await);
        }
        releases
    }

    async fn inspect(
        &self,
        resource: &Resource,
        _seen: Option<&SnapshotVersion>,
        _patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_once(resource).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let mut listing = Listing::new(after, limit);
        while let Some((behind, length)) = listing.next_page() {
            let page = self.table.list(prefix, &behind, length).await?.into_iter().map(|row| {
                // A name that no resource can have is not ours to take.
                let resource = Resource::new(&row.name).ok();
                (row.name, resource.map(|resource| ResourceSummary::new(resource, 1, 0)))
            });
            listing.add(length, page.collect());
        }
        Ok(listing.into_summaries())
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.table.diagnose(ttl).await
    }
}

/// Tries of one change against others; every lost try is another's success.
const MAX_TRIES: u32 = 10;
