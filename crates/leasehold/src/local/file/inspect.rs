//! Inspecting without changing: holders and waiters.
//!
//! Ground rules: nothing is locked, written or created, so that it works with read permission only,
//! and while another process is stopped in the middle of a change. Claims whose process has ended are
//! omitted, not removed.

use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_core::{
    ClaimInfo, Entry, Failure, Fence, Resource, ResourceSummary, Snapshot, SnapshotVersion,
};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::failure::cannot;
use super::ledger_file::LedgerFile;
use super::liveness_fifo::{Probe, probe};
use super::resource_dir::ResourceDir;
use super::store_dir::Root;
use super::transaction::WATCH_MAX;
use super::watch::Watch;

/// Returns the queue as it is now, and the FIFOs whose hang-up changes it, as many as may be watched.
pub(super) fn snapshot(root: &Root, resource: &Resource) -> Result<(Snapshot, Vec<Watch>), Failure> {
    let (fence, living) = match ResourceDir::find(root, resource)? {
        Some(dir) => living_claims(root, &dir)?,
        None => (None, Vec::new()),
    };
    let info = |entry: &Entry| {
        // If the ledger is lost, only the holder knows its fence.
        let granted = entry.granted.filter(|_| fence.is_some());
        let since = entry.since.as_nanos() / 1_000_000;
        let info = ClaimInfo::new(entry.id, entry.share).fence(granted).since_unix_ms(Some(since));
        info.note(entry.note.clone())
    };
    let of = |held: bool| {
        living.iter().filter(move |(entry, _)| entry.granted.is_some() == held).map(|(entry, _)| info(entry))
    };
    let version = version(fence, living.iter().map(|(entry, _)| entry));
    let snapshot = Snapshot::new(resource.clone(), version)
        .holders(of(true).collect())
        .waiting(of(false).collect())
        .fence(fence);
    Ok((snapshot, living.into_iter().filter_map(|(_, watch)| watch).collect()))
}

/// Lists the resources under `prefix` that have living claims, in the order of their names.
pub(super) fn list(
    root: &Root,
    prefix: &str,
    after: Option<&Resource>,
    limit: usize,
) -> Result<Vec<ResourceSummary>, Failure> {
    let mut names: Vec<Resource> = Vec::new();
    let failed = |cause| cannot("list", root.path(), cause);
    let Some(store) = root.now()? else { return Ok(Vec::new()) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match openat(store.at(), ".", flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(cause) => return Err(failed(root.noted(&store, cause))),
    };
    for entry in Dir::new(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(resource) = entry.file_name().to_str().ok().and_then(|name| resource_of(root, name)) else {
            continue;
        };
        let is_wanted = resource.as_str().starts_with(prefix) && after.is_none_or(|after| resource > *after);
        if is_wanted {
            names.push(resource);
        }
    }
    names.sort_unstable();
    let mut found = Vec::new();
    for resource in names {
        if found.len() >= limit {
            break;
        }
        let Some(dir) = directory_of(root, &resource)? else { continue };
        let (_, living) = living_claims(root, &dir)?;
        let holders = living.iter().filter(|(entry, _)| entry.granted.is_some()).count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        if !living.is_empty() {
            found.push(ResourceSummary::new(resource, count(holders), count(living.len() - holders)));
        }
    }
    Ok(found)
}

/// Returns the directory of a resource; `None` if it is gone, or is something else, such as the file that binds a store
/// to its machine.
fn directory_of(root: &Root, resource: &Resource) -> Result<Option<ResourceDir>, Failure> {
    match statat(CWD, root.path_of(resource), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Directory => Ok(None),
        // An error is that of opening it.
        _ => ResourceDir::find(root, resource),
    }
}

/// Living claims, and the FIFOs of those that can be watched.
type Living = Vec<(Entry, Option<Watch>)>;

fn living_claims(root: &Root, dir: &ResourceDir) -> Result<(Option<Fence>, Living), Failure> {
    let ledger = LedgerFile::peek(root, dir)?;
    let mut living = Living::new();
    for entry in ledger.entries() {
        if let Probe::Alive(file) = probe(dir, &ledger.name_of(entry))? {
            let watch = (living.len() < WATCH_MAX).then(|| Watch::new(file));
            living.push((entry.clone(), watch));
        }
    }
    Ok((ledger.last_granted(), living))
}

/// Returns the resource of a directory, unless the directory is something else under a name
/// that could be ours.
fn resource_of(root: &Root, name: &str) -> Option<Resource> {
    let resource = match Resource::from_escaped(name) {
        Some(resource) => resource,
        None if Resource::is_hashed(name) => {
            let dir = ResourceDir::named(root, name).ok()??;
            Resource::new(&dir.read_name().ok()??).ok()?
        }
        None => return None,
    };
    (root.path_of(&resource).file_name()?.to_str()? == name).then_some(resource)
}

fn version<'a>(fence: Option<Fence>, entries: impl Iterator<Item = &'a Entry>) -> SnapshotVersion {
    let mut state = DefaultHasher::new();
    fence.hash(&mut state);
    for entry in entries {
        (entry.id, entry.granted, entry.since, entry.note.as_str()).hash(&mut state);
    }
    SnapshotVersion::new(format!("{:016x}", state.finish()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::FileConfig;
    use super::super::resource_dir::Limit;
    use super::*;

    /// As it is between the two changes of the first grant, and after a process that was killed there.
    #[test]
    fn queue_that_was_never_used_shows_no_fence() {
        let base = tempfile::tempdir().unwrap();
        let root = Root::open(FileConfig::new(base.path().join("store"))).unwrap();
        let resource = Resource::new("a").unwrap();
        let (before, _) = snapshot(&root, &resource).unwrap();
        let limit = Limit::fixed(Duration::from_secs(60));
        for _ in ["a new ledger", "one that is built again"] {
            let (dir, lock) = ResourceDir::lock_or_create(&root, &resource, &limit).unwrap();
            drop(LedgerFile::open(&root, &dir).unwrap());
            drop(lock);
            let (seen, _) = snapshot(&root, &resource).unwrap();
            assert_eq!(seen.fence, None, "nothing was granted");
            assert_eq!(seen.version, before.version, "nothing that shows has changed");
            std::fs::remove_file(dir.path_to("ledger")).unwrap();
        }
    }
}
