//! How the node of a claim is called, in leasehold's own way and in other libraries'.
//!
//! Pure: shares and ids go in, names come out, and the other way round. A name ends in the sequence that ZooKeeper
//! appends, ten characters at least, and it has the claim's id in it, so that a node whose making was not answered is
//! recognised. Other libraries do the same for the same reason, with an id of their own.

use leasehold_core::{Admission, ClaimId, Effect, Failure, FailureKind, Share};

/// Whose names are written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `id-weight-capacity-sequence`: every share.
    Native,
    /// Apache Curator's `InterProcessMutex` and `InterProcessReadWriteLock`.
    Curator,
    /// kazoo's `Lock`, `WriteLock` and `ReadLock`.
    Kazoo,
}

/// What the name of a claim's node says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) id: ClaimId,
    pub(crate) share: Share,
    pub(crate) sequence: i32,
}

impl Dialect {
    /// The one that an option of the URL names.
    pub(crate) fn of(name: &str) -> Option<Dialect> {
        ALL.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// What can be written down in it.
    pub(crate) fn admission(self) -> Admission {
        match self {
            Dialect::Native => Admission::Counted,
            Dialect::Curator | Dialect::Kazoo => Admission::SharedExclusive,
        }
    }

    /// Why a share cannot be written down; `None` where it can.
    pub(crate) fn why_not(self, share: Share) -> Option<&'static str> {
        match self {
            _ if !share.is_counted() => None,
            Dialect::Native => None,
            Dialect::Curator => Some(
                "no node of Curator's semaphores says how many permits there are, so two of different sizes would not \
                 notice: take dialect=native for semaphores",
            ),
            Dialect::Kazoo => Some(
                "kazoo's semaphores keep no line of those who hold, and so no order to be admitted in: \
                 take dialect=native for semaphores",
            ),
        }
    }

    /// Refuses a share that cannot be written down.
    ///
    /// # Errors
    /// `Unsupported`; nothing was sent.
    pub(crate) fn check(self, share: Share) -> Result<(), Failure> {
        let Some(why) = self.why_not(share) else { return Ok(()) };
        let text = format!("the share {share} cannot be written in this dialect: {why}");
        Err(Failure::new(FailureKind::Unsupported, Effect::None, text))
    }

    /// What a child is called, up to the sequence that the server appends.
    pub(crate) fn stem(self, id: ClaimId, share: Share) -> String {
        let hex = id.to_hex();
        match self {
            Dialect::Native => format!("{hex}-{}-{}-", share.weight(), share.capacity()),
            Dialect::Curator => {
                let kind = match share {
                    Share::MUTEX => "lock-",
                    _ if share.is_exclusive() => "__WRIT__",
                    _ => "__READ__",
                };
                let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
                format!("_c_{a}-{b}-{c}-{d}-{e}-{kind}")
            }
            Dialect::Kazoo if share.is_exclusive() => format!("{hex}__lock__"),
            Dialect::Kazoo => format!("{hex}__rlock__"),
        }
    }

    /// What a child's name says; `None` where it is no claim of this dialect.
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
                let (uuid, rest) = name.strip_prefix("_c_")?.split_at_checked(36)?;
                let shape = |(at, byte): (usize, u8)| (byte == b'-') == [8, 13, 18, 23].contains(&at);
                if !uuid.bytes().enumerate().all(shape) {
                    return None;
                }
                let id = ClaimId::from_hex(&uuid.replace('-', ""))?;
                kind(rest.strip_prefix('-')?, id, CURATOR)
            }
            Dialect::Kazoo => {
                let (hex, rest) = name.split_at_checked(32)?;
                kind(rest, ClaimId::from_hex(hex)?, KAZOO)
            }
        }
    }

    /// Whether a child that is no claim of this dialect is to be feared: it may hold for users of another recipe, who
    /// would not wait for us. Where a name is a path, other children are just longer names.
    pub(crate) fn fears(self, name: &str) -> bool {
        self == Dialect::Native || looks_like_a_claim(name)
    }
}

/// Whether a node of this name belongs to some lock, whoever wrote it.
pub(crate) fn looks_like_a_claim(name: &str) -> bool {
    // Leases of kazoo's semaphore have no sequence.
    if ClaimId::from_hex(name).is_some() || Dialect::Native.read(name).is_some() {
        return true;
    }
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.len() - stem.len();
    digits >= 9 && RECIPES.iter().any(|recipe| stem.trim_end_matches('-').ends_with(recipe))
}

fn kind(rest: &str, id: ClaimId, kinds: &[(&str, Share)]) -> Option<Named> {
    kinds.iter().find_map(|(kind, share)| {
        let sequence = sequence(rest.strip_prefix(kind)?)?;
        Some(Named { id, share: *share, sequence })
    })
}

fn sequence(text: &str) -> Option<i32> {
    number(text.strip_prefix('-').unwrap_or(text))?;
    text.parse().ok()
}

/// Digits only: the parser alone would take a sign, too.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

const ALL: &[(&str, Dialect)] =
    &[("native", Dialect::Native), ("curator", Dialect::Curator), ("kazoo", Dialect::Kazoo)];
const CURATOR: &[(&str, Share)] =
    &[("lock-", Share::MUTEX), ("__READ__", Share::READER), ("__WRIT__", Share::WRITER)];
/// A mutex and a writer are written alike: both exclude everybody.
const KAZOO: &[(&str, Share)] = &[("__lock__", Share::MUTEX), ("__rlock__", Share::READER)];
/// What stands before the sequence in the recipes of Curator, kazoo, ZooKeeper's own and .NET's, the dash left out.
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
    fn what_is_no_claim_is_not_read_and_what_may_be_anothers_is_feared() {
        let hex = ID.to_hex();
        let uuid = "abababab-abab-abab-abab-abababababab";
        for (name, feared) in [
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
            assert_eq!(looks_like_a_claim(&name), feared, "{name}");
            assert!(Dialect::Native.fears(&name));
        }
        assert_eq!(Dialect::Curator.read("_c_ababababab-ab-abab-abab-abababababab-lock-0000000001"), None);
        assert_eq!(Dialect::Kazoo.read(&format!("{hex}__lock__+000000001")), None);
    }

    #[test]
    fn a_share_that_has_no_name_is_refused() {
        let one_of_three = Share::permits(1, 3).unwrap();
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            let failure = dialect.check(one_of_three).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(failure.detail().contains("dialect=native"), "{failure}");
            assert!(dialect.why_not(one_of_three).is_some_and(|why| failure.detail().ends_with(why)));
            assert!(dialect.check(Share::permits(3, 3).unwrap()).is_ok(), "all of it is a mutex");
        }
        assert!(Dialect::Native.check(one_of_three).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(bytes: [u8; 16], at: i32, kind in 0..3usize) {
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
                let _ = (dialect.read(&name), dialect.fears(&name));
            }
        }
    }
}
