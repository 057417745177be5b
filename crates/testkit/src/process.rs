//! One server program as a child process that can be stopped, killed and started again.
//!
//! Ground rules: a child is always ended before its test is, no matter how the test ends. Drop kills it;
//! and if the test's own process is killed, its guardian does: a shell that waits at the end of a pipe
//! which only the test's process keeps open. (The kernel's parent-death signal would end a server with the
//! *thread* that started it, and needs unsafe code.) A child is a process group of its own, so that Ctrl-C
//! in a terminal does not reach it before the test, and so that its helper processes end with it.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::directory::Directory;
use crate::error::{Error, cannot};

/// A server program, running or not, with the faults of a process as methods.
///
/// # Promises
/// - Every fault has happened when its method returns: a stopped process runs no more instruction, a killed
///   one is gone.
/// - Drop kills the process, stopped or not, and waits for its end.
/// - When the test's process ends without Drop (`kill -9`, abort, a static), the child is killed within
///   moments.
///
/// # Does not promise
/// Nothing here waits until a server is ready; that is the business of the server's own type.
#[derive(Debug)]
pub struct Process {
    // Dropped in this order: the process ends before its directory goes.
    running: Mutex<Option<Running>>,
    program: PathBuf,
    args: Vec<OsString>,
    directory: Directory,
}

impl Process {
    /// Starts `program` in `directory`, which it owns, stdout and stderr appended to the log there, stdin
    /// empty.
    ///
    /// # Errors
    /// When no process can be started. A program that starts and then fails is seen by [`Process::exited`].
    pub fn spawn<A: Into<OsString>>(
        program: &Path,
        args: impl IntoIterator<Item = A>,
        directory: Directory,
    ) -> Result<Self, Error> {
        let process = Self {
            program: program.to_path_buf(),
            args: args.into_iter().map(Into::into).collect(),
            directory,
            running: Mutex::new(None),
        };
        process.start()?;
        Ok(process)
    }

    /// Starts a program as [`Process::spawn`] does, or a launcher with the program and its arguments as its own.
    pub(crate) fn spawn_by(
        launcher: Option<&Path>,
        program: &Path,
        args: impl IntoIterator<Item = OsString>,
        directory: Directory,
    ) -> Result<Self, Error> {
        match launcher {
            None => Process::spawn(program, args, directory),
            Some(launcher) => {
                Process::spawn(launcher, [program.as_os_str().to_owned()].into_iter().chain(args), directory)
            }
        }
    }

    /// Starts it again, with the same arguments, after it was killed, terminated or has exited.
    pub fn start(&self) -> Result<(), Error> {
        let mut running = self.running();
        if running.as_ref().is_some_and(|running| !running.has_exited()) {
            return Err(Error::failed(format!("{} is running already", self.program.display())));
        }
        *running = None;
        *running = Some(Running::spawn(self)?);
        Ok(())
    }

    /// Returns the directory in which it runs, with its log.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the process id, unless it was killed, terminated, or seen to have exited.
    pub fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(|running| running.child.id())
    }

    /// Returns how it ended, if it did so by itself since it was started. Returned once.
    pub fn exited(&self) -> Option<ExitStatus> {
        let mut running = self.running();
        let ended = running.take_if(|running| running.has_exited())?;
        ended.end().ok()
    }

    /// Stops it (SIGSTOP): connections stay open, and nothing answers. Its helper processes continue.
    ///
    /// # Errors
    /// When it has not stopped within a minute, or does not run.
    pub fn stop(&self) -> Result<(), Error> {
        self.with_running("stop", |running| {
            // The process alone, not its group: a process that waits for a helper of its own to begin cannot
            // stop before that has begun, and would never, were the helper stopped first.
            stop(&running.child)
        })
    }

    /// Continues it after [`Process::stop`] (SIGCONT). Does nothing to a process that is not stopped.
    pub fn resume(&self) -> Result<(), Error> {
        self.with_running("resume", |running| running.signal(Signal::CONT))
    }

    /// Kills it (SIGKILL), stopped or not, and waits until it is gone. A process that is not running stays
    /// so.
    pub fn kill(&self) -> Result<(), Error> {
        match self.running().take() {
            Some(running) => running.end().map(drop).map_err(cannot("kill", self.program.display())),
            None => Ok(()),
        }
    }

    /// Asks it to end (SIGTERM), continuing it first if it is stopped, and waits for that at most a minute.
    ///
    /// Blocks the calling thread meanwhile. A process that is not running stays so.
    ///
    /// # Errors
    /// When it has not ended in time. It is left running then.
    pub fn terminate(&self) -> Result<(), Error> {
        let mut slot = self.running();
        let Some(running) = slot.as_ref() else { return Ok(()) };
        let name = self.program.display();
        let asked = running.signal(Signal::TERM).and_then(|()| running.signal(Signal::CONT));
        asked
            .and_then(|()| await_change(running.pid(), WaitIdOptions::EXITED))
            .map_err(cannot("terminate", &name))?;
        match slot.take() {
            Some(running) => running.end().map(drop).map_err(cannot("wait for", &name)),
            None => Ok(()),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // A panic of another test thread leaves the slot whole: each change of it is one assignment.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_running(
        &self,
        doing: &str,
        fault: impl FnOnce(&Running) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        let running = self.running();
        let name = self.program.display();
        let running = running.as_ref().filter(|running| !running.has_exited());
        let running = running.ok_or_else(|| Error::failed(format!("cannot {doing} {name}: not running")))?;
        fault(running).map_err(cannot(doing, name))
    }
}

