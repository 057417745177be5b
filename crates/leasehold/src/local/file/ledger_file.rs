//! The ledger of one resource on the disk.
//!
//! A file with two slots. Each change is written into the slot that does not hold the present state, in
//! place: no new file, no rename (which costs a disk write on ext4), no space that might be missing
//! when a lock is to be released. A writer that is killed half-way leaves the present state untouched.
//!
//! Both slots always hold a valid state of this boot. If one does not, it is not known whether that was a
//! change that never happened or one that did: the queue is then rebuilt from the claims that live, in the
//! order of their places, which is all that admission needs, and fences continue above the reserve.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::{Ask, ClaimId, Entry, Failure, Fence, Ledger, Moment, Note, Verdict, Wait};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::failure::{cannot, foreign};
use super::identity::Identity;
use super::liveness_fifo::{self, FifoName, LAST_PLACE, Probe, probe};
use super::places::Places;
use super::reserve;
use super::resource_dir::{ResourceDir, Sync, pause, read_all_at, write_all_at};
use super::store_dir::Root;

/// The queue of one resource, with the places of its claims.
#[derive(Debug)]
pub(super) struct LedgerFile {
    ledger: Ledger,
    places: Places,
    next_place: u64,
    /// The number up to which fences are reserved.
    ceiling: u64,
    generation: u64,
    /// The file as it was read or written last, until another one replaces it.
    slots: Option<Slots>,
    is_changed: bool,
    /// `true` if the fences of the queue are made up, because the ledger does not have them.
    is_rebuilt: bool,
}

/// The open file of a ledger.
#[derive(Debug)]
struct OpenLedger {
    file: OwnedFd,
    identity: Identity,
}

/// The two halves of the open file, and which of them may be written.
#[derive(Debug)]
struct Slots {
    file: OpenLedger,
    /// The content of both.
    bytes: Vec<u8>,
    /// The number of the slot that does not hold the present state.
    spare: usize,
}

impl LedgerFile {
    /// Reads the ledger of a resource, or rebuilds it. Called under the short lock of its directory.
    pub(super) fn open(root: &Root, dir: &ResourceDir) -> Result<LedgerFile, Failure> {
        let failed = |cause| cannot("read", &dir.path_to(NAME), cause);
        let (file, bytes) = match read(root, dir, OFlags::RDWR) {
            Ok(found) => found,
            Err(Errno::NOENT) => return LedgerFile::rebuild(root, dir, Defect::Missing, None),
            Err(cause) => return Err(failed(cause)),
        };
        match parse_slots(&bytes, root.boot()) {
            [Some(first), Some(second)] => Ok(LedgerFile::newer(first, second, file, bytes)),
            [first, second] => LedgerFile::rebuild(root, dir, Defect::Invalid, first.or(second)),
        }
    }

    /// Reads the ledger again by the descriptor that is open. `None` if it is not in order. Called under the
    /// short lock, when the name of the ledger still leads to this file.
    pub(super) fn refreshed(mut self, root: &Root) -> Option<LedgerFile> {
        let slots = self.slots.take()?;
        if slots.are_unchanged() {
            self.slots = Some(slots);
            return Some(self);
        }
        let mut bytes = vec![0; slots.bytes.len()];
        if read_all_at(slots.file.file.as_fd(), &mut bytes, 0).ok()? < bytes.len() {
            return None;
        }
        let [Some(first), Some(second)] = parse_slots(&bytes, root.boot()) else { return None };
        Some(LedgerFile::newer(first, second, slots.file, bytes))
    }

    /// Takes the newer of two valid slots.
    fn newer(first: LedgerFile, second: LedgerFile, file: OpenLedger, bytes: Vec<u8>) -> LedgerFile {
        let spare = usize::from(first.generation > second.generation);
        let mut ledger = if spare == 1 { first } else { second };
        ledger.slots = Some(Slots { file, bytes, spare });
        ledger
    }

