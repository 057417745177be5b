//! What an onlooker sees: one line with its notes, and the listing of all resources. Looking changes nothing.

use futures_util::future::join_all;
use leasehold_core::{Failure, Fence, Patience, Resource, Snapshot, Standing, Summary, Version};
use zookeeper_client::{Error, MultiReadResult, OneshotWatcher, Stat};

use crate::backend::Ensemble;
use crate::line::{Line, Place};
use crate::session::Session;
use crate::waiting::cannot_look;
use crate::wire;

impl Ensemble {
    /// Holders and line of a resource; with `seen`, waits for another version.
    pub(crate) async fn observe(
        &self,
        resource: &Resource,
        seen: Option<&Version>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let container = self.names.container(resource);
        let session = self.sessions.present(self.config.timeout).await?;
        while let Some(seen) = seen.filter(|_| !patience.is_ended()) {
            let (version, watcher) = self.version_and_watch(&session, &container).await?;
            if version != *seen {
                break;
            }
            tokio::select! {
                _ = watcher.changed() => {}
                () = patience.ended() => {}
            }
        }
        for _ in 0..MAX_TRIES {
            let Some((line, stat)) = self.line_now(&session, resource).await? else {
                return Ok(snapshot(resource, version_of(None), Vec::new(), 0));
            };
            if let Some(standings) = self.standings(&session, &container, &line).await? {
                return Ok(snapshot(resource, version_of(Some(&stat)), standings, line.holders()));
            }
        }
        Err(Failure::unavailable("the line changes faster than it can be read; look again"))
    }

    /// The present version, and a watch on the next.
    async fn version_and_watch(
        &self,
        session: &Session,
        container: &str,
    ) -> Result<(Version, OneshotWatcher), Failure> {
        let limit = self.config.timeout;
        for _ in 0..MAX_TRIES {
            match session.ask(limit, session.client.get_and_watch_children(container)).await {
                Ok((_, stat, watcher)) => return Ok((version_of(Some(&stat)), watcher)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(cannot_look(error)),
            }
            let absent = session.ask(limit, session.client.check_and_watch_stat(container)).await;
            let (stat, watcher) = absent.map_err(cannot_look)?;
            if stat.is_none() {
                return Ok((version_of(None), watcher));
            }
        }
        Err(Failure::unavailable("the container comes and goes faster than it can be watched; look again"))
    }

    /// What each claim of the line says of itself; `None` where one left meanwhile.
    async fn standings(
        &self,
        session: &Session,
        container: &str,
        line: &Line,
    ) -> Result<Option<Vec<Standing>>, Failure> {
        let mut standings = Vec::with_capacity(line.places().len());
        let holders = line.holders();
        for some in line.places().chunks(NOTES_AT_ONCE) {
            let mut reader = session.client.new_multi_reader();
            for place in some {
                reader.add_get_data(&format!("{container}/{}", place.name)).map_err(cannot_look)?;
            }
            let results = session.ask(self.config.timeout, reader.commit()).await.map_err(cannot_look)?;
            for (place, result) in some.iter().zip(results) {
                match result {
                    MultiReadResult::Data { data, stat } => {
                        let holds = standings.len() < holders;
                        standings.push(standing(place, &data, &stat, holds));
                    }
                    MultiReadResult::Error { err: Error::NoNode } => return Ok(None),
                    MultiReadResult::Error { err } => return Err(cannot_look(err)),
                    _ => {
                        return Err(Failure::unavailable(
                            "the server answers another question than was asked",
                        ));
                    }
                }
            }
        }
        Ok(Some(standings))
    }

    /// Resources with claims, in the order of their names.
    pub(crate) async fn summarize(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<Summary>, Failure> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let session = self.sessions.present(self.config.timeout).await?;
        let root = self.names.root();
        let sync = session.client.sync(root);
        let list = session.client.list_children(root);
        let children = session.ask(self.config.timeout, async { sync.await.and(list.await) }).await;
        let children = match children {
            Ok(children) => children,
            Err(Error::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(cannot_look(error)),
        };
        let mut resources: Vec<Resource> =
            children.iter().filter_map(|child| self.names.resource(child)).collect();
        resources.retain(|resource| {
            resource.as_str().starts_with(prefix) && after.is_none_or(|after| resource > after)
        });
        resources.sort_unstable();
        // Empty containers stay for a while, so how many have to be looked at for a full page is not known.
        let mut page = Vec::new();
        for some in resources.chunks(LOOKS_AT_ONCE) {
            let looks = some.iter().map(|resource| self.summary(&session, resource));
            for summary in join_all(looks).await {
                page.extend(summary?);
            }
            if page.len() >= limit {
                break;
            }
        }
        page.truncate(limit);
        Ok(page)
    }

    async fn summary(&self, session: &Session, resource: &Resource) -> Result<Option<Summary>, Failure> {
        let container = self.names.container(resource);
        match session.ask(self.config.timeout, session.client.list_children(&container)).await {
            // What does not read as a line is not ours to show.
            Ok(names) => Ok(Line::of(names).ok().filter(|line| !line.places().is_empty()).map(|line| {
                let holders = line.holders();
                let count = |claims: usize| u32::try_from(claims).unwrap_or(u32::MAX);
                let waiting = count(line.places().len() - holders);
                Summary { resource: resource.clone(), holders: count(holders), waiting }
            })),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(cannot_look(error)),
        }
    }
}

/// All states without claims are one, whether their container is still there or not.
fn version_of(stat: Option<&Stat>) -> Version {
    match stat {
        Some(stat) if stat.num_children > 0 => Version(format!("{:x}", stat.pzxid)),
        _ => Version("empty".to_owned()),
    }
}

fn standing(place: &Place, data: &[u8], stat: &Stat, holds: bool) -> Standing {
    Standing {
        id: place.id,
        share: place.share,
        fence: holds.then(|| Fence::new(0, stat.czxid.cast_unsigned(), 0)),
        since_unix_ms: u64::try_from(stat.ctime).ok(),
        remaining: None,
        note: wire::read_note(data),
    }
}

fn snapshot(resource: &Resource, version: Version, mut all: Vec<Standing>, holders: usize) -> Snapshot {
    let waiting = all.split_off(holders.min(all.len()));
    let fence = all.last().and_then(|standing| standing.fence);
    Snapshot { resource: resource.clone(), version, holders: all, waiting, fence }
}

/// How often a line that changes is read again.
const MAX_TRIES: usize = 16;
/// Notes are up to 1 KiB each, and an answer should stay far below 1 MiB.
const NOTES_AT_ONCE: usize = 256;
const LOOKS_AT_ONCE: usize = 64;
