//! A real Redis (or Valkey) server with its faults as methods.
//!
//! The kit talks to its server over a unix socket as a user of its own, never over the port, so that it
//! works no matter what a test does to the network, to passwords and to users, and so that its own traffic
//! can be left out of what a test counts.

mod builder;
mod cluster;
mod counts;
mod nodes;
mod quorum;
mod resp;
mod sentinel;
mod until;
mod version;

pub use builder::{Appendonly, RedisBuilder, Tls};
pub use cluster::{RedisCluster, RedisClusterBuilder, SlotMove};
pub use counts::Counts;
pub use quorum::RedisQuorum;
pub use resp::Reply;
pub use sentinel::{RedisSentinel, RedisSentinelBuilder};

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::certificates::Certificates;
use crate::error::{Error, cannot};
use crate::port::Port;
use crate::process::Process;
use counts::Tally;
use resp::Connection;
use until::{Asking, until};

/// A Redis server of this test alone, on a free port of 127.0.0.1, without persistence unless asked for.
///
/// # Promises
/// - When a `start` returns, the server answers on its port and on its unix socket.
/// - The server is ended when this is dropped, and also when the test's process is killed.
/// - Its directory is removed then; after a panic it stays, and the end of its log is printed.
///
/// # Does not promise
/// A server in a `static` is never dropped by Rust: it is killed with the test's process, but its directory
/// stays.
#[derive(Debug)]
pub struct RedisServer {
    // Dropped in this order: the process ends before its ports are free for others.
    process: Process,
    port: Port,
    tls: Option<(Port, Certificates)>,
    password: Option<String>,
    appendonly: Appendonly,
    admin: Admin,
}

/// The fate of the data in a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// The data survive, as in an orderly restart.
    Keep,
    /// The data are gone, as after the loss of a disk, or a crash without persistence.
    Lose,
}

