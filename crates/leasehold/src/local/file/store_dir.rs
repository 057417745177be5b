//! The directory of the whole store: made, and judged before anything in it is trusted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leasehold_core::{Failure, Resource};
use leasehold_machine::{BOOT_ID, FileSystem};
use rustix::fs::Mode;

use super::config::{FileConfig, Network};
use super::directory::{self, errno};
use super::failure::{cannot, denied, foreign, unsupported};

/// The verified directory of a store, and the way to create files in it.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    config: FileConfig,
    boot: String,
    medium: Medium,
    /// `true` if any user may put files into the directory, so that owners have to be compared.
    pub(super) is_open_to_all: bool,
}

impl Root {
    /// Makes the directory if it is missing, and refuses one that cannot be trusted.
    pub(super) fn open(config: FileConfig) -> Result<Root, Failure> {
        let path = std::path::absolute(&config.path).map_err(|cause| {
            denied(&config.path, &format!("cannot be made absolute ({cause}): name an absolute path"))
                .because(cause)
        })?;
        let path = directory::resolve(&path)?;
        let mut root = Root { path, boot: boot_id()?, medium: Medium::Disk, is_open_to_all: false, config };
        root.make()?;
        // Again, because another user may have made it meanwhile.
        if directory::resolve(&root.path)? != root.path {
            return Err(denied(
                &root.path,
                "was replaced while it was opened: another user may write above it",
            ));
        }
        let found = fs::metadata(&root.path).map_err(|cause| cannot("look at", &root.path, errno(&cause)))?;
        root.is_open_to_all = found.mode() & 0o002 != 0;
        let system =
            FileSystem::of(&root.path).map_err(|cause| cannot("look at", &root.path, errno(&cause)))?;
        root.set_medium(system)?;
        Ok(root)
    }

    /// Refuses a network file system, or takes it into account.
    fn set_medium(&mut self, system: FileSystem) -> Result<(), Failure> {
        let system = match system {
            FileSystem::Local => return Ok(()),
            FileSystem::Fleeting => {
                self.medium = Medium::Memory;
                return Ok(());
            }
            FileSystem::Network(system) => system,
        };
        if self.config.network == Network::Refuse {
            return Err(unsupported(
                &self.path,
                &format!(
                    "lies on a network file system ({system}), where two machines can hold one lock: \
                     use a local directory, or a lock server for several machines; \
                     ?network=force uses it for the processes of this one machine"
                ),
            ));
        }
        self.medium = Medium::Network;
        self.bind_to_this_machine()
    }

    /// Makes the directory again, if it was removed.
    pub(super) fn make(&self) -> Result<(), Failure> {
        if self.path.is_dir() {
            return Ok(());
        }
        directory::make_all(&self.path, self.config.root_mode(), self.config.is_shared())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of a resource. Capital letters are escaped as well, for file
    /// systems that fold them.
    pub(super) fn path_of(&self, resource: &Resource) -> PathBuf {
        self.path.join(resource.escaped(is_plain, MAX_NAME))
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use leasehold_core::FailureKind;

    use super::*;

    const NFS: FileSystem = FileSystem::Network("NFS");

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
        let mut root = open(base.path()).unwrap();
        assert_ne!(root.medium(), Medium::Network, "the temporary directory is local");
        let refused = root.set_medium(NFS).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unsupported);
        assert!(
            refused.detail().contains("(NFS)") && refused.detail().contains("network=force"),
            "{refused}"
        );
        let mut forced = Root::open(FileConfig::new(base.path()).network(Network::Force)).unwrap();
        forced.set_medium(NFS).unwrap();
        forced.set_medium(NFS).unwrap();
        assert_eq!(forced.medium(), Medium::Network);
        // The file that binds it is not a resource.
        assert!(super::super::inspect::list(&forced, "", None, 10).unwrap().is_empty());
        let own = fs::read_to_string(base.path().join("Machine")).unwrap();
        for name in ["Machine", "machine"] {
            fs::write(base.path().join(name), "other\n").unwrap();
            assert_eq!(forced.set_medium(NFS).unwrap_err().kind, FailureKind::Unsupported, "{name}");
            // It may be that of another machine, so it is left as it is.
            for cut in [0, 1, own.len() - 1] {
                fs::write(base.path().join(name), &own[..cut]).unwrap();
                let refused = forced.set_medium(NFS).unwrap_err();
                assert_eq!(refused.kind, FailureKind::Foreign, "{refused}");
                assert!(refused.detail().contains("is empty or cut off"), "{refused}");
                assert_eq!(fs::read_to_string(base.path().join(name)).unwrap(), own[..cut]);
            }
            fs::remove_file(base.path().join(name)).unwrap();
        }
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
