//! Registers in files: one beside the ledger of each resource, replaced as a whole under the
//! resource's short lock.
//!
//! Ground rules: a write is synced to the disk before it is reported as done, and values are read without
//! any lock, since a rename shows the old file or the new one. Waiters are not woken: they poll.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Durability, Effect, Failure, Patience, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
    WaitMode,
};
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::directory;
use super::failure::{cannot, foreign};
use super::resource_dir::{Limit, ResourceDir, Sync, read_file};
use super::store_dir::{Medium, Root};
use super::{FileBackend, Inner};

/// Returns the promise of the registers of a store on this medium.
pub(super) fn promise(medium: Medium) -> RegisterPromise {
    let durability = match medium {
        Medium::Disk => Durability::Strict,
        // A restart of the machine ends every claim, but a value is to outlive its writer.
        Medium::Memory | Medium::Network => Durability::LostOnFailover,
    };
    // It forgets nothing: no clock of the machine both continues over a restart and cannot be set.
    RegisterPromise::new(MAX_BYTES, WaitMode::Polls, durability)
}

#[async_trait]
impl Registers for FileBackend {
    fn promise(&self) -> &RegisterPromise {
        &self.registers
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let at = at.clone();
        self.run(move |inner| read_register(&inner.root, &at)).await
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.registers.check(put)?;
        let (at, seen, value) = (at.clone(), seen.clone(), put.value.clone());
        self.run(move |inner| swap(inner, &at, &seen, value.as_deref())).await
    }

    async fn changed(
        &self,
        at: &Resource,
        _seen: &Stamp,
        _patience: &Patience,
    ) -> Result<Registered, Failure> {
        Registers::read(self, at).await
    }
}

fn read_register(root: &Root, at: &Resource) -> Result<Registered, Failure> {
    match ResourceDir::find(root, at)? {
        None => Ok(nothing()),
        Some(dir) => read_value(&dir, at),
    }
}

fn read_value(dir: &ResourceDir, at: &Resource) -> Result<Registered, Failure> {
    let path = dir.path_to(VALUE);
    let file = match read_file(dir.at(), VALUE, MAX_BYTES + MAX_HEAD) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(nothing()),
        Err(cause) => return Err(cannot("read", &path, cause)),
    };
    let Some((stamp, name, value)) = read_text(&file) else {
        return Err(foreign(&path, "was not written by leasehold, or is damaged: remove it"));
    };
    if name != at.as_str() {
        return Err(foreign(&path, "has the name of another resource, whose hash is the same: rename one"));
    }
    Ok(Registered { value: Some(value.to_vec()), stamp: Stamp::new(stamp.to_owned()), left: None })
}

fn swap(inner: &Inner, at: &Resource, seen: &Stamp, value: Option<&[u8]>) -> Result<Option<Stamp>, Failure> {
    let root = &inner.root;
    if value.is_none() && *seen == nothing().stamp {
        // Writing nothing over nothing creates nothing, not even a directory.
        return Ok((read_register(root, at)?.stamp == *seen).then(|| seen.clone()));
    }
    let (dir, lock) = ResourceDir::lock_or_create(root, at, &Limit::fixed(WRITE_WAIT))?;
    if read_value(&dir, at)?.stamp != *seen {
        return Ok(None);
    }
    let written = match value {
        Some(value) => {
            let stamp = draw()?;
            let replaced = dir.replace_file(root, VALUE, &text(&stamp, at, value), Sync::Durable);
            // If no value existed, the directory itself may be new.
            let is_first = *seen == nothing().stamp;
            let settled =
                replaced.and_then(|()| if is_first { directory::sync(root.path()) } else { Ok(()) });
            settled.map(|()| Stamp::new(stamp))
        }
        None => remove(&dir).map(|()| nothing().stamp),
    };
    drop(lock);
    // The name may lead to the new file although it is not on the disk yet.
    written.map(Some).map_err(|failure| failure.with_effect(Effect::Unknown))
}

