//! The settings of a server, as values; no I/O.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio::sync::Semaphore;

/// The settings of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The store, as pages show it: without passwords.
    pub store: String,
    /// The addresses at which it listens.
    pub listen: Vec<Listen>,
    /// The file that holds the token; a file of this user in the runtime directory unless named.
    pub token_file: Option<PathBuf>,
    /// `true` if operators may revoke and break locks of others, through the console and the API.
    pub allow_actions: bool,
    /// Certificate and key. They count for TCP addresses; Unix sockets stay plain.
    pub tls: Option<TlsFiles>,
    /// Host names, beside `localhost` and addresses, under which the server may be called.
    pub allow_hosts: Vec<String>,
    /// The limits.
    pub limits: Limits,
    /// The time that holders have at shutdown to finish and release.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            store: String::new(),
            listen: vec![Listen::default()],
            token_file: None,
            allow_actions: false,
            tls: None,
            allow_hosts: Vec::new(),
            limits: Limits::default(),
            grace: Duration::from_secs(10),
        }
    }
}

/// The limits of a server; each has a clear error when it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Locks that are held at a time.
    pub holds: usize,
    /// Requests that wait for a lock at a time.
    pub waiters: usize,
    /// Open streams of holds.
    pub streams: usize,
    /// Open watches of locks and elections, and open pages of the console, together.
    pub watchers: usize,
    /// Open connections. There are fewer if the process cannot have twice as many files open.
    pub connections: usize,
    /// Requests a second of one address, on average.
    pub rate: u32,
    /// The longest wait of one request.
    pub wait: Duration,
    /// The longest ttl.
    pub ttl: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            holds: 10_000,
            waiters: 2_000,
            streams: 2_000,
            watchers: 2_000,
            connections: 5_000,
            rate: 1_000,
            wait: Duration::from_secs(300),
            ttl: Duration::from_secs(3600),
        }
    }
}

impl Limits {
    /// Returns the same limits for a process that can have so many files open. Connections get half of them; the others
    /// are for the store, for locks in files, and for connections that are refused. No limit is beyond what can be
    /// counted.
    pub(crate) fn within(self, files: usize) -> Limits {
        Limits {
            streams: self.streams.min(Semaphore::MAX_PERMITS),
            watchers: self.watchers.min(Semaphore::MAX_PERMITS),
            connections: self.connections.min(files / 2).min(Semaphore::MAX_PERMITS),
            ..self
        }
    }
}

/// The largest body of a request, in bytes.
pub(crate) const BODY_MAX: usize = 16 * 1024;
/// The same of a form of the console that names the holders of a lock, with 39 bytes for each.
pub(crate) const CLAIMS_MAX: usize = 1024 * 1024;
/// The largest path and query of a request, in bytes.
pub(crate) const URI_MAX: usize = 4 * 1024;

/// The files of the server's certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of certificates, the server's own first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// An address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// Returns `true` if only programs of this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        }
    }
}

impl Default for Listen {
    fn default() -> Listen {
        Listen::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7878))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Listen::Unix(path.into())),
                false => {
                    Err("the path of a Unix socket begins at the root, as in unix:/run/leasehold.sock".into())
                }
            };
        }
        let refused =
            |_| "this is not an address: write it like 127.0.0.1:7878, [::1]:7878 or unix:/path".to_owned();
        text.parse().map(Listen::Tcp).map_err(refused)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_and_a_wrong_one_is_explained() {
        assert_eq!("127.0.0.1:7878".parse(), Ok(Listen::default()));
        assert_eq!("unix:/run/a.sock".parse(), Ok(Listen::Unix("/run/a.sock".into())));
        assert!("unix:a".parse::<Listen>().unwrap_err().contains("at the root"));
        assert!("localhost".parse::<Listen>().unwrap_err().contains("127.0.0.1:7878"));
        for (text, is_local) in
            [("[::1]:1", true), ("0.0.0.0:1", false), ("unix:/a", true), ("10.0.0.1:1", false)]
        {
            assert_eq!(text.parse::<Listen>().unwrap().is_local(), is_local, "{text}");
        }
    }
}