impl RedisServer {
    /// Options for a server.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// Starts a server with the default options.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Starts a server with the default options, or ends the test as skipped; see
    /// [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns `redis://…`, with the default user's password if it has one.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Returns the URL as [`RedisServer::url`] does, by way of another address: a
    /// [`Proxy`](crate::Proxy)'s.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        format!("redis://{}{addr}", self.password_part())
    }

    /// Returns `rediss://…`, where TLS was asked for.
    pub fn tls_url(&self) -> Option<String> {
        Some(self.tls_url_at(self.tls_addr()?))
    }

    /// Returns the URL as [`RedisServer::tls_url`] does, by way of another address, for which the
    /// certificate is good as well.
    pub fn tls_url_at(&self, addr: SocketAddr) -> String {
        format!("rediss://{}{addr}", self.password_part())
    }

    /// Returns `redis+unix:///path`, with the default user's password as `pass` if it has one.
    pub fn unix_url(&self) -> String {
        let pass = self.password.as_deref().map(|password| format!("?pass={}", percent_encode(password)));
        format!("redis+unix://{}{}", self.socket_path().display(), pass.unwrap_or_default())
    }

    /// Returns the address of the port without TLS.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Returns the number of the port without TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the address of the port with TLS, where TLS was asked for.
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls.as_ref().map(|(port, _)| port.addr())
    }

    /// Returns the certificates, where TLS was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Returns the authority's certificate that a TLS client must trust, where TLS was asked for.
    pub fn ca_path(&self) -> Option<&Path> {
        self.certificates().map(Certificates::ca_path)
    }

    /// Returns the unix socket, which the server always has.
    pub fn socket_path(&self) -> PathBuf {
        self.process.directory().path().join(SOCKET)
    }

    /// Returns the server's stdout and stderr.
    pub fn log_path(&self) -> PathBuf {
        self.process.directory().log_path()
    }

    /// Returns the server's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Stops the server (SIGSTOP): connections stay open, and nothing answers. See [`Process::stop`].
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()
    }

    /// Continues the server after [`RedisServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.process.resume()
    }

    /// Kills the server (SIGKILL), stopped or not, and waits until it is gone.
    ///
    /// [`RedisServer::restart`] brings it back: with [`Data::Keep`] on what its persistence had written.
    pub fn kill(&self) -> Result<(), Error> {
        self.process.kill()
    }

    /// Restarts the server on the same ports, running, stopped or killed, and waits until it answers.
    ///
    /// [`Data::Keep`] ends a running server in order and writes a snapshot where it has no persistence;
    /// [`Data::Lose`] kills it and removes what it had written. Users, scripts' cache and counters start anew
    /// either way, as they do in Redis; its run id changes. Blocks the calling thread while the server ends.
    pub async fn restart(&self, data: Data) -> Result<(), Error> {
        let mut snapshot = false;
        match data {
            Data::Keep if self.pid().is_some() => {
                self.resume()?;
                if self.appendonly == Appendonly::None {
                    // With a save point, the server writes its snapshot within its orderly end, so that no
                    // write comes between the two.
                    self.command(&["CONFIG", "SET", "save", "3600 1"]).await?;
                    snapshot = true;
                }
                self.process.terminate()?;
            }
            Data::Keep => {}
            Data::Lose => {
                self.process.kill()?;
                let path = self.data_path();
                std::fs::remove_dir_all(&path)
                    .and_then(|()| std::fs::create_dir(&path))
                    .map_err(cannot("empty", path.display()))?;
            }
        }
        *self.admin.connection.lock().await = None;
        *self.admin.tally() = Tally::default();
        self.process.start()?;
        self.ready().await?;
        if snapshot {
            // It has served. Left behind, it would bring old data back after a later kill.
            let path = self.data_path().join(SNAPSHOT);
            std::fs::remove_file(&path).map_err(cannot("remove", path.display()))?;
        }
        Ok(())
    }

    /// Removes all keys of all databases.
    pub async fn flushall(&self) -> Result<(), Error> {
        self.command(&["FLUSHALL"]).await.map(drop)
    }

    /// Sends one command on the kit's own connection, which may do everything, and returns its reply.
    ///
    /// For commands that answer at once, with one reply. It is left out of [`RedisServer::counts`].
    ///
    /// # Errors
    /// The server's error reply; no answer within 5 seconds, as from a stopped server; no connection.
    pub async fn command<W: AsRef<[u8]>>(&self, args: &[W]) -> Result<Reply, Error> {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        let asked = tokio::time::timeout(COMMAND_LIMIT, self.admin.ask(&self.socket_path(), &args)).await;
        asked.unwrap_or_else(|_| {
            let text = format!("redis did not answer within {COMMAND_LIMIT:?}; is it stopped?");
            Err(Error::unanswered(text))
        })
    }

    /// Returns the text of one field of `INFO everything`, such as `used_memory` or `cmdstat_set`.
    pub async fn info_field(&self, name: &str) -> Result<Option<String>, Error> {
        let info = self.info().await?;
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned()))
    }

    /// Waits up to a minute until so many replicas have everything that was written here before, over any
    /// connection. `WAIT` does not do that: it waits for what its own connection has written.
    pub async fn replicated(&self, replicas: usize) -> Result<(), Error> {
        let info = self.info().await?;
        let written = offset(&info, "master_repl_offset:")
            .ok_or_else(|| Error::failed("INFO has no master_repl_offset".to_owned()))?;
        let has_arrived = || -> Asking<'_, ()> {
            Box::pin(async move {
                let info = self.info().await?;
                let there =
                    info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online"));
                let there = there.filter_map(|line| offset(line, ",offset="));
                Ok((there.filter(|there| *there >= written).count() >= replicas).then_some(()))
            })
        };
        until(
            &format!("{replicas} replicas that have everything"),
            || self.process.directory().log_tail(),
            has_arrived,
        )
        .await
    }

    /// Returns what clients have done since the server started, without the kit's own part. See [`Counts`].
    pub async fn counts(&self) -> Result<Counts, Error> {
        let info = self.info().await?;
        let mut tally = self.admin.tally().clone();
        // The server counts a command when it is done, so this INFO is not in its own answer.
        tally.forget_last_info();
        Counts::read(&info, &tally)
    }

    async fn info(&self) -> Result<String, Error> {
        self.command(&["INFO", "everything"]).await?.into_text()
    }

    /// Waits until the server answers, which it does on the socket only after it listens on its ports.
    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let Err(last) = self.command(&["PING"]).await else { return Ok(()) };
            if let Some(status) = self.process.exited() {
                let tail = self.process.directory().log_tail();
                let text = format!("redis ended at its start, {status}; its log ends with:\n{tail}");
                let taken = tail.contains("Address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let tail = self.process.directory().log_tail();
                let text =
                    format!("redis was not ready within {READY_LIMIT:?}: {last}; its log ends with:\n{tail}");
                return Err(Error::failed(text));
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    fn data_path(&self) -> PathBuf {
        self.process.directory().path().join(DATA)
    }

    /// Names the default user, because some clients take an empty name for a name.
    fn password_part(&self) -> String {
        self.password
            .as_deref()
            .map(|password| format!("default:{}@", percent_encode(password)))
            .unwrap_or_default()
    }
}

/// The time that a command of the kit may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);
/// The time that a server may take to start, on a machine that is busy with other tests.
const READY_LIMIT: Duration = Duration::from_secs(120);
const READY_PAUSE: Duration = Duration::from_millis(5);
/// Names inside the server's directory.
const SOCKET: &str = "redis.sock";
const DATA: &str = "data";
const SNAPSHOT: &str = "dump.rdb";
/// The kit's own user.
const ADMIN: &str = "leasehold-testkit";

/// The kit's own connection, and what went over it.
#[derive(Debug)]
struct Admin {
    password: String,
    connection: tokio::sync::Mutex<Option<Connection>>,
    tally: Mutex<Tally>,
}

impl Admin {
    fn new(password: String) -> Self {
        Self { password, connection: tokio::sync::Mutex::new(None), tally: Mutex::default() }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        // A panic elsewhere leaves the numbers whole.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, socket: &Path, args: &[&[u8]]) -> Result<Reply, Error> {
        let mut slot = self.connection.lock().await;
        // Taken out while in use: a command that was given up leaves its reply behind, so its connection is
        // not used again.
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.connect(socket).await?,
        };
        let reply = connection.ask(args).await?;
        *slot = Some(connection);
        self.tally().add_command(args);
        reply.map_err(Error::failed)
    }

    async fn connect(&self, socket: &Path) -> Result<Connection, Error> {
        let mut connection = Connection::open(socket).await?;
        self.tally().add_connection();
        let args = [b"AUTH", ADMIN.as_bytes(), self.password.as_bytes()];
        connection.ask(&args).await?.map_err(Error::failed)?;
        self.tally().add_command(&args);
        Ok(connection)
    }
}

/// Reads the number behind this prefix.
fn offset(text: &str, prefix: &str) -> Option<u64> {
    let digits = text.split_once(prefix)?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Writes everything but the unreserved characters of URLs as `%XX`.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing into a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_encoded_for_urls() {
        assert_eq!(percent_encode("a-b@c:d/é"), "a-b%40c%3Ad%2F%C3%A9");
    }
}
