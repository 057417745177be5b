//! The socket by which a keeper is found again.
//!
//! Ground rules: it has a name and no file, so nothing is left behind when its process is killed. The name is no
//! secret, and any process of the machine may connect: both sides check that the other one is a process of the same
//! user, or of root, before they read. A flood of connections may fill the backlog, so no connect waits in the kernel.
//! Names belong to a network namespace: in another one nothing can be said about the process, least of all that it
//! has ended.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::Clock;
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

/// The address of the socket of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketAddress {
    /// The name of the socket.
    name: String,
    /// The user of the process.
    user: u32,
    /// The network namespace of the process; zero if that is not known.
    network: u64,
}

impl SocketAddress {
    /// Returns the address at which this process, or another one like it, listens under a name.
    pub(crate) fn here(name: String) -> SocketAddress {
        SocketAddress { name, user: geteuid().as_raw(), network: network() }
    }

    /// Checks that the name means the same to this process as to the one that listens.
    fn reachable(&self) -> io::Result<()> {
        let own = network();
        match self.network == 0 || own == 0 || self.network == own {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::NetworkUnreachable, ELSEWHERE)),
        }
    }

    /// Returns the connection if the other side may be trusted.
    fn trusted(&self, stream: UnixStream) -> io::Result<UnixStream> {
        let is_own = self.user == geteuid().as_raw();
        trusted(stream).map_err(|error| match error.kind() {
            // The process has ended, and somebody else has taken its name.
            io::ErrorKind::PermissionDenied if is_own => io::ErrorKind::ConnectionRefused.into(),
            _ => error,
        })
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.name, self.user, self.network)
    }
}

impl FromStr for SocketAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<SocketAddress, ()> {
        let mut parts = text.split('-');
        let (Some(name), Some(user), Some(network), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let (user, network) = (user.parse().map_err(drop)?, network.parse().map_err(drop)?);
        is_drawn(name).then(|| SocketAddress { name: name.to_owned(), user, network }).ok_or(())
    }
}

/// Returns the network namespace of this process; zero if that is not known.
fn network() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map(|found| found.ino()).unwrap_or_default()
}

/// Draws the name of a new socket.
pub(crate) fn draw() -> String {
    // The keys of each hasher are drawn by the operating system.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// Returns `true` if the text may be such a name.
fn is_drawn(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Listens under a name.
///
/// # Errors
/// Of the operating system.
pub(crate) fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind(abstract_name(name)?)
}

/// Connects to the process at an address. If its backlog is full, this tries again for a while.
///
/// # Errors
/// There is none; it is of another user, or in another network namespace. `WouldBlock`, if the backlog stayed full.
pub(crate) async fn connect(address: &SocketAddress) -> io::Result<UnixStream> {
    address.reachable()?;
    let end = SystemClock.now().after(CONNECT_LIMIT);
    loop {
        match UnixStream::connect(abstract_name(&address.name)?).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && SystemClock.now() < end => {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            connected => return address.trusted(connected?),
        }
    }
}

/// Returns `false` if certainly no process listens at an address.
pub(crate) async fn may_listen(address: &SocketAddress) -> bool {
    let Ok(name) = abstract_name(&address.name) else { return false };
    if address.reachable().is_err() {
        return true;
    }
    match UnixStream::connect(name).await.and_then(|stream| address.trusted(stream)) {
        Ok(_) => true,
        Err(error) => !is_gone(&error),
    }
}

/// Returns `true` if nothing listens any more, or ended before its answer.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe | NotFound | UnexpectedEof)
}

/// Returns the connection if the other side may be trusted.
///
/// # Errors
/// It is a process of another user.
pub(crate) fn trusted(stream: UnixStream) -> io::Result<UnixStream> {
    let other = stream.peer_cred()?.uid();
    match other == geteuid().as_raw() || other == 0 {
        true => Ok(stream),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user")),
    }
}