    /// Returns `true` if the file is open, and so small that its content may be kept.
    pub(super) fn is_small(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.bytes.len() == 2 * SLOT)
    }

    /// Lets the next reads of the open file leave the time of its last access as it is: a fifth of what a read costs.
    pub(super) fn without_access_times(&self) {
        #[cfg(target_os = "linux")]
        if let Some(slots) = &self.slots {
            let file = &slots.file.file;
            // Refused for the file of another user, whose access times are then written.
            let _ = rustix::fs::fcntl_getfl(file)
                .and_then(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME));
        }
    }

    /// Returns `true` if the name of the ledger leads to the file that is open.
    pub(super) fn is_in(&self, dir: &ResourceDir) -> bool {
        self.slots.as_ref().is_some_and(|slots| dir.leads_to(NAME, slots.file.identity))
    }

    /// Returns `true` if the next fence is reserved already.
    pub(super) fn has_reserve(&self) -> bool {
        self.last_fence().seq < self.ceiling
    }

    /// Reads the ledger for an observer, without the short lock and without changing anything.
    pub(super) fn peek(root: &Root, dir: &ResourceDir) -> Result<LedgerFile, Failure> {
        let mut newest = None;
        for _ in 0..PEEKS {
            match LedgerFile::peek_once(root, dir)? {
                Ok(ledger) => return Ok(ledger),
                Err(half) => newest = half,
            }
            // Another process may be in the middle of a change, which takes microseconds. Or
            // the ledger is damaged.
            pause(PEEK_PAUSE);
        }
        let built = LedgerFile::from_living(dir, reserve::read(dir)?.unwrap_or(0), newest, |_| Ok(()))?;
        // A claim is made after the ledger: a claim that was found without a ledger may have
        // come with it meanwhile.
        Ok(LedgerFile::peek_once(root, dir)?.unwrap_or(built))
    }

    /// Returns the newer of two valid slots; otherwise the only valid one, if any.
    fn peek_once(root: &Root, dir: &ResourceDir) -> Result<Result<LedgerFile, Option<LedgerFile>>, Failure> {
        let bytes = match read(root, dir, OFlags::RDONLY) {
            Ok((_, bytes)) => bytes,
            Err(Errno::NOENT) => Vec::new(),
            Err(cause) => return Err(cannot("read", &dir.path_to(NAME), cause)),
        };
        Ok(match parse_slots(&bytes, root.boot()) {
            [Some(first), Some(second)] if first.generation > second.generation => Ok(first),
            [Some(_), Some(second)] => Ok(second),
            [first, second] => Err(first.or(second)),
        })
    }

    pub(super) fn entries(&self) -> &[Entry] {
        self.ledger.entries()
    }

    pub(super) fn last_fence(&self) -> Fence {
        self.ledger.last_fence()
    }

    /// Returns the last fence that was granted, as far as the ledger knows. A queue that was never used
    /// begins above a fence that was never granted.
    pub(super) fn last_granted(&self) -> Option<Fence> {
        (!self.is_rebuilt && self.next_place > FIRST_PLACE).then(|| self.last_fence())
    }

    pub(super) fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries().iter().position(|entry| entry.id == id)
    }

    /// Returns the name under which the claim of an entry lives.
    pub(super) fn name_of(&self, entry: &Entry) -> FifoName {
        self.places.name_of(entry)
    }

    /// Lets a claim that is new in the queue live by a FIFO that has another name, with the same share.
    pub(super) fn lives_by(&mut self, id: ClaimId, fifo: &FifoName) {
        self.places.lives_by(id, fifo);
    }

    /// Asks for admission. A claim that is new in the queue gets a place.
    pub(super) fn contend(&mut self, ask: &Ask) -> Verdict {
        let before = self.position(ask.id).map(|index| self.entries()[index].granted.is_some());
        let verdict = self.ledger.contend(ask, unix_time());
        let after = self.position(ask.id).map(|index| self.entries()[index].granted.is_some());
        self.is_changed |= before != after;
        match (before, after) {
            (None, Some(_)) => {
                self.places.insert(ask.id, self.next_place);
                self.next_place += 1;
            }
            (Some(_), None) => {
                self.places.remove(ask.id);
            }
            _ => {}
        }
        verdict
    }

    /// Ends a claim. Returns `false` if it does not exist.
    pub(super) fn remove(&mut self, id: ClaimId) -> bool {
        let removed = self.ledger.release(id, unix_time());
        self.places.remove(id);
        self.is_changed |= removed;
        removed
    }

    /// Removes a claim that is dead or is broken, and its FIFO.
    pub(super) fn remove_with_fifo(&mut self, dir: &ResourceDir, entry: &Entry) -> Result<(), Failure> {
        liveness_fifo::remove_and_wake(dir, &self.name_of(entry))?;
        self.remove(entry.id);
        Ok(())
    }

    /// Makes the fences that were assigned so far durable, before any claim receives them.
    pub(super) fn reserve(&mut self, root: &Root, dir: &ResourceDir) -> Result<(), Failure> {
        let last = self.last_fence().seq;
        if last > self.ceiling {
            self.ceiling = reserve::raise(root, dir, last)?;
        }
        Ok(())
    }

    /// Writes the present state, if it has changed. Afterwards every process sees it.
    pub(super) fn save(&mut self, root: &Root, dir: &ResourceDir) -> Result<(), Failure> {
        if !self.is_changed {
            return Ok(());
        }
        self.reserve(root, dir)?;
        self.generation += 1;
        let slot = self.slot(root);
        match self.slots.take() {
            Some(mut slots) if slot.len() <= slots.size() => {
                let is_wasteful = slots.size() > SLOT && slot.len() < slots.size() / 16;
                // Every read is of the whole file. But without space for a smaller file, this one is
                // kept.
                if !is_wasteful || self.write_anew(root, dir).is_err() {
                    slots.write(&slot, dir)?;
                    self.slots = Some(slots);
                }
            }
            _ => self.write_anew(root, dir)?,
        }
        self.is_changed = false;
        if self.generation.is_multiple_of(SWEEP_EVERY)
            && let Err(failure) = self.sweep(dir)
        {
            // The change itself is made; there will be a next sweep.
            tracing::debug!(%failure, "the leftovers of dead claims could not be removed");
        }
        Ok(())
    }

    /// Removes the FIFOs of processes that were killed between making them and writing the ledger.
    fn sweep(&self, dir: &ResourceDir) -> Result<(), Failure> {
        for name in liveness_fifo::all(dir)? {
            if !self.places.contains(name.id) && matches!(probe(dir, &name)?, Probe::Gone) {
                liveness_fifo::remove_and_wake(dir, &name)?;
            }
        }
        Ok(())
    }

    /// Writes a new file whose two slots both hold the present state, with space to grow. Without space
    /// for the new file the old one stays.
    fn write_anew(&mut self, root: &Root, dir: &ResourceDir) -> Result<(), Failure> {
        let slot = self.slot(root);
        let size = (slot.len() * 2).next_multiple_of(SLOT);
        let mut bytes = vec![0; 2 * size];
        bytes[..slot.len()].copy_from_slice(&slot);
        bytes[size..size + slot.len()].copy_from_slice(&slot);
        dir.replace_file(root, NAME, &bytes, Sync::Cached)
    }

    fn slot(&self, root: &Root) -> Vec<u8> {
        LedgerFile::slot_of(&self.ledger.to_text(&self.head(root.boot())))
    }

    /// Returns what a ledger in a file has beside its claims.
    pub(super) fn head(&self, boot: &str) -> String {
        let places = self.places.text(self.entries());
        format!("{HEAD} {} {boot} {} {} {places}", self.generation, self.ceiling, self.next_place)
    }

    /// Returns the slot with this text.
    pub(super) fn slot_of(text: &str) -> Vec<u8> {
        format!("{:08x}\n{text}", text.len()).into_bytes()
    }

    /// Builds the queue from the claims that live, and removes the others.
    fn rebuild(
        root: &Root,
        dir: &ResourceDir,
        defect: Defect,
        valid: Option<LedgerFile>,
    ) -> Result<LedgerFile, Failure> {
        let ceiling = reserve::read(dir)?;
        let floor = ceiling.unwrap_or_else(reserve::beginning);
        let mut ledger =
            LedgerFile::from_living(dir, floor, valid, |name| liveness_fifo::remove_and_wake(dir, name))?;
        if ceiling.is_none() && (defect == Defect::Invalid || !ledger.entries().is_empty()) {
            return Err(foreign(
                dir.path(),
                "has lost its ledger and its fence file, so the next fence is not known: \
                 remove the directory when no fence of this resource matters any more",
            ));
        }
        ledger.ceiling = match ceiling {
            Some(ceiling) => {
                let claims = ledger.entries().len();
                tracing::info!(room = %dir.path().display(), claims, "the ledger was lost and built again");
                ceiling
            }
            None => reserve::raise(root, dir, floor)?,
        };
        // Written at once, a new and empty one as well: an observer can then rely on it that a claim
        // unknown to the ledger has not been granted.
        ledger.is_changed = true;
        ledger.save(root, dir)?;
        Ok(ledger)
    }

    /// Builds the queue of living claims. Those whose turn has come get a fence above `floor`,
    /// since the fence that they hold is known to their own processes only, unless a valid half
    /// of the ledger still has it.
    fn from_living(
        dir: &ResourceDir,
        floor: u64,
        valid: Option<LedgerFile>,
        mut dead: impl FnMut(&FifoName) -> Result<(), Failure>,
    ) -> Result<LedgerFile, Failure> {
        let mut ledger = Ledger::new(Fence::new(0, floor, 0));
        let mut places = Places::default();
        // The name of a FIFO that is not that of its claim says nothing about the claim: the half that is valid
        // may be the older one, and that claim may have ended.
        let known = |id| {
            let entry = valid.as_ref().and_then(|old| old.position(id).map(|at| &old.entries()[at]));
            entry.filter(|entry| valid.as_ref().is_some_and(|old| old.name_of(entry).id == id))
        };
        for name in liveness_fifo::all(dir)? {
            if matches!(probe(dir, &name)?, Probe::Gone) {
                dead(&name)?;
                continue;
            }
            let note = known(name.id).map_or_else(Note::default, |entry| entry.note.clone());
            ledger.contend(&ask(name.id, name.share, note, true), unix_time());
            places.insert(name.id, name.place);
        }
        let remember = |entry: &Entry| match known(entry.id) {
            Some(old) => Entry { granted: old.granted.or(entry.granted), since: old.since, ..entry.clone() },
            None => entry.clone(),
        };
        let entries = ledger.entries().iter().map(remember).collect();
        let next_place = places.last().map_or(FIRST_PLACE, |place| place + 1);
        Ok(LedgerFile {
            ledger: Ledger::restore(entries, ledger.last_fence()),
            places,
            next_place: next_place.max(valid.as_ref().map_or(FIRST_PLACE, |old| old.next_place)),
            ceiling: floor,
            generation: valid.map_or(0, |old| old.generation + 1),
            slots: None,
            is_changed: false,
            is_rebuilt: true,
        })
    }

    pub(super) fn parse(slot: &[u8], boot: &str) -> Option<LedgerFile> {
        let (length, rest) = slot.split_at_checked(9)?;
        let length = std::str::from_utf8(length).ok()?.strip_suffix('\n')?;
        let text = rest.get(..usize::from_str_radix(length, 16).ok()?)?;
        let (ledger, head) = Ledger::from_text(text).ok()?;
        let mut fields = head.strip_prefix(HEAD)?.strip_prefix(' ')?.split(' ');
        let counted = |field: &str| field.parse().ok().filter(|number| *number <= LAST_PLACE);
        let generation = counted(fields.next()?)?;
        if fields.next()? != boot {
            return None;
        }
        let (ceiling, next_place) = (fields.next()?.parse().ok()?, counted(fields.next()?)?);
        let places = Places::parse(fields.next()?, ledger.entries())?;
        Some(LedgerFile {
            ledger,
            places,
            next_place,
            ceiling,
            generation,
            slots: None,
            is_changed: false,
            is_rebuilt: false,
        })
    }
}

