//! The announcement of a wait: a claim of its own, whose note says which owner waits for what, and what it
//! holds meanwhile.
//!
//! Ground rules: the announcement lives and dies with the process that made it, as every claim does. Claims
//! are named by the beginning of their public tags, since the ids are secrets. Text that is not an
//! announcement is not a wait.

use std::fmt;

use crate::{ClaimId, ClaimInfo, InvalidResource, Note, Profile, Resource, Share};

/// One wait, as its announcement says.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// The place of the announcement.
    pub place: Resource,
    /// The claim that announces it: another wait has another one.
    pub id: ClaimId,
    /// Greater than the numbers of all waits that were announced before this one; 0 for a wait that never gives up.
    pub number: u64,
    /// The resource that is waited for.
    pub resource: Resource,
    /// The share that is asked for.
    pub share: Share,
    /// The claim that is queued for it, where it is in the way of those behind it and behind those ahead.
    pub asks: Option<Tag>,
    /// The claims that the waiter holds meanwhile, [`HOLDS_MAX`] at most.
    pub holds: Vec<Tag>,
    /// The waiter.
    pub note: String,
}

/// The beginning of a claim's public tag: enough to distinguish the claims of one store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// Returns the tag of this claim.
    pub fn of(id: ClaimId) -> Tag {
        let tag = id.tag();
        // Invariant: a tag has 32 hexadecimal digits.
        debug_assert!(tag.len() == PUBLIC_DIGITS, "a tag of {} digits", tag.len());
        Tag(tag.get(..DIGITS).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or_default())
    }

    /// Reads a [public tag](ClaimId::tag), of which it is the beginning; `None` for text that is none.
    pub fn of_public(text: &str) -> Option<Tag> {
        let (beginning, rest) = text.split_at_checked(DIGITS)?;
        let is_public = text.len() == PUBLIC_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        Tag::read(beginning).filter(|_| is_public)
    }

    fn read(text: &str) -> Option<Tag> {
        let is_tag = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| is_tag).map(Tag)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The places where the waits of a store are announced, and their form.
///
/// Always under the same names, because a name may stay behind as a fence for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    /// The resources of the announcing claims: one that has room for all, or some that have room for one
    /// each.
    pub names: Vec<Resource>,
    /// The share of one of these that a claim asks for.
    pub share: Share,
    /// The number of waits that can be announced at a time.
    pub most: usize,
}

impl Places {
    /// Returns the places of a store that promises this.
    ///
    /// # Errors
    /// Never: the names are good ones.
    pub fn of(profile: &Profile) -> Result<Places, InvalidResource> {
        if profile.admits(Share::READER).is_ok() {
            return Ok(Places { names: vec![Resource::new(NAME)?], share: Share::READER, most: SHARED_MOST });
        }
        let names: Result<Vec<_>, _> =
            (0..EXCLUSIVE_MOST).map(|number| Resource::new(&format!("{NAME}/{number:02}"))).collect();
        Ok(Places { names: names?, share: Share::MUTEX, most: EXCLUSIVE_MOST })
    }
}

impl Announced {
    /// Returns the note of the claim that announces this wait.
    pub fn to_note(&self) -> Note {
        let Announced { number, resource, share, note, .. } = self;
        let asks = self.asks.map_or_else(|| NONE.to_owned(), |asks| asks.to_string());
        let mut holds: Vec<String> = self.holds.iter().take(HOLDS_MAX).map(Tag::to_string).collect();
        if holds.is_empty() {
            holds.push(NONE.to_owned());
        }
        let (weight, capacity, holds) = (share.weight(), share.capacity(), holds.join(","));
        let length = resource.as_str().len();
        Note::clipped(&format!(
            "{MAGIC} {number} {weight}/{capacity} {asks} {holds} {length} {resource} {note}"
        ))
    }

    /// Reads a claim that holds `place`; `None` where it announces nothing.
    pub fn read(place: &Resource, info: &ClaimInfo) -> Option<Announced> {
        let text = info.note.as_str().strip_prefix(MAGIC)?.strip_prefix(' ')?;
        let mut fields = text.splitn(6, ' ');
        let number = fields.next()?.parse().ok()?;
        let (weight, capacity) = fields.next()?.split_once('/')?;
        let share = Share::permits(weight.parse().ok()?, capacity.parse().ok()?).ok()?;
        let asks = match fields.next()? {
            NONE => None,
            asks => Some(Tag::read(asks)?),
        };
        let holds: Option<Vec<Tag>> = match fields.next()? {
            NONE => Some(Vec::new()),
            holds => holds.split(',').map(Tag::read).collect(),
        };
        let length: usize = fields.next()?.parse().ok()?;
        let (resource, note) = fields.next()?.split_at_checked(length)?;
        Some(Announced {
            place: place.clone(),
            id: info.id,
            number,
            resource: Resource::new(resource).ok()?,
            share,
            asks,
            holds: holds?,
            note: note.strip_prefix(' ')?.to_owned(),
        })
    }
}

