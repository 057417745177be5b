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
    BATCH_MAX, Cell, CellStore, ClockSource, Locked, MAX_TTL, PLACE_TTL, SentWrite, Write, WriteAnswer,
    WriteCondition, WriteOutcome,
};
use leasehold_core::{
    Claim, Effect, Failure, FailureKind, Fence, FenceGrade, Finding, Ledger, Liveness, LockSupport, Profile,
    QueueOrder, Registers, Resource,
};

use crate::backend::diagnose;
use crate::backend::list::Found;
use crate::net::link::Link;
use crate::net::servers::{Node, Servers};
use crate::protocol::command::{CLOCK_LAG, Command, Key, Life};
use crate::protocol::reply::Reply;

/// The items of all servers.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) servers: Arc<Servers>,
    profile: Profile,
}

impl Items {
    pub(crate) fn new(servers: Servers) -> Items {
        Items {
            servers: Arc::new(servers),
            profile: profile(LockSupport::Counted, QueueOrder::Fifo, PLACE_TTL),
        }
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
        .overrun(CLOCK_LAG)
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

    fn numbers_states(&self) -> bool {
        true
    }

    fn sends_now(&self) -> bool {
        true
    }

    fn send_now(&self, write: Write) -> Option<SentWrite> {
        let (node, key) = (self.servers.node(&write.at), self.servers.key(&write.at).ok()?);
        let link = node.link_now()?;
        let command = command(&write, &key, &link)?;
        let sent = link.send(&[command, Command::Look { key: &key }])?;
        let servers = self.servers.clone();
        Some(Box::pin(async move {
            let node = servers.node(&write.at);
            let replies = node.answers_to(sent, true).await?;
            outcome(node, &link, &write, replies)
        }))
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

    async fn write(&self, writes: &[&Write], _locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        if let [one] = writes {
            return vec![match one.answer {
                WriteAnswer::Full => self.write_and_look(one).await,
                WriteAnswer::Brief => self.write_alone(one).await,
            }];
        }
        let at: Vec<&Resource> = writes.iter().map(|write| &write.at).collect();
        let keys: Result<Vec<Key>, Failure> = at.iter().map(|at| self.servers.key(at)).collect();
        let keys = match keys {
            Ok(keys) => keys,
            Err(failure) => return vec![Err(failure); writes.len()],
        };
        let command = |index: usize, link: &Link| command(writes[index], &keys[index], link);
        let answers = self.servers.scatter(&at, command, Reply::Differs { mark: None }).await;
        let answers = answers.into_iter().zip(writes);
        answers
            .map(|(answer, write)| brief_outcome(self.servers.node(&write.at), write, &answer?.1))
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

impl Items {
    /// Makes one write.
    async fn write_alone(&self, write: &Write) -> Result<WriteOutcome, Failure> {
        let (node, key) = (self.servers.node(&write.at), self.servers.key(&write.at)?);
        let link = node.link().await?;
        let Some(command) = command(write, &key, &link) else { return Ok(WriteOutcome::Refused(None)) };
        let reply = node.ask(&link, &[command]).await?.pop();
        brief_outcome(node, write, &reply.unwrap_or(Reply::Missing { mark: None }))
    }

    /// Makes one write, and looks at the item in the same request: at the number of the one that it put
    /// there, or at the one that is in its way.
    async fn write_and_look(&self, write: &Write) -> Result<WriteOutcome, Failure> {
        let (node, key) = (self.servers.node(&write.at), self.servers.key(&write.at)?);
        let link = node.link().await?;
        let look = Command::Look { key: &key };
        let replies = match command(write, &key, &link) {
            None => {
                let mut replies = node.ask(&link, &[look]).await?;
                replies.insert(0, Reply::Differs { mark: None });
                replies
            }
            Some(command) => node.ask(&link, &[command, look]).await?,
        };
        outcome(node, &link, write, replies)
    }
}

/// Reads the answer to a write.
fn brief_outcome(node: &Node, write: &Write, reply: &Reply) -> Result<WriteOutcome, Failure> {
    match reply {
        Reply::Done { .. } => Ok(WriteOutcome::Written { version: None, fence: write.put.fence }),
        Reply::Differs { .. } | Reply::Missing { .. } => Ok(WriteOutcome::Refused(None)),
        reply => Err(node.unexpected(reply)),
    }
}

/// Reads the answers to a write and to the look that followed it.
fn outcome(
    node: &Node,
    link: &Link,
    write: &Write,
    mut replies: Vec<Reply>,
) -> Result<WriteOutcome, Failure> {
    let Write { at, when, put, .. } = write;
    let found = replies.pop().unwrap_or(Reply::Missing { mark: None });
    let done = replies.pop().unwrap_or(Reply::Missing { mark: None });
    match (done, found) {
        (Reply::Done { .. }, Reply::Item { value, number, .. }) if value == put.text.as_bytes() => {
            let fence = if *when == WriteCondition::Free { fence(link, number) } else { put.fence };
            Ok(WriteOutcome::Written { version: Some(number), fence })
        }
        (Reply::Done { .. }, _) if *when != WriteCondition::Free => {
            Ok(WriteOutcome::Written { version: None, fence: put.fence })
        }
        (Reply::Done { .. } | Reply::Differs { .. } | Reply::Missing { .. }, found) => {
            Ok(WriteOutcome::Refused(read_cell(link, &found, at)?))
        }
        // A server without memory refuses also to add what there is already.
        (_, found @ Reply::Item { .. }) if *when == WriteCondition::Free => {
            Ok(WriteOutcome::Refused(read_cell(link, &found, at)?))
        }
        (refused, _) => Err(node.unexpected(&refused)),
    }
}

/// Returns the command of a write; `None` where the number that was seen is of another process of the
/// server, which gives the same number to another item.
fn command<'a>(write: &'a Write, key: &'a Key, link: &Link) -> Option<Command<'a>> {
    let (life, value) = (Life::of_lease(write.put.keep), write.put.text.as_bytes());
    let (number, epoch) = match write.when {
        WriteCondition::Free => return Some(Command::Add { key, life, value }),
        // Cells that are left empty are removed.
        WriteCondition::Emptied(_) | WriteCondition::Living { epoch: None, .. } => return None,
        WriteCondition::Living { version, epoch: Some(epoch) } | WriteCondition::Seen { version, epoch } => {
            (version, epoch)
        }
    };
    (link.facts.started == epoch).then_some(match value.is_empty() {
        true => Command::Remove { key, number },
        false => Command::Replace { key, life, value, number },
    })
}

fn read_cell(link: &Link, reply: &Reply, at: &Resource) -> Result<Option<Cell>, Failure> {
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

#[cfg(test)]
mod tests {
    use leasehold_backend::cell::laws;
    use leasehold_testkit::MemcachedServer;

    use super::*;
    use crate::config::MemcachedConfig;

    #[tokio::test]
    async fn each_write_has_the_outcome_of_its_condition() {
        let Some(server) = MemcachedServer::start_or_skip().await else { return };
        let url = format!("{}?timeout=3s", server.url());
        let items = Items::new(Servers::new(Arc::new(MemcachedConfig::parse(&url).unwrap())));
        items.servers.connect().await.unwrap();
        laws::writes_are_made_on_their_condition(&items).await;
        laws::several_writes_are_decided_one_by_one(&items).await;
        laws::write_on_a_missing_cell_leaves_nothing(&items).await;
        laws::lapsed_cell_is_free(&items, Duration::from_secs(2)).await;
        let (stop, resume) = (|| server.stop().unwrap(), async || server.resume().unwrap());
        laws::unanswered_write_may_have_happened(&items, stop, resume).await;
    }
}
