//! The process for which a lock is held: the shell of a script, with the copies that it makes of itself.
//!
//! Ground rules: a process is known by a handle of the kernel and not by its id, which may be that of another
//! process once the shell has ended. The handle is opened while the shell is certainly alive.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Pid, Signal, getpid, getppid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::system::processes::{self, Identity, ancestors};

/// The processes that are waited for: one that is known from the beginning, and copies of it.
#[derive(Debug)]
pub(crate) struct Caller {
    handle: AsyncFd<OwnedFd>,
    copies: Vec<(Identity, AsyncFd<OwnedFd>)>,
}

/// The reason why no process can be watched.
#[derive(Debug)]
pub(crate) enum NoCaller {
    /// This process does not descend from it, or it has ended.
    NotAnAncestor,
    /// It is this process.
    Itself,
    Failed(io::Error),
}

/// Opens a handle of the script that has started this process, or of another ancestor.
///
/// # Errors
/// The process is not an ancestor; the operating system has no such handles.
pub(crate) fn open(pid: Option<Pid>) -> Result<OwnedFd, NoCaller> {
    if pid == Some(getpid()) {
        return Err(NoCaller::Itself);
    }
    let wanted = pid.or_else(|| scripts().last().copied()).ok_or(NoCaller::NotAnAncestor)?;
    let handle = handle_of(wanted).map_err(NoCaller::Failed)?;
    // An ancestor that is alive now was alive when its id was used: so the handle is that of the same process.
    let is_ancestor = ancestors(&processes::all(), getpid()).contains(&wanted);
    if is_ancestor { Ok(handle) } else { Err(NoCaller::NotAnAncestor) }
}

/// Returns the script that has started this process, as the last one, and before it the copies that the shell has
/// made of itself in between.
pub(crate) fn scripts() -> Vec<Pid> {
    getppid().map(|parent| with_copies(&processes::all(), parent)).unwrap_or_default()
}

/// Returns this process and the ancestors of which it is a copy. A shell forks for `$(…)`, for the members of a
/// pipeline and for subshells; such a copy can be recognised by its command line, which is that of its parent. A shell
/// that was started with the same command line as another program is recognised by the address of its stack.
fn with_copies(all: &[processes::Process], pid: Pid) -> Vec<Pid> {
    let mut copies = vec![pid];
    let mut script = pid;
    for parent in ancestors(all, script) {
        let at = |pid: Pid, what: &str| format!("/proc/{}/{what}", pid.as_raw_pid());
        let command = |pid| std::fs::read(at(pid, "cmdline")).ok().filter(|text| !text.is_empty());
        let program = |pid| std::fs::read_link(at(pid, "exe")).ok();
        let has_same_command = command(script).is_some_and(|one| command(parent) == Some(one));
        // A program that may not be read has none that is known. Too long is better than too short.
        let differs = |(one, other): (Option<_>, Option<_>)| one.is_some() && other.is_some() && one != other;
        let process = |pid| all.iter().find(|process| process.pid == pid);
        let is_no_fork =
            process(script).zip(process(parent)).is_some_and(|(one, other)| one.is_no_fork_of(other));
        if !has_same_command || is_no_fork || differs((program(script), program(parent))) {
            break;
        }
        copies.push(parent);
        script = parent;
    }
    copies
}

impl Caller {
    /// Watches the process of a handle. It needs a runtime.
    ///
    /// # Errors
    /// It is not a handle of a process.
    pub(crate) fn new(handle: OwnedFd) -> io::Result<Caller> {
        Ok(Caller { handle: register(handle)?, copies: Vec::new() })
    }

    /// Watches the parent of this process; `None` if that is not possible.
    pub(crate) fn parent() -> Option<Caller> {
        let parent = getppid()?;
        let handle = handle_of(parent).ok().filter(|_| getppid() == Some(parent))?;
        Caller::new(handle).ok()
    }

    /// Watches the copies of it that have started this process by way of `front`, its parent: a subshell in the
    /// background may outlive its script.
    pub(crate) fn with_copies_before(mut self, front: &Caller) -> Caller {
        let (own, (front, _)) = (self.identity().0, front.identity());
        let all = processes::all();
        let parent = all.iter().find(|process| process.pid == front).and_then(|process| process.parent);
        let copies = parent.map(|parent| with_copies(&all, parent)).unwrap_or_default();
        let opened: Vec<_> = copies
            .into_iter()
            .filter(|pid| *pid != own)
            .filter_map(|pid| Some((Identity::of(pid)?, handle_of(pid).ok()?)))
            .collect();
        // As in `open`. A copy that has ended meanwhile needs no watch.
        let living = ancestors(&processes::all(), getpid());
        self.copies = opened
            .into_iter()
            .filter(|(copy, _)| living.contains(&copy.pid))
            .filter_map(|(copy, handle)| Some((copy, register(handle).ok()?)))
            .collect();
        self
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

    /// Waits until it has ended, and all its copies.
    pub(crate) async fn ended(&self) {
        for handle in self.handles() {
            if handle.readable().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Sends a signal to it and to each copy that lives.
    pub(crate) fn signal(&self, signal: Signal) {
        for handle in self.handles() {
            // After its end there is nobody to notify.
            let _ = send(handle.get_ref(), signal);
        }
    }

    /// Returns a copy of the handle of the process itself.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.handle.get_ref().as_fd().try_clone_to_owned()
    }

    /// Returns the ids of all of them, for those that guess which lock is meant.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        self.copies.iter().map(|(copy, _)| copy.pid).chain([self.identity().0]).collect()
    }

    /// Returns all of them that live, such that none is mistaken for a later process.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        self.copies().into_iter().chain(Identity::of(self.identity().0)).collect()
    }

    /// Returns its copies.
    pub(crate) fn copies(&self) -> Vec<Identity> {
        self.copies.iter().map(|(copy, _)| *copy).collect()
    }

    fn handles(&self) -> impl Iterator<Item = &AsyncFd<OwnedFd>> {
        std::iter::once(&self.handle).chain(self.copies.iter().map(|(_, handle)| handle))
    }
}

// The replacement is an unsafe function; its requirement, a descriptor that stays open and the same while it is
// registered, is ensured here by the type, which owns its descriptor.
#[allow(deprecated)]
fn register(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(handle, Interest::READABLE)
}

/// Opens a handle of a process by its identity; `None` if it has ended.
pub(crate) fn handle_by(identity: Identity) -> Option<OwnedFd> {
    let handle = handle_of(identity.pid).ok()?;
    // If it has the identity now, the handle was opened while it lived.
    (Identity::of(identity.pid) == Some(identity)).then_some(handle)
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
