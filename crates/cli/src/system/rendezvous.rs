//! The socket by which a keeper is found again.
//!
//! Ground rules: it has a name and no file, so nothing is left behind when its process is killed. The name is no
//! secret, and any process of the machine may connect: both sides check that the other one is a process of the same
//! user, or of root, before they read. A flood of connections may fill the backlog, so no connect waits in the kernel.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::Clock;
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
    UnixListener::bind(address(name)?)
}

/// Connects to the process that listens under a name. If its backlog is full, this tries again for a while.
///
/// # Errors
/// There is none, or it is one of another user. `WouldBlock`, if the backlog stayed full.
pub(crate) async fn connect(name: &str) -> io::Result<UnixStream> {
    let end = SystemClock.now().after(CONNECT_LIMIT);
    loop {
        match UnixStream::connect(address(name)?).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && SystemClock.now() < end => {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            connected => return trusted(connected?),
        }
    }
}

/// Returns `true` if a process listens under a name.
pub(crate) async fn is_listening(name: &str) -> bool {
    let Ok(address) = address(name) else { return false };
    match UnixStream::connect(address).await {
        Ok(stream) => trusted(stream).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
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

/// Returns the name as the kernel knows it: behind a zero byte it is not one of a file.
#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<String> {
    Ok(format!("\0leasehold-keeper-{name}"))
}

#[cfg(not(target_os = "linux"))]
fn address(_: &str) -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}

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
        assert!(!is_listening(&name).await);
        let listener = listen(&name).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut flood = Vec::new();
        while let Ok(stream) = UnixStream::connect(address(&name).unwrap()).await {
            flood.push(stream);
        }
        assert!(is_listening(&name).await);
        let accept = async {
            // The place of one that is accepted is free for another.
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(listener.accept().await.unwrap());
        };
        let (connected, ()) = tokio::join!(connect(&name), accept);
        connected.unwrap();
    }
}
