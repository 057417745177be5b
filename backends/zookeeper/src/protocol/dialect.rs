//! The names of claims' nodes, in the native dialect and in those of other libraries.
//!
//! Pure: shares and ids go in, names come out, and the other way round. A name ends in the sequence
//! that ZooKeeper appends, ten characters at least, and it has the claim's id in it, so that a node
//! whose making was not answered is recognised. Other libraries do the same for the same reason, with
//! an id of their own.

use leasehold_core::{ClaimId, Effect, Failure, FailureKind, LockSupport, Share};

/// The library whose names are written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `id-weight-capacity-sequence`: every share.
    Native,
    /// Apache Curator's `InterProcessMutex`, `InterProcessReadWriteLock` and `InterProcessSemaphoreV2`.
    Curator,
    /// kazoo's `Lock`, `WriteLock`, `ReadLock` and `Semaphore`.
    Kazoo,
}

/// The form of a mutex in another library's dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutexes {
    /// As its mutex.
    Locks,
    /// As its semaphore of one lease; then there is nothing else.
    Leases,
}

/// The content of the name of a claim's node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) id: ClaimId,
    pub(crate) share: Share,
    pub(crate) sequence: i32,
}

impl Dialect {
    /// Returns what can be written down in it.
    pub(crate) fn admission(self, mutexes: Mutexes) -> LockSupport {
        match (self, mutexes) {
            (Dialect::Native, _) => LockSupport::Counted,
            (_, Mutexes::Locks) => LockSupport::Permits,
            (_, Mutexes::Leases) => LockSupport::Exclusive,
        }
    }

    /// Returns why a share cannot be written down; `None` where it can.
    pub(crate) fn unsupported_reason(self, mutexes: Mutexes, share: Share) -> Option<&'static str> {
        match (self, mutexes) {
            (Dialect::Native, _) => None,
            (_, Mutexes::Leases) if share == Share::MUTEX => None,
            (_, Mutexes::Leases) => Some("mutex=semaphore writes mutexes only: leave it out for other locks"),
            _ if !share.is_counted() || share.weight() == 1 => None,
            _ => Some(
                "their semaphores give one lease at a time, so several permits would not be granted together: \
                 ask for one permit a claim, or take dialect=native",
            ),
        }
    }

    /// Refuses a share that cannot be written down.
    ///
    /// # Errors
    /// `Unsupported`; nothing was sent.
    pub(crate) fn check(self, mutexes: Mutexes, share: Share) -> Result<(), Failure> {
        let Some(why) = self.unsupported_reason(mutexes, share) else { return Ok(()) };
        let text = format!("the share {share} cannot be written in this dialect: {why}");
        Err(Failure::new(FailureKind::Unsupported, Effect::None, text))
    }

    /// Returns `true` if a claim of this share takes a lease of a semaphore, in addition to the queue of its
    /// resource.
    pub(crate) fn leases(self, mutexes: Mutexes, share: Share) -> bool {
        self != Dialect::Native && (share.is_counted() || mutexes == Mutexes::Leases)
    }

    /// Returns the name of a child of a queue, up to the sequence that the server appends. A claim that
    /// wants a lease waits as a mutex.
    pub(crate) fn stem(self, id: ClaimId, share: Share) -> String {
        let hex = id.to_hex();
        match self {
            Dialect::Native => format!("{hex}-{}-{}-", share.weight(), share.capacity()),
            Dialect::Curator => match share {
                Share::READER => protected(&hex, "__READ__"),
                Share::WRITER => protected(&hex, "__WRIT__"),
                _ => protected(&hex, "lock-"),
            },
            Dialect::Kazoo if share == Share::READER => format!("{hex}__rlock__"),
            Dialect::Kazoo => format!("{hex}__lock__"),
        }
    }

    /// Returns the name of a lease of a semaphore, up to the sequence where the server appends one.
    pub(crate) fn lease(self, id: ClaimId) -> String {
        let hex = id.to_hex();
        if self == Dialect::Curator { protected(&hex, LEASE) } else { hex }
    }

    /// Returns the claim whose lease a child is; `None` for any other child.
    pub(crate) fn read_lease(self, name: &str) -> Option<ClaimId> {
        match self {
            Dialect::Native => None,
            Dialect::Curator => {
                let (id, rest) = unprotected(name)?;
                sequence(rest.strip_prefix(LEASE)?).map(|_| id)
            }
            Dialect::Kazoo => ClaimId::from_hex(name),
        }
    }

    /// Reads a child's name; `None` where it is not a claim of this dialect.
    pub(crate) fn read(self, name: &str) -> Option<Named> {
        match self {
            Dialect::Native => {
                // The sequence may have a sign of its own, so the name is taken apart from its beginning.
                let mut parts = name.splitn(4, '-');
                let id = ClaimId::from_hex(parts.next()?)?;
                let share = Share::permits(number(parts.next()?)?, number(parts.next()?)?).ok()?;
                Some(Named { id, share, sequence: sequence(parts.next()?)? })
            }
            Dialect::Curator => {
                let (id, rest) = unprotected(name)?;
                kind(rest, id, CURATOR)
            }
            Dialect::Kazoo => {
                let (hex, rest) = name.split_at_checked(32)?;
                kind(rest, ClaimId::from_hex(hex)?, KAZOO)
            }
        }
    }

    /// Returns `true` if a child that is not a claim of this dialect may conflict: it may hold for users of
    /// another recipe, which would not wait for us. Where a name is a path, other children are
    /// just longer names.
    pub(crate) fn may_conflict(self, name: &str) -> bool {
        self == Dialect::Native || looks_like_a_claim(name)
    }
}

