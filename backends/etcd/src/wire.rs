//! How claims are written down as keys, and read back.
//!
//! A claim is the key `<prefix><name>!<id>.<weight>.<capacity>` with the value `<ttl in ms> <note>`, attached to a
//! lease. The share is part of the key, so that a line can be judged from its keys alone, however long the notes are.
//! Names are escaped so that keys sort as names do: listings are plain ranges. Nothing is hashed, so nothing collides.

use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Effect, Failure, FailureKind, Note, Resource, Share};

use crate::line::Entry;
use crate::proto::{KeyValue, RangeRequest, order};

/// Where the keys are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    prefix: String,
}

/// A range of keys, its end excluded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Layout {
    pub(crate) fn new(prefix: &str) -> Layout {
        Layout { prefix: prefix.to_owned() }
    }

    /// The key of a claim.
    pub(crate) fn key(&self, claim: &Claim) -> Vec<u8> {
        let (weight, capacity) = (claim.share.weight(), claim.share.capacity());
        let leaf = format!("{}.{weight}.{capacity}", claim.id.to_hex());
        [self.head(&claim.resource).as_bytes(), leaf.as_bytes()].concat()
    }

    /// What is kept under it.
    pub(crate) fn value(&self, claim: &Claim) -> Vec<u8> {
        format!("{} {}", claim.ttl.as_millis(), claim.note.as_str()).into_bytes()
    }

    /// The keys of all claims on a resource.
    pub(crate) fn line(&self, resource: &Resource) -> Span {
        let start = self.head(resource).into_bytes();
        let end = successor(&start);
        Span { start, end }
    }

    /// The keys of all claims on resources whose names begin with `prefix` and come behind `after`.
    pub(crate) fn listing(&self, prefix: &str, after: Option<&Resource>) -> Span {
        let start = format!("{}{}", self.prefix, escaped(prefix)).into_bytes();
        // Above the marks, which have no name. Without a prefix the range would have no end.
        let lowest = format!("{}{}", self.prefix, char::from(SEPARATOR + 1)).into_bytes();
        let end = successor(&start);
        let behind = after.map(|after| self.line(after).end).unwrap_or_default();
        Span { start: start.max(lowest).max(behind), end }
    }

    /// The key whose version tells late requests of one lease from present ones.
    pub(crate) fn mark(&self, lease: i64) -> Vec<u8> {
        format!("{}{}{lease:016x}", self.prefix, char::from(SEPARATOR)).into_bytes()
    }

    /// Any key of ours, to see whether this client may read there.
    pub(crate) fn probe(&self) -> Vec<u8> {
        format!("{}{}", self.prefix, char::from(SEPARATOR)).into_bytes()
    }

    /// Reads a line, in the order of creation.
    ///
    /// # Errors
    /// `Foreign` where a key among them is not a claim.
    pub(crate) fn read_line(&self, resource: &Resource, kvs: &[KeyValue]) -> Result<Vec<Entry>, Failure> {
        let head = self.head(resource);
        let read = |kv: &KeyValue| {
            let leaf = kv.key.strip_prefix(head.as_bytes()).and_then(read_leaf);
            let (id, share) = leaf.ok_or_else(|| foreign(&kv.key))?;
            Ok(Entry { key: kv.key.clone(), id, share, place: kv.create_revision, lease: kv.lease })
        };
        let mut line = kvs.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
        line.sort_by_key(|entry| entry.place);
        Ok(line)
    }

    /// The resource and the claim that a key of a listing stands for.
    pub(crate) fn read_entry(&self, kv: &KeyValue) -> Option<(Resource, Entry)> {
        let rest = kv.key.strip_prefix(self.prefix.as_bytes())?;
        let at = rest.iter().position(|byte| *byte == SEPARATOR)?;
        let (id, share) = read_leaf(&rest[at + 1..])?;
        let entry = Entry { key: kv.key.clone(), id, share, place: kv.create_revision, lease: kv.lease };
        Some((unescaped(&rest[..at])?, entry))
    }

    fn head(&self, resource: &Resource) -> String {
        format!("{}{}{}", self.prefix, escaped(resource.as_str()), char::from(SEPARATOR))
    }
}

