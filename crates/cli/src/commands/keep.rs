//! The keeper's side of `acquire`.
//!
//! Ground rules: until its report the keeper belongs to the job of the shell: Ctrl-C and Ctrl-Z reach it. From then on
//! it has a session of its own, without a terminal. If the report cannot be written, no process knows of the lock, and
//! the keeper releases it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::{Signal, setsid};
use tokio::net::UnixListener;

use crate::commands::acquire::Granted;
use crate::exit::{Exit, Problem};
use crate::output::status::{Sinks, Status};
use crate::output::stderr::Stderr;
use crate::process::keeper::{Keeper, message};
use crate::process::lock_hold::{LockHold, Taken};
use crate::request::Request;
use crate::request::args::hold::AcquireArgs;
use crate::request::store::{SECRET_VARIABLES, URL_VARIABLE};
use crate::system::caller::Caller;
use crate::system::descriptors;
use crate::system::keeper_socket;
use crate::system::processes::KEEPER_NAME;
use crate::system::script_fd::ScriptFd;
use crate::system::signals::Signals;
use crate::system::warden::Warden;

/// Returns `true` if this process was started as a keeper.
pub(crate) fn is_keeper() -> bool {
    std::env::args_os().next().is_some_and(|name| name == KEEPER_NAME)
}

/// Takes a name in the process table, where there would be that of the file.
pub(crate) fn take_name() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(NAME_OF_THREAD);
}

/// Runs the keeper, from its start to the end of its section.
///
/// # Errors
/// Those of `acquire`.
pub(crate) async fn keep(args: AcquireArgs) -> Result<Exit, Problem> {
    let cannot_start = |error| Problem::new(Exit::NotStarted, format!("cannot start a keeper: {error}"));
    descriptors::raise_limit();
    let handle = io::stdin().as_fd().try_clone_to_owned().map_err(cannot_start)?;
    let mut caller = Caller::new(handle).map_err(cannot_start)?;
    let front = Caller::parent();
    if let (Some(front), None) = (&front, args.pid) {
        caller = caller.with_copies_before(front);
    }
    let stderr = Stderr::start().map_err(cannot_start)?;
    let mut signals = Signals::listen().map_err(cannot_start)?;
    let kept = section(args, &caller, front, &mut signals, &stderr).await;
    if let Err(problem) = &kept {
        stderr.print_line(&problem.to_string());
    }
    stderr.flush().await;
    Ok(kept.unwrap_or_else(|problem| problem.exit))
}

async fn section(
    args: AcquireArgs,
    caller: &Caller,
    front: Option<Caller>,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Exit, Problem> {
    let (on_lost, follows_fd) = (args.on_lost.signal(), args.fd.is_some());
    let request = Request::of_section(args, caller)?;
    let status = Status::start(&request.name, Sinks::default())?;
    let mut gone = Box::pin(async {
        tokio::select! {
            () = caller.ended() => {}
            () = ended(front.as_ref()) => {}
            () = descriptors::withdrawn_stdout() => {}
        }
    });
    let opened = tokio::select! {
        biased;
        signal = signals.sent() => return Ok(Exit::by(signal)),
        () = &mut gone => return Ok(Exit::Lost),
        opened = request.store.open(request.note.clone()) => opened,
    };
    let locks = opened?;
    let taken = tokio::select! {
        biased;
        () = &mut gone => None,
        taken = LockHold::take(&request, &locks, signals, stderr, &status) => Some(taken),
    };
    // With it goes a descriptor.
    drop(gone);
    let kept = match taken {
        Some(Ok(Taken::Held(hold))) => {
            let section = Section { request: &request, caller, follows_fd, on_lost, stderr, status: &status };
            section.keep(hold, signals).await
        }
        Some(Ok(Taken::Interrupted(signal))) => Ok(Exit::by(signal)),
        Some(Err(problem)) => Err(problem),
        None => Ok(Exit::Lost),
    };
    // A claim that was abandoned while its grant was on its way is ended now.
    if !locks.close(CLOSE_LIMIT).await && kept.is_ok() {
        stderr
            .print_line("the store did not confirm the release; what is left in the store ends with its ttl");
    }
    kept
}

/// A section whose lock is held.
struct Section<'a> {
    request: &'a Request,
    caller: &'a Caller,
    /// `true` if the lock ends with a descriptor of the shell.
    follows_fd: bool,
    on_lost: Option<Signal>,
    stderr: &'a Stderr,
    status: &'a Status,
}

