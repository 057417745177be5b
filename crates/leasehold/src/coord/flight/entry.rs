//! The entry of one key: the value, its times, and its loader.
//!
//! Ground rules: no clock of a client takes part. The store says how long it still keeps an entry, and the
//! entry says above how much of that its value is fresh, and above how much it may be returned at all.

use std::time::Duration;

use crate::engine::registers::record::{Parts, Record, foreign};
use crate::engine::{Register, Seen};
use crate::error::Result;

/// An entry as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The present or the last loader.
    pub(super) loading: u64,
    value: Option<Kept>,
    /// The time for which the store still keeps the entry.
    left: Duration,
}

/// A value with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    /// The value; `None` if the source has no such value.
    value: Option<Vec<u8>>,
    /// The remaining time above which it is fresh.
    fresh_above: Duration,
    /// The remaining time above which it may be returned.
    usable_above: Duration,
    /// The time that it took to load.
    took: Duration,
}

/// The possible uses of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Take the value, which is fresh for `left` and took `took` to load.
    Fresh { value: Option<Vec<u8>>, left: Duration, took: Duration },
    /// Take the value, and have it loaded anew.
    Stale(Option<Vec<u8>>),
    /// Load it.
    Nothing,
}

impl Entry {
    pub(super) fn read(register: &Register, seen: &Seen) -> Result<Entry> {
        let Some(found) = seen.value.as_deref() else { return Ok(Entry::default()) };
        let read = || {
            let mut parts = Parts::of(KIND, found)?;
            let loading = parts.number()?;
            let kind = parts.byte()?;
            let mut time = || parts.number().map(Duration::from_millis);
            let (fresh_above, usable_above, took) = (time()?, time()?, time()?);
            let text = parts.text()?;
            let value = match kind {
                LOADING => None,
                VALUE => Some(Some(text.to_vec())),
                NOTHING => Some(None),
                _ => return None,
            };
            let value = value.map(|value| Kept { value, fresh_above, usable_above, took });
            // An entry that does not expire is as fresh as on the first day.
            parts.is_read().then_some(Entry { loading, value, left: seen.left.unwrap_or(Duration::MAX) })
        };
        read().ok_or_else(|| foreign(register, "loaded value"))
    }

    /// Returns how a reader may use it now.
    pub(super) fn r#use(self) -> Use {
        match self.value {
            Some(kept) if self.left > kept.fresh_above => {
                Use::Fresh { left: self.left - kept.fresh_above, took: kept.took, value: kept.value }
            }
            Some(kept) if self.left > kept.usable_above => Use::Stale(kept.value),
            _ => Use::Nothing,
        }
    }

    /// Returns the same entry with a new loader, which has `limit` to load: the bytes to write, and how
    /// long to keep them.
    pub(super) fn with_loader(self, loader: u64, limit: Duration) -> (Vec<u8>, Duration) {
        let left = self.left;
        let usable = self.value.filter(|kept| left > kept.usable_above);
        let Some(kept) = usable else {
            return (written(loader, LOADING, [Duration::ZERO; 3], &[]), limit);
        };
        // It is kept for longer than before, so that the loader is not forgotten; its value is not
        // valid for longer.
        let keep = left.max(limit);
        let more = keep - left;
        let times =
            [kept.fresh_above.saturating_add(more), kept.usable_above.saturating_add(more), kept.took];
        let kind = if kept.value.is_some() { VALUE } else { NOTHING };
        (written(loader, kind, times, kept.value.as_deref().unwrap_or_default()), keep)
    }
}

/// Returns the entry of a loaded value that is fresh for `ttl` and may be returned for `stale` after
/// that: the bytes to write, and how long to keep them.
pub(super) fn loaded(
    loader: u64,
    value: Option<&[u8]>,
    ttl: Duration,
    stale: Duration,
    took: Duration,
) -> (Vec<u8>, Duration) {
    let kind = if value.is_some() { VALUE } else { NOTHING };
    let times = [stale, Duration::ZERO, took];
    (written(loader, kind, times, value.unwrap_or_default()), ttl.saturating_add(stale))
}

/// The number of bytes of an entry beside the value.
pub(super) const HEADER: usize = 2 + 5 * size_of::<u64>();

fn written(loader: u64, kind: u8, times: [Duration; 3], value: &[u8]) -> Vec<u8> {
    let record = Record::of(KIND).number(loader).byte(kind);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let record = times.into_iter().fold(record, |record, time| record.number(millis(time)));
    record.text(value).done()
}

/// A loaded value, in its first format.
const KIND: u8 = b'f';
const LOADING: u8 = b'L';
const VALUE: u8 = b'V';
const NOTHING: u8 = b'N';