/// Sends bytes, and a descriptor with them, without waiting.
///
/// # Errors
/// `WouldBlock`, if the other side has not read what was sent before; the other side is gone.
#[cfg(target_os = "linux")]
pub(crate) fn send_with(stream: &UnixStream, bytes: &[u8], fd: Option<OwnedFd>) -> io::Result<()> {
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use tokio::io::Interest;

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let sent = stream.try_io(Interest::WRITABLE, || {
        Ok(sendmsg(stream, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
    });
    if sent? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Waits for bytes, and receives a descriptor that comes with them. No bytes are the end.
///
/// # Errors
/// Of the operating system.
#[cfg(target_os = "linux")]
pub(crate) async fn receive_with(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    use std::mem::MaybeUninit;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tokio::io::Interest;

    loop {
        stream.readable().await?;
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = stream.try_io(Interest::READABLE, || {
            let mut parts = [io::IoSliceMut::new(&mut bytes)];
            Ok(recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes)
        });
        let count = match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            received => received?,
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        return Ok((bytes[..count].to_vec(), fd));
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn send_with(_: &UnixStream, _: &[u8], _: Option<OwnedFd>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn receive_with(_: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the name as the kernel knows it: with a zero byte before it, it is in the abstract namespace, and is not
/// one of a file.
#[cfg(target_os = "linux")]
fn abstract_name(name: &str) -> io::Result<String> {
    Ok(format!("\0leasehold-keeper-{name}"))
}

#[cfg(not(target_os = "linux"))]
fn abstract_name(_: &str) -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}

const ELSEWHERE: &str = "it is in another network namespace, and can be reached only from there";
/// The time for which a full backlog is tried again.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_another() {
        let (one, other) = (draw(), draw());
        assert!(is_drawn(&one) && is_drawn(&other) && one != other);
        assert!(!is_drawn("") && !is_drawn(&one[1..]) && !is_drawn(&one.replace(|_| true, "/")));
    }

    #[test]
    fn text_of_an_address_reads_back() {
        let address = SocketAddress::here(draw());
        assert_eq!(address.to_string().parse(), Ok(address.clone()));
        let name = &address.name;
        for nonsense in [name.clone(), format!("{name}-1"), format!("{name}-1-2-3"), format!("{name}-x-1")] {
            assert!(nonsense.parse::<SocketAddress>().is_err(), "{nonsense}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn address_in_another_network_is_never_said_to_be_free() {
        let address = SocketAddress { network: network() + 1, ..SocketAddress::here(draw()) };
        assert!(may_listen(&address).await);
        let error = connect(&address).await.unwrap_err();
        assert!(!is_gone(&error), "{error}");
        // Where it is not known, the name decides.
        let unknown = SocketAddress { network: 0, ..address };
        assert!(!may_listen(&unknown).await && is_gone(&connect(&unknown).await.unwrap_err()));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn descriptor_travels_with_the_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        send_with(&one, b"held\n", Some(writer.into())).unwrap();
        send_with(&one, b"wait\n", None).unwrap();
        drop(one);
        let (mut bytes, fd) = receive_with(&other).await.unwrap();
        if bytes == b"held\n" {
            bytes.extend(receive_with(&other).await.unwrap().0);
        }
        assert_eq!(bytes, b"held\nwait\n");
        let mut writer = std::fs::File::from(fd.unwrap());
        io::Write::write_all(&mut writer, b"x").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(reader).unwrap(), "x");
        assert_eq!(receive_with(&other).await.unwrap().0, b"");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn full_backlog_blocks_no_connect() {
        let name = draw();
        let address = SocketAddress::here(name.clone());
        assert!(!may_listen(&address).await);
        let listener = listen(&name).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut flood = Vec::new();
        while let Ok(stream) = UnixStream::connect(abstract_name(&name).unwrap()).await {
            flood.push(stream);
        }
        assert!(may_listen(&address).await);
        let accept = async {
            // A connection that is accepted makes room for another.
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(listener.accept().await.unwrap());
        };
        let (connected, ()) = tokio::join!(connect(&address), accept);
        connected.unwrap();
    }
}
