//! Inspects which claims hold a resource and which wait for it, and lists resources that have claims.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_backend::changes::until_changed;
use leasehold_core::{
    ClaimInfo, Failure, Fence, Patience, Resource, ResourceSummary, Snapshot, SnapshotVersion,
};

use crate::client::Shared;
use crate::net::error::Refusal;
use crate::protocol::proto::{KeyValue, LeaseTimeToLiveRequest, RangeRequest};
use crate::protocol::queue::{Entry, holders};

/// Returns the holders and the queue of a resource; with `seen`, waits until the version differs or patience
/// ends.
pub(crate) async fn inspect(
    shared: &Shared,
    resource: &Resource,
    seen: Option<&SnapshotVersion>,
    patience: &Patience,
) -> Result<Snapshot, Failure> {
    let queue = shared.layout.queue(resource);
    let look = || async {
        let request = RangeRequest { keys_only: false, ..shared.layout.keys_request(&queue, 0) };
        let asked = shared.cluster.ask(|conn| {
            let request = request.clone();
            async move { conn.range(request).await }
        });
        let found = asked.await.map_err(Refusal::without_effect)?.value;
        let entries = shared.layout.read_queue(resource, &found.kvs)?;
        let revision = found.header.map_or(0, |header| header.revision);
        let change = shared.watcher.changed(queue.clone(), revision + 1);
        Ok(((version(&entries, &found.kvs), entries, found.kvs), change))
    };
    let is_news = |(version, ..): &(SnapshotVersion, _, _)| seen.is_none_or(|seen| seen != version);
    let (version, entries, kvs) = until_changed(patience, is_news, look).await?;
    Ok(snapshot(shared, resource, version, &entries, &kvs).await)
}

/// Returns the version. Each new claim has a higher revision than all before, and claims then only leave, so
/// the first two numbers identify the claims. Another client that adopts one changes its value.
fn version(entries: &[Entry], kvs: &[KeyValue]) -> SnapshotVersion {
    let values = values_of(kvs);
    let mut notes = DefaultHasher::new();
    for entry in entries {
        values.get(entry.key.as_slice()).hash(&mut notes);
    }
    let last = entries.last().map_or(0, |entry| entry.place);
    SnapshotVersion::new(format!("{last}-{}-{:016x}", entries.len(), notes.finish()))
}

/// Returns the values by their keys.
fn values_of(kvs: &[KeyValue]) -> HashMap<&[u8], &[u8]> {
    kvs.iter().map(|kv| (kv.key.as_slice(), kv.value.as_slice())).collect()
}

async fn snapshot(
    shared: &Shared,
    resource: &Resource,
    version: SnapshotVersion,
    entries: &[Entry],
    kvs: &[KeyValue],
) -> Snapshot {
    let ttls = time_to_live(shared, entries).await;
    let values = values_of(kvs);
    let held = holders(entries);
    let info = |(at, entry): (usize, &Entry)| {
        let value = values.get(entry.key.as_slice()).copied().unwrap_or_default();
        let (ttl, note) = shared.layout.read_value(entry.id, value);
        let left = ttls.get(&entry.lease).copied();
        // The lease runs a little longer than the claims on it, which their client ends by their own ttl.
        let remaining = match (ttl, left) {
            (Some(ttl), Some(left)) => Some(ttl.min(left)),
            (ttl, left) => ttl.or(left),
        };
        ClaimInfo::new(entry.id, entry.share)
            .fence((at < held).then(|| fence(entry)))
            .remaining(Some(remaining.unwrap_or_default()))
            .note(note)
    };
    let mut all: Vec<ClaimInfo> = entries.iter().enumerate().map(info).collect();
    let waiting = all.split_off(held);
    Snapshot::new(resource.clone(), version)
        .fence(all.iter().filter_map(|holder| holder.fence).max())
        .holders(all)
        .waiting(waiting)
}

fn fence(entry: &Entry) -> Fence {
    Fence { epoch: 0, seq: entry.place.unsigned_abs(), sub: 0 }
}

/// Returns how long leases still run. A time that cannot be learned is left out: it is shown, and
/// nothing is decided by it.
async fn time_to_live(shared: &Shared, entries: &[Entry]) -> HashMap<i64, Duration> {
    let mut leases: Vec<i64> = entries.iter().map(|entry| entry.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    leases.truncate(LEASES_SHOWN);
    let asking = leases.into_iter().map(|id| async move {
        let asked =
            shared.cluster.ask(|conn| async move { conn.time_to_live(LeaseTimeToLiveRequest { id }).await });
        let ttl = u64::try_from(asked.await.ok()?.value.ttl).unwrap_or_default();
        Some((id, Duration::from_secs(ttl)))
    });
    join_all(asking).await.into_iter().flatten().collect()
}

/// Lists resources that have claims, in the order of their names.
pub(crate) async fn list(
    shared: &Shared,
    prefix: &str,
    after: Option<&Resource>,
    limit: usize,
) -> Result<Vec<ResourceSummary>, Failure> {
    let mut span = shared.layout.listing(prefix, after);
    let mut found: BTreeMap<Resource, Vec<Entry>> = BTreeMap::new();
    let in_order = shared.layout.lists_in_order();
    // One more than asked for, because the last one may continue in the next page.
    while limit > 0 && !(in_order && found.len() > limit) && (span.start < span.end || span.end == [0]) {
        let request = RangeRequest {
            key: span.start.clone(),
            range_end: span.end.clone(),
            limit: PAGE,
            keys_only: true,
            ..RangeRequest::default()
        };
        let asked = shared.cluster.ask(|conn| {
            let request = request.clone();
            async move { conn.range(request).await }
        });
        let page = asked.await.map_err(Refusal::without_effect)?.value;
        for kv in &page.kvs {
            if let Some((resource, entry)) = shared.layout.read_entry(kv)
                && resource.as_str().starts_with(prefix)
                && after.is_none_or(|after| resource > *after)
            {
                found.entry(resource).or_default().push(entry);
            }
            // If keys do not sort as names do, all pages are read, and the lowest names are kept.
            while found.len() > limit.saturating_add(1) {
                found.pop_last();
            }
        }
        let Some(last) = page.kvs.last().filter(|_| page.more) else { break };
        // The next key in order is the last one with a zero byte behind it.
        span.start = [last.key.as_slice(), &[0]].concat();
    }
    let summary = |(resource, mut queue): (Resource, Vec<Entry>)| {
        queue.sort_by_key(|entry| entry.place);
        let held = holders(&queue);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        ResourceSummary::new(resource, count(held), count(queue.len() - held))
    };
    Ok(found.into_iter().take(limit).map(summary).collect())
}

/// Keys in one page.
const PAGE: i64 = 2_000;
/// The most leases whose time is asked for in one look.
const LEASES_SHOWN: usize = 64;
