//! A small file system of a test's own, which it can fill.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, getpid, test_kill_process};

use crate::directory::Directory;
use crate::error::{Error, cannot};

/// A file system in memory that has room for a few megabytes. It is unmounted when it is dropped, or by the next one
/// if its process was killed.
#[derive(Debug)]
pub struct SmallDisk {
    // Removed after the file system is unmounted.
    directory: Directory,
}

impl SmallDisk {
    /// Mounts an empty file system.
    ///
    /// # Errors
    /// [`Error::is_missing`] if this user may not mount one, which takes root.
    pub fn mount(server: &str, megabytes: u32) -> Result<Self, Error> {
        unmount_left_over();
        Self::mount_for(getpid(), server, megabytes)
    }

    fn mount_for(owner: Pid, server: &str, megabytes: u32) -> Result<Self, Error> {
        let directory = Directory::create(server)?;
        let size = std::ffi::CString::new(format!("size={megabytes}m,mode=0700"))
            .map_err(cannot("write the options of", "a file system"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        match mount(format!("{SOURCE}{owner}"), directory.path(), "tmpfs", flags, Some(size.as_c_str())) {
            Ok(()) => Ok(Self { directory }),
            Err(Errno::PERM | Errno::ACCESS | Errno::NODEV | Errno::NOSYS) => {
                Err(Error::absent("a file system of its own cannot be mounted by this user"))
            }
            Err(cause) => Err(cannot("mount a file system on", directory.path().display())(cause)),
        }
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Fills it until nothing more can be written, and returns by how many bytes.
    pub fn fill(&self) -> Result<u64, Error> {
        let path = self.ballast();
        let failed = || cannot("fill", path.display());
        let mut file = File::options().create(true).append(true).open(&path).map_err(failed())?;
        let mut written = 0;
        // At last in pieces of one page.
        for piece in [1 << 16, 1 << 12] {
            loop {
                match file.write(&[0; 1 << 16][..piece]) {
                    Ok(0) => break,
                    Ok(count) => written += count as u64,
                    Err(cause) if cause.kind() == ErrorKind::StorageFull => break,
                    Err(cause) => return Err(failed()(cause)),
                }
            }
        }
        Ok(written)
    }

    /// Removes what filled it.
    pub fn empty(&self) -> Result<(), Error> {
        let path = self.ballast();
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cannot("remove", path.display())(cause)),
            _ => Ok(()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Files of it that are still open stay readable, and go with their last descriptor.
        if let Err(cause) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {cause}", self.path().display());
        }
    }
}

/// Unmounts those whose processes have ended without doing so, because they were killed.
fn unmount_left_over() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(path)) = (words.next(), words.next()) else { continue };
        let owner = source.strip_prefix(SOURCE).and_then(|owner| Pid::from_raw(owner.parse().ok()?));
        if owner.is_some_and(|owner| test_kill_process(owner) == Err(Errno::SRCH))
            && unmount(path, UnmountFlags::DETACH).is_ok()
        {
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// The source that the kernel lists for such a file system, before the id of its process.
const SOURCE: &str = "leasehold-small-disk-";

#[cfg(test)]
mod tests {
    use super::*;

    fn is_mounted(path: &Path) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
    }

    #[test]
    fn disk_of_a_process_that_was_killed_is_unmounted_by_the_next() {
        let mut owner = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let left = SmallDisk::mount_for(Pid::from_child(&owner), "small-disk", 1);
        let left = left.map(std::mem::ManuallyDrop::new);
        let beside = SmallDisk::mount("small-disk", 1);
        let is_there = left.as_ref().is_ok_and(|left| is_mounted(left.path()));
        owner.kill().unwrap();
        owner.wait().unwrap();
        let left = match left {
            Ok(left) => left,
            Err(missing) if missing.is_missing() => return,
            Err(error) => panic!("{error}"),
        };
        assert!(is_there, "its process lived");
        let next = SmallDisk::mount("small-disk", 1).unwrap();
        // Another test may have unmounted it, and be about to remove its folder.
        let began = std::time::Instant::now();
        while left.path().exists() {
            assert!(!is_mounted(left.path()) && began.elapsed().as_secs() < 60);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!([beside.unwrap(), next].iter().all(|disk| is_mounted(disk.path())));
    }

    #[test]
    fn a_full_disk_refuses_to_grow_until_it_is_emptied() {
        let disk = match SmallDisk::mount("small-disk", 1) {
            Ok(disk) => disk,
            Err(missing) if missing.is_missing() => return,
            Err(error) => panic!("{error}"),
        };
        let (path, file) = (disk.path().to_owned(), disk.path().join("file"));
        std::fs::write(&file, [1; 100]).unwrap();
        assert!(disk.fill().unwrap() > 900_000);
        let refused = std::fs::write(disk.path().join("other"), [2; 100]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        // What a file has already may be written.
        let mut open = File::options().write(true).open(&file).unwrap();
        open.write_all(&[3; 100]).unwrap();
        assert_eq!(disk.fill().unwrap(), 0);
        disk.empty().unwrap();
        std::fs::write(disk.path().join("other"), [2; 100]).unwrap();
        drop((open, disk));
        assert!(!path.exists());
    }
}
