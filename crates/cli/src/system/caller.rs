//! The process for which a lock is held: the shell of a script.
//!
//! Ground rules: it is known by a handle of the kernel and not by its id, which may be that of another process
//! once the shell has ended. The handle is opened while the shell is certainly alive.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Pid, Signal, getpid, getppid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::system::processes::{self, ancestors};

/// A process that is waited for.
#[derive(Debug)]
pub(crate) struct Caller {
    handle: AsyncFd<OwnedFd>,
}

/// The reason why no process can be watched.
#[derive(Debug)]
pub(crate) enum NoCaller {
    /// This process does not descend from it, or it has ended.
    NotAnAncestor,
    Failed(io::Error),
}

/// Opens a handle of the script that has started this process, or of another ancestor.
///
/// # Errors
/// The process is not an ancestor; the operating system has no such handles.
pub(crate) fn open(pid: Option<Pid>) -> Result<(Pid, OwnedFd), NoCaller> {
    let wanted = pid.or_else(script).ok_or(NoCaller::NotAnAncestor)?;
    let handle = handle_of(wanted).map_err(NoCaller::Failed)?;
    // An ancestor that is alive now was alive when its id was used: so the handle is that of the same process.
    let is_ancestor = ancestors(&processes::all(), getpid()).contains(&wanted);
    if is_ancestor { Ok((wanted, handle)) } else { Err(NoCaller::NotAnAncestor) }
}

/// Returns the script that has started this process. A shell forks for `$(…)` and for the members of a pipeline,
/// and such a copy ends soon; it can be recognised by its command line, which is that of its parent.
pub(crate) fn script() -> Option<Pid> {
    let (all, mut script) = (processes::all(), getppid()?);
    for parent in ancestors(&all, script) {
        let at = |pid: Pid, what: &str| format!("/proc/{}/{what}", pid.as_raw_pid());
        let command = |pid| std::fs::read(at(pid, "cmdline")).ok().filter(|text| !text.is_empty());
        let program = |pid| std::fs::read_link(at(pid, "exe")).ok();
        let has_same_command = command(script).is_some_and(|one| command(parent) == Some(one));
        // A program that may not be read has none that is known. Too long is better than too short.
        let differs = |(one, other): (Option<_>, Option<_>)| one.is_some() && other.is_some() && one != other;
        if !has_same_command || differs((program(script), program(parent))) {
            break;
        }
        script = parent;
    }
    Some(script)
}

impl Caller {
    /// Watches the process of a handle. It needs a runtime.
    ///
    /// # Errors
    /// It is not a handle of a process.
    pub(crate) fn new(handle: OwnedFd) -> io::Result<Caller> {
        Ok(Caller { handle: register(handle)? })
    }

    /// Watches the parent of this process; `None` if that is not possible.
    pub(crate) fn parent() -> Option<Caller> {
        let parent = getppid()?;
        let handle = handle_of(parent).ok().filter(|_| getppid() == Some(parent))?;
        Caller::new(handle).ok()
    }

    /// Returns its id and its name, for people; those of this process if they cannot be found out.
    pub(crate) fn identity(&self) -> (Pid, String) {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.handle.as_raw_fd()));
        let about = about.unwrap_or_default();
        let id =
            about.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|id| id.trim().parse().ok());
        let pid = id.filter(|id| *id > 0).and_then(Pid::from_raw).unwrap_or_else(getpid);
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default();
        (pid, name.trim_end().to_owned())
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        if self.handle.readable().await.is_err() {
            std::future::pending().await
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // After its end there is nobody to notify.
        let _ = send(self.handle.get_ref(), signal);
    }

    /// Returns a copy of the handle.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.handle.get_ref().as_fd().try_clone_to_owned()
    }
}

// The replacement is an unsafe function; its requirement, a descriptor that stays open and the same while it is
// registered, is ensured here by the type, which owns its descriptor.
#[allow(deprecated)]
fn register(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(handle, Interest::READABLE)
}

#[cfg(target_os = "linux")]
fn handle_of(pid: Pid) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// Sends a signal to the process of a handle.
///
/// # Errors
/// It has ended, or may not be sent signals.
#[cfg(target_os = "linux")]
pub(crate) fn send(handle: impl AsFd, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(handle, signal)?)
}

#[cfg(not(target_os = "linux"))]
fn handle_of(_: Pid) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sends a signal to the process of a handle.
///
/// # Errors
/// Always: handles of processes are for Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn send(_: impl AsFd, _: Signal) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
