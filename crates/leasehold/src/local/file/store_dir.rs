//! The directory of the whole store: made, and judged before anything in it is trusted.
//!
//! Ground rules: the path of a store may lead to another directory later, which was made again, put there, or
//! mounted. So each look at the store compares the directory that its path leads to with the one that was judged,
//! judges another one like the first, and uses only what was judged: by its descriptor.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Failure, Resource};
use leasehold_machine::{BOOT_ID, FileSystem};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::config::{FileConfig, Network};
use super::directory::{self, errno};
use super::failure::{cannot, denied, foreign, unsupported};
use super::identity::Identity;

/// The path of a store, and the way to create files in it.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    config: FileConfig,
    boot: String,
    medium: Medium,
    /// The directory that was judged last.
    judged: Mutex<Option<Arc<JudgedDir>>>,
    look_up: LookUp,
}

/// Says which file system a path lies on.
type LookUp = fn(&Path) -> std::io::Result<FileSystem>;

/// A directory that may be used as a store.
///
/// It stays open: no other directory can get its number meanwhile, nor can another file system.
#[derive(Debug)]
pub(super) struct JudgedDir {
    directory: OwnedFd,
    identity: Identity,
    owner: u32,
    mode: Mode,
}

impl Root {
    /// Makes the directory if it is missing, and refuses one that cannot be trusted.
    pub(super) fn open(config: FileConfig) -> Result<Root, Failure> {
        Root::open_on(config, FileSystem::of)
    }

    fn open_on(config: FileConfig, look_up: LookUp) -> Result<Root, Failure> {
        let path = std::path::absolute(&config.path).map_err(|cause| {
            denied(&config.path, &format!("cannot be made absolute ({cause}): name an absolute path"))
                .because(cause)
        })?;
        let path = directory::resolve(&path)?;
        let (medium, judged) = (Medium::Disk, Mutex::default());
        let mut root = Root { path, boot: boot_id()?, medium, judged, look_up, config };
        root.make_missing()?;
        let Some((found, system)) = root.look()? else {
            return Err(cannot("look at", &root.path, Errno::NOENT));
        };
        root.medium = root.medium_on(system)?;
        root.accept(found)?;
        Ok(root)
    }

    /// Makes the directory again, if it was removed.
    pub(super) fn make(&self) -> Result<(), Failure> {
        self.resolve_again()?;
        self.make_missing()
    }

    fn make_missing(&self) -> Result<(), Failure> {
        directory::make_all(&self.path, self.config.root_mode(), self.config.is_shared())
    }

