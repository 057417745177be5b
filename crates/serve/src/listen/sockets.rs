//! Sockets of both kinds, as one.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::Listen;
use crate::guard::{Peer, Trust};
use crate::holds::PeerEnd;

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener, Listen),
    /// The socket, and its file, which is removed at the end.
    Unix(UnixListener, PathBuf),
}

/// An accepted connection.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(TcpStream, Peer),
    Unix(UnixStream, Peer),
}

impl Accepted {
    pub(super) fn peer(&self) -> &Peer {
        match self {
            Accepted::Tcp(_, peer) | Accepted::Unix(_, peer) => peer,
        }
    }
}

fn peer(ip: Option<IpAddr>, is_local: bool, is_tls: bool) -> Peer {
    Peer { ip, is_local, is_tls, end: PeerEnd::default(), trust: Trust::default() }
}

impl Socket {
    /// Opens a socket at this address.
    ///
    /// # Errors
    /// A text for people.
    pub(super) async fn bind(listen: &Listen) -> Result<Socket, String> {
        let failed =
            |error: io::Error| format!("cannot listen at {listen}: {error}; name another with --listen");
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                Ok(Socket::Tcp(listener, Listen::Tcp(address)))
            }
            Listen::Unix(path) => {
                remove_stale(path).await.map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                // Between the two calls others can at most connect, and then need the token for a change.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                Ok(Socket::Unix(listener, path.clone()))
            }
        }
    }

    pub(super) fn address(&self) -> Listen {
        match self {
            Socket::Tcp(_, address) => address.clone(),
            Socket::Unix(_, path) => Listen::Unix(path.clone()),
        }
    }

    pub(super) fn is_tcp(&self) -> bool {
        matches!(self, Socket::Tcp(..))
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Of the system.
    pub(super) async fn accept(&self, is_tls: bool) -> io::Result<Accepted> {
        let is_local = self.address().is_local();
        match self {
            Socket::Tcp(listener, _) => {
                let (stream, from) = listener.accept().await?;
                stream.set_nodelay(true)?;
                watch_for_silence(&stream)?;
                let ip = from.ip().to_canonical();
                Ok(Accepted::Tcp(stream, peer(Some(ip), is_local, is_tls)))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Unix(stream, peer(None, is_local, false)))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = self {
            // Another server may have replaced it; then this removes its name, and it says so when it starts again.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Lets the system notice a machine that is gone: without it a stream to that machine seems to be alive for
/// a quarter of an hour.
fn watch_for_silence(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(stream, std::time::Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(stream, std::time::Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 2)?;
        sockopt::set_tcp_user_timeout(stream, SILENCE_MAX_MS)?;
    }
    Ok(())
}

/// Removes the file of a socket that nobody listens at any more.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is not a socket has this name",
        ));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
        Err(_) => std::fs::remove_file(path),
    }
}

/// The time after which a peer that acknowledges nothing counts as gone.
const SILENCE_MAX_MS: u32 = 15_000;
