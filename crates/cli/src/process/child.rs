//! The command while it runs.
//!
//! Ground rules: the command is started directly, with the streams of this
//! process and none of its other descriptors. It is waited for by its id and by nothing else, so that its
//! stops are seen too; after its end was seen, the id is no longer used.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};
use tokio::sync::oneshot;

use crate::process::environment::Variables;
use crate::request::program::Program;
use crate::system::starter::Starter;

/// A started command.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// The state of the child, if it has changed since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has ended.
    Ended(Ending),
    /// A signal has stopped it.
    Stopped(Signal),
}

/// The way in which it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(u8),
    /// A signal, by its number, since real-time signals have no name.
    Signal(i32),
}

impl Child {
    /// Starts `file` as `program`, with these variables set, or removed, in this group. A script that does not name its
    /// interpreter is run by `/bin/sh`, as by `execvp` and by a shell.
    ///
    /// # Errors
    /// Of the operating system; see [`Program::refusal`].
    pub(crate) async fn start(
        program: &Program,
        file: PathBuf,
        variables: Variables,
        group: Pid,
        stdin: fn() -> Stdio,
    ) -> io::Result<Child> {
        let spawn = move |mut command: Command| {
            command.process_group(group.as_raw_nonzero().get()).stdin(stdin()).spawn()
        };
        let by_shell = by_shell(program, &file, variables.clone());
        let command = command(program, file.clone(), variables);
        // Starting takes until the program is loaded, which a slow disk can delay: the lock has to be
        // renewed meanwhile.
        let started = on_blocking_thread(move || match spawn(command) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOEXEC) && is_script(&file) => {
                spawn(by_shell)
            }
            started => started,
        });
        started.await.map(|child| Child { pid: Pid::from_child(&child) })
    }

    /// Starts `file` as `program` in the group of the caller. The command does not begin before `known` has returned, nor
    /// if this process ends before that.
    ///
    /// # Errors
    /// As for [`Child::start`].
    pub(crate) async fn start_in_callers_group(
        program: &Program,
        file: PathBuf,
        variables: Variables,
        known: impl FnOnce(Pid),
    ) -> io::Result<Child> {
        let (starter, mut command, its_ends) = Starter::new(&file, program.name(), &program.arguments)?;
        set_variables(&mut command, variables);
        let started = on_blocking_thread(move || {
            let _its_ends = its_ends;
            command.spawn()
        });
        let mut process = started.await?;
        known(Pid::from_child(&process));
        let begun = on_blocking_thread(move || match starter.proceed() {
            Ok(()) => Ok(process),
            Err(error) => process.wait().and(Err(error)),
        });
        begun.await.map(|child| Child { pid: Pid::from_child(&child) })
    }

    /// Returns the id of the process, which must not be used once its end was seen.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the new state of the process; `None` where nothing has changed. It must not be called again after it has
    /// returned the end.
    pub(crate) fn change(&self) -> Option<Change> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(None) => return None,
                Ok(Some((_, status))) => return change_of(status),
                Err(rustix::io::Errno::INTR) => {}
                // The child was already waited for elsewhere, so its exit code is unknown.
                Err(_) => return Some(Change::Ended(Ending::Code(u8::MAX))),
            }
        }
    }
}

/// Builds the start of `file` as `program`, with these variables set, or removed.
pub(crate) fn command(program: &Program, file: PathBuf, variables: Variables) -> Command {
    let mut command = Command::new(file);
    command.arg0(program.name()).args(&program.arguments);
    set_variables(&mut command, variables);
    command
}

/// Builds the start of a script that does not name its interpreter.
fn by_shell(program: &Program, file: &Path, variables: Variables) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg(file).args(&program.arguments);
    set_variables(&mut command, variables);
    command
}

/// Returns `true` if a file that the system cannot execute may be a script: its first line is text, as POSIX says.
fn is_script(file: &Path) -> bool {
    let mut line = Vec::new();
    let read =
        File::open(file).and_then(|file| BufReader::new(file.take(FIRST_LINE)).read_until(b'\n', &mut line));
    read.is_ok() && !line.contains(&0) && !line.starts_with(b"\x7fELF")
}

fn set_variables(command: &mut Command, variables: Variables) {
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// Runs work that may block on a thread for that.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    // The pool of the runtime panics if the system has no thread left.
    std::thread::Builder::new().name("start".to_owned()).spawn(move || drop(done.send(work())))?;
    outcome.await.map_err(io::Error::other)?
}

fn change_of(status: WaitStatus) -> Option<Change> {
    if let Some(code) = status.exit_status() {
        return Some(Change::Ended(Ending::Code(u8::try_from(code).unwrap_or(u8::MAX))));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(Change::Ended(Ending::Signal(signal)));
    }
    let signal = status.stopping_signal()?;
    Some(Change::Stopped(Signal::from_named_raw(signal).unwrap_or(Signal::STOP)))
}

/// The number of bytes of a file that show whether it is text.
const FIRST_LINE: u64 = 256;