    /// Returns the directory that the path leads to now; `None` if none exists.
    ///
    /// # Errors
    /// Those of [`Root::open`], if it is another directory than before. `Unsupported` also if it lies on another
    /// medium, because the promises of a store do not change while it is open.
    pub(super) fn now(&self) -> Result<Option<Arc<JudgedDir>>, Failure> {
        let before = self.judged().clone();
        if let Some(before) = before {
            match statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if before.is(&found) => return Ok(Some(before)),
                Err(Errno::NOENT) => return Ok(None),
                // An error is that of opening it.
                _ => {}
            }
        }
        let Some((found, system)) = self.look()? else { return Ok(None) };
        if self.medium_on(system)? != self.medium {
            return Err(unsupported(
                &self.path,
                "lies on another kind of file system than when the store was opened, and what the store promises \
                 depends on that: open the store again, or mount the earlier file system",
            ));
        }
        self.accept(found).map(Some)
    }

    /// Returns the error of a call on this directory. If it is that another machine has removed the directory from a
    /// network file system, the next call judges again: another directory may have its number there.
    pub(super) fn noted(&self, used: &Arc<JudgedDir>, cause: Errno) -> Errno {
        let mut judged = self.judged();
        if cause == Errno::STALE && judged.as_ref().is_some_and(|judged| Arc::ptr_eq(judged, used)) {
            *judged = None;
        }
        cause
    }

    /// Opens the directory that the path leads to, unless another user can have put it there. `None` if none exists.
    fn look(&self) -> Result<Option<(JudgedDir, FileSystem)>, Failure> {
        for _ in 0..MAX_LOOKS {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(CWD, &self.path, flags, Mode::empty());
            // After it was opened: no other user can replace it from now on.
            self.resolve_again()?;
            let directory = match opened {
                Ok(directory) => directory,
                Err(Errno::NOENT) => return Ok(None),
                Err(cause) => return Err(cannot("open", &self.path, cause)),
            };
            let failed = |cause| cannot("look at", &self.path, cause);
            let found = JudgedDir::of(directory).map_err(failed)?;
            let system = (self.look_up)(&self.path);
            // Both looks at the path were looks at what is open.
            match statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if found.is(&named) => {
                    return Ok(Some((found, system.map_err(|cause| failed(errno(&cause)))?)));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(cause) => return Err(failed(cause)),
            }
        }
        Err(Failure::unavailable(format!(
            "{} is replaced again and again while it is opened: another program cleans this directory up",
            self.path.display()
        )))
    }

    /// Refuses a path that another user can have redirected, or that has become a link.
    fn resolve_again(&self) -> Result<(), Failure> {
        if directory::resolve(&self.path)? == self.path {
            return Ok(());
        }
        Err(denied(
            &self.path,
            "was replaced by a link, or lies behind a new one: open the store again if that is on purpose; \
             otherwise another user may write above it",
        ))
    }

    /// Uses this directory from now on.
    fn accept(&self, found: JudgedDir) -> Result<Arc<JudgedDir>, Failure> {
        if self.medium == Medium::Network {
            self.bind_to_this_machine()?;
        }
        let found = Arc::new(found);
        *self.judged() = Some(found.clone());
        Ok(found)
    }

    /// Returns the medium of a store on this file system. Refuses one of a network, unless it is forced.
    fn medium_on(&self, system: FileSystem) -> Result<Medium, Failure> {
        match system {
            FileSystem::Local => Ok(Medium::Disk),
            FileSystem::Fleeting => Ok(Medium::Memory),
            FileSystem::Network(_) if self.config.network == Network::Force => Ok(Medium::Network),
            FileSystem::Network(system) => Err(unsupported(
                &self.path,
                &format!(
                    "lies on a network file system ({system}), where two machines can hold one lock: \
                     use a local directory, or a lock server for several machines; \
                     ?network=force uses it for the processes of this one machine"
                ),
            )),
        }
    }

    fn judged(&self) -> MutexGuard<'_, Option<Arc<JudgedDir>>> {
        // Every change is a single step.
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of a resource. Capital letters are escaped as well, for file
    /// systems that fold them.
    pub(super) fn path_of(&self, resource: &Resource) -> PathBuf {
        self.path.join(Root::name_of(resource))
    }

    /// Returns the name of that directory.
    pub(super) fn name_of(resource: &Resource) -> String {
        resource.escaped(is_plain, MAX_NAME)
    }

    pub(super) fn file_mode(&self) -> Mode {
        self.config.file_mode()
    }

    pub(super) fn directory_mode(&self) -> Mode {
        self.config.directory_mode()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.config.is_shared()
    }

    /// Returns the id of the present run of this machine's kernel.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    pub(super) fn medium(&self) -> Medium {
        self.medium
    }

    /// Reserves a store on a network file system for the first machine that uses it. The kernel's locks on
    /// FIFOs do not reach other machines there: each machine would see the claims of the other as dead.
    fn bind_to_this_machine(&self) -> Result<(), Failure> {
        // No resource has a directory of this name. An earlier one was that of the resource `machine`.
        let earlier = self.path.join("machine");
        let path = match fs::symlink_metadata(&earlier) {
            Ok(found) if found.is_file() => earlier,
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot("look at", &earlier, errno(&cause)));
            }
            _ => self.path.join("Machine"),
        };
        let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let node = rustix::system::uname();
        let this = format!("{} {}\n", id.trim(), node.nodename().to_string_lossy());
        let found = match fs::read_to_string(&path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                write_whole(&path, &this).map_err(|cause| cannot("create", &path, errno(&cause)))?;
                directory::sync(&self.path)?;
                // That of another process, if that was first.
                fs::read_to_string(&path)
            }
            found => found,
        };
        match found.map_err(|cause| cannot("read", &path, errno(&cause)))? {
            found if found == this => Ok(()),
            found if found.ends_with('\n') => Err(unsupported(
                &path,
                "says that another machine uses this store, and files cannot keep two machines apart: use a \
                 lock server, or remove the file once the other machine no longer uses the store",
            )),
            _ => Err(foreign(
                &path,
                "is empty or cut off, so it does not say which machine uses this store: remove it once no machine \
                 uses the store",
            )),
        }
    }
}