/// Stops a child process (SIGSTOP), and returns when none of its threads runs any more.
///
/// Sending the signal is not enough: it has an effect when one thread of the process gets to run and takes
/// it, and until then the other threads continue. On a busy machine that takes milliseconds.
///
/// # Errors
/// When it has not stopped within a minute, or has been waited for.
pub fn stop(child: &Child) -> std::io::Result<()> {
    let pid = Pid::from_child(child);
    rustix::process::kill_process(pid, Signal::STOP)?;
    await_change(pid, WaitIdOptions::STOPPED | WaitIdOptions::EXITED)
}

fn await_change(pid: Pid, changes: WaitIdOptions) -> std::io::Result<()> {
    let deadline = Instant::now() + CHANGE_LIMIT;
    while !has_changed(pid, changes) {
        if Instant::now() > deadline {
            return Err(std::io::Error::other(format!("nothing happened within {CHANGE_LIMIT:?}")));
        }
        std::thread::sleep(CHANGE_PAUSE);
    }
    Ok(())
}

/// Returns `true` if the state of a child has changed so, without taking the change, so that the number
/// stays reserved until the child is waited for.
fn has_changed(pid: Pid, changes: WaitIdOptions) -> bool {
    let options = changes | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// Runs a program to its end, off the runtime's threads, and returns what it wrote.
pub(crate) async fn output(name: &'static str, command: Command) -> Result<String, Error> {
    let ended = tokio::task::spawn_blocking(move || output_here(name, command)).await;
    ended.map_err(cannot("wait for", name))?
}

/// Runs a command as [`output`] does, in this thread.
pub(crate) fn output_here(name: &str, command: Command) -> Result<String, Error> {
    output_within(name, command, OUTPUT_LIMIT)
}

/// Runs a command in this thread, and kills it with its helpers if it has not ended in time.
fn output_within(name: &str, mut command: Command, limit: Duration) -> Result<String, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(cannot("start", name))?;
    let pipes = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let text = |pipe: Receiver<String>| pipe.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    let (Ok(stdout), Ok(stderr)) = (text(pipes.0), text(pipes.1)) else {
        // It is not waited for yet, so the number of its group is still its own.
        rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL)
            .map_err(cannot("kill", name))?;
        child.wait().map_err(cannot("wait for", name))?;
        return Err(Error::failed(format!("{name} was not over within {limit:?}, and was killed")));
    };
    let status = child.wait().map_err(cannot("wait for", name))?;
    if !status.success() {
        return Err(Error::failed(format!("{name} failed with {status}: {}", stderr.trim())));
    }
    Ok(stdout)
}

/// Reads a pipe to its end in a thread of its own, and sends what it gave.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let ended = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        if !matches!(ended, Some(Err(_))) {
            // Nobody listens after the limit.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        }
    });
    text
}

/// The time that a program may take: more than a busy machine needs, and than the five minutes for which tests let
/// statements wait.
const OUTPUT_LIMIT: Duration = Duration::from_secs(600);
/// The time for which [`stop`] and [`Process::terminate`] wait: more than a busy machine takes.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);
const CHANGE_PAUSE: Duration = Duration::from_millis(1);

/// Reads the server's process group from the pipe, then waits for the pipe's end, and kills the group. If the
/// pipe ends before a number came, there never was a server.
const GUARDIAN: &str = "read -r group || exit 0; read -r _; kill -s KILL -- \"-$group\"";

/// A script that reports its number to the guardian before it becomes the server, so that no moment is
/// unguarded, whenever the test is killed. Redirecting its output closes its end of the pipe.
const INTRODUCE: &str = "echo $$; log=$1; shift; exec \"$@\" >>\"$log\" 2>&1";

/// A child that has not been waited for. While that is so its number cannot become another process's.
#[derive(Debug)]
struct Running {
    child: Child,
    guardian: Child,
    ended: bool,
}

