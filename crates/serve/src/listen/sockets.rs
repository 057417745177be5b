//! Sockets of both kinds, as one.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::Listen;
use crate::guard::{Peer, Trust};
use crate::holds::PeerEnd;

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener, Listen),
    /// The socket, and its file, which is removed at the end.
    Unix(UnixListener, Named),
}

/// The file of a Unix socket.
#[derive(Debug)]
pub(super) struct Named {
    path: PathBuf,
    /// The file system and the number of the file, by which it is told from one that took its name.
    identity: (u64, u64),
}

impl Named {
    fn of(path: &Path) -> io::Result<Named> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(Named { path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }
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
                // A server that starts at the same time must not take a file that does not listen yet for a stale one.
                let turn = turn(path).await;
                remove_stale(path).await.map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                let named = Named::of(path).map_err(failed)?;
                drop(turn);
                // Between the two calls others can at most connect, and then need the token for a change.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                Ok(Socket::Unix(listener, named))
            }
        }
    }

    pub(super) fn address(&self) -> Listen {
        match self {
            Socket::Tcp(_, address) => address.clone(),
            Socket::Unix(_, named) => Listen::Unix(named.path.clone()),
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
        // The listener is still open, so no server replaces the file now, and no other file has its number.
        if let Socket::Unix(_, named) = self
            && Named::of(&named.path).is_ok_and(|found| found.identity == named.identity)
        {
            let _ = std::fs::remove_file(&named.path);
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
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(stream, 2)?;
        sockopt::set_tcp_user_timeout(stream, SILENCE_MAX_MS)?;
    }
    Ok(())
}

/// Waits until no other server starts in the folder of this socket: the turn lasts until it is dropped.
///
/// Without a turn on a file system that has no such locks, in a folder that this user cannot read, and beside a
/// program that keeps the folder locked: anybody who can read it may.
async fn turn(path: &Path) -> Option<std::fs::File> {
    let folder = std::fs::File::open(path.parent()?).ok()?;
    for _ in 0..TURN_LOOKS {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(TURN_PAUSE).await,
            Err(_) => return None,
        }
    }
    None
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
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A server that is too busy, or that of another user, looks like this.
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!(
                "it cannot be told whether another server listens there ({error}): if none does, remove the file"
            ),
        )),
    }
}

/// The pause between two looks for a turn, and their number: ten seconds and more.
const TURN_PAUSE: Duration = Duration::from_millis(20);
const TURN_LOOKS: u32 = 500;
/// The time after which a peer that acknowledges nothing counts as gone. It counts from the first event that is not
/// acknowledged, so the pause between two events comes before it.
const SILENCE_MAX_MS: u32 = 15_000;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::net::sockopt;

    use super::*;

    #[tokio::test]
    async fn accepted_connection_notices_a_machine_that_is_gone() {
        let socket = Socket::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let Listen::Tcp(address) = socket.address() else { panic!("{socket:?}") };
        let (client, accepted) = tokio::join!(TcpStream::connect(address), socket.accept(false));
        let (Ok(_client), Ok(Accepted::Tcp(stream, _))) = (client, accepted) else { panic!("no connection") };
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(5));
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), Duration::from_secs(5));
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 2);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 15_000);
    }
}
