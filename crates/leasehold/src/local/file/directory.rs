//! Directories of a store: resolved to a path that no other user can redirect, made with a mode, and synced.

use std::ffi::OsString;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use leasehold_core::Failure;
use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, fsync, mkdirat, openat};
use rustix::io::Errno;

use super::failure::{cannot, denied, foreign, unsupported};

/// Resolves the path of a store and refuses one that another user can redirect.
///
/// Each level is judged, not only the last one: a directory or a link that another user could have put
/// into a world-writable directory leads anywhere that this user likes. Components that do not exist
/// yet stay as they were written, and `..` leaves them.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    if path.parent().is_none() {
        return Err(unsupported(path, "is the root of the file system: name a directory for the store"));
    }
    let mut left: Vec<OsString> = Vec::new();
    let push = |left: &mut Vec<OsString>, path: &Path| {
        let parts =
            path.components().rev().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
        left.extend(parts.map(|part| part.as_os_str().to_owned()));
    };
    push(&mut left, path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                // The rest may lead out of it again, to a level that exists.
                at = next;
                continue;
            }
            Err(cause) => return Err(cannot("look at", &next, errno(&cause))),
        };
        let is_last = left.is_empty();
        check_level(&at, &next, &found, is_last)?;
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(cannot("follow", path, Errno::LOOP));
            }
            let target = fs::read_link(&next).map_err(|cause| cannot("follow", &next, errno(&cause)))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            push(&mut left, &target);
            continue;
        }
        if !found.is_dir() {
            return Err(foreign(&next, "is not a directory: name another one for the store"));
        }
        at = next;
    }
    Ok(at)
}

/// Refuses a file that another user could have put into a world-writable directory.
fn check_level(parent: &Path, path: &Path, found: &fs::Metadata, is_last: bool) -> Result<(), Failure> {
    let above = fs::metadata(parent).map_err(|cause| cannot("look at", parent, errno(&cause)))?;
    if above.mode() & 0o002 == 0 {
        return Ok(());
    }
    if is_last && found.is_symlink() {
        return Err(denied(
            path,
            "is a symbolic link in a directory that all users may write to: name the directory itself",
        ));
    }
    if !is_trusted_owner(found.uid()) {
        return Err(denied(
            path,
            "belongs to another user and lies in a directory that all users may write to: put a shared \
             store where only its owner can create it",
        ));
    }
    if above.mode() & STICKY == 0 {
        tracing::warn!(
            path = %path.display(),
            "every user can move this directory away and put another in its place: run chmod +t on the directory above"
        );
    }
    Ok(())
}

/// Returns `true` if a file of this user cannot have been put there by an attacker.
pub(super) fn is_trusted_owner(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Makes one directory, by a path from the directory `at`. If `mode` is shared, it is set regardless of the umask,
/// and a set-group-id bit that the directory inherited stays.
///
/// # Errors
/// `EXIST` if the name exists, `NOENT` if the directory above is missing.
pub(super) fn make(at: BorrowedFd<'_>, path: &Path, mode: Mode, is_shared: bool) -> Result<(), Errno> {
    mkdirat(at, path, mode.difference(Mode::SGID))?;
    if !is_shared {
        return Ok(());
    }
    // The mode is set on the new directory, and not on the target of its name by now: another user of a
    // shared directory may have put a link there.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(at, path, flags, Mode::empty())?;
    let found = fstat(&made)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    let present = Mode::from_raw_mode(found.st_mode);
    let wanted = mode | (present & Mode::SGID);
    if present == wanted {
        return Ok(());
    }
    match fchmod(&made, wanted) {
        // A sandbox may forbid that bit, as `RestrictSUIDSGID=` of systemd does.
        Err(Errno::PERM) => fchmod(&made, wanted.difference(Mode::SGID)),
        done => done,
    }
}

/// Makes a directory with all levels above it, and syncs their names against a power failure. `mode` is
/// that of the last one.
pub(super) fn make_all(path: &Path, mode: Mode, is_shared: bool) -> Result<(), Failure> {
    let missing: Vec<&Path> = path.ancestors().take_while(|level| !level.exists()).collect();
    for level in missing.iter().rev() {
        match make(CWD, level, mode, is_shared && *level == path) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(cause) => return Err(cannot("create", level, cause)),
        }
    }
    for parent in missing.iter().filter_map(|level| level.parent()) {
        sync(parent)?;
    }
    Ok(())
}