impl JudgedDir {
    fn of(directory: OwnedFd) -> Result<JudgedDir, Errno> {
        let found = fstat(&directory)?;
        let (identity, mode) = (Identity::of(&found), Mode::from_raw_mode(found.st_mode));
        Ok(JudgedDir { directory, identity, owner: found.st_uid, mode })
    }

    /// Returns `true` if this is what was found, with the owner and the mode that were judged.
    fn is(&self, found: &Stat) -> bool {
        let (owner, mode) = (found.st_uid, Mode::from_raw_mode(found.st_mode));
        (self.identity, self.owner, self.mode) == (Identity::of(found), owner, mode)
    }

    /// Returns its descriptor, to name what is in it.
    pub(super) fn at(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns `true` if any user may put files into it, so that owners have to be compared.
    pub(super) fn is_open_to_all(&self) -> bool {
        self.mode.contains(Mode::WOTH)
    }
}

/// The medium of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// A disk: the store survives a restart of the machine.
    Disk,
    /// Memory: the store does not survive it, or not the recreation of a container.
    Memory,
    /// A disk of another machine.
    Network,
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
}

/// The number of times that the directory may be replaced while it is opened.
const MAX_LOOKS: u32 = 100;

/// Leaves space under the 255 bytes that a file name may have.
const MAX_NAME: usize = 200;

/// Makes a file as a whole, durably. Leaves one that exists.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let number = crate::random::u64().map_err(|error| std::io::Error::other(error.to_string()))?;
    let temporary = path.with_extension(format!("{number:016x}"));
    let written = fs::File::create_new(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // A rename would replace the file of a process that was first. A file system with FIFOs has links as well.
        match fs::hard_link(&temporary, path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    });
    // The space is needed; what is left after a crash has no meaning.
    drop(fs::remove_file(&temporary));
    written
}