impl Slots {
    fn size(&self) -> usize {
        self.bytes.len() / 2
    }

    /// Returns `true` if the file still begins both slots as it did when it was read or written last. The beginning has
    /// the checksum of the slot, so no other state begins so: neither a newer one nor one that was restored.
    fn are_unchanged(&self) -> bool {
        let begins_alike = |offset: usize| {
            let mut found = [0; BEGINNING];
            read_all_at(self.file.file.as_fd(), &mut found, offset as u64) == Ok(BEGINNING)
                && self.bytes.get(offset..offset + BEGINNING) == Some(&found[..])
        };
        begins_alike(0) && begins_alike(self.size())
    }

    /// Writes the spare slot. Then it holds the present state, and the other one is spare.
    fn write(&mut self, slot: &[u8], dir: &ResourceDir) -> Result<(), Failure> {
        let offset = self.spare * self.size();
        let before = &mut self.bytes[offset..offset + slot.len()];
        let file = self.file.file.as_fd();
        if let Err(cause) = write_all_at(file, slot, offset as u64) {
            // Half a change must not be found; if even this fails, the next process rebuilds the queue.
            let _ = write_all_at(file, before, offset as u64);
            return Err(cannot("write", &dir.path_to(NAME), cause));
        }
        before.copy_from_slice(slot);
        self.spare = 1 - self.spare;
        Ok(())
    }
}