/// The ttl and the note of a claim; what somebody else wrote there is shown as a note.
pub(crate) fn read_value(value: &[u8]) -> (Option<Duration>, Note) {
    let text = String::from_utf8_lossy(value);
    match text.split_once(' ').and_then(|(ttl, note)| Some((ttl.parse().ok()?, note))) {
        Some((millis, note)) => (Some(Duration::from_millis(millis)), Note::clipped(note)),
        None => (None, Note::clipped(&text)),
    }
}

/// One key, without its value.
pub(crate) fn look_up(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() }
}

/// A line in the order of creation, without its values, and without those that came after `last` unless that is 0.
pub(crate) fn look_along(line: &Span, last: i64) -> RangeRequest {
    RangeRequest {
        key: line.start.clone(),
        range_end: line.end.clone(),
        limit: leasehold_core::MAX_LINE as i64 + 1,
        sort_order: order::ASCENDING,
        sort_target: order::BY_CREATION,
        keys_only: true,
        max_create_revision: last,
        ..RangeRequest::default()
    }
}

/// Sorts below every byte of an escaped name, so that `a` with its claims comes before `a/b` with its own.
const SEPARATOR: u8 = b'!';
/// Begins an escaped byte below the plain ones.
const LOW: u8 = b'%';
/// Begins an escaped byte above the plain ones.
const HIGH: u8 = b'~';

/// The name, byte by byte in an order-preserving form: plain from `&` to `}`, `%XX` below, `~XX` above.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            0..=LOW => escaped.push_str(&format!("{}{byte:02X}", char::from(LOW))),
            HIGH.. => escaped.push_str(&format!("{}{byte:02X}", char::from(HIGH))),
            plain => escaped.push(char::from(plain)),
        }
    }
    escaped
}

fn unescaped(escaped: &[u8]) -> Option<Resource> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != LOW && byte != HIGH {
            bytes.push(byte);
            continue;
        }
        let (pair, tail) = tail.split_at_checked(2)?;
        let value = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        // Only what `escaped` writes is read: two keys never stand for one name.
        let is_right_mark = if byte == LOW { value <= LOW } else { value >= HIGH };
        if format!("{value:02X}").as_bytes() != pair || !is_right_mark {
            return None;
        }
        bytes.push(value);
        rest = tail;
    }
    Resource::new(std::str::from_utf8(&bytes).ok()?).ok()
}

/// Reads `<id>.<weight>.<capacity>`.
fn read_leaf(leaf: &[u8]) -> Option<(ClaimId, Share)> {
    let mut parts = std::str::from_utf8(leaf).ok()?.split('.');
    let id = ClaimId::from_hex(parts.next()?)?;
    let (weight, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    if parts.next().is_some() {
        return None;
    }
    Some((id, Share::permits(weight, capacity).ok()?))
}

/// The first key that does not begin with `prefix`.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys: this is how etcd writes a range without an end.
    vec![0]
}

