//! The form of claims as keys, written and read, in each dialect.
//!
//! Natively a claim is the key `<prefix><name>!<id>.<weight>.<capacity>`. The share is part of the key,
//! so that a queue can be judged from its keys alone, however long the notes are. Names are escaped so
//! that keys sort as names do: listings are plain ranges. Where the key is a slot that claims use in
//! turn, the id in it is the slot's, and the value begins with that of the claim.
//!
//! In the dialect of etcd's own clients it is `<prefix><name>/<id>`, where theirs is `<name>/<lease>`.
//! They look for the first key below `<name>/`, and so does this one; a key with another `/` in it
//! belongs to a longer name.
//!
//! The value is `<ttl in ms> <note>`, in a slot `<id> <ttl in ms> <note>`. In the dialect of etcd's own clients it is the
//! note alone, since to them the value of the first key is what the leader of an election proclaims.
//!
//! In the dialect of the Python clients the key is `<prefix><name>` alone, independent of the holder,
//! and the value begins with the id. No queue exists: the key is put only while it does not exist.
//! Nothing is hashed, so nothing collides.

use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Effect, Failure, FailureKind, Note, Resource, Share};

use crate::protocol::key_slots::Slot;
use crate::protocol::proto::{KeyValue, RangeRequest, order};
use crate::protocol::queue::Entry;
use crate::protocol::txn::{Erase, Span, created_at, value_begins};

/// The prefix of the keys, and the dialect in which they are written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    prefix: String,
    dialect: Dialect,
}

/// The library whose format of a lock is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// This library's own, with all shares.
    Native,
    /// The form of Go's `concurrency` package, `etcdctl lock` and the server's own lock service:
    /// mutexes only.
    Concurrency,
    /// The form of Python's `etcd3` and `etcd3gw`: one key for a lock, and no queue. Mutexes only.
    Etcd3,
}

impl Layout {
    pub(crate) fn new(prefix: &str, dialect: Dialect) -> Layout {
        Layout { prefix: prefix.to_owned(), dialect }
    }

    /// Returns the key of a claim in a slot.
    pub(crate) fn key(&self, claim: &Claim, slot: Slot) -> Vec<u8> {
        let (weight, capacity) = (claim.share.weight(), claim.share.capacity());
        let id = match slot {
            Slot::Own => claim.id,
            Slot::Reused(id) => id,
        };
        let leaf = match (self.dialect, foreign_lease(id)) {
            (Dialect::Etcd3, _) => String::new(),
            (Dialect::Native, _) => format!("{}.{weight}.{capacity}", id.to_hex()),
            (Dialect::Concurrency, Some(lease)) => format!("{lease:x}"),
            (Dialect::Concurrency, None) => id.to_hex(),
        };
        [self.head(&claim.resource).as_bytes(), leaf.as_bytes()].concat()
    }

    /// Returns the value that is stored under it.
    pub(crate) fn value(&self, claim: &Claim, slot: Slot) -> Vec<u8> {
        let note = claim.note.as_str();
        let value = format!("{} {note}", claim.ttl.as_millis());
        match (self.dialect, slot) {
            (Dialect::Etcd3, _) | (_, Slot::Reused(_)) => {
                format!("{} {value}", claim.id.to_hex()).into_bytes()
            }
            (Dialect::Native, Slot::Own) => value.into_bytes(),
            (Dialect::Concurrency, Slot::Own) => note.as_bytes().to_vec(),
        }
    }

    /// Returns `true` if keys are used again. In other dialects the names of keys have a meaning of
    /// their own.
    pub(crate) fn has_slots(&self) -> bool {
        self.dialect == Dialect::Native
    }

    /// Returns how a claim ends: where the key is not its own alone, only as long as it is its own.
    pub(crate) fn erase(&self, claim: &Claim, slot: Slot) -> Erase {
        let key = self.key(claim, slot);
        let only_if = match (self.dialect, foreign_place(claim.id)) {
            (Dialect::Native | Dialect::Concurrency, _) => Vec::new(),
            (Dialect::Etcd3, Some(place)) => vec![created_at(&key, place)],
            (Dialect::Etcd3, None) => value_begins(&key, &claim.id.to_hex()).to_vec(),
        };
        Erase { key, only_if }
    }