fn remove(dir: &ResourceDir) -> Result<(), Failure> {
    match unlinkat(dir.at(), VALUE, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => directory::sync(dir.path()),
        Err(cause) => Err(cannot("remove", &dir.path_to(VALUE), cause)),
    }
}

fn nothing() -> Registered {
    Registered { value: None, stamp: Stamp::new("none"), left: None }
}

/// Returns a value as it is stored: a mark, a stamp, the name of the resource, and after the end of the
/// line the bytes of the value.
pub(super) fn text(stamp: &str, at: &Resource, value: &[u8]) -> Vec<u8> {
    let mut text = format!("{MAGIC} {stamp} {}\n", at.as_str()).into_bytes();
    text.extend_from_slice(value);
    text
}

pub(super) fn read_text(file: &[u8]) -> Option<(&str, &str, &[u8])> {
    let end = file.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&file[..end]).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?;
    let (stamp, name) = head.split_once(' ')?;
    Some((stamp, name, &file[end + 1..]))
}

fn draw() -> Result<String, Failure> {
    crate::random::u64().map(|number| format!("{number:016x}")).map_err(|error| {
        Failure::unavailable(format!("the operating system gives no random numbers: {error}"))
    })
}

/// Others sync to the disk meanwhile.
const WRITE_WAIT: Duration = Duration::from_secs(3);
const VALUE: &str = "value";
const MAGIC: &str = "leasehold-value 1";
const MAX_BYTES: usize = 512 * 1024;
/// Longer than the mark, the stamp and the longest name.
const MAX_HEAD: usize = 64 + Resource::MAX_BYTES;

#[cfg(test)]
mod tests {
    use leasehold_core::FailureKind;

    use super::*;
    use crate::local::FileConfig;

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let at = Resource::new("a b\u{a0}é").unwrap();
        for value in [&b""[..], b"a\nb", &[0, 255]] {
            assert_eq!(read_text(&text("07", &at, value)), Some(("07", at.as_str(), value)));
        }
        assert_eq!(read_text(b"leasehold-value 2 07 a\n"), None);
    }

    #[tokio::test]
    async fn foreign_register_file_is_refused_and_left_unchanged() {
        let base = tempfile::tempdir().unwrap();
        let store = FileBackend::open(FileConfig::new(base.path())).unwrap();
        let at = Resource::new("a").unwrap();
        let put = Put { value: Some(b"x".to_vec()), keep: None };
        let nothing = Registers::read(&store, &at).await.unwrap().stamp;
        let stamp = store.swap(&at, &nothing, &put).await.unwrap().unwrap();
        let path = store.path_of(&at).join(VALUE);
        std::fs::write(&path, "theirs").unwrap();
        for failure in [
            Registers::read(&store, &at).await.unwrap_err(),
            store.swap(&at, &stamp, &put).await.unwrap_err(),
        ] {
            assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }

    #[tokio::test]
    async fn register_value_outlives_its_writer_and_a_kill_leaves_no_half() {
        let base = tempfile::tempdir().unwrap();
        let (at, put) = (Resource::new("a").unwrap(), Put { value: Some(b"whole".to_vec()), keep: None });
        let open = || FileBackend::open(FileConfig::new(base.path())).unwrap();
        let stamp = open().swap(&at, &nothing().stamp, &put).await.unwrap().unwrap();
        // As a process leaves it that is killed before its rename.
        std::fs::write(open().path_of(&at).join("value.new"), "leasehold-val").unwrap();
        let store = open();
        let found = Registers::read(&store, &at).await.unwrap();
        assert_eq!((found.value.as_deref(), &found.stamp), (Some(&b"whole"[..]), &stamp));
        assert!(store.swap(&at, &stamp, &put).await.unwrap().is_some());
        assert!(!store.path_of(&at).join("value.new").exists());
    }
}
