//! The identity of this run of the kernel.

use std::{fs, io};

/// The file that names this run of the kernel.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Reads the identity of this run of the kernel.
///
/// Equal identities mean the same run of the kernel. Different ones do **not** mean a restart: LXC and
/// systemd-nspawn mount a random identity over the file of each container, so that processes of one kernel
/// read different ones.
///
/// # Errors
/// Those of reading the file, which a process without `/proc`, or with `ProcSubset=pid`, does not see. An
/// empty file is `InvalidData`.
pub fn boot_id() -> io::Result<String> {
    let id = fs::read_to_string(BOOT_ID)?;
    match id.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "the boot identity is empty")),
        id => Ok(id.to_owned()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_stable() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