    /// Returns `true` if claims wait in the queue.
    pub(crate) fn has_queue(&self) -> bool {
        self.dialect != Dialect::Etcd3
    }

    /// Returns the keys of all claims on a resource.
    pub(crate) fn queue(&self, resource: &Resource) -> Span {
        let start = self.head(resource).into_bytes();
        let end = match self.dialect {
            // The next key that there can be.
            Dialect::Etcd3 => [start.as_slice(), &[0]].concat(),
            Dialect::Native | Dialect::Concurrency => successor(&start),
        };
        Span { start, end }
    }

    /// Builds the request for the keys of a queue in the order of creation, without those after `last` unless
    /// that is 0, and without values unless the queue has but one key. So it does not show which claim uses
    /// a slot.
    pub(crate) fn keys_request(&self, queue: &Span, last: i64) -> RangeRequest {
        RangeRequest {
            key: queue.start.clone(),
            range_end: queue.end.clone(),
            limit: leasehold_core::MAX_QUEUE as i64 + 1,
            sort_order: order::ASCENDING,
            sort_target: order::BY_CREATION,
            keys_only: self.dialect != Dialect::Etcd3,
            max_create_revision: last,
            ..RangeRequest::default()
        }
    }

    /// Builds the request for a whole queue in the order of creation, with the values that say which claim uses
    /// each key.
    pub(crate) fn queue_request(&self, queue: &Span) -> RangeRequest {
        RangeRequest { keys_only: self.dialect == Dialect::Concurrency, ..self.keys_request(queue, 0) }
    }

    /// Builds the requests by which a claim of this share finds out which claims are in the queue, and its own
    /// position: the keys of the whole queue, and the values of those that may hold with its share.
    /// Another client continues only with a claim that holds, and for a slot only the value shows which
    /// claim that is. Where many may hold, it is one request for everything.
    pub(crate) fn queue_requests(&self, queue: &Span, share: Share) -> Vec<RangeRequest> {
        // The claims ahead of a holder leave it capacity, and each weighs one at least.
        let holders_most = share.capacity() - share.weight() + 1;
        if self.dialect != Dialect::Native || holders_most > VALUES_MOST {
            return vec![self.queue_request(queue)];
        }
        let holders = RangeRequest { limit: holders_most.into(), ..self.queue_request(queue) };
        vec![self.keys_request(queue, 0), holders]
    }

    /// Returns the keys of all claims on resources whose names begin with `prefix` and, where keys sort
    /// as names do, come behind `after`.
    pub(crate) fn listing(&self, prefix: &str, after: Option<&Resource>) -> Span {
        if self.dialect != Dialect::Native {
            let start = format!("{}{prefix}", self.prefix).into_bytes();
            let end = successor(&start);
            let behind = after.filter(|_| !self.has_queue()).map(|after| self.queue(after).end);
            // A range from nothing is written as one from the first key that there can be.
            return Span { start: start.max(behind.unwrap_or_default()).max(vec![0]), end };
        }
        let start = format!("{}{}", self.prefix, escaped(prefix)).into_bytes();
        // Above the marks, which have no name.
        let lowest = format!("{}{}", self.prefix, char::from(SEPARATOR + 1)).into_bytes();
        let end = successor(&start);
        let behind = after.map(|after| self.queue(after).end).unwrap_or_default();
        Span { start: start.max(lowest).max(behind), end }
    }

    /// Returns `true` if the keys of a listing sort as the names do.
    pub(crate) fn lists_in_order(&self) -> bool {
        self.dialect != Dialect::Concurrency
    }

    /// Returns the key whose version distinguishes late requests of one lease from present ones. It is
    /// in no queue.
    pub(crate) fn mark(&self, lease: i64) -> Vec<u8> {
        match self.dialect {
            Dialect::Native => format!("{}{}{lease:016x}", self.prefix, char::from(SEPARATOR)).into_bytes(),
            // Without a `/` it can be below no name, for any prefix of other clients.
            Dialect::Concurrency | Dialect::Etcd3 => format!("{MARKS}{lease:016x}").into_bytes(),
        }
    }

