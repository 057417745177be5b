//! The native dialect: one item per resource holds the queue of its claims, changed only if no other client
//! changed it.
//!
//! Ground rules: the number of an item is its state; it rises over the whole server with every write, and
//! begins anew with the server's process, so a number is nothing without the epoch. What is remembered of
//! one process of the server is never sent to another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    BATCH_MAX, Cell, CellStore, ClockSource, InsertOutcome, MAX_TTL, PLACE_TTL, Put, Swap,
};
use leasehold_core::{
    Claim, Effect, Failure, FailureKind, Fence, FenceGrade, Finding, Ledger, Liveness, LockSupport, Profile,
    QueueOrder, Registers, Resource,
};

use crate::backend::diagnose;
use crate::backend::dump::Found;
use crate::net::link::Link;
use crate::net::servers::Servers;
use crate::protocol::command::{Command, Key, Life};
use crate::protocol::reply::Reply;

/// The items of all servers.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) servers: Servers,
    profile: Profile,
}

impl Items {
    pub(crate) fn new(servers: Servers) -> Items {
        Items { servers, profile: profile(LockSupport::Counted, QueueOrder::Fifo, PLACE_TTL) }
    }
}

/// Returns the promises of a server that may forget everything, no matter what is written down in it.
pub(crate) fn profile(admission: LockSupport, order: QueueOrder, place_ttl: Duration) -> Profile {
    Profile::new("memcached", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
        .admission(admission)
        .order(order)
        .fencing(FenceGrade::BestEffort)
        .place_ttl(place_ttl)
        .granularity(TICK)
        .renew_batch_max(BATCH_MAX)
        .note_max(leasehold_core::Note::MAX_BYTES)
}

/// The last second of an item's life is not sure, and of less than one more nothing would remain.
const MIN_TTL: Duration = Duration::from_secs(2);
/// The server counts in whole seconds.
const TICK: Duration = Duration::from_secs(1);
/// The longest queue that fits into an item of the server's default size, with its key.
const MAX_TEXT: usize = 1_000_000;

#[async_trait]
impl CellStore for Items {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Observer
    }

    fn max_text(&self) -> usize {
        MAX_TEXT
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.servers.part(&claim.resource)
    }

    async fn try_insert(&self, at: &Resource, put: &Put) -> Result<InsertOutcome, Failure> {
        let (node, key) = (self.servers.node(at), self.servers.key(at)?);
        let link = node.link().await?;
        let add = Command::Add { key: &key, life: Life::of(put.keep), value: put.text.as_bytes() };
        // The second answer has the number of the item that the first command put there, or that is in its
        // way.
        let replies = node.ask(&link, &[add, Command::Look { key: &key }]).await?;
        let [added, found] = &replies[..] else {
            return Err(node.unexpected(&Reply::Missing { mark: None }));
        };
        match (added, found) {
            (Reply::Done { .. }, Reply::Item { value, number, .. }) if value == put.text.as_bytes() => {
                Ok(InsertOutcome::Taken { version: *number, fence: fence(&link, *number) })
            }
            // Also where a server without memory refuses to add what there is already.
            (_, Reply::Item { .. }) => Ok(InsertOutcome::Held(read_cell(&link, found, at)?)),
            (Reply::Done { .. } | Reply::Differs { .. }, Reply::Missing { .. }) => {
                Ok(InsertOutcome::Held(None))
            }
            (refused, _) => Err(node.unexpected(refused)),
        }
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let answers = self.servers.look(at).await.into_iter().zip(at);
        answers
            .map(|(answer, at)| match answer? {
                (link, reply @ Reply::Item { .. }) => read_cell(&link, &reply, at),
                (_, Reply::Missing { .. }) => Ok(None),
                (_, reply) => Err(self.servers.node(at).unexpected(&reply)),
            })
            .collect()
    }

    async fn swap(&self, swaps: &[Swap]) -> Vec<Result<bool, Failure>> {
        let at: Vec<&Resource> = swaps.iter().map(|swap| &swap.at).collect();
        let keys: Result<Vec<Key>, Failure> = at.iter().map(|at| self.servers.key(at)).collect();
        let keys = match keys {
            Ok(keys) => keys,
            Err(failure) => return vec![Err(failure); swaps.len()],
        };
        let command = |index: usize, link: &Link| {
            let (key, Swap { seen, epoch, put, .. }) = (&keys[index], &swaps[index]);
            // Another process of the server gives the same number to another item.
            (link.facts.started == *epoch).then(|| match put.text.is_empty() {
                true => Command::Remove { key, number: *seen },
                false => {
                    let (life, value) = (Life::of(put.keep), put.text.as_bytes());
                    Command::Replace { key, life, value, number: *seen }
                }
            })
        };
        let answers = self.servers.scatter(&at, command, Reply::Differs { mark: None }).await;
        let answers = answers.into_iter().zip(&at);
        answers
            .map(|(answer, at)| match answer?.1 {
                Reply::Done { .. } => Ok(true),
                Reply::Differs { .. } | Reply::Missing { .. } => Ok(false),
                reply => Err(self.servers.node(at).unexpected(&reply)),
            })
            .collect()
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let name_in = |value: &[u8]| Resource::new(&Ledger::from_span_text(value).ok()?.1).ok();
        let found = Found::in_all(&self.servers, prefix, after, name_in).await?;
        let mut listed = Vec::new();
        for some in found.resources.chunks(BATCH_MAX) {
            let at: Vec<&Resource> = some.iter().collect();
            for (resource, cell) in some.iter().zip(CellStore::read(self, &at).await) {
                // What ended meanwhile, and what is not ours, is passed over.
                if let Ok(Some(cell)) = cell {
                    listed.push((resource.clone(), cell));
                }
            }
            if listed.len() >= limit {
                break;
            }
        }
        listed.truncate(limit);
        Ok(listed)
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose::all(&self.servers, ttl).await
    }
}

fn read_cell(link: &Arc<Link>, reply: &Reply, at: &Resource) -> Result<Option<Cell>, Failure> {
    let Reply::Item { value, number, .. } = reply else { return Ok(None) };
    let text = String::from_utf8(value.clone()).map_err(|error| {
        let text =
            format!("what is stored for {at:?} is left untouched: it is not text; choose another prefix");
        Failure::new(FailureKind::Foreign, Effect::None, text).because(error)
    })?;
    // Every write has a higher number than all before it, on any item: so have the fences, which follow the
    // number of what was read by one, and come to be no higher than the number of what is written.
    let fence = fence(link, *number);
    Ok(Some(Cell { text, version: *number, fence, floor: fence, age: None }))
}

pub(crate) fn fence(link: &Link, number: u64) -> Fence {
    Fence::new(link.facts.started, number, 0)
}