/// The connections of a keeper to the outside, from the moment on in which the shell knows of it.
struct Announced {
    listener: UnixListener,
    warden: Option<Warden>,
    script_fd: Option<ScriptFd>,
}

impl Section<'_> {
    async fn keep(self, hold: LockHold, signals: &mut Signals) -> Result<Exit, Problem> {
        match self.announce(&hold).await {
            Ok(Announced { listener, warden, script_fd }) => {
                let Section { request, caller, on_lost, stderr, status, .. } = self;
                let keeper = Keeper { request, caller, script_fd, on_lost, listener, warden, stderr, status };
                Ok(keeper.keep(hold, signals).await)
            }
            Err(error) => {
                hold.release_lock(self.request, false, self.stderr, self.status).await;
                Err(Problem::new(Exit::NotStarted, format!("cannot keep the lock: {error}")))
            }
        }
    }

    /// Makes this process a keeper, and reports that to the process that has started it.
    async fn announce(&self, hold: &LockHold) -> io::Result<Announced> {
        let socket = keeper_socket::draw();
        let listener = keeper_socket::listen(&socket)?;
        let warden = match self.on_lost {
            Some(signal) => {
                let warden = Warden::of_caller(hold.liveness_fds(), self.caller, signal)?;
                // Before the report: from then on the script relies on it, even if this process is stopped at once.
                warden.send(message(hold.end()));
                Some(warden)
            }
            None => None,
        };
        let script_fd = self.follows_fd.then(ScriptFd::new).transpose()?;
        // Nothing that is typed at the terminal of the script is meant for this process any more.
        let _ = setsid();
        let variables = hold.variables(self.request).into_iter();
        // The shell keeps the store that it has, with its password.
        let variables =
            variables.filter(|(name, _)| *name != URL_VARIABLE && !SECRET_VARIABLES.contains(name));
        let granted = Granted {
            variables: variables.map(|(name, value)| (name.to_owned(), value)).collect(),
            locks: hold.states(self.request),
            callers: self.caller.processes().iter().map(|pid| pid.as_raw_pid()).collect(),
            tags: hold.own_tags(),
            socket,
            descriptor: script_fd.as_ref().map(ScriptFd::path),
        };
        let report = serde_json::to_vec(&granted)?;
        // Nothing may fail once the shell knows of the lock.
        let nowhere = File::options().write(true).open("/dev/null")?;
        // A message of the wait comes before the script continues.
        self.stderr.flush().await;
        let is_script_s = self.is_stderr_of_script();
        io::stdout().write_all(&[&report[..], b"\n"].concat())?;
        io::stdout().flush()?;
        let _ = rustix::stdio::dup2_stdout(&nowhere);
        if !is_script_s {
            // A reader of it would wait for the end of this process, as `$(leasehold acquire … 2>&1)` does.
            let _ = rustix::stdio::dup2_stderr(&nowhere);
        }
        Ok(Announced { listener, warden, script_fd })
    }

    /// Returns `true` if the stderr of this process leads to the same place as that of the script.
    fn is_stderr_of_script(&self) -> bool {
        let (script, _) = self.caller.identity();
        let of_script = std::fs::metadata(format!("/proc/{script}/fd/2"));
        match (rustix::fs::fstat(io::stderr()), of_script) {
            (Ok(own), Ok(of_script)) => own.st_dev == of_script.dev() && own.st_ino == of_script.ino(),
            _ => false,
        }
    }
}

async fn ended(process: Option<&Caller>) {
    match process {
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(target_os = "linux")]
const NAME_OF_THREAD: &std::ffi::CStr = c"lh-keeper";
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
