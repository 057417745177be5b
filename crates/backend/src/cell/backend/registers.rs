//! Registers in cells: a second set of cells in the same store, whose texts are not ledgers.
//!
//! Ground rules: the store keeps time, as [`ClockSource::Store`] says. A value is in place for as long as
//! its cell has not lapsed, so the conditions under which a store lets claims be written serve for values
//! too: an existing value is *renewed*, and a missing one is *seized*.

use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use leasehold_core::{
    Durability, Effect, Failure, FailureKind, Fence, Patience, Put, RegisterPromise, Registered, Registers,
    Resource, Stamp, WaitMode,
};

use crate::cell::cells::{
    self, Call, Cell, CellStore, ClockSource, Locked, Write, WriteAnswer, WriteCondition, WriteOutcome,
    read_one, write_one,
};
use crate::cell::wait::timing::{TICK, draw_version};
use crate::changes::{until_changed, within};

/// Registers of a store that has cells.
#[derive(Debug)]
pub struct CellRegisters<C> {
    cells: C,
    promise: RegisterPromise,
}

impl<C: CellStore> CellRegisters<C> {
    /// Keeps registers in these cells, in which nothing else may be kept. Their store keeps time.
    ///
    /// `durability` is that of values. It may be less than that of the claims in the store, as a value is to outlive
    /// the process that wrote it.
    pub fn new(cells: C, durability: Durability) -> Self {
        debug_assert_eq!(cells.clock_source(), ClockSource::Store, "nobody would know when a value ends");
        let profile = cells.profile();
        // Three bytes are four characters.
        let max_bytes = MAX_BYTES.min(cells.max_text().saturating_sub(MAX_HEAD) / 4 * 3);
        let promise = RegisterPromise::new(max_bytes, profile.waiting, durability).forgets();
        CellRegisters { cells, promise }
    }

    /// Writes where no value exists, or over the state that was seen. Returns the new state.
    async fn write(
        &self,
        at: &Resource,
        seen: Option<State>,
        put: cells::Put,
    ) -> Result<Option<State>, Failure> {
        let when = match seen {
            None => WriteCondition::Free,
            Some(State { version, epoch }) => WriteCondition::Living { version, epoch: Some(epoch) },
        };
        let write = Write { at: at.clone(), when, put, answer: WriteAnswer::Brief };
        Ok(match write_one(&self.cells, &write, Locked::Wait).await? {
            WriteOutcome::Written { fence, .. } => {
                Some(State { epoch: fence.epoch, version: write.put.version })
            }
            WriteOutcome::Refused(_) => None,
        })
    }
}

#[async_trait]
impl<C: CellStore> Registers for CellRegisters<C> {
    fn promise(&self) -> &RegisterPromise {
        &self.promise
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        match read_one(&self.cells, at).await? {
            None => Ok(nothing()),
            Some(cell) => registered(at, &cell),
        }
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.promise.check(put)?;
        let version = draw_version()?;
        let state = State::read(seen);
        // The fence of such a cell says nothing, but the epoch in it may not go back.
        let fence = Fence::new(state.map_or(0, |state| state.epoch), 0, 0);
        let written = |text, keep| cells::Put { text, version, fence, keep, call: Call::All };
        match (&put.value, state) {
            (Some(value), state) if state.is_some() || *seen == nothing().stamp => {
                let put = written(text(value, put.keep), kept(put.keep));
                Ok(self.write(at, state, put).await?.map(State::stamp))
            }
            (None, None) if *seen == nothing().stamp => {
                let found = self.read(at).await?;
                Ok((found.stamp == *seen).then(|| seen.clone()))
            }
            (None, Some(_)) => {
                let done = self.write(at, state, written(String::new(), Duration::ZERO)).await?;
                Ok(done.map(|_| nothing().stamp))
            }
            // A stamp of another store is of no state of this one.
            (_, None) | (Some(_), Some(_)) => Ok(None),
        }
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let notifier = self.cells.notifier().filter(|_| self.promise.waiting != WaitMode::Polls);
        let Some(notifier) = notifier else { return self.read(at).await };
        let subscription = notifier.subscribe(at, None);
        let look = || async {
            let found = self.read(at).await?;
            let pause = if subscription.is_connected() { LOOK_AGAIN } else { POLL_PAUSE };
            let pause = found.left.map_or(pause, |left| pause.min(left.saturating_add(TICK)));
            Ok((found, within(pause, subscription.receive())))
        };
        until_changed(patience, |found| found.stamp != *seen, look).await
    }
}

