//! Programs that a test writes, and then starts.
//!
//! The kernel starts no program that is open for writing ("Text file busy"). If a thread starts a process while another
//! thread writes a program, the new process has that file open, too, until its own program begins. So this process
//! never opens such a file: a process of its own writes it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, cannot};

/// Writes a program that can be started at once, also while other threads start processes.
///
/// # Errors
/// When the file cannot be written.
pub fn write_executable(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Error> {
    let write = || {
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()?;
        // Dropped behind the content, the pipe ends.
        let sent = writer.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(content.as_ref()));
        let status = writer.wait()?;
        sent?;
        if status.success() { Ok(()) } else { Err(std::io::Error::other(status.to_string())) }
    };
    write().map_err(cannot("write the program", path.display()))
}

/// Copies a program as [`write_executable`] writes one.
///
/// # Errors
/// When the file cannot be copied.
pub fn copy_executable(from: &Path, to: &Path) -> Result<(), Error> {
    let copy = || {
        let status = Command::new("cp").arg(from).arg(to).status()?;
        if status.success() { Ok(()) } else { Err(std::io::Error::other(status.to_string())) }
    };
    copy().map_err(cannot("copy the program to", to.display()))
}
