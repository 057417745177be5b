//! The service manager that has started this process, such as systemd, and reports to it, as `sd_notify(3)` does.
//!
//! Ground rules: a manager that is missing, or does not read, changes nothing and delays nothing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The socket of the service manager.
#[derive(Debug)]
pub(crate) struct ServiceManager(UnixDatagram);

impl ServiceManager {
    /// Returns the one that the environment names; none where no service manager has started this process.
    pub(crate) fn of_environment() -> Option<ServiceManager> {
        let address = std::env::var_os(NOTIFY_VARIABLE).filter(|address| !address.is_empty())?;
        let socket = UnixDatagram::unbound().ok()?;
        // What does not fit into its queue is dropped.
        socket.set_nonblocking(true).ok()?;
        connect(&socket, &address).ok()?;
        Some(ServiceManager(socket))
    }

    /// Sends assignments, one a line.
    pub(crate) fn send(&self, text: &str) {
        drop(self.0.send(text.as_bytes()));
    }
}

/// Returns the longest time between two messages to the watchdog of the service manager; `None` if it expects none.
pub(crate) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().ok());
    // The variables may be those of a parent, for which they were meant.
    if number("WATCHDOG_PID").is_some_and(|pid| pid != Some(std::process::id().into())) {
        return None;
    }
    number("WATCHDOG_USEC")?.filter(|time| *time > 0).map(Duration::from_micros)
}

#[cfg(target_os = "linux")]
fn connect(socket: &UnixDatagram, address: &OsStr) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;

    match address.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?),
        None => socket.connect(address),
    }
}

#[cfg(not(target_os = "linux"))]
fn connect(socket: &UnixDatagram, address: &OsStr) -> io::Result<()> {
    socket.connect(address)
}

/// The variable with the address of the service manager.
pub(crate) const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";