/// One state of a cell that has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    epoch: u64,
    version: u64,
}

impl State {
    fn read(stamp: &Stamp) -> Option<State> {
        let (epoch, version) = stamp.as_str().split_once('.')?;
        Some(State { epoch: epoch.parse().ok()?, version: version.parse().ok()? })
    }

    fn stamp(self) -> Stamp {
        Stamp::new(format!("{}.{}", self.epoch, self.version))
    }
}

fn nothing() -> Registered {
    Registered { value: None, stamp: Stamp::new("none"), left: None }
}

fn registered(at: &Resource, cell: &Cell) -> Result<Registered, Failure> {
    if cell.text.is_empty() {
        return Ok(nothing());
    }
    let Some((keep, value)) = read_text(&cell.text) else {
        let text = format!("the register {at:?} was not written by leasehold: remove its row");
        return Err(Failure::new(FailureKind::Foreign, Effect::None, text));
    };
    let left = keep.map(|keep| keep.checked_sub(cell.age.unwrap_or_default()).unwrap_or_default());
    if left == Some(Duration::ZERO) {
        return Ok(nothing());
    }
    let stamp = State { epoch: cell.floor.epoch, version: cell.version }.stamp();
    Ok(Registered { value: Some(value), stamp, left })
}

/// Returns the value as text: for how many microseconds it is kept, or `-`, a space, and its bytes in
/// base64.
fn text(value: &[u8], keep: Option<Duration>) -> String {
    let keep = keep.map_or_else(|| "-".to_owned(), |keep| keep.min(FOR_EVER).as_micros().to_string());
    format!("{keep} {}", BASE64_STANDARD_NO_PAD.encode(value))
}

fn read_text(text: &str) -> Option<(Option<Duration>, Vec<u8>)> {
    let (keep, value) = text.split_once(' ')?;
    let keep = match keep {
        "-" => None,
        micros => Some(Duration::from_micros(micros.parse().ok()?)),
    };
    Some((keep, BASE64_STANDARD_NO_PAD.decode(value).ok()?))
}

fn kept(keep: Option<Duration>) -> Duration {
    keep.unwrap_or(FOR_EVER).min(FOR_EVER)
}

/// A thousand years, which every store can count.
const FOR_EVER: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);
const MAX_BYTES: usize = 512 * 1024;
/// The longest head before the bytes in a text.
const MAX_HEAD: usize = 32;
/// The longest time between two reads of a waiter, in case a notification was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The same while no notification can arrive.
const POLL_PAUSE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str, age: Duration) -> Cell {
        let fence = Fence::new(3, 9, 0);
        Cell { text: text.to_owned(), version: 7, fence, floor: fence, age: Some(age) }
    }

    #[test]
    fn a_value_is_read_as_it_was_written_until_its_time_is_over() {
        let (at, second) = (Resource::new("a").unwrap(), Duration::from_secs(1));
        for value in [&b""[..], b"text", &[0, 255, 10]] {
            let found = registered(&at, &cell(&text(value, None), second)).unwrap();
            assert_eq!((found.value.as_deref(), found.left), (Some(value), None));
            assert_eq!(State::read(&found.stamp), Some(State { epoch: 3, version: 7 }));
            let short = text(value, Some(second * 3));
            assert_eq!(registered(&at, &cell(&short, second)).unwrap().left, Some(second * 2));
            assert_eq!(registered(&at, &cell(&short, second * 3)).unwrap(), nothing());
        }
        assert_eq!(registered(&at, &cell("", second)).unwrap(), nothing());
        assert_eq!(State::read(&nothing().stamp), None);
    }

    #[test]
    fn register_not_written_by_leasehold_is_foreign() {
        let at = Resource::new("a").unwrap();
        for foreign in ["text", "x AAAA", "- ü", "-"] {
            let failure = registered(&at, &cell(foreign, Duration::ZERO)).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Foreign, "{foreign}");
        }
    }
}
