//! The starter: a process of this program that becomes the command as soon as the warden knows it.
//!
//! In the group of the caller, the warden has only the id of the command to end it by. The id exists after the start,
//! and leasehold may be killed in between. So the process waits at the end of a pipe until it is known. If the pipe
//! closes without a byte, leasehold was killed, and the process ends without having been the command.
//!
//! Ground rules: it changes nothing that the command inherits, and the command does not inherit its pipes.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::system::descriptors::{inheritable, take};
use crate::system::warden::own_program;

/// Leasehold's ends of the pipes to a starter.
#[derive(Debug)]
pub(crate) struct Starter {
    known: PipeWriter,
    failure: PipeReader,
}

impl Starter {
    /// Builds the start of a process that is going to become `file`, under this name, with these arguments. It has the
    /// other ends of the pipes, and they are open in this process until they are dropped.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(
        file: &Path,
        name: &OsStr,
        arguments: &[OsString],
    ) -> io::Result<(Starter, Command, Vec<OwnedFd>)> {
        let (its_known, known) = io::pipe()?;
        let (failure, its_failure) = io::pipe()?;
        let its_ends = inheritable(vec![its_known.into(), its_failure.into()])?;
        let mut command = Command::new(own_program()?);
        command.arg0(NAME).args(its_ends.iter().map(|end| end.as_raw_fd().to_string()));
        command.arg(file).arg(name).args(arguments);
        Ok((Starter { known, failure }, command, its_ends))
    }

    /// Lets the process become the command, and waits until it has.
    ///
    /// # Errors
    /// The command cannot be started; the process ends.
    pub(crate) fn proceed(mut self) -> io::Result<()> {
        // A process that has ended meanwhile was sent a signal, and is seen to have ended like the command itself.
        let _ = self.known.write_all(&[1]);
        let mut number = [0; size_of::<i32>()];
        match self.failure.read_exact(&mut number) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
            Err(_) => Ok(()),
        }
    }
}

/// Returns `true` if this process was started as a starter.
pub(crate) fn is_starter() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Waits until the process is known, and becomes the command. It returns only if that fails.
pub(crate) fn serve() -> u8 {
    let mut arguments = std::env::args_os().skip(1);
    let mut end = |options: &OpenOptions| {
        let number = arguments.next()?.to_str()?.parse().ok().filter(|number| *number > 2)?;
        take(number, options).map(File::from).ok()
    };
    let ends = (end(OpenOptions::new().read(true)), end(OpenOptions::new().append(true)));
    let (Some(mut known), Some(mut failure)) = ends else { return FAILED };
    let (Some(file), Some(name)) = (arguments.next(), arguments.next()) else { return FAILED };
    if known.read_exact(&mut [0; 1]).is_err() {
        return FAILED;
    }
    let error = Command::new(file).arg0(name).args(arguments).exec();
    let number = error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
    let _ = failure.write_all(&number.to_ne_bytes());
    FAILED
}

const NAME: &str = "lh-starter";
const FAILED: u8 = 126;
