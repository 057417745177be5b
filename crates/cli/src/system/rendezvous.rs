//! The socket by which a keeper is found again.
//!
//! Ground rules: it has a name and no file, so nothing is left behind when its process is killed. The name is no
//! secret: both sides check that the other one is a process of the same user, or of root.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

/// Draws the name of a new socket.
pub(crate) fn draw() -> String {
    // The keys of each hasher are drawn by the operating system.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// Returns `true` if the text may be such a name.
pub(crate) fn is_drawn(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Listens under a name.
///
/// # Errors
/// Of the operating system.
pub(crate) fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Connects to the process that listens under a name.
///
/// # Errors
/// There is none, or it is one of another user.
pub(crate) fn connect(name: &str) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect_addr(&address(name)?)?;
    stream.set_nonblocking(true)?;
    trusted(UnixStream::from_std(stream)?)
}

/// Returns the connection if the other side may be trusted.
///
/// # Errors
/// It is a process of another user.
pub(crate) fn trusted(stream: UnixStream) -> io::Result<UnixStream> {
    let other = stream.peer_cred()?.uid();
    match other == geteuid().as_raw() || other == 0 {
        true => Ok(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;

    std::os::unix::net::SocketAddr::from_abstract_name(format!("leasehold-keeper-{name}"))
}

#[cfg(not(target_os = "linux"))]
fn address(_: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_another() {
        let (one, other) = (draw(), draw());
        assert!(is_drawn(&one) && is_drawn(&other) && one != other);
        assert!(!is_drawn("") && !is_drawn(&one[1..]) && !is_drawn(&one.replace(|_| true, "/")));
    }
}
