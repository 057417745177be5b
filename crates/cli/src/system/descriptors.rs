//! Descriptors that this process was started with, by their numbers.
//!
//! Ground rules: a number is looked at once, while the command line is read: later it may be the number of something
//! else. Whatever this process opens is marked to be closed by an `exec`, and whatever it has inherited is not. So a
//! number with the mark counts as not open: the fork of `run` comes first. The command inherits none of them.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A descriptor that was open when this process was started. This process now owns the only copy of it.
#[derive(Clone, Debug)]
pub(crate) struct InheritedFd(Arc<OwnedFd>);

impl InheritedFd {
    /// Returns a copy.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

impl FromStr for InheritedFd {
    type Err = String;

    fn from_str(text: &str) -> Result<InheritedFd, String> {
        let complaint = || format!("\"{text}\" is not the number of a descriptor, such as 3 for 3>FILE");
        let number: i32 = text.parse().map_err(|_| complaint())?;
        let taken = match number {
            1 => io::stdout().as_fd().try_clone_to_owned(),
            2 => io::stderr().as_fd().try_clone_to_owned(),
            3.. => inherited(number).and_then(|()| take(number, OpenOptions::new().append(true))),
            _ => return Err(complaint()),
        };
        let taken = taken.and_then(|fd| writable(&fd).map(|()| fd));
        taken.map(|fd| InheritedFd(Arc::new(fd))).map_err(|error| {
            format!("descriptor {number} cannot be written to ({error}): open it before, as in {number}>FILE")
        })
    }
}

/// Requires that this process has not opened the descriptor itself.
///
/// # Errors
/// It has.
fn inherited(number: i32) -> io::Result<()> {
    // Without such a file, no fork was made, and nothing is open.
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or_default();
    match flags & OFlags::CLOEXEC.bits() {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::BADF.into()),
    }
}

/// Waits until nobody reads what this process writes to stdout; for ever if that is not a pipe.
pub(crate) async fn unread_stdout() {
    #[cfg(target_os = "linux")]
    if let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned()
        && let Ok(stdout) = watched(stdout, tokio::io::Interest::ERROR)
        && stdout.ready(tokio::io::Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits until the other side of stdout, which writes nothing, has closed its direction; for ever if stdout is not a
/// connection.
pub(crate) async fn withdrawn_stdout() {
    #[cfg(target_os = "linux")]
    if let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned()
        && let Ok(stdout) = watched(stdout, tokio::io::Interest::READABLE)
        && stdout.ready(tokio::io::Interest::READABLE).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

// As in `caller.rs`: the type owns its descriptor.
#[cfg(target_os = "linux")]
#[allow(deprecated)]
fn watched(fd: OwnedFd, interest: tokio::io::Interest) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    tokio::io::unix::AsyncFd::with_interest(fd, interest)
}

/// Closes all descriptors that this process has inherited, except the three streams. It is called before this
/// process opens anything.
pub(crate) fn close_inherited() {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = listed.flatten().filter_map(|fd| fd.file_name().to_str()?.parse().ok()).collect();
    for number in numbers {
        // That of the list itself is among them, and is closed already.
        if number > 2 {
            let _ = nix::unistd::close(number);
        }
    }
}

/// Lets this process open as many descriptors as it may.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns the number of descriptors that this process can have open.
pub(crate) fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Makes the descriptors such that the next program inherits them.
///
/// # Errors
/// Of the operating system.
pub(crate) fn inheritable(fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    for fd in &fds {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    Ok(fds)
}

fn writable(fd: &OwnedFd) -> io::Result<()> {
    match fcntl_getfl(fd)?.intersects(OFlags::WRONLY | OFlags::RDWR) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is open for reading only")),
    }
}

/// Takes a descriptor over: it is closed under its number, and kept under another that no `exec` passes on. If it cannot
/// be copied, it is opened once more with these options.
///
/// # Errors
/// There is none with this number; no descriptor is left.
pub(crate) fn take(number: i32, options: &OpenOptions) -> io::Result<OwnedFd> {
    let copy = copy_of(number, options)?;
    let _ = nix::unistd::close(number);
    Ok(copy)
}

#[cfg(target_os = "linux")]
fn copy_of(number: i32, options: &OpenOptions) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;

    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let own = pidfd_open(getpid(), PidfdFlags::empty());
    // The number was free until now.
    if own.as_ref().is_ok_and(|own| own.as_raw_fd() == number) {
        return Err(rustix::io::Errno::BADF.into());
    }
    match own.and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty())) {
        Ok(fd) => Ok(fd),
        Err(error @ rustix::io::Errno::BADF) => Err(error.into()),
        // Some sandboxes forbid the call.
        Err(_) => reopened(number, options),
    }
}

#[cfg(not(target_os = "linux"))]
fn copy_of(number: i32, options: &OpenOptions) -> io::Result<OwnedFd> {
    reopened(number, options)
}

/// Opens what the descriptor leads to once more.
fn reopened(number: i32, options: &OpenOptions) -> io::Result<OwnedFd> {
    options.open(format!("/dev/fd/{number}")).map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn ends_of_a_pipe_work_when_they_are_opened_once_more() {
        let (reader, writer) = io::pipe().unwrap();
        let again = reopened(writer.as_raw_fd(), OpenOptions::new().append(true)).unwrap();
        drop(writer);
        File::from(again).write_all(b"go").unwrap();
        // Nobody writes any more, which does not delay it.
        let again = reopened(reader.as_raw_fd(), OpenOptions::new().read(true)).unwrap();
        let mut text = String::new();
        File::from(again).read_to_string(&mut text).unwrap();
        assert_eq!(text, "go");
    }
}