/// The defect of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// There is none.
    Missing,
    /// There is one, of another boot or damaged.
    Invalid,
}

/// The request of one claim that waits, or only tries.
pub(super) fn ask(id: ClaimId, share: leasehold_core::Share, note: Note, waits: bool) -> Ask {
    let wait = if waits { Wait::Queued(std::time::Duration::MAX) } else { Wait::No };
    Ask { id, share, lease: std::time::Duration::MAX, wait, note }
}

fn read(root: &Root, dir: &ResourceDir, access: OFlags) -> Result<(OpenLedger, Vec<u8>), Errno> {
    let file = dir.open_file(root, NAME, access)?;
    let found = rustix::fs::fstat(&file)?;
    let length = usize::try_from(found.st_size).unwrap_or(usize::MAX);
    // A file of another length is damaged, and so is one longer than any queue.
    let length = if length.is_multiple_of(2 * SLOT) && length <= MAX_BYTES { length } else { 0 };
    let mut bytes = vec![0; length];
    let read = read_all_at(file.as_fd(), &mut bytes, 0)?;
    bytes.truncate(read);
    Ok((OpenLedger { file, identity: Identity::of(&found) }, bytes))
}

fn parse_slots(bytes: &[u8], boot: &str) -> [Option<LedgerFile>; 2] {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [LedgerFile::parse(first, boot), LedgerFile::parse(second, boot)]
}