    /// Returns the key of a register. It is in neither a queue nor a listing, and is not a mark: those
    /// continue in hexadecimal digits.
    pub(crate) fn register(&self, at: &Resource) -> Vec<u8> {
        format!("{}{}r{}", self.prefix, char::from(SEPARATOR), escaped(at.as_str())).into_bytes()
    }

    /// Returns the key that is changed whenever a register is removed; few of them serve all registers.
    pub(crate) fn removals(&self, at: &Resource) -> Vec<u8> {
        // FNV-1a: the same for all clients of all versions.
        let hash = at.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{}{}x{:03x}", self.prefix, char::from(SEPARATOR), hash % REMOVALS).into_bytes()
    }

    /// Returns all keys of locks and registers that can be ours.
    pub(crate) fn everything(&self) -> Span {
        let start = self.prefix.clone().into_bytes();
        let end = successor(&start);
        Span { start, end }
    }

    /// Returns the [marks](Layout::mark) of this dialect, if they are not below the prefix.
    pub(crate) fn marks(&self) -> Option<Span> {
        let start = MARKS.as_bytes().to_vec();
        (self.dialect != Dialect::Native).then(|| Span { end: successor(&start), start })
    }

    /// Returns any key of ours, to see whether this client may read there.
    pub(crate) fn probe(&self) -> Vec<u8> {
        format!("{}{}", self.prefix, char::from(SEPARATOR)).into_bytes()
    }

    /// Reads a queue, in the order of creation.
    ///
    /// # Errors
    /// `Foreign` where a key among them is not a claim.
    pub(crate) fn read_queue(&self, resource: &Resource, kvs: &[KeyValue]) -> Result<Vec<Entry>, Failure> {
        let head = self.head(resource);
        let mut queue = Vec::with_capacity(kvs.len());
        for kv in kvs {
            let leaf = kv.key.strip_prefix(head.as_bytes()).unwrap_or_default();
            match (self.dialect, self.read_leaf(leaf, kv)) {
                (_, Some((id, share))) => queue.push(entry(kv, id, share)),
                (Dialect::Native, None) => return Err(foreign(&kv.key)),
                (Dialect::Concurrency | Dialect::Etcd3, None) => {}
            }
        }
        queue.sort_by_key(|entry| entry.place);
        Ok(queue)
    }

    /// Reads the resource and the claim that a key of a listing represents.
    pub(crate) fn read_entry(&self, kv: &KeyValue) -> Option<(Resource, Entry)> {
        let rest = kv.key.strip_prefix(self.prefix.as_bytes())?;
        let (name, leaf) = match self.dialect {
            Dialect::Native => {
                let at = rest.iter().position(|byte| *byte == SEPARATOR)?;
                (unescaped(&rest[..at])?, &rest[at + 1..])
            }
            Dialect::Etcd3 => (Resource::new(std::str::from_utf8(rest).ok()?).ok()?, &rest[rest.len()..]),
            Dialect::Concurrency => {
                let at = rest.iter().rposition(|byte| *byte == b'/')?;
                // Among all keys of a cluster, only those that are certainly locks are listed.
                let leaf = std::str::from_utf8(&rest[at + 1..]).ok()?;
                if ClaimId::from_hex(leaf).is_none() && leaf != format!("{:x}", kv.lease) {
                    return None;
                }
                (Resource::new(std::str::from_utf8(&rest[..at]).ok()?).ok()?, &rest[at + 1..])
            }
        };
        let (id, share) = self.read_leaf(leaf, kv)?;
        Some((name, entry(kv, id, share)))
    }

