//! Fences that survive a power failure without a write-through for each grant.
//!
//! A file holds a number that no fence has passed yet, written through to the disk *before* the first fence up to
//! it is given out. After a restart, or when the ledger is lost, fences go on above that number: some are
//! skipped, none comes twice. What cannot be read is an error, never a beginning at one.

use leasehold_core::Failure;
use rustix::io::Errno;

use super::failure::{cannot, foreign};
use super::room::{Room, Sync, read_file};
use super::root::{Root, sync_directory};

/// The number up to which fences are reserved; `None` where none was ever given out.
pub(super) fn read(room: &Room) -> Result<Option<u64>, Failure> {
    let bytes = match read_file(room.at(), NAME, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(Errno::NOENT) => return Ok(None),
        Err(cause) => return Err(cannot("read", &room.path_to(NAME), cause)),
    };
    let ceiling = parse(&bytes).ok_or_else(|| {
        foreign(
            &room.path_to(NAME),
            "is damaged, so the next fence is not known: write a number above every fence that was ever \
             given out into it, twice, in twenty digits each, as in «leasehold-fence 1 \
             00000000000000001000 00000000000000001000»",
        )
    })?;
    Ok(Some(ceiling))
}

/// Reserves the fences up to at least `needed`, and returns up to which.
///
/// The more fences a resource has used, the more are reserved at once: the cost of writing through goes to zero.
pub(super) fn raise(root: &Root, room: &Room, needed: u64) -> Result<u64, Failure> {
    let ceiling = needed.saturating_add(needed.clamp(LEAST, MOST));
    room.replace_file(root, NAME, text(ceiling).as_bytes(), Sync::Durable)?;
    // The room itself may be as new as the file.
    sync_directory(root.path())?;
    Ok(ceiling)
}

fn text(ceiling: u64) -> String {
    format!("{MAGIC} {ceiling:020} {ceiling:020}\n")
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let found = std::str::from_utf8(bytes).ok()?;
    let number = found.strip_prefix(MAGIC)?.get(1..21)?.parse().ok()?;
    // A person may have written it, so the end of the line is not insisted on.
    (found.trim_end() == text(number).trim_end()).then_some(number)
}

const NAME: &str = "fence";
const MAGIC: &str = "leasehold-fence 1";
const MAX_BYTES: usize = 128;
const LEAST: u64 = 1 << 10;
const MOST: u64 = 1 << 20;

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
