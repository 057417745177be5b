//! A fuzz target: the stored entry of a single flight, which another client has written.

use std::time::Duration;

use leasehold_fuzz::Target;

use super::{Entry, HEADER, LOADING, NOTHING, Times, Use, VALUE, loaded, written};
use crate::coord::fuzz::{check_refusal, register};
use crate::engine::Seen;

const SECOND: Duration = Duration::from_secs(1);

fn read(bytes: &[u8], left: Option<Duration>) -> Result<Entry, crate::Error> {
    Entry::read(register(), &Seen::of(bytes, left))
}

/// Returns the bytes of an entry.
fn bytes(entry: &Entry) -> Vec<u8> {
    let Some(kept) = &entry.value else { return written(entry.loading, LOADING, [Duration::ZERO; 3], &[]) };
    let kind = if kept.value.is_some() { VALUE } else { NOTHING };
    let times = [kept.fresh_above, kept.usable_above, kept.took];
    written(entry.loading, kind, times, kept.value.as_deref().unwrap_or_default())
}

#[test]
fn flight() {
    let times = Times::within(SECOND * 1_000, SECOND, SECOND * 60, SECOND * 30);
    let (kept, keep) = loaded(7, Some(b"value"), times, SECOND);
    let (nothing, _) = loaded(7, None, times, SECOND);
    let (loading, _) = Entry::default().with_loader(9, SECOND);
    let again = read(&kept, Some(keep)).unwrap().with_loader(8, SECOND * 99).0;
    let words = ["\0\0\0\0\0\0\0\x01", "f", "L", "V", "N"];
    Target::new("flight", env!("CARGO_MANIFEST_DIR"))
        .seeds([kept, nothing, loading, again])
        .words(&words)
        .run(|input| {
            let lives = [None, Some(Duration::ZERO), Some(SECOND * 45), Some(SECOND * 1_000)];
            let kinds = lives.map(|left| match read(input, left) {
                Ok(entry) => check(&entry, input, left.unwrap_or(Duration::MAX)),
                Err(error) => {
                    check_refusal(&error, "loaded value");
                    "refused"
                }
            });
            kinds.join(", ")
        });
}

/// Checks what a reader and the next loader do with an entry.
fn check(entry: &Entry, input: &[u8], left: Duration) -> &'static str {
    assert_eq!(bytes(entry), input, "written otherwise than it was read");
    let usable = |found: Entry| match found.r#use() {
        Use::Fresh { value, .. } => (Some(value), "fresh"),
        Use::Stale(value) => (Some(value), "stale"),
        Use::Nothing => (None, "nothing"),
    };
    let (value, kind) = usable(entry.clone());
    // The next loader writes it again: the value is the same, and is not usable for longer.
    let (again, keep) = entry.clone().with_loader(77, SECOND * 60);
    assert!(again.len() <= HEADER.max(input.len()));
    let next = |left| read(&again, Some(left)).unwrap();
    assert_eq!(next(keep).loading, 77);
    assert_eq!(usable(next(keep)).0, value, "another value after {left:?}");
    let over = left.checked_sub(SECOND).filter(|_| left < Duration::from_millis(u64::MAX));
    if let Some(later) = over
        && usable(read(input, Some(later)).unwrap()).0.is_none()
    {
        assert_eq!(usable(next(keep - SECOND)).0, None, "usable for longer than before");
    }
    kind
}
