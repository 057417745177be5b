//! A real PgBouncer before a PostgreSQL server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::{PostgresServer, runner};
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::Port;
use crate::process::Process;
use crate::require;

/// A pooler of this test alone, on a free port of 127.0.0.1.
///
/// # Promises
/// As [`PostgresServer`]: it accepts connections when `start` returns, and is ended when this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    // Dropped in this order: the process ends before its port is free for others.
    process: Process,
    port: Port,
}

/// The time for which a client of the pooler keeps one session of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// Until it disconnects.
    Session,
    /// A session for each transaction.
    Transaction,
}

impl PgBouncer {
    /// Starts a pooler that keeps `sessions` sessions of `server` at most.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of its log is in the text.
    pub async fn start(server: &PostgresServer, mode: PoolMode, sessions: usize) -> Result<Self, Error> {
        Self::start_with("127.0.0.1", server, mode, sessions).await
    }

    /// Starts as [`PgBouncer::start_or_skip`] does, for a pooler that reaches the server by its unix
    /// socket.
    pub async fn start_on_sockets_or_skip(
        server: &PostgresServer,
        mode: PoolMode,
        sessions: usize,
    ) -> Option<Self> {
        let host = server.socket_folder().display().to_string();
        require::or_skip("pgbouncer", Self::start_with(&host, server, mode, sessions).await)
    }

    async fn start_with(
        host: &str,
        server: &PostgresServer,
        mode: PoolMode,
        sessions: usize,
    ) -> Result<Self, Error> {
        let program = require::program("pgbouncer", "pgbouncer")?;
        let directory = Directory::create("pgbouncer")?;
        let port = Port::take()?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = format!(
            "[databases]\n* = host={host} port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir = {}\nauth_type = any\n\
             pool_mode = {mode}\ndefault_pool_size = {sessions}\nmax_client_conn = 2000\n\
             server_login_retry = 0.2\nlog_connections = 0\nlog_disconnections = 0\n",
            server.addr().port(),
            port.number(),
            directory.path().display()
        );
        let config = directory.write(CONFIG, &config)?;
        let process = match runner()? {
            None => Process::spawn(&program, [config.into_os_string()], directory)?,
            Some((setpriv, uid, gid)) => {
                for path in [directory.path(), config.as_path()] {
                    std::os::unix::fs::chown(path, Some(uid), Some(gid))
                        .map_err(cannot("give away", path.display()))?;
                }
                let args = [
                    format!("--reuid={uid}").into(),
                    format!("--regid={gid}").into(),
                    "--clear-groups".into(),
                    program.into_os_string(),
                    config.into_os_string(),
                ];
                Process::spawn(&setpriv, args, directory)?
            }
        };
        let bouncer = Self { process, port };
        bouncer.ready().await?;
        Ok(bouncer)
    }

    /// Starts as [`PgBouncer::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(server: &PostgresServer, mode: PoolMode, sessions: usize) -> Option<Self> {
        require::or_skip("pgbouncer", Self::start(server, mode, sessions).await)
    }

    /// Ends the pooler, and starts it again on the same port with these lines for the end of its section
    /// `[pgbouncer]`, where each goes before an earlier one of its name.
    ///
    /// # Errors
    /// As [`PgBouncer::start`].
    pub async fn restart_with(&self, lines: &str) -> Result<(), Error> {
        self.process.kill()?;
        let path = self.process.directory().path().join(CONFIG);
        let config = std::fs::read_to_string(&path).map_err(cannot("read", path.display()))?;
        std::fs::write(&path, format!("{config}{lines}\n")).map_err(cannot("write", path.display()))?;
        self.process.start()?;
        self.ready().await
    }

    /// Returns the address of the port.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Returns `postgres://…` with the superuser and its database, by the pooler's unix socket.
    pub fn url_of_socket(&self) -> String {
        let folder = self.process.directory().path().display();
        format!("postgres://postgres@/postgres?host={folder}&port={}", self.port.number())
    }

    /// Kills the pooler (SIGKILL) with all its connections.
    pub fn kill(&self) -> Result<(), Error> {
        self.process.kill()
    }

    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        let socket = self.process.directory().path().join(format!(".s.PGSQL.{}", self.port.number()));
        // It listens on its port first.
        while TcpStream::connect(self.addr()).await.is_err() || UnixStream::connect(&socket).await.is_err() {
            if let Some(status) = self.process.exited() {
                let tail = self.process.directory().log_tail();
                return Err(Error::failed(format!("pgbouncer ended with {status}:\n{tail}")));
            }
            if Instant::now() > deadline {
                let tail = self.process.directory().log_tail();
                return Err(Error::failed(format!("pgbouncer does not answer:\n{tail}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

const CONFIG: &str = "pgbouncer.ini";
/// Reached by what hangs only: one that ends is noticed at once.
const START_LIMIT: Duration = Duration::from_secs(120);
