//! The directory of the whole store: made, and judged before anything in it is trusted.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use leasehold_core::{Failure, Resource};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::config::{FileConfig, Network};
use super::failure::{cannot, denied, foreign, unsupported};

/// The verified directory of a store, and how things in it are made.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    config: FileConfig,
    boot: String,
    medium: Medium,
    /// Whether anybody may put something into the directory, so that owners have to be compared.
    pub(super) is_open_to_all: bool,
}

impl Root {
    /// Makes the directory where it is missing, and refuses one that cannot be trusted.
    pub(super) fn open(config: FileConfig) -> Result<Root, Failure> {
        let path = std::path::absolute(&config.path).map_err(|cause| {
            denied(&config.path, "cannot be made absolute: name an absolute path").because(cause)
        })?;
        let mut root = Root { path, boot: boot_id()?, medium: Medium::Disk, is_open_to_all: false, config };
        root.make()?;
        let judged = judge(&root.path)?;
        root.is_open_to_all = judged.mode() & 0o002 != 0;
        let number = system_number(&root.path)?;
        root.settle_on(number)?;
        Ok(root)
    }

    /// Refuses a network file system, or takes it into account.
    fn settle_on(&mut self, number: u32) -> Result<(), Failure> {
        if MEMORY_SYSTEMS.contains(&number) {
            self.medium = Medium::Memory;
        }
        let Some((_, system)) = NETWORK_SYSTEMS.iter().find(|(magic, _)| *magic == number) else {
            return Ok(());
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
        self.claim_for_this_machine()
    }

    /// Makes the directory again, where somebody has removed it.
    pub(super) fn make(&self) -> Result<(), Failure> {
        if self.path.is_dir() {
            return Ok(());
        }
        let mode = self.config.directory_mode();
        let made = fs::DirBuilder::new().recursive(true).mode(mode.as_raw_mode()).create(&self.path);
        made.map_err(|cause| cannot("create", &self.path, errno(&cause)))?;
        if self.config.is_shared() {
            let set = rustix::fs::chmodat(CWD, &self.path, mode, rustix::fs::AtFlags::empty());
            set.map_err(|cause| cannot("set the mode of", &self.path, cause))?;
        }
        // Fences are durable only when the directory that holds them is.
        if let Some(parent) = self.path.parent() {
            sync_directory(parent)?;
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where a resource lies. Capital letters are escaped as well, for file systems that fold them.
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

    /// Names the present run of this machine's kernel.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    pub(super) fn medium(&self) -> Medium {
        self.medium
    }

    /// On a network file system the kernel's locks on FIFOs do not reach other machines: each machine would
    /// see the claims of the other as dead. So a store there belongs to the first machine that uses it.
    fn claim_for_this_machine(&self) -> Result<(), Failure> {
        let path = self.path.join("machine");
        let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let node = rustix::system::uname();
        let this = format!("{} {}\n", id.trim(), node.nodename().to_string_lossy());
        let made = fs::File::create_new(&path).and_then(|mut file| {
            use std::io::Write;
            file.write_all(this.as_bytes())
        });
        match made {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                match fs::read_to_string(&path) {
                    Ok(found) if found == this => Ok(()),
                    Ok(_) => Err(unsupported(
                        &path,
                        "says that another machine uses this store, and files cannot keep two machines apart: \
                     use a lock server, or remove the file when the other machine is done for good",
                    )),
                    Err(cause) => Err(cannot("read", &path, errno(&cause))),
                }
            }
            Err(cause) => Err(cannot("create", &path, errno(&cause))),
        }
    }
}

/// What a store lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// It outlives the machine's restart.
    Disk,
    /// It does not.
    Memory,
    /// It lies on another machine.
    Network,
}

