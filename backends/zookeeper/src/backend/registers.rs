//! Registers: a node each, changed by `setData` on its version, and never removed.
//!
//! Ground rules: versions begin anew in a new node, and `setData` compares nothing else. So an empty
//! register is a node without data: were it removed, a late write could mistake its successor for it.
//! A value is returned if it was read after a change that a quorum confirms: a server may lag behind its
//! leader, and the leader that answers a `sync` may have been deposed. The look beside a watch does not suffice.

use async_trait::async_trait;
use futures_util::future::join;
use leasehold_backend::changes::until_changed;
use leasehold_core::{
    Durability, Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers,
    Resource, Stamp, WaitMode,
};
use zookeeper_client::{Error, Stat};

use crate::backend::ZooKeeperBackend;
use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::net::watching::{Watching, any_change};
use crate::protocol::layout;

/// The promise of every ensemble.
// Nodes that end by themselves are an extension that servers do not have unless it is enabled.
pub(crate) const PROMISE: RegisterPromise =
    RegisterPromise::new(MAX_BYTES, WaitMode::Notifies, Durability::Strict).names_removals();

#[async_trait]
impl Registers for ZooKeeperBackend {
    fn promise(&self) -> &RegisterPromise {
        &PROMISE
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let ensemble = &self.ensemble;
        let session = ensemble.sessions.present(ensemble.config.timeout).await?;
        let path = ensemble.names.register(at);
        let proof = session.prove(ensemble.names.root()).map_err(cannot_read)?;
        // Both leave together: a session's requests are answered in order.
        let got = session.client.get_data(&path);
        let both = async {
            let (proof, got) = join(proof, got).await;
            proof.and(got)
        };
        match session.ask(ensemble.config.timeout, both).await {
            Ok((data, stat)) => registered(at, &data, &stat),
            // Without the root a change is refused in its turn, and no register exists.
            Err(Error::NoNode) => Ok(nothing()),
            Err(error) => Err(cannot_read(error)),
        }
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        PROMISE.check(put)?;
        let ensemble = &self.ensemble;
        let session = ensemble.sessions.present(ensemble.config.timeout).await?;
        let path = ensemble.names.register(at);
        let data = framed(put.value.as_deref());
        if *seen == nothing().stamp {
            return match put.value {
                // Nothing is made of nothing.
                None => Ok((self.read(at).await?.stamp == *seen).then(|| seen.clone())),
                Some(_) => ensemble.create_register(&session, &path, &data).await,
            };
        }
        // A stamp of another store is of no state of this one.
        let Some((created, version)) = read_stamp(seen) else { return Ok(None) };
        let set = session.client.set_data(&path, &data, Some(version));
        match session.ask(ensemble.config.timeout, set).await {
            Ok(stat) if stat.czxid == created => Ok(Some(stamp(&stat))),
            // The node was removed by other means, and the versions of the next one have come as far.
            Ok(_) => {
                let text = format!("the node {path} was removed by another program while it was in use");
                Err(Failure::new(FailureKind::Foreign, Effect::Unknown, text))
            }
            Err(Error::BadVersion | Error::NoNode) => Ok(None),
            Err(error) => Err(layout::failure(error, "cannot write a register")),
        }
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let ensemble = &self.ensemble;
        let look = || async {
            let session = ensemble.sessions.present(ensemble.config.timeout).await?;
            if patience.is_ended() {
                return Ok((self.read(at).await?, any_change(Vec::new())));
            }
            let (mut found, watchers) = ensemble.watch_register(&session, at).await?;
            // A server that lags behind may show a state before the one that was seen.
            if found.stamp != *seen {
                found = self.read(at).await?;
            }
            // A watch fires also where the session has ended: then the next look fails, or finds another one.
            Ok((found, any_change(watchers)))
        };
        until_changed(patience, |found| found.stamp != *seen, look).await
    }
}