    /// Reads the ttl, where it is written, and the note of a claim; a value of another client is shown as a note.
    pub(crate) fn read_value(&self, id: ClaimId, value: &[u8]) -> (Option<Duration>, Note) {
        let text = String::from_utf8_lossy(value);
        let text = text.strip_prefix(&format!("{} ", id.to_hex())).unwrap_or(&text);
        let ours = match self.dialect {
            Dialect::Native => true,
            Dialect::Concurrency => false,
            Dialect::Etcd3 => !is_foreign(id),
        };
        match text.split_once(' ').and_then(|(ttl, note)| Some((ttl.parse().ok()?, note))) {
            Some((millis, note)) if ours => (Some(Duration::from_millis(millis)), Note::clipped(note)),
            _ => (None, Note::clipped(text)),
        }
    }

    fn read_leaf(&self, leaf: &[u8], kv: &KeyValue) -> Option<(ClaimId, Share)> {
        let text = std::str::from_utf8(leaf).ok();
        if self.dialect == Dialect::Etcd3 {
            // The ids of other clients are UUIDs, with dashes or in sixteen bytes.
            let id = id_in(&kv.value).unwrap_or_else(|| id_of_place(kv.create_revision));
            return leaf.is_empty().then_some((id, Share::MUTEX));
        }
        if self.dialect == Dialect::Native {
            let (id, share) = read_native_leaf(text?)?;
            return Some((id_in(&kv.value).unwrap_or(id), share));
        }
        if leaf.contains(&b'/') {
            return None;
        }
        let own = text.and_then(ClaimId::from_hex);
        let lease = text.filter(|text| *text == format!("{:x}", kv.lease)).map(|_| kv.lease);
        // Every key directly below the name is ahead for the others, so it is for us.
        let id = own.or(lease.map(id_of_lease)).unwrap_or_else(|| id_of_place(kv.create_revision));
        Some((id, Share::MUTEX))
    }

    fn head(&self, resource: &Resource) -> String {
        match self.dialect {
            Dialect::Native => {
                format!("{}{}{}", self.prefix, escaped(resource.as_str()), char::from(SEPARATOR))
            }
            Dialect::Concurrency => format!("{}{}/", self.prefix, resource.as_str()),
            Dialect::Etcd3 => format!("{}{}", self.prefix, resource.as_str()),
        }
    }
}

/// Reads the id that a value begins with. A ttl is never as long.
fn id_in(value: &[u8]) -> Option<ClaimId> {
    let id = value.get(..ID_LENGTH).filter(|_| value.get(ID_LENGTH) == Some(&b' '))?;
    ClaimId::from_hex(std::str::from_utf8(id).ok()?)
}

fn entry(kv: &KeyValue, id: ClaimId, share: Share) -> Entry {
    Entry {
        key: kv.key.clone(),
        id,
        share,
        place: kv.create_revision,
        lease: kv.lease,
        changed: kv.mod_revision,
    }
}

/// Returns the id under which another client's key `<name>/<lease>` is shown, and can be ended.
fn id_of_lease(lease: i64) -> ClaimId {
    ClaimId::from_bytes(u128::from(lease.cast_unsigned()).to_be_bytes())
}

/// Returns the id under which a key is shown that does not belong to a claim. It ends nothing.
fn id_of_place(place: i64) -> ClaimId {
    ClaimId::from_bytes((FOREIGN | u128::from(place.cast_unsigned())).to_be_bytes())
}

/// Returns the lease that an id represents. Random ids do not begin with eight bytes of zero.
fn foreign_lease(id: ClaimId) -> Option<i64> {
    u64::try_from(u128::from_be_bytes(*id.as_bytes())).ok().map(u64::cast_signed)
}

/// Returns the place of the key that an id was made up for.
fn foreign_place(id: ClaimId) -> Option<i64> {
    let bits = u128::from_be_bytes(*id.as_bytes());
    (bits & FOREIGN == FOREIGN).then_some((bits as u64).cast_signed())
}

/// Returns `true` if an id was made up for another client's key.
fn is_foreign(id: ClaimId) -> bool {
    let upper = u128::from_be_bytes(*id.as_bytes()) & FOREIGN;
    upper == 0 || upper == FOREIGN
}