/// Returns `true` if a node of this name belongs to some lock, of any library.
pub(crate) fn looks_like_a_claim(name: &str) -> bool {
    // Leases of kazoo's semaphore have no sequence.
    if ClaimId::from_hex(name).is_some() || Dialect::Native.read(name).is_some() {
        return true;
    }
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.len() - stem.len();
    digits >= 9 && RECIPES.iter().any(|recipe| stem.trim_end_matches('-').ends_with(recipe))
}

/// Returns the name of a protected node of Curator's.
fn protected(hex: &str, kind: &str) -> String {
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("_c_{a}-{b}-{c}-{d}-{e}-{kind}")
}

/// Returns the id of such a node, and what follows it.
fn unprotected(name: &str) -> Option<(ClaimId, &str)> {
    let (uuid, rest) = name.strip_prefix("_c_")?.split_at_checked(36)?;
    let shape = |(at, byte): (usize, u8)| (byte == b'-') == [8, 13, 18, 23].contains(&at);
    if !uuid.bytes().enumerate().all(shape) {
        return None;
    }
    Some((ClaimId::from_hex(&uuid.replace('-', ""))?, rest.strip_prefix('-')?))
}

fn kind(rest: &str, id: ClaimId, kinds: &[(&str, Share)]) -> Option<Named> {
    kinds.iter().find_map(|(kind, share)| {
        let sequence = sequence(rest.strip_prefix(kind)?)?;
        Some(Named { id, share: *share, sequence })
    })
}

/// Reads the number that the server appends to a name: ten characters, or eleven of a number far below zero. A client
/// may create any other name, and that is not a claim.
fn sequence(text: &str) -> Option<i32> {
    let is_appended = matches!((text.len(), text.starts_with('-')), (10, _) | (11, true));
    if !is_appended {
        return None;
    }
    number(text.strip_prefix('-').unwrap_or(text))?;
    text.parse().ok()
}

/// Digits only: the parser alone would take a sign, too.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(crate) const ALL: &[(&str, Dialect)] =
    &[("native", Dialect::Native), ("curator", Dialect::Curator), ("kazoo", Dialect::Kazoo)];
const CURATOR: &[(&str, Share)] =
    &[("lock-", Share::MUTEX), ("__READ__", Share::READER), ("__WRIT__", Share::WRITER)];