impl Ensemble {
    /// Makes the node of a register, with what is above it; returns `None` where another client was
    /// first.
    async fn create_register(
        &self,
        session: &EnsembleSession,
        path: &str,
        data: &[u8],
    ) -> Result<Option<Stamp>, Failure> {
        let options = self.names.register_options();
        for _ in 0..MAX_TRIES {
            let create = session.client.create(path, data, &options);
            match session.ask(self.config.timeout, create).await {
                Ok((stat, _)) => return Ok(Some(stamp(&stat))),
                Err(Error::NodeExists) => return Ok(None),
                Err(Error::NoNode) => {
                    for (above, _) in self.names.ancestors(path) {
                        if !self.exists(session, above).await? {
                            self.create_node(session, above, b"", &options).await?;
                        }
                    }
                }
                Err(error) => return Err(layout::failure(error, "cannot write a register")),
            }
        }
        Err(Failure::unavailable("what is above a register was removed while it was made; try again"))
    }

    /// Returns a value that may be an old one, and a watch on the state after it.
    async fn watch_register(
        &self,
        session: &EnsembleSession,
        at: &Resource,
    ) -> Result<(Registered, Vec<Watching>), Failure> {
        let (path, limit) = (self.names.register(at), self.config.timeout);
        for _ in 0..MAX_TRIES {
            let synced = session.client.sync(self.names.root());
            let got = session.watch_data(&path, limit);
            let both = async {
                let (synced, got) = join(synced, got).await;
                synced.and(got)
            };
            match session.ask(limit, both).await {
                Ok((data, stat, watcher)) => {
                    return Ok((registered(at, &data, &stat)?, vec![watcher]));
                }
                Err(Error::NoNode) => {}
                Err(error) => return Err(cannot_read(error)),
            }
            let absent = session.watch_stat(&path, limit).await;
            let (stat, watcher) = absent.map_err(cannot_read)?;
            if stat.is_none() {
                return Ok((nothing(), vec![watcher]));
            }
        }
        Err(Failure::unavailable("a register comes and goes faster than it can be watched; look again"))
    }
}

/// Returns a register that was never written.
fn nothing() -> Registered {
    Registered { value: None, stamp: Stamp::new("none"), left: None }
}

fn registered(at: &Resource, data: &[u8], stat: &Stat) -> Result<Registered, Failure> {
    Ok(Registered { value: unframed(at, data)?, stamp: stamp(stat), left: None })
}

fn unframed(at: &Resource, data: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    match data.split_first() {
        Some((&EMPTY, [])) => Ok(None),
        Some((&FULL, value)) => Ok(Some(value.to_vec())),
        _ => {
            let advice = "remove it, or take another prefix";
            let text = format!("the register {at:?} was not written by leasehold: {advice}");
            Err(Failure::new(FailureKind::Foreign, Effect::None, text))
        }
    }
}

fn framed(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        None => vec![EMPTY],
        Some(value) => [&[FULL], value].concat(),
    }
}

fn stamp(stat: &Stat) -> Stamp {
    Stamp::new(format!("{:x}.{}", stat.czxid, stat.version))
}

fn read_stamp(stamp: &Stamp) -> Option<(i64, i32)> {
    let (created, version) = stamp.as_str().split_once('.')?;
    Some((i64::from_str_radix(created, 16).ok()?, version.parse().ok()?))
}

fn cannot_read(error: Error) -> Failure {
    layout::failure(error, "cannot read a register").with_effect(Effect::None)
}

/// The beginning of a node's data.
const EMPTY: u8 = b'-';
const FULL: u8 = b'+';
/// Half of what servers and clients accept by default.
const MAX_BYTES: usize = 512 * 1024;
const MAX_TRIES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let at = Resource::new("a").unwrap();
        for value in [None, Some(&b""[..]), Some(b"-"), Some(&[0, 255])] {
            assert_eq!(unframed(&at, &framed(value)).unwrap().as_deref(), value);
        }
        for foreign in [&b""[..], b"text", b"-more"] {
            assert_eq!(unframed(&at, foreign).unwrap_err().kind, FailureKind::Foreign);
        }
        assert_eq!(read_stamp(&Stamp::new("1f.7")), Some((31, 7)));
        assert_eq!(read_stamp(&nothing().stamp), None);
    }
}
