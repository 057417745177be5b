//! Registers: an item each, apart from those of the locks, changed by its number.
//!
//! Ground rules: as for the locks, a number is nothing without the process of the server that gave it. A
//! value carries bytes that were drawn for its write, so that what is read back right after a write is
//! known to be this very one.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::random;
use leasehold_core::{
    Durability, Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers,
    Resource, Stamp, WaitMode,
};

use crate::backend::cells::Items;
use crate::net::error;
use crate::net::link::Link;
use crate::protocol::command::{CLOCK_LAG, Command, Key, Life};
use crate::protocol::reply::Reply;

/// The promises of a server that may forget everything.
const PROMISE: RegisterPromise = RegisterPromise::new(MAX_BYTES, WaitMode::Polls, Durability::Evictable)
    .forgets()
    .max_keep(MAX_KEEP)
    .rounding(Duration::from_secs(1));

#[async_trait]
impl Registers for Items {
    fn promise(&self) -> &RegisterPromise {
        &PROMISE
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let (node, key) = (self.servers.node(at), self.servers.register(at)?);
        let link = node.link().await?;
        let reply = node.ask(&link, &[Command::Look { key: &key }]).await?.pop();
        match reply {
            Some(Reply::Item { value, number, left, .. }) => Ok(Registered {
                value: Some(unframed(at, &value)?.1.to_vec()),
                stamp: State { epoch: link.facts.started, number }.stamp(),
                left: left.map(|left| Duration::from_secs(left).saturating_sub(SLACK)),
            }),
            Some(Reply::Missing { .. }) => Ok(nothing()),
            reply => Err(node.unexpected(&reply.unwrap_or(Reply::Missing { mark: None }))),
        }
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        PROMISE.check(put)?;
        let life = put.keep.map_or(Life::FOR_EVER, |keep| Life::of(keep.saturating_add(SLACK)));
        let key = self.servers.register(at)?;
        match (&put.value, State::read(seen)) {
            (Some(value), state) if state.is_some() || *seen == nothing().stamp => {
                self.write(at, &key, state, value, life).await
            }
            (None, Some(state)) => self.remove(at, &key, state).await,
            (None, None) if *seen == nothing().stamp => {
                Ok((Registers::read(self, at).await?.stamp == *seen).then(|| seen.clone()))
            }
            // A stamp of another store, or of a write that was overwritten at once, is of no state that
            // there is.
            _ => Ok(None),
        }
    }

    async fn changed(
        &self,
        at: &Resource,
        _seen: &Stamp,
        _patience: &Patience,
    ) -> Result<Registered, Failure> {
        Registers::read(self, at).await
    }
}

impl Items {
    /// Writes over what was seen, or where nothing was.
    async fn write(
        &self,
        at: &Resource,
        key: &Key,
        seen: Option<State>,
        value: &[u8],
        life: Life,
    ) -> Result<Option<Stamp>, Failure> {
        let node = self.servers.node(at);
        let link = node.link().await?;
        let value = framed(at, key, random::number()?, value);
        let write = match seen {
            // Another process of the server gives the same number to another item.
            Some(state) if !state.is_of(&link) => return Ok(None),
            Some(state) => Command::Replace { key, life, value: &value, number: state.number },
            None => Command::Add { key, life, value: &value },
        };
        // The second answer has the number of what the first one put there.
        let replies = node.ask(&link, &[write, Command::Look { key }]).await?;
        let [written, found] = &replies[..] else {
            return Err(node.unexpected(&Reply::Missing { mark: None }));
        };
        match (written, found) {
            (Reply::Done { .. }, Reply::Item { value: there, number, .. }) if *there == value => {
                Ok(Some(State { epoch: link.facts.started, number: *number }.stamp()))
            }
            // It was written, and another client wrote right after it: its state has passed.
            (Reply::Done { .. }, _) => Ok(Some(Stamp::new("passed"))),
            (Reply::Differs { .. } | Reply::Missing { .. }, _) => Ok(None),
            (refused, _) => Err(node.unexpected(refused)),
        }
    }