impl Running {
    fn spawn(process: &Process) -> Result<Self, Error> {
        let mut guardian = Command::new("/bin/sh")
            .args(["-c", GUARDIAN, "leasehold-guardian"])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(cannot("start", "/bin/sh"))?;
        match Self::introduce(process, &guardian) {
            Ok(child) => Ok(Self { child, guardian, ended: false }),
            Err(cause) => {
                // It waits for a number that never comes. Its end is not this failure's cause, so not
                // reported.
                let _ = guardian.kill().and_then(|()| guardian.wait());
                Err(cannot("start", process.program.display())(cause))
            }
        }
    }

    fn introduce(process: &Process, guardian: &Child) -> std::io::Result<Child> {
        let pipe =
            guardian.stdin.as_ref().ok_or_else(|| std::io::Error::other("the guardian has no pipe"))?;
        Command::new("/bin/sh")
            .args(["-c", INTRODUCE, "leasehold-introduce"])
            .arg(process.directory.log_path())
            .arg(&process.program)
            .args(&process.args)
            .current_dir(process.directory.path())
            .stdin(Stdio::null())
            .stdout(pipe.as_fd().try_clone_to_owned()?)
            .process_group(0)
            .spawn()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(rustix::process::kill_process(self.pid(), signal)?)
    }

    fn has_exited(&self) -> bool {
        has_changed(self.pid(), WaitIdOptions::EXITED)
    }

    fn end(mut self) -> std::io::Result<ExitStatus> {
        self.kill_and_wait()
    }

    fn kill_and_wait(&mut self) -> std::io::Result<ExitStatus> {
        self.ended = true;
        rustix::process::kill_process_group(self.pid(), Signal::KILL)?;
        // The guardian goes before the child is waited for: afterwards its number may be another process's.
        self.guardian.kill()?;
        self.guardian.wait()?;
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended
            && let Err(cause) = self.kill_and_wait()
        {
            eprintln!("cannot kill server process {}: {cause}", self.child.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        Process::spawn(Path::new("/bin/sh"), ["-c", script], Directory::create("shell").unwrap()).unwrap()
    }

    fn state(pid: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "not seen within a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn output_goes_to_the_log_and_the_exit_is_seen_once() {
        let process = shell("echo out; echo err >&2; exit 3");
        until(|| process.resume().is_err().then_some(()));
        assert_eq!(until(|| process.exited()).code(), Some(3));
        assert_eq!(process.directory().log_tail(), "out\nerr");
        assert_eq!(process.exited(), None);
        assert_eq!(process.pid(), None);
    }

    #[test]
    fn stop_has_stopped_and_resume_continues() {
        let process = shell("while :; do :; done");
        let pid = process.pid().unwrap();
        for _ in 0..20 {
            process.stop().unwrap();
            assert_eq!(state(pid), Some('T'));
            process.resume().unwrap();
            until(|| (state(pid) == Some('R')).then_some(()));
        }
    }

    #[test]
    fn a_process_that_always_begins_helpers_can_be_stopped() {
        let process = shell("while :; do /bin/true; done");
        for _ in 0..200 {
            process.stop().unwrap();
            assert_eq!(state(process.pid().unwrap()), Some('T'));
            process.resume().unwrap();
        }
    }

    #[test]
    fn drop_ends_a_stopped_process_and_its_helpers() {
        let process = shell("sleep 1000 & echo $!; wait");
        let helper: u32 = until(|| process.directory().log_tail().trim().parse().ok());
        let pid = process.pid().unwrap();
        process.stop().unwrap();
        drop(process);
        assert_eq!(state(pid), None);
        until(|| matches!(state(helper), None | Some('Z')).then_some(()));
    }

    #[test]
    fn terminate_ends_a_stopped_process_too() {
        let process = shell("while :; do sleep 0.01; done");
        process.stop().unwrap();
        process.terminate().unwrap();
        assert_eq!(process.pid(), None);
        process.terminate().unwrap();
    }

    #[test]
    fn program_that_does_not_end_is_killed() {
        let run = |script: &str, limit: Duration| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            output_within("the script", command, limit)
        };
        let limit = Duration::from_secs(60);
        assert_eq!(run("echo out; echo err >&2", limit).unwrap(), "out\n");
        let failed = run("echo out; echo err >&2; exit 3", limit).unwrap_err().to_string();
        assert_eq!(failed, "the script failed with exit status: 3: err");
        // A helper keeps the pipes open.
        let late = run("sleep 1000 & sleep 1000", Duration::from_millis(200)).unwrap_err().to_string();
        assert_eq!(late, "the script was not over within 200ms, and was killed");
    }

    #[test]
    fn faults_on_an_ended_process_are_errors() {
        let process = shell("sleep 1000");
        process.kill().unwrap();
        let error = process.stop().unwrap_err().to_string();
        assert_eq!(error, "cannot stop /bin/sh: not running");
        process.start().unwrap();
        assert_eq!(process.start().unwrap_err().to_string(), "/bin/sh is running already");
    }
}
