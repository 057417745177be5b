//! A real memcached server with its faults as methods.
//!
//! The kit asks its server by the text protocol, each time over a connection of its own, so that it works
//! no matter what became of earlier ones.

mod builder;

pub use builder::MemcachedBuilder;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::certificates::Certificates;
use crate::error::{Error, cannot};
use crate::port::Port;
use crate::process::Process;

/// A memcached server of this test alone, on a free port of 127.0.0.1.
///
/// # Promises
/// - When a `start` returns, the server answers on its port.
/// - The server is ended when this is dropped, and also when the test's process is killed.
/// - Its directory is removed then; after a panic it stays, and the end of its log is printed.
#[derive(Debug)]
pub struct MemcachedServer {
    // Dropped in this order: the process ends before its ports are free for others.
    process: Process,
    port: Port,
    tls: Option<(Port, Certificates)>,
    login: Option<(String, String)>,
}

impl MemcachedServer {
    /// Options for a server.
    pub fn builder() -> MemcachedBuilder {
        MemcachedBuilder::new()
    }

    /// Starts a server with the default options.
    ///
    /// # Errors
    /// As [`MemcachedBuilder::start`].
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

    /// Starts as many servers with the default options, or ends the test as skipped. A client is given all
    /// of them; they know nothing of each other.
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn several_or_skip(servers: usize) -> Option<Vec<Self>> {
        let mut started = Vec::with_capacity(servers);
        for _ in 0..servers {
            started.push(Self::start_or_skip().await?);
        }
        Some(started)
    }

    /// Returns `memcached://…`, with the login if it has one.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Returns the URL as [`MemcachedServer::url`] does, by way of another address: a
    /// [`Proxy`](crate::Proxy)'s.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        format!("memcached://{}{addr}", self.login_part())
    }

    /// Returns `memcacheds://…`, where TLS was asked for.
    pub fn tls_url(&self) -> Option<String> {
        let (port, _) = self.tls.as_ref()?;
        Some(format!("memcacheds://{}{}", self.login_part(), port.addr()))
    }

    /// Returns the authority's certificate that a TLS client must trust, where TLS was asked for.
    pub fn ca_path(&self) -> Option<&Path> {
        self.certificates().map(Certificates::ca_path)
    }

    /// Returns the certificates, where TLS was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Returns the address of the port without TLS.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
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

    /// Continues the server after [`MemcachedServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.process.resume()
    }

    /// Kills the server (SIGKILL), stopped or not, and waits until it is gone. All its items are lost.
    pub fn kill(&self) -> Result<(), Error> {
        self.process.kill()
    }

    /// Kills the server where it still runs, and starts it again on the same ports, without its items.
    pub async fn restart(&self) -> Result<(), Error> {
        self.process.kill()?;
        self.process.start()?;
        self.ready().await
    }

    /// Removes all items.
    pub async fn flush_all(&self) -> Result<(), Error> {
        self.ask("flush_all", "OK\r\n").await.map(drop)
    }

    /// Writes as many items of as many bytes each, which no client reads, so that others are evicted. Each
    /// size has keys of its own, because a set that finds no memory removes what its key had.
    pub async fn fill(&self, items: usize, bytes: usize) -> Result<(), Error> {
        let value = "x".repeat(bytes);
        let mut first = 0;
        while first < items {
            let last = (first + FILL_BATCH).min(items);
            let mut request = String::with_capacity((last - first) * (bytes + 40));
            for item in first..last {
                // Quiet, so that only the end is answered.
                request.push_str(&format!("ms filler-{bytes}-{item} {bytes} q\r\n{value}\r\n"));
            }
            request.push_str("mn");
            self.ask(&request, "MN\r\n").await?;
            first = last;
        }
        Ok(())
    }

    /// Returns one number of `stats`, such as `curr_items` or `evictions`.
    pub async fn stat(&self, name: &str) -> Result<u64, Error> {
        let answer = self.ask("stats", "END\r\n").await?;
        let mut lines = answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        let value = lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse().ok());
        value.ok_or_else(|| Error::failed(format!("memcached has no number {name}: {answer}")))
    }

    /// Sends one command, which may have several lines but for the last line's end, and returns everything
    /// up to an answer that ends with `end`.
    ///
    /// # Errors
    /// An error of the server; no such answer within 10 seconds, as from a stopped server; no connection.
    pub async fn ask(&self, request: &str, end: &str) -> Result<String, Error> {
        let asking = async {
            let mut stream = TcpStream::connect(self.addr()).await.map_err(cannot("reach", self.addr()))?;
            if let Some((user, password)) = &self.login {
                let request =
                    format!("set login 0 0 {}\r\n{user} {password}", user.len() + password.len() + 1);
                exchange(&mut stream, &request, "STORED\r\n").await?;
            }
            exchange(&mut stream, request, end).await
        };
        let asked = tokio::time::timeout(ANSWER_LIMIT, asking).await;
        asked.unwrap_or_else(|_| {
            Err(Error::failed(format!("memcached did not answer within {ANSWER_LIMIT:?}; is it stopped?")))
        })
    }

    /// Waits until the server answers.
    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let Err(last) = self.ask("mn", "MN\r\n").await else { return Ok(()) };
            let tail = || self.process.directory().log_tail();
            if let Some(status) = self.process.exited() {
                let text = format!("memcached ended at its start, {status}; its log ends with:\n{}", tail());
                let taken = text.contains("Address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let text =
                    format!("memcached was not ready within {READY_LIMIT:?}: {last}; its log:\n{}", tail());
                return Err(Error::failed(text));
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    fn login_part(&self) -> String {
        self.login.as_ref().map(|(user, password)| format!("{user}:{password}@")).unwrap_or_default()
    }
}

async fn exchange(stream: &mut TcpStream, request: &str, end: &str) -> Result<String, Error> {
    stream.write_all(format!("{request}\r\n").as_bytes()).await.map_err(cannot("ask", "memcached"))?;
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        if stream.read_buf(&mut answer).await.map_err(cannot("hear", "memcached"))? == 0
            || [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|error| answer.starts_with(error))
        {
            let answer = String::from_utf8_lossy(&answer);
            return Err(Error::failed(format!("memcached answered \"{}\"", answer.trim_end())));
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The time that a command of the kit may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The time that a server may take to start, on a machine that is busy with other tests.
const READY_LIMIT: Duration = Duration::from_secs(120);
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Items that are written before the server is asked whether it is still there.
const FILL_BATCH: usize = 2000;