/// The resource where waits are announced; on a store without shared locks, the prefix of such resources.
const NAME: &str = "leasehold!waits";
/// The most waits that one inspection can return, with their notes.
const SHARED_MOST: usize = 256;
/// The most places of one wait each, as each of these is inspected by itself.
const EXCLUSIVE_MOST: usize = 32;
/// The most held claims that an announcement names: as many as fit beside the longest name of a resource.
pub const HOLDS_MAX: usize = 16;
/// The beginning of an announcement, with the version of what follows.
const MAGIC: &str = "waits1";
/// The field where nothing is named.
const NONE: &str = "-";
const DIGITS: usize = 16;
/// The length of a claim's public tag.
const PUBLIC_DIGITS: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{Liveness, LockSupport};

    fn info(id: ClaimId, note: Note) -> ClaimInfo {
        let remaining = Some(Duration::from_secs(1));
        ClaimInfo { id, share: Share::MUTEX, fence: None, since_unix_ms: None, remaining, note }
    }

    #[test]
    fn a_public_tag_is_read_and_nothing_else_is() {
        let id = ClaimId::from_bytes([3; 16]);
        let public = id.tag();
        assert_eq!(Tag::of_public(&public), Some(Tag::of(id)));
        let signed = format!("+{}", &public[1..]);
        let (long, strange) = (format!("{public}0"), format!("{}é", &public[2..]));
        for text in ["", &public[1..], &long, &"g".repeat(32), &strange, &signed] {
            assert_eq!(Tag::of_public(text), None, "{text}");
        }
    }

    #[test]
    fn waits_share_one_name_where_readers_may_share() {
        let store = Profile::new("store", Liveness::Session);
        let shared = Places::of(&store.clone().admission(LockSupport::SharedExclusive)).unwrap();
        assert_eq!((shared.names.len(), shared.share, shared.most), (1, Share::READER, SHARED_MOST));
        let exclusive = Places::of(&store.admission(LockSupport::Exclusive)).unwrap();
        assert_eq!((exclusive.share, exclusive.most), (Share::MUTEX, EXCLUSIVE_MOST));
        let mut names: Vec<&str> = exclusive.names.iter().map(Resource::as_str).collect();
        names.dedup();
        assert_eq!((names.len(), names[3]), (EXCLUSIVE_MOST, &*format!("{NAME}/03")));
    }

    #[test]
    fn longest_announcement_still_names_the_waiter() {
        let resource = Resource::new(&"x".repeat(Resource::MAX_BYTES)).unwrap();
        let id = ClaimId::from_bytes([1; 16]);
        let holds = (0..30).map(|n| Tag::of(ClaimId::from_bytes([n; 16]))).collect();
        let (place, share) = (Resource::new(NAME).unwrap(), Share::WRITER);
        let (note, asks) = ("h".repeat(1024), Some(Tag::of(id)));
        let wait = Announced { place, id, number: u64::MAX, resource, share, asks, holds, note };
        let read = Announced::read(&wait.place, &info(id, wait.to_note())).unwrap();
        assert_eq!((&read.resource, read.share, read.number), (&wait.resource, wait.share, wait.number));
        assert_eq!(read.holds, wait.holds[..HOLDS_MAX]);
        assert!(read.note.len() > 100, "{}", read.note.len());
    }

    proptest! {
        #[test]
        fn announcement_reads_back(
            name in "\\PC{1,60}", note in ".{0,40}", number: u64, weight in 1u32..9, held in 0u8..16, asks: bool,
        ) {
            let id = ClaimId::from_bytes([7; 16]);
            let holds = (0..held).map(|n| Tag::of(ClaimId::from_bytes([n; 16]))).collect();
            let resource = Resource::new(&name).unwrap();
            let share = Share::permits(weight, 8 + weight).unwrap();
            let asks = asks.then(|| Tag::of(id));
            let wait = Announced { place: Resource::new(NAME).unwrap(), id, number, resource, share, asks, holds, note };
            prop_assert_eq!(Announced::read(&wait.place, &info(id, wait.to_note())), Some(wait));
        }

        #[test]
        fn no_text_panics(text in "(waits1 )?([0-9/a-f,é-]{1,16} ){0,6}.{0,9}") {
            let id = ClaimId::from_bytes([7; 16]);
            if let Some(read) = Announced::read(&Resource::new(NAME).unwrap(), &info(id, Note::clipped(&text))) {
                prop_assert!(!read.resource.as_str().is_empty());
            }
        }
    }
}