    async fn remove(&self, at: &Resource, key: &Key, seen: State) -> Result<Option<Stamp>, Failure> {
        let node = self.servers.node(at);
        let link = node.link().await?;
        if !seen.is_of(&link) {
            return Ok(None);
        }
        match node.ask(&link, &[Command::Remove { key, number: seen.number }]).await?.pop() {
            Some(Reply::Done { .. }) => Ok(Some(nothing().stamp)),
            Some(Reply::Differs { .. } | Reply::Missing { .. }) => Ok(None),
            reply => Err(node.unexpected(&reply.unwrap_or(Reply::Missing { mark: None }))),
        }
    }
}

/// One state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    epoch: u64,
    number: u64,
}

impl State {
    fn read(stamp: &Stamp) -> Option<State> {
        let (epoch, number) = stamp.as_str().split_once('.')?;
        Some(State { epoch: epoch.parse().ok()?, number: number.parse().ok()? })
    }

    fn stamp(self) -> Stamp {
        Stamp::new(format!("{}.{}", self.epoch, self.number))
    }

    /// Returns `true` if it is a state of the server at the other end.
    fn is_of(self, link: &Link) -> bool {
        link.facts.started == self.epoch
    }
}

fn nothing() -> Registered {
    Registered { value: None, stamp: Stamp::new("none"), left: None }
}

/// The time for which an item is kept beyond what was asked for: its last second is not sure, and the clock of the
/// server may be behind. It is not reported as left, or each rewrite of a value would extend its life.
const SLACK: Duration = CLOCK_LAG.saturating_add(Duration::from_secs(1));

/// Returns a value as it is stored: a mark, what was drawn, the resource's name where the key carries only
/// its hash, and behind a line's end what was written.
fn framed(at: &Resource, key: &Key, drawn: u64, value: &[u8]) -> Vec<u8> {
    let name = if Resource::is_hashed(key.as_str()) { at.as_str() } else { "" };
    let mut frame = format!("{MARK}{drawn:016x} {name}\n").into_bytes();
    frame.extend_from_slice(value);
    frame
}

/// Returns the name, where there is one, and the value.
fn unframed<'a>(at: &Resource, frame: &'a [u8]) -> Result<(&'a str, &'a [u8]), Failure> {
    let parts = frame.iter().position(|byte| *byte == b'\n').and_then(|end| {
        let head = std::str::from_utf8(&frame[..end]).ok()?.strip_prefix(MARK)?;
        let (_, name) = head.split_once(' ')?;
        Some((name, &frame[end + 1..]))
    });
    let Some((name, value)) = parts else {
        let text = format!(
            "what is stored as the register {at:?} is left untouched: it is not of leasehold; choose another prefix"
        );
        return Err(Failure::new(FailureKind::Foreign, Effect::None, text));
    };
    match Resource::new(name) {
        Ok(other) if other != *at => Err(error::of_collision(at, &other)),
        _ => Ok((name, value)),
    }
}

const MARK: &str = "register ";
/// Half of what an item may hold by default.
const MAX_BYTES: usize = 512 * 1024;
/// A life of thirty days, with what is added to this, is taken for a date.
const MAX_KEEP: Duration = Duration::from_secs(29 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_and_nothing_else() {
        let at = Resource::new("a").unwrap();
        let key = Key::new("lh:%ra".to_owned()).unwrap();
        for value in [&b""[..], b"a\nb\r\n", &[0, 255]] {
            assert_eq!(unframed(&at, &framed(&at, &key, 7, value)).unwrap(), ("", value));
        }
        let hashed = Key::new("lh:%rx~0123456789abcdef0123456789abcdef".to_owned()).unwrap();
        let frame = framed(&at, &hashed, 7, b"x");
        assert_eq!(unframed(&at, &frame).unwrap(), ("a", &b"x"[..]));
        assert!(unframed(&Resource::new("b").unwrap(), &frame).is_err());
        for foreign in [&b""[..], b"text", b"register \n"] {
            assert_eq!(unframed(&at, foreign).unwrap_err().kind, FailureKind::Foreign);
        }
        assert!(MAX_KEEP + SLACK < Duration::from_secs(30 * 24 * 3600), "a longer life is taken for a date");
    }
}