/// Refuses a directory that somebody else may have put there.
fn judge(path: &Path) -> Result<fs::Metadata, Failure> {
    let look =
        |path: &Path| fs::symlink_metadata(path).map_err(|cause| cannot("look at", path, errno(&cause)));
    let found = look(path)?;
    let parent = match path.parent() {
        Some(parent) => fs::metadata(parent).map_err(|cause| cannot("look at", parent, errno(&cause)))?,
        None => {
            return Err(unsupported(path, "is the root of the file system: name a directory for the store"));
        }
    };
    let anybody_could = parent.mode() & 0o002 != 0;
    if anybody_could && found.is_symlink() {
        return Err(denied(
            path,
            "is a symbolic link in a directory that everybody may write to: name the directory itself",
        ));
    }
    let found = if found.is_symlink() {
        fs::metadata(path).map_err(|cause| cannot("look at", path, errno(&cause)))?
    } else {
        found
    };
    if !found.is_dir() {
        return Err(foreign(path, "is not a directory: name another one for the store"));
    }
    if anybody_could && !is_trusted_owner(found.uid()) {
        return Err(denied(
            path,
            "belongs to another user and lies in a directory that everybody may write to: \
             put a shared store where only its owner can create it",
        ));
    }
    Ok(found)
}

/// Whether what this user owns cannot have been put there by somebody hostile.
pub(super) fn is_trusted_owner(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Makes what was created in or renamed into a directory survive a power failure.
pub(super) fn sync_directory(path: &Path) -> Result<(), Failure> {
    let opened = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = match opened {
        Ok(directory) => directory,
        // A parent that may be searched but not read: the file system does it in its own time.
        Err(Errno::ACCESS) => return Ok(()),
        Err(cause) => return Err(cannot("open", path, cause)),
    };
    match rustix::fs::fsync(&directory) {
        // Some file systems cannot do it for directories, because they need not.
        Ok(()) | Err(Errno::INVAL | Errno::ROFS) => Ok(()),
        Err(cause) => Err(cannot("write through", path, cause)),
    }
}

pub(super) fn errno(cause: &std::io::Error) -> Errno {
    Errno::from_io_error(cause).unwrap_or(Errno::IO)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
}

/// Leaves room under the 255 bytes that a file name may have.
const MAX_NAME: usize = 200;

/// What the kernel wrote to files before it was restarted may be lost, so a ledger is worth something only on
/// the boot that wrote it.
fn boot_id() -> Result<String, Failure> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|cause| {
        unsupported(path, "cannot be read, and the file store needs it to notice a restart: mount /proc")
            .because(cause)
    })?;
    Ok(id.trim().to_owned())
}

/// The number of the file system that a path lies on.
fn system_number(path: &Path) -> Result<u32, Failure> {
    let found = rustix::fs::statfs(path).map_err(|cause| cannot("look at", path, cause))?;
    // The width of the field differs from platform to platform; the numbers have 32 bits.
    #[allow(clippy::unnecessary_cast)]
    Ok(found.f_type as u32)
}

/// tmpfs and ramfs.
const MEMORY_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58F6];

/// The numbers of statfs(2). FUSE is among them because what is behind it cannot be known, and most often is a network.
const NETWORK_SYSTEMS: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x564C, "NCP"),
    (0x786F_4256, "VirtualBox"),
    (0xBACB_ACBC, "VMware"),
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use leasehold_core::FailureKind;

    use super::*;

    fn open(path: &Path) -> Result<Root, Failure> {
        Root::open(FileConfig::new(path))
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_made_with_its_parents_for_this_user_alone() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        open(&path).unwrap();
        assert_eq!(mode_of(&path), 0o700);
        let shared = base.path().join("shared");
        Root::open(FileConfig::new(&shared).mode(0o666).unwrap()).unwrap();
        assert_eq!(mode_of(&shared), 0o777);
    }

    #[test]
    fn what_anybody_could_have_put_there_is_refused() {
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
    fn a_file_is_no_store() {
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
        let refused = root.settle_on(0x6969).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unsupported);
        assert!(
            refused.detail().contains("(NFS)") && refused.detail().contains("network=force"),
            "{refused}"
        );
        let mut forced = Root::open(FileConfig::new(base.path()).network(Network::Force)).unwrap();
        forced.settle_on(0x6969).unwrap();
        forced.settle_on(0x6969).unwrap();
        assert_eq!(forced.medium(), Medium::Network);
        fs::write(base.path().join("machine"), "other\n").unwrap();
        assert_eq!(forced.settle_on(0x6969).unwrap_err().kind, FailureKind::Unsupported);
    }
}