/// The upper half of an id that represents a key without a claim.
const FOREIGN: u128 = (u64::MAX as u128) << 64;

/// The length of a written id: two characters a byte.
const ID_LENGTH: usize = 32;

/// Builds the request for one key, without its value.
pub(crate) fn key_request(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() }
}

/// The beginning of the marks in the dialects of other clients.
const MARKS: &str = "leasehold-mark-";
/// The number of keys that record removals: a register is created anew only where nothing of its share
/// was removed meanwhile.
const REMOVALS: u64 = 1_024;
/// The most holders for which only their values are looked at; where more may hold, everything is.
const VALUES_MOST: u32 = 32;
/// Sorts below every byte of an escaped name, so that `a` with its claims comes before `a/b` with its own.
const SEPARATOR: u8 = b'!';
/// Begins an escaped byte below the plain ones.
const LOW: u8 = b'%';
/// Begins an escaped byte above the plain ones.
const HIGH: u8 = b'~';

/// Writes the name, byte by byte in an order-preserving form: plain from `&` to `}`, `%XX` below, `~XX`
/// above.
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
        // Only names that `escaped` writes are read: two keys never have the same name.
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
fn read_native_leaf(leaf: &str) -> Option<(ClaimId, Share)> {
    let mut parts = leaf.split('.');
    let id = ClaimId::from_hex(parts.next()?)?;
    let (weight, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    if parts.next().is_some() {
        return None;
    }
    Some((id, Share::permits(weight, capacity).ok()?))
}

/// Returns the first key that does not begin with `prefix`.
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
    use crate::protocol::proto::Operand;
    use proptest::prelude::*;

    fn native(prefix: &str) -> Layout {
        Layout::new(prefix, Dialect::Native)
    }

    fn concurrency() -> Layout {
        Layout::new("", Dialect::Concurrency)
    }

    fn named(layout: &Layout, key: &[u8]) -> Option<(Resource, Share)> {
        let kv = KeyValue { key: key.to_vec(), ..KeyValue::default() };
        layout.read_entry(&kv).map(|(resource, entry)| (resource, entry.share))
    }

    fn claim(name: &str, share: Share) -> Claim {
        Claim::new(
            ClaimId::from_bytes([0xab; 16]),
            Resource::new(name).unwrap(),
            share,
            Duration::from_secs(30),
        )
        .note(Note::new("host=a pid=1").unwrap())
    }

    #[test]
    fn a_claim_is_written_as_a_key_that_a_person_can_read() {
        let layout = native("leasehold/");
        let claim = claim("orders/42", Share::MUTEX);
        let key = layout.key(&claim, Slot::Own);
        assert_eq!(
            String::from_utf8(key.clone()).unwrap(),
            "leasehold/orders/42!abababababababababababababababab.1.1"
        );
        assert_eq!(named(&layout, &key), Some((claim.resource.clone(), claim.share)));
        let value = layout.value(&claim, Slot::Own);
        assert_eq!(value, b"30000 host=a pid=1");
        assert_eq!(layout.read_value(claim.id, &value), (Some(claim.ttl), claim.note));
        assert_eq!(layout.read_value(claim.id, b"leader-7").0, None);
    }

    #[test]
    fn slot_value_identifies_its_current_claim() {
        let layout = native("p/");
        let (claim, slot) = (claim("job", Share::MUTEX), ClaimId::from_bytes([0xcd; 16]));
        let key = layout.key(&claim, Slot::Reused(slot));
        assert_eq!(key, b"p/job!cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd.1.1");
        let value = layout.value(&claim, Slot::Reused(slot));
        assert_eq!(value, b"abababababababababababababababab 30000 host=a pid=1");
        assert_eq!(layout.read_value(claim.id, &value), (Some(claim.ttl), claim.note.clone()));
        let id = |value: &[u8]| {
            let kv = KeyValue { key: key.clone(), value: value.to_vec(), ..KeyValue::default() };
            let queue = layout.read_queue(&claim.resource, &[kv]).unwrap();
            (queue[0].id, queue[0].share)
        };
        assert_eq!(id(&value), (claim.id, claim.share));
        // Without values, and for clients that know of no slots, it is a claim of the same weight.
        assert_eq!(id(b""), (slot, claim.share));
        for plain in ["30000 abababababababababababababababab", "30000 ", &"a".repeat(40)] {
            assert_eq!(id(plain.as_bytes()), (slot, claim.share), "{plain}");
        }
    }

    #[test]
    fn a_newcomer_reads_the_values_of_holders_only() {
        let layout = native("p/");
        let queue = layout.queue(&Resource::new("job").unwrap());
        let limits = |share| {
            let looks = layout.queue_requests(&queue, share);
            looks.iter().map(|look| (look.keys_only, look.limit)).collect::<Vec<_>>()
        };
        let all = leasehold_core::MAX_QUEUE as i64 + 1;
        assert_eq!(limits(Share::MUTEX), [(true, all), (false, 1)]);
        assert_eq!(limits(Share::WRITER), [(true, all), (false, 1)]);
        assert_eq!(limits(Share::permits(2, 9).unwrap()), [(true, all), (false, 8)]);
        assert_eq!(limits(Share::READER), [(false, all)]);
        assert_eq!(concurrency().queue_requests(&queue, Share::MUTEX).len(), 1);
    }

    #[test]
    fn key_that_is_not_a_claim_is_an_error() {
        let layout = native("p/");
        let resource = Resource::new("job").unwrap();
        for key in ["p/job!x", "p/job!abababababababababababababababab.2.1", "p/job!.1.1", "other"] {
            let kv = KeyValue { key: key.into(), ..KeyValue::default() };
            let failure = layout.read_queue(&resource, &[kv]).unwrap_err();
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
    fn marks_are_in_no_queue_and_no_listing() {
        let layout = native("p/");
        let mark = layout.mark(7);
        assert_eq!(mark, b"p/!0000000000000007");
        let listing = layout.listing("", None);
        assert!(mark < listing.start && listing.start < listing.end);
    }

    #[test]
    fn foreign_dialect_keys_are_read_as_claims_and_can_be_ended() {
        let layout = concurrency();
        let ours = claim("jobs/a", Share::MUTEX);
        assert_eq!(layout.key(&ours, Slot::Own), b"jobs/a/abababababababababababababababab");
        let kv = |key: &str, lease, place| KeyValue {
            key: key.into(),
            lease,
            create_revision: place,
            ..KeyValue::default()
        };
        let theirs = kv("jobs/a/694d8a2bc7ff0c05", 0x694d_8a2b_c7ff_0c05, 3);
        let nested = kv("jobs/a/b/694d8a2bc7ff0c05", 0x694d_8a2b_c7ff_0c05, 2);
        let other = kv("jobs/a/config", 0, 1);
        let own = kv("jobs/a/abababababababababababababababab", 7, 9);
        let queue =
            layout.read_queue(&ours.resource, &[own, theirs.clone(), nested.clone(), other.clone()]).unwrap();
        let places: Vec<i64> = queue.iter().map(|entry| entry.place).collect();
        assert_eq!(places, [1, 3, 9], "a longer name is another lock, anything else is ahead");
        let broken = ours.clone().id(queue[1].id);
        assert_eq!(layout.key(&broken, Slot::Own), theirs.key);
        assert_ne!(layout.key(&ours.clone().id(queue[0].id), Slot::Own), other.key);
        assert_eq!(queue[2].id, ours.id);
        // To their observers a value is what a leader says, so ours has nothing before the note.
        assert_eq!(layout.value(&ours, Slot::Own), ours.note.as_str().as_bytes());
        for id in [queue[1].id, ours.id] {
            let (ttl, note) = layout.read_value(id, b"5 apples");
            assert_eq!((ttl, note.as_str()), (None, "5 apples"));
        }
        let name = |kv: &KeyValue| layout.read_entry(kv).map(|(resource, _)| resource.to_string());
        assert_eq!(name(&theirs).as_deref(), Some("jobs/a"));
        assert_eq!(name(&nested).as_deref(), Some("jobs/a/b"));
        assert_eq!(name(&other), None);
        assert!(!layout.mark(7).contains(&b'/'));
    }

    #[test]
    fn dialect_without_queue_value_identifies_the_owner_of_the_key() {
        let layout = Layout::new("/locks/", Dialect::Etcd3);
        let ours = claim("jobs/a", Share::MUTEX);
        let key = layout.key(&ours, Slot::Own);
        assert_eq!(key, b"/locks/jobs/a");
        let kv =
            |value: Vec<u8>| KeyValue { key: key.clone(), value, create_revision: 9, ..KeyValue::default() };
        let read = |kv| layout.read_queue(&ours.resource, &[kv]).unwrap().remove(0);
        let own = read(kv(layout.value(&ours, Slot::Own)));
        assert_eq!((own.id, own.place), (ours.id, 9));
        assert_eq!(
            layout.read_value(ours.id, &layout.value(&ours, Slot::Own)),
            (Some(ours.ttl), ours.note.clone())
        );
        let begins = format!("{} ", ours.id.to_hex());
        assert_eq!(
            layout.erase(&ours, Slot::Own).only_if[0].operand,
            Some(Operand::Value(begins.into_bytes()))
        );
        for foreign in [&b"8dd5b27c-f9f8-11f0-b0a5-0242ac110002"[..], &[0xab; 16], &[0xff; 40], b""] {
            let theirs = read(kv(foreign.to_vec()));
            let broken = ours.clone().id(theirs.id);
            assert_eq!(
                layout.erase(&broken, Slot::Own).only_if,
                [created_at(&key, 9)],
                "only as long as it is that one"
            );
            assert_eq!(layout.read_value(theirs.id, foreign).0, None);
        }
        let queue = layout.queue(&ours.resource);
        let longer = layout.key(&claim("jobs/a/b", Share::MUTEX), Slot::Own);
        assert!(queue.start <= key && key < queue.end && longer >= queue.end);
        let listing = layout.listing("jobs/", Some(&ours.resource));
        assert!(listing.start > key && listing.start <= longer && longer < listing.end);
        assert_eq!(
            layout.read_entry(&kv(Vec::new())).map(|(resource, _)| resource),
            Some(ours.resource.clone())
        );
        assert!(!layout.mark(7).starts_with(b"/locks/"));
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
            let layout = native("p/");
            for name in [&a, &b] {
                let claim = claim(name, Share::READER);
                prop_assert_eq!(named(&layout, &layout.key(&claim, Slot::Own)), Some((claim.resource, claim.share)));
            }
            let (left, right) = (claim(&b, Share::MUTEX), claim(&c, Share::MUTEX));
            prop_assert_eq!(left.resource.cmp(&right.resource), layout.key(&left, Slot::Own).cmp(&layout.key(&right, Slot::Own)));
            // A queue holds the claims on its own resource and no others.
            let queue = layout.queue(&left.resource);
            let key = layout.key(&right, Slot::Own);
            prop_assert_eq!(queue.start <= key && key < queue.end, left.resource == right.resource);
        }

        #[test]
        fn a_listing_holds_the_names_with_its_prefix(name in "[a-b/é]{1,5}", prefix in "[a-b/é]{0,3}", after in "[a-b/é]{1,5}") {
            let layout = native("p/");
            let (claim, after) = (claim(&name, Share::MUTEX), Resource::new(&after).unwrap());
            let listing = layout.listing(&prefix, Some(&after));
            let key = layout.key(&claim, Slot::Own);
            let listed = listing.start <= key && key < listing.end;
            prop_assert_eq!(listed, name.starts_with(&prefix) && claim.resource > after);
        }

        #[test]
        fn no_key_panics(key in proptest::collection::vec(any::<u8>(), 0..60)) {
            for layout in [native(""), native("p/"), concurrency(), Layout::new("/locks/", Dialect::Etcd3)] {
                let _ = named(&layout, &key);
                let _ = layout.read_value(ClaimId::from_bytes([1; 16]), &key);
            }
        }
    }
}