/// Returns the time of the ledger, the wall clock, for display only: no entry of a session ever ends by time.
fn unix_time() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment::from_millis(u64::try_from(since.as_millis()).unwrap_or(0))
}

pub(super) const NAME: &str = "ledger";
/// The length and the checksum of a slot are within its first bytes, and no slot is shorter.
const BEGINNING: usize = 96;
const HEAD: &str = "file 1";
/// The place of the first claim in the queue. It is granted at once.
const FIRST_PLACE: u64 = 1;
/// One page: a change within it is a single copy in the page cache.
const SLOT: usize = 4096;
/// Two slots with the longest queue and the longest notes, and space to grow.
const MAX_BYTES: usize = 128 << 20;
const SWEEP_EVERY: u64 = 1024;
const PEEKS: u32 = 5;
const PEEK_PAUSE: std::time::Duration = std::time::Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{Resource, Share};

    use super::super::FileConfig;
    use super::super::resource_dir::Limit;
    use super::*;

    /// One change is in the slot that was spare before, two are in both.
    #[test]
    fn refreshed_ledger_has_every_change_of_others() {
        let base = tempfile::tempdir().unwrap();
        let root = Root::open(FileConfig::new(base.path().join("store"))).unwrap();
        let limit = Limit::fixed(Duration::from_secs(60));
        let resource = Resource::new("a").unwrap();
        let (dir, _lock) = ResourceDir::lock_or_create(&root, &resource, &limit).unwrap();
        let ids = |ledger: &LedgerFile| ledger.entries().iter().map(|entry| entry.id).collect::<Vec<_>>();
        // The first one makes the file.
        drop(LedgerFile::open(&root, &dir).unwrap());
        let mut kept = LedgerFile::open(&root, &dir).unwrap();
        let mut last = 0;
        for changes in [0, 1, 2, 3, 1, 4, 0, 2] {
            let mut other = LedgerFile::open(&root, &dir).unwrap();
            for _ in 0..changes {
                last += 1;
                let id = ClaimId::from_bytes([last; 16]);
                other.contend(&ask(id, Share::MUTEX, Note::default(), true));
                other.save(&root, &dir).unwrap();
            }
            kept = kept.refreshed(&root).unwrap();
            assert_eq!((ids(&kept), kept.generation), (ids(&other), other.generation), "{changes} changes");
            // A change of its own follows theirs.
            if let Some(first) = ids(&kept).first() {
                kept.remove(*first);
            }
            kept.save(&root, &dir).unwrap();
            let read = LedgerFile::open(&root, &dir).unwrap();
            assert_eq!(
                (ids(&read), read.generation),
                (ids(&kept), kept.generation),
                "after {changes} changes"
            );
        }
    }
}
