//! Loopback ports for servers that are started and started again.
//!
//! A port stays taken for as long as its value lives, also while nothing listens on it, so that a server
//! restarts on the same port. Ports are chosen below 32768, where the system's range for outgoing
//! connections begins: from that range on, any client's connection may take a port away while its server is
//! down.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::TcpSocket;

use crate::error::{Error, cannot};

/// A port of 127.0.0.1 that no other test of this user takes while this value lives.
///
/// # Promises
/// Test processes that use this kit never share a port: each port has a lock file in the temporary
/// directory, freed by the system when its process ends in any way.
///
/// # Does not promise
/// A program that does not use the kit may still take the port. A server that finds it taken is started
/// again on another one.
#[derive(Debug)]
pub struct Port {
    number: u16,
    lock: File,
}

impl Port {
    /// Takes a port that nothing listens on now.
    pub fn take() -> Result<Self, Error> {
        let span = u64::from(LAST - FIRST) + 1;
        let start = RandomState::new().hash_one(std::process::id()) % span;
        for step in 0..span {
            let number = FIRST + ((start + step) % span) as u16;
            if let Some(port) = Self::take_this(number)? {
                return Ok(port);
            }
        }
        Err(Error::failed(format!("no free port from {FIRST} to {LAST} on 127.0.0.1; end some servers")))
    }

    /// Takes a port, and the one that lies [`BUS_DISTANCE`] above it, for servers whose second port cannot be chosen.
    pub(crate) fn take_with_bus() -> Result<(Self, Self), Error> {
        for _ in 0..PAIR_ATTEMPTS {
            let port = Self::take()?;
            let bus = port.number.checked_add(BUS_DISTANCE).filter(|bus| *bus <= LAST);
            if let Some(bus) = bus.map(Self::take_this).transpose()?.flatten() {
                return Ok((port, bus));
            }
        }
        Err(Error::failed(format!("no two free ports {BUS_DISTANCE} apart on 127.0.0.1; end some servers")))
    }

    /// Takes this port, unless it is taken.
    fn take_this(number: u16) -> Result<Option<Self>, Error> {
        let path = lock_directory()?.join(number.to_string());
        let lock = File::options().write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(cannot("open", path.display()))?;
        let taken = lock.try_lock().is_ok() && is_free(number);
        Ok(taken.then_some(Self { number, lock }))
    }

    /// Returns the number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// Starts servers, again on other ports where another program took one of theirs meanwhile.
///
/// # Errors
/// The error of the last start.
pub(crate) async fn on_free_ports<T, F>(mut start: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut outcome = start().await;
    for _ in 1..START_ATTEMPTS {
        if !outcome.as_ref().is_err_and(Error::is_port_taken) {
            break;
        }
        outcome = start().await;
    }
    outcome
}

impl Drop for Port {
    fn drop(&mut self) {
        // Closing the file would leave the lock to a process that another thread starts just now, for a
        // moment. An error changes nothing: the close that follows frees the lock as well.
        let _ = self.lock.unlock();
    }
}

/// The distance of the second port of a server that does not let it be chosen.
pub(crate) const BUS_DISTANCE: u16 = 10_000;
/// Of the ports, a fifth have one that far above them.
const PAIR_ATTEMPTS: usize = 200;
const START_ATTEMPTS: usize = 5;
const FIRST: u16 = 20_000;
const LAST: u16 = 32_767;

/// Binds the port without listening on it: a process that another thread starts just now holds a copy of the
/// socket for a moment, and only a listening one would be in the server's way.
fn is_free(number: u16) -> bool {
    let bind = |socket: TcpSocket| {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, number)))
    };
    TcpSocket::new_v4().and_then(bind).is_ok()
}

/// Returns the directory of lock files: one directory a user, because a file of another user could not be
/// opened for locking. The files stay: removing one would let two processes lock two files of the same
/// name.
fn lock_directory() -> Result<PathBuf, Error> {
    let name = format!("leasehold-ports-{}", rustix::process::getuid().as_raw());
    let path = std::env::temp_dir().join(name);
    fs::create_dir_all(&path).map_err(cannot("create", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ports_held_at_once_differ_and_stay_below_the_ephemeral_range() {
        let ports: Vec<Port> = (0..50).map(|_| Port::take().unwrap()).collect();
        let numbers: HashSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 50);
        assert!(numbers.iter().all(|number| (FIRST..=LAST).contains(number)));
    }

    #[test]
    fn a_port_that_something_listens_on_is_not_free() {
        let port = Port::take().unwrap();
        let listener = std::net::TcpListener::bind(port.addr()).unwrap();
        assert!(!is_free(port.number()));
        drop(listener);
    }

    #[test]
    fn a_port_is_locked_while_its_value_lives_and_free_after() {
        let port = Port::take().unwrap();
        let path = lock_directory().unwrap().join(port.number().to_string());
        let other = File::options().write(true).open(path).unwrap();
        assert!(other.try_lock().is_err());
        drop(port);
        other.try_lock().unwrap();
    }
}
