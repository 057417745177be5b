//! What an onlooker sees of one line, with its notes. Looking changes nothing.

use leasehold_core::{Failure, Fence, Patience, Resource, Snapshot, Standing, Version};
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
            let (version, watcher) = self.version_and_watch(&session, resource).await?;
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
                return Ok(snapshot(resource, nobody(), Vec::new(), 0));
            };
            if let Some(standings) = self.standings(&session, &container, &line).await? {
                return Ok(snapshot(resource, version_of(&line, &stat), standings, line.holders()));
            }
        }
        Err(Failure::unavailable("the line changes faster than it can be read; look again"))
    }

    /// The present version, and a watch on the next.
    async fn version_and_watch(
        &self,
        session: &Session,
        resource: &Resource,
    ) -> Result<(Version, OneshotWatcher), Failure> {
        let (container, limit) = (self.names.container(resource), self.config.timeout);
        for _ in 0..MAX_TRIES {
            match session.ask(limit, session.client.get_and_watch_children(&container)).await {
                Ok((names, stat, watcher)) => {
                    let line = self.names.line(names).map_err(|why| wire::unreadable(resource, &why))?;
                    return Ok((version_of(&line, &stat), watcher));
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(cannot_look(error)),
            }
            let absent = session.ask(limit, session.client.check_and_watch_stat(&container)).await;
            let (stat, watcher) = absent.map_err(cannot_look)?;
            if stat.is_none() {
                return Ok((nobody(), watcher));
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
}

/// All states without claims are one, whether their container is still there or not.
fn nobody() -> Version {
    Version("empty".to_owned())
}

fn version_of(line: &Line, stat: &Stat) -> Version {
    if line.places().is_empty() { nobody() } else { Version(format!("{:x}", stat.pzxid)) }
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
