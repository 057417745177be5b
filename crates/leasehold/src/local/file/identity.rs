//! The file that a name or a descriptor leads to.

use rustix::fs::Stat;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    // The widths differ from platform to platform.
    #[allow(clippy::unnecessary_cast)]
    pub(super) fn of(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}