/// Syncs the entries of a directory, so that created and renamed files survive a power failure.
pub(super) fn sync(path: &Path) -> Result<(), Failure> {
    let opened = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = match opened {
        Ok(directory) => directory,
        // A parent that may be searched but not read: the file system syncs it in its own time.
        Err(Errno::ACCESS) => return Ok(()),
        Err(cause) => return Err(cannot("open", path, cause)),
    };
    match fsync(&directory) {
        // Some file systems cannot do it for directories, because they need not.
        Ok(()) | Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        Err(cause) => Err(cannot("write through", path, cause)),
    }
}

/// Returns the errno of an error of the standard library.
pub(super) fn errno(cause: &std::io::Error) -> Errno {
    Errno::from_io_error(cause).unwrap_or(Errno::IO)
}

const STICKY: u32 = 0o1000;
/// The number of links that Linux follows in one path.
const MAX_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use leasehold_core::FailureKind;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_level_of_another_user_in_an_open_directory_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let theirs = base.path().join("app");
        let store = theirs.join("deep/locks");
        fs::create_dir_all(&store).unwrap();
        set_mode(base.path(), 0o1777);
        resolve(&store).unwrap();
        chown(&theirs, Some(65_534), None).unwrap();
        for path in [&store, &theirs.join("deep/to be made")] {
            let refused = resolve(path).unwrap_err();
            assert_eq!(refused.kind, FailureKind::Denied);
            assert!(refused.detail().contains("belongs to another user"), "{refused}");
        }
        // The same in a directory where only its owner can have put it.
        set_mode(base.path(), 0o755);
        resolve(&store).unwrap();
    }

    #[test]
    fn links_are_resolved_once() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink(base.join("link"), base.join("far")).unwrap();
        assert_eq!(resolve(&base.join("far/store")).unwrap(), base.join("real/store"));
        assert_eq!(resolve(&base.join("real/../link/./a/b")).unwrap(), base.join("real/a/b"));
        symlink("round", base.join("round")).unwrap();
        assert!(resolve(&base.join("round/store")).is_err());
    }

    #[test]
    fn path_that_leaves_a_missing_directory_is_that_of_the_rest() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("link")).unwrap();
        assert_eq!(resolve(&base.join("missing/../b")).unwrap(), base.join("b"));
        assert_eq!(resolve(&base.join("missing/deep/../../b/./c")).unwrap(), base.join("b/c"));
        assert_eq!(
            resolve(&base.join("missing/../link/b")).unwrap(),
            base.join("real/b"),
            "links count again"
        );
        fs::write(base.join("file"), "").unwrap();
        assert!(resolve(&base.join("missing/../file/b")).is_err());
    }

    #[test]
    fn a_shared_directory_keeps_the_group_of_the_one_above() {
        let base = tempfile::tempdir().unwrap();
        set_mode(base.path(), 0o2770);
        let made = base.path().join("room");
        make(CWD, &made, Mode::from_raw_mode(0o770), true).unwrap();
        assert_eq!(mode_of(&made), 0o2770);
        assert_eq!(make(CWD, &made, Mode::from_raw_mode(0o770), true), Err(Errno::EXIST));
    }

    #[test]
    fn a_mode_is_set_on_a_directory_and_never_through_a_link() {
        let base = tempfile::tempdir().unwrap();
        let (target, link) = (base.path().join("target"), base.path().join("link"));
        fs::create_dir(&target).unwrap();
        set_mode(&target, 0o700);
        symlink(&target, &link).unwrap();
        assert_eq!(make(CWD, &link, Mode::from_raw_mode(0o777), true), Err(Errno::EXIST));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        assert!(openat(CWD, &link, flags, Mode::empty()).is_err(), "what `make` opens is not followed");
        assert_eq!(mode_of(&target), 0o700);
    }
}
