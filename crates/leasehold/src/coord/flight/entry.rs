//! The entry of one key: the value, its times, and its loader.
//!
//! Ground rules: no clock of a client takes part. The store says how long it still keeps an entry, and the
//! entry says above how much of that its value is fresh, and above how much it may be returned at all. What the
//! store says is rounded down, so a value is written with as much more, once: each time that it is written again
//! it loses some of its life and gains none.

#[cfg(test)]
mod fuzz;

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
        let entry = parsed(found).ok_or_else(|| foreign(register, "loaded value"))?;
        // An entry that does not expire is as fresh as on the first day.
        Ok(Entry { left: seen.left.unwrap_or(Duration::MAX), ..entry })
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

/// The times of a loaded value: how long it is kept, and how much of that it is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    stale: Duration,
    keep: Duration,
}

impl Times {
    /// Returns the times of a value that is fresh for `fresh` and may be returned for `stale` after that, as far as
    /// the store keeps it: for `max` at most, of which it says what is left too low by up to `rounding`.
    pub(super) fn within(max: Duration, rounding: Duration, fresh: Duration, stale: Duration) -> Times {
        let room = max.saturating_sub(rounding);
        let fresh = fresh.min(room);
        let stale = stale.min(room - fresh);
        Times { stale, keep: fresh.saturating_add(stale).saturating_add(rounding).min(max) }
    }
}

/// Returns the entry of a value that took so long to load: the bytes to write, and how long to keep them.
pub(super) fn loaded(loader: u64, value: Option<&[u8]>, times: Times, took: Duration) -> (Vec<u8>, Duration) {
    let kind = if value.is_some() { VALUE } else { NOTHING };
    let bytes = written(loader, kind, [times.stale, Duration::ZERO, took], value.unwrap_or_default());
    (bytes, times.keep)
}

/// Reads an entry, without the time that is left.
fn parsed(found: &[u8]) -> Option<Entry> {
    let mut parts = Parts::of(KIND, found)?;
    let loading = parts.number()?;
    let kind = parts.byte()?;
    let mut time = || parts.number().map(Duration::from_millis);
    let (fresh_above, usable_above, took) = (time()?, time()?, time()?);
    let text = parts.text()?;
    let times = [fresh_above, usable_above, took];
    let value = match kind {
        LOADING if text.is_empty() && times == [Duration::ZERO; 3] => None,
        VALUE => Some(Some(text.to_vec())),
        NOTHING if text.is_empty() => Some(None),
        _ => return None,
    };
    if fresh_above < usable_above {
        return None;
    }
    let value = value.map(|value| Kept { value, fresh_above, usable_above, took });
    parts.is_read().then_some(Entry { loading, value, left: Duration::ZERO })
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_value_is_fresh_as_long_as_the_store_can_keep_it() {
        let times = |max, rounding, fresh, stale| {
            let times = Times::within(SECOND * max, SECOND * rounding, SECOND * fresh, SECOND * stale);
            (times.keep.as_secs(), times.stale.as_secs())
        };
        assert_eq!(times(u32::MAX, 0, 60, 30), (90, 30));
        assert_eq!(times(u32::MAX, 1, 60, 30), (91, 30));
        // What is cut is the time after its ttl first.
        assert_eq!(times(100, 1, 60, 90), (100, 39));
        assert_eq!(times(100, 1, 200, 90), (100, 0));
        assert_eq!(Times::within(Duration::MAX, SECOND, Duration::MAX, SECOND).keep, Duration::MAX);
    }

    /// A store that says seconds, as etcd does: a value that each failed loader writes again ends in time.
    #[test]
    fn a_value_that_is_written_again_lives_no_longer() {
        let times = Times::within(Duration::MAX, SECOND, SECOND, SECOND * 30);
        let (mut bytes, mut keep) = loaded(1, Some(b"value"), times, Duration::ZERO);
        let read = |bytes: &[u8], left| {
            let mut entry = parsed(bytes).unwrap();
            entry.left = left;
            entry
        };
        // It is read as soon as it is written: not even a second has gone by, and one is off.
        assert!(matches!(read(&bytes, keep - SECOND).r#use(), Use::Fresh { .. }));
        let mut written = 0;
        while read(&bytes, keep - SECOND).r#use() != Use::Nothing {
            (bytes, keep) = read(&bytes, keep - SECOND).with_loader(2, SECOND * 60);
            written += 1;
            assert!(written <= 32, "it does not end");
            assert!(
                !matches!(read(&bytes, keep - SECOND).r#use(), Use::Fresh { .. }),
                "fresh after {written}"
            );
        }
        assert!(written > 20, "it ended after {written}");
    }
}