/// Returns the id of this boot. Data that the kernel wrote to files before a restart may be lost, so a
/// ledger is valid only on the boot that wrote it.
fn boot_id() -> Result<String, Failure> {
    leasehold_machine::boot_id().map_err(|cause| {
        let text =
            format!("cannot be read ({cause}), and the file store needs it to notice a restart: mount /proc");
        unsupported(Path::new(BOOT_ID), &text).because(cause)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::time::Duration;

    use leasehold_core::FailureKind;

    use super::super::resource_dir::{Limit, ResourceDir};
    use super::*;

    fn nfs(_: &Path) -> std::io::Result<FileSystem> {
        Ok(FileSystem::Network("NFS"))
    }

    fn open_forced(path: &Path) -> Result<Root, Failure> {
        Root::open_on(FileConfig::new(path).network(Network::Force), nfs)
    }

    fn open(path: &Path) -> Result<Root, Failure> {
        Root::open(FileConfig::new(path))
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn store_dir_is_created_with_parents_and_private_mode() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        open(&path).unwrap();
        assert_eq!(mode_of(&path), 0o700);
        let shared = base.path().join("shared");
        Root::open(FileConfig::new(&shared).mode(0o666).unwrap()).unwrap();
        assert_eq!(mode_of(&shared), 0o1777, "nobody may move what belongs to others");
    }

    #[test]
    fn store_dir_another_user_could_have_made_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let (own, link) = (base.path().join("own"), base.path().join("link"));
        open(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(open(&link).is_ok(), "a link in a directory of one's own is one's own business");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(open(&link).unwrap_err().kind, FailureKind::Denied);
        assert!(open(&own).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(65_534), None).unwrap();
            let refused = open(&own).unwrap_err();
            assert!(refused.detail().contains("belongs to another user"), "{refused}");
        }
    }

    #[test]
    fn file_is_refused_as_a_store_directory() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        fs::write(&path, "x").unwrap();
        assert!(open(&path).is_err());
        assert!(open(&path.join("below")).is_err());
        assert_eq!(open(Path::new("/")).unwrap_err().kind, FailureKind::Unsupported);
    }

    #[test]
    fn names_are_file_names_on_any_file_system() {
        let base = tempfile::tempdir().unwrap();
        let root = open(base.path()).unwrap();
        let name = |name: &str| {
            let path = root.path_of(&Resource::new(name).unwrap());
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name("orders/42"), "orders%2F42");
        assert_eq!(name(".."), "%2E%2E");
        assert_eq!(name("Job"), "%4Aob");
        assert!(Resource::is_hashed(&name(&"ü".repeat(256))));
    }

    #[test]
    fn a_network_store_is_refused_or_belongs_to_one_machine() {
        let base = tempfile::tempdir().unwrap();
        assert_ne!(open(base.path()).unwrap().medium(), Medium::Network, "the temporary directory is local");
        let refused = Root::open_on(FileConfig::new(base.path()), nfs).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unsupported);
        assert!(
            refused.detail().contains("(NFS)") && refused.detail().contains("network=force"),
            "{refused}"
        );
        open_forced(base.path()).unwrap();
        let forced = open_forced(base.path()).unwrap();
        assert_eq!(forced.medium(), Medium::Network);
        // The file that binds it is not a resource.
        assert!(super::super::inspect::list(&forced, "", None, 10).unwrap().is_empty());
        let own = fs::read_to_string(base.path().join("Machine")).unwrap();
        for name in ["Machine", "machine"] {
            fs::write(base.path().join(name), "other\n").unwrap();
            assert_eq!(open_forced(base.path()).unwrap_err().kind, FailureKind::Unsupported, "{name}");
            // It may be that of another machine, so it is left as it is.
            for cut in [0, 1, own.len() - 1] {
                fs::write(base.path().join(name), &own[..cut]).unwrap();
                let refused = open_forced(base.path()).unwrap_err();
                assert_eq!(refused.kind, FailureKind::Foreign, "{refused}");
                assert!(refused.detail().contains("is empty or cut off"), "{refused}");
                assert_eq!(fs::read_to_string(base.path().join(name)).unwrap(), own[..cut]);
            }
            fs::remove_file(base.path().join(name)).unwrap();
        }
    }

    /// Somebody removes it while it is open, and another machine may be the first to use it again.
    #[test]
    fn network_store_that_is_made_again_belongs_to_one_machine() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("store");
        let root = open_forced(&path).unwrap();
        let this = fs::read_to_string(path.join("Machine")).unwrap();
        let (limit, resource) = (Limit::fixed(Duration::from_secs(60)), Resource::new("a").unwrap());
        fs::remove_dir_all(&path).unwrap();
        drop(ResourceDir::lock_or_create(&root, &resource, &limit).unwrap());
        assert_eq!(fs::read_to_string(path.join("Machine")).unwrap(), this);
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("Machine"), "another\n").unwrap();
        for refused in [
            ResourceDir::lock_or_create(&root, &resource, &limit).map(drop).unwrap_err(),
            ResourceDir::find(&root, &resource).unwrap_err(),
            super::super::inspect::list(&root, "", None, 10).unwrap_err(),
        ] {
            assert_eq!(refused.kind, FailureKind::Unsupported, "{refused}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "only the file that binds it");
    }

    #[test]
    fn network_store_is_bound_by_one_of_many_processes_that_open_it_together() {
        let base = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = base.path().join(round.to_string());
            fs::create_dir(&path).unwrap();
            let root = Root::open(FileConfig::new(&path).network(Network::Force)).unwrap();
            let start = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                let open = || {
                    start.wait();
                    root.bind_to_this_machine()
                };
                let opened: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                opened.into_iter().for_each(|opened| opened.join().unwrap().unwrap());
            });
            let files: Vec<_> = fs::read_dir(&path).unwrap().map(|file| file.unwrap().file_name()).collect();
            assert_eq!(files, ["Machine"]);
        }
    }
}
