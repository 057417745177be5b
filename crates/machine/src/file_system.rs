//! The kind of file system that a path lies on.

use std::io;
use std::path::Path;

/// A kind of file system, by the events that its files survive and the machines that share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Its files outlive a restart of the machine, and only this machine has it mounted.
    Local,
    /// Its files are gone after a restart of the machine (tmpfs), or with the container whose upper layer
    /// it is (overlayfs).
    Fleeting,
    /// Several machines may have it mounted; this is its name.
    Network(&'static str),
}

impl FileSystem {
    /// Looks up the file system of an existing path. Symbolic links are followed.
    ///
    /// # Errors
    /// Those of statfs(2).
    pub fn of(path: &Path) -> io::Result<FileSystem> {
        #[cfg(target_os = "linux")]
        {
            let found = rustix::fs::statfs(path)?;
            // The width of the field differs from platform to platform; the numbers have 32 bits.
            #[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let number = found.f_type as u32;
            Ok(FileSystem::numbered(number))
        }
        #[cfg(not(target_os = "linux"))]
        {
            path.metadata().map(|_| FileSystem::Local)
        }
    }

    /// Names the file system with this number in `linux/magic.h`, or in the table of coreutils' `stat`
    /// where it is not in the kernel.
    pub fn numbered(number: u32) -> FileSystem {
        if FLEETING.contains(&number) {
            return FileSystem::Fleeting;
        }
        match NETWORK.iter().find(|(magic, _)| *magic == number) {
            Some((_, name)) => FileSystem::Network(name),
            None => FileSystem::Local,
        }
    }
}

/// tmpfs, ramfs and overlayfs.
const FLEETING: [u32; 3] = [0x0102_1994, 0x8584_58F6, 0x794C_7630];

/// FUSE is among them because it cannot be known what is behind it, and most often it is a network.
const NETWORK: &[(u32, &str)] = &[
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
    (0x2003_0528, "OrangeFS"),
    (0x7C7C_6673, "Parallels"),
    (0xBEEF_DEAD, "StorNext"),
    (0x0131_11A8, "IBRIX"),
    (0xA501_FCF5, "VxFS"),
    (0x6163_6673, "ACFS"),
];

/// Returns `true` if something is mounted at this path itself, as container runtimes do with a single file.
/// Symbolic links are followed.
///
/// Returns `false` where the system does not say: on Linux before 5.8, and on other systems.
pub fn is_mount(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        statx(CWD, path, AtFlags::empty(), StatxFlags::empty()).is_ok_and(|found| {
            let known = found.stx_attributes & found.stx_attributes_mask;
            known.contains(StatxAttributes::MOUNT_ROOT)
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_their_file_system() {
        assert_eq!(FileSystem::numbered(0x6573_5546), FileSystem::Network("FUSE"));
        assert_eq!(FileSystem::numbered(0x2003_0528), FileSystem::Network("OrangeFS"));
        assert_eq!(FileSystem::numbered(0x794C_7630), FileSystem::Fleeting);
        assert_eq!(FileSystem::numbered(0xEF53), FileSystem::Local, "ext4");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn mount_is_told_from_what_is_in_it() {
        // It is mounted on every Linux machine.
        assert!(is_mount(Path::new("/proc")));
        assert!(!is_mount(Path::new("/proc/version")) && !is_mount(Path::new("/proc/missing")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn symbolic_link_is_followed_to_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        // A file system that is on every Linux machine, and another one than that of the folder.
        std::os::unix::fs::symlink("/proc/version", &link).unwrap();
        let stat = |path: &Path| rustix::fs::statfs(path).unwrap().f_type;
        assert_ne!(stat(&link), stat(folder.path()));
        assert!(FileSystem::of(&folder.path().join("missing")).is_err());
    }
}