fn foreign(key: &[u8]) -> Failure {
    let key = String::from_utf8_lossy(key);
    let detail = format!(
        "the key {key} is not a claim of leasehold and is left untouched: remove it, or choose another prefix"
    );
    Failure::new(FailureKind::Foreign, Effect::None, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(layout: &Layout, key: &[u8]) -> Option<(Resource, Share)> {
        let kv = KeyValue { key: key.to_vec(), ..KeyValue::default() };
        layout.read_entry(&kv).map(|(resource, entry)| (resource, entry.share))
    }

    fn claim(name: &str, share: Share) -> Claim {
        Claim {
            id: ClaimId::from_bytes([0xab; 16]),
            resource: Resource::new(name).unwrap(),
            share,
            ttl: Duration::from_secs(30),
            note: Note::new("host=a pid=1").unwrap(),
        }
    }

    #[test]
    fn a_claim_is_written_as_a_key_that_a_person_can_read() {
        let layout = Layout::new("leasehold/");
        let claim = claim("orders/42", Share::MUTEX);
        let key = layout.key(&claim);
        assert_eq!(
            String::from_utf8(key.clone()).unwrap(),
            "leasehold/orders/42!abababababababababababababababab.1.1"
        );
        assert_eq!(named(&layout, &key), Some((claim.resource.clone(), claim.share)));
        let value = layout.value(&claim);
        assert_eq!(value, b"30000 host=a pid=1");
        assert_eq!(read_value(&value), (Some(claim.ttl), claim.note));
        assert_eq!(read_value(b"leader-7").0, None);
    }

    #[test]
    fn what_is_no_claim_is_told_and_not_guessed() {
        let layout = Layout::new("p/");
        let resource = Resource::new("job").unwrap();
        for key in ["p/job!x", "p/job!abababababababababababababababab.2.1", "p/job!.1.1", "other"] {
            let kv = KeyValue { key: key.into(), ..KeyValue::default() };
            let failure = layout.read_line(&resource, &[kv]).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Foreign, "{key}");
            assert!(failure.detail().contains(key));
        }
        for name in ["j%6Fb", "j~6Fb", "j%7E", "j~20", "j%2f"] {
            let key = format!("p/{name}!abababababababababababababababab.1.1");
            assert_eq!(named(&layout, key.as_bytes()), None, "{name}");
        }
        assert_eq!(named(&layout, b"p/j%"), None);
    }

    #[test]
    fn marks_are_in_no_line_and_no_listing() {
        let layout = Layout::new("p/");
        let mark = layout.mark(7);
        assert_eq!(mark, b"p/!0000000000000007");
        let listing = layout.listing("", None);
        assert!(mark < listing.start && listing.start < listing.end);
    }

    #[test]
    fn a_range_ends_behind_its_prefix() {
        assert_eq!(successor(b"ab"), b"ac");
        assert_eq!(successor(&[b'a', 0xff]), b"b");
        assert_eq!(successor(&[0xff]), [0]);
    }

    proptest! {
        #[test]
        fn names_read_back_and_keys_sort_as_names_do(a in "\\PC{1,40}", b in "[a-b/~%!\" é]{1,6}", c in "[a-b/~%!\" é]{1,6}") {
            let layout = Layout::new("p/");
            for name in [&a, &b] {
                let claim = claim(name, Share::READER);
                prop_assert_eq!(named(&layout, &layout.key(&claim)), Some((claim.resource, claim.share)));
            }
            let (left, right) = (claim(&b, Share::MUTEX), claim(&c, Share::MUTEX));
            prop_assert_eq!(left.resource.cmp(&right.resource), layout.key(&left).cmp(&layout.key(&right)));
            // A line holds the claims on its own resource and no others.
            let line = layout.line(&left.resource);
            let key = layout.key(&right);
            prop_assert_eq!(line.start <= key && key < line.end, left.resource == right.resource);
        }

        #[test]
        fn a_listing_holds_the_names_with_its_prefix(name in "[a-b/é]{1,5}", prefix in "[a-b/é]{0,3}", after in "[a-b/é]{1,5}") {
            let layout = Layout::new("p/");
            let (claim, after) = (claim(&name, Share::MUTEX), Resource::new(&after).unwrap());
            let listing = layout.listing(&prefix, Some(&after));
            let key = layout.key(&claim);
            let listed = listing.start <= key && key < listing.end;
            prop_assert_eq!(listed, name.starts_with(&prefix) && claim.resource > after);
        }

        #[test]
        fn no_key_panics(key in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = named(&Layout::new(""), &key);
            let _ = read_value(&key);
        }
    }
}