const LEASE: &str = "lease-";
/// A mutex and a writer are written alike: both exclude all others.
const KAZOO: &[(&str, Share)] = &[("__lock__", Share::MUTEX), ("__rlock__", Share::READER)];
/// The parts before the sequence in the recipes of Curator, kazoo, ZooKeeper's own and .NET's, the dash
/// left out.
const RECIPES: &[&str] = &["lock", "lock__", "__READ__", "__WRIT__", "lease", "latch", "read", "write"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: ClaimId = ClaimId::from_bytes([0xab; 16]);

    #[test]
    fn names_are_those_of_the_other_libraries() {
        let curator = |share| Dialect::Curator.stem(ID, share);
        assert_eq!(curator(Share::MUTEX), "_c_abababab-abab-abab-abab-abababababab-lock-");
        assert_eq!(curator(Share::READER), "_c_abababab-abab-abab-abab-abababababab-__READ__");
        assert_eq!(curator(Share::WRITER), "_c_abababab-abab-abab-abab-abababababab-__WRIT__");
        let kazoo = |share| Dialect::Kazoo.stem(ID, share);
        assert_eq!(kazoo(Share::MUTEX), format!("{}__lock__", "ab".repeat(16)));
        assert_eq!(kazoo(Share::WRITER), kazoo(Share::MUTEX));
        assert_eq!(kazoo(Share::READER), format!("{}__rlock__", "ab".repeat(16)));
    }

    #[test]
    fn non_claim_nodes_are_skipped_and_possible_claims_are_counted() {
        let hex = ID.to_hex();
        let uuid = "abababab-abab-abab-abab-abababababab";
        for (name, conflicts) in [
            ("lock-0000000001".to_owned(), true),
            ("write-0000000001".to_owned(), true),
            (hex.clone(), true),
            (format!("{hex}-1-1-0000000001"), true),
            (format!("{hex}__lock__-2147483648"), true),
            (format!("_c_{uuid}-lease-0000000001"), true),
            (format!("_c_{uuid}-latch-0000000001"), true),
            (format!("_c_{uuid}-lock-2147483647"), true),
            (format!("_c_{uuid}-lock-"), false),
            ("b".to_owned(), false),
            ("order-0000000042".to_owned(), false),
            ("clock-12".to_owned(), false),
        ] {
            let read = [Dialect::Curator, Dialect::Kazoo, Dialect::Native].map(|dialect| dialect.read(&name));
            assert!(read.iter().flatten().count() <= 1, "{name}: {read:?}");
            assert_eq!(looks_like_a_claim(&name), conflicts, "{name}");
            assert!(Dialect::Native.may_conflict(&name));
        }
        assert_eq!(Dialect::Curator.read("_c_ababababab-ab-abab-abab-abababababab-lock-0000000001"), None);
        assert_eq!(Dialect::Kazoo.read(&format!("{hex}__lock__+000000001")), None);
        assert_eq!(Dialect::Kazoo.read(&format!("{hex}__lock__2")), None, "no server appends one digit");
    }

    #[test]
    fn a_share_that_cannot_be_written_is_refused() {
        let permits = |weight| Share::permits(weight, 3).unwrap();
        let refused = |dialect: Dialect, mutexes, share| {
            let failure = dialect.check(mutexes, share).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(
                dialect.unsupported_reason(mutexes, share).is_some_and(|why| failure.detail().ends_with(why))
            );
            failure.to_string()
        };
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            for share in [permits(2), permits(3)] {
                assert!(refused(dialect, Mutexes::Locks, share).contains("dialect=native"));
            }
            for share in [permits(1), Share::READER, Share::WRITER] {
                assert!(dialect.check(Mutexes::Locks, share).is_ok());
                assert_eq!(dialect.leases(Mutexes::Locks, share), share == permits(1));
                assert!(refused(dialect, Mutexes::Leases, share).contains("mutexes only"));
            }
            assert!(dialect.check(Mutexes::Leases, Share::MUTEX).is_ok());
            assert!(dialect.leases(Mutexes::Leases, Share::MUTEX));
            assert!(!dialect.leases(Mutexes::Locks, Share::MUTEX));
        }
        assert!(Dialect::Native.check(Mutexes::Locks, permits(2)).is_ok());
        assert!(!Dialect::Native.leases(Mutexes::Locks, permits(1)));
    }

    #[test]
    fn leases_are_those_of_the_other_libraries() {
        let (one, hex) = (Share::permits(1, 3).unwrap(), ID.to_hex());
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            assert_eq!(dialect.stem(ID, one), dialect.stem(ID, Share::MUTEX), "they are queued as a mutex");
        }
        let lease = Dialect::Curator.lease(ID);
        assert_eq!(lease, "_c_abababab-abab-abab-abab-abababababab-lease-");
        assert_eq!(Dialect::Curator.read_lease(&format!("{lease}0000000007")), Some(ID));
        assert_eq!(Dialect::Curator.read_lease(&lease), None);
        assert_eq!(Dialect::Kazoo.lease(ID), hex);
        assert_eq!(Dialect::Kazoo.read_lease(&hex), Some(ID));
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            let entry = format!("{}0000000001", dialect.stem(ID, one));
            assert_eq!(dialect.read_lease(&entry), None, "{entry}");
        }
    }

    proptest! {
        #[test]
        fn written_form_reads_back(bytes: [u8; 16], at: i32, kind in 0..3usize) {
            let id = ClaimId::from_bytes(bytes);
            let share = [Share::MUTEX, Share::READER, Share::WRITER][kind];
            for (_, dialect) in ALL {
                let name = format!("{}{at:010}", dialect.stem(id, share));
                let read = dialect.read(&name).unwrap();
                prop_assert_eq!((read.id, read.sequence), (id, at));
                prop_assert_eq!(read.share.is_exclusive(), share.is_exclusive());
                prop_assert!(looks_like_a_claim(&name), "{}", name);
            }
        }

        #[test]
        fn no_name_panics(name in "[0-9a-f_c-]{0,60}|.{0,40}") {
            for (_, dialect) in ALL {
                let _ = (dialect.read(&name), dialect.may_conflict(&name));
            }
        }
    }
}
