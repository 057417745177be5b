//! Fences that survive a power failure without syncing each grant.
//!
//! A file holds a number that no fence has passed yet, synced to the disk *before* the first fence up to it
//! is assigned. After a restart, or when the ledger is lost, fences continue above that number: some are
//! skipped, none comes twice. A file that cannot be read is an error, never a reason to begin at one.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::Failure;
use rustix::io::Errno;

use super::directory;
use super::failure::{cannot, foreign};
use super::resource_dir::{ResourceDir, Sync, read_file};
use super::store_dir::Root;

/// Returns the number up to which fences are reserved; `None` if none was ever assigned.
pub(super) fn read(dir: &ResourceDir) -> Result<Option<u64>, Failure> {
    let bytes = match read_file(dir.at(), NAME, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(Errno::NOENT) => return Ok(None),
        Err(cause) => return Err(cannot("read", &dir.path_to(NAME), cause)),
    };
    let ceiling = parse(&bytes).ok_or_else(|| {
        foreign(
            &dir.path_to(NAME),
            "is damaged, so the next fence is not known: write a number above every fence that was ever \
             granted into it, twice, in twenty digits each, as in `leasehold-fence 1 00000000000000001000 \
             00000000000000001000`",
        )
    })?;
    Ok(Some(ceiling))
}

/// Returns the number above which the fences of a new resource begin: the wall clock, in microseconds.
///
/// A store may be removed with its machine or container while the resources that its fences protect
/// live on. The next store then begins above the fences of the last one.
pub(super) fn beginning() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

/// Reserves the fences up to at least `needed`, and returns the new limit. One sync serves so many
/// fences that its cost is negligible.
pub(super) fn raise(root: &Root, dir: &ResourceDir, needed: u64) -> Result<u64, Failure> {
    let ceiling = needed.saturating_add(AT_ONCE);
    dir.replace_file(root, NAME, text(ceiling).as_bytes(), Sync::Durable)?;
    // The resource directory itself may be as new as the file.
    directory::sync(root.path())?;
    Ok(ceiling)
}

pub(super) fn text(ceiling: u64) -> String {
    format!("{MAGIC} {ceiling:020} {ceiling:020}\n")
}

pub(super) fn parse(bytes: &[u8]) -> Option<u64> {
    let found = std::str::from_utf8(bytes).ok()?;
    let number = found.strip_prefix(MAGIC)?.get(1..21)?.parse().ok()?;
    // A person may have written it, so the end of the line is optional.
    (found.trim_end() == text(number).trim_end()).then_some(number)
}

const NAME: &str = "fence";
const MAGIC: &str = "leasehold-fence 1";
const MAX_BYTES: usize = 128;
const AT_ONCE: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_damage_is_noticed() {
        let good = text(1024);
        assert_eq!(parse(good.as_bytes()), Some(1024));
        for at in 0..good.len() - 1 {
            let mut bytes = good.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes), None, "byte {at}");
            assert_eq!(parse(&good.as_bytes()[..at]), None, "cut at {at}");
        }
        assert_eq!(parse(b""), None);
    }
}
