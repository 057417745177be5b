//! A real PostgreSQL server with its faults as methods, a standby of it, and a pooler before it.
//!
//! PostgreSQL refuses to run as root. If the tests do, the server runs as the user `postgres` of its Debian
//! package, which owns its directory. The kit asks its server through `psql`.

mod bouncer;
mod builder;
mod data;
mod relay;

pub use bouncer::{PgBouncer, PoolMode};
pub use builder::PostgresBuilder;
pub use relay::PostgresRelay;

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::certificates::Certificates;
use crate::chosen;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::Port;
use crate::process::{Process, output};
use crate::redis::Data;
use crate::require;

/// A PostgreSQL server of this test alone, on a free port of 127.0.0.1, where everybody may log in as
/// `postgres`, unless it has a password.
///
/// # Promises
/// - When `start` returns, the server answers on its port.
/// - The server is ended when this is dropped, and also when the test's process is killed.
/// - Its directory is removed then; after a panic it stays, and the end of its log is printed.
///
/// # Does not promise
/// Transactions are not forced to the disk unless a setting says so, so that tests are quick: a killed
/// server loses nothing by that, a machine without power would.
#[derive(Debug)]
pub struct PostgresServer {
    // Dropped in this order: the process ends before its port is free for others.
    process: Process,
    port: Port,
    programs: Programs,
    certificates: Option<Certificates>,
    password: Option<String>,
}

impl PostgresServer {
    /// Options for a server.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::new()
    }

    /// Starts a server with the default options, or ends the test as skipped; see
    /// [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns `postgres://…` with the superuser and its database.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Returns the URL as [`PostgresServer::url`] does, by way of another address: a
    /// [`Proxy`](crate::Proxy)'s or a [`PgBouncer`]'s.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        match &self.password {
            Some(password) => format!("postgres://postgres:{password}@{addr}/postgres"),
            None => format!("postgres://postgres@{addr}/postgres"),
        }
    }

    /// Returns the address of the port.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Returns the certificates, where TLS was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns the folder of the unix socket.
    pub fn socket_folder(&self) -> &Path {
        self.process.directory().path()
    }

    /// Returns `postgres://…` with the superuser and its database, by the unix socket.
    pub fn url_of_socket(&self) -> String {
        let folder = self.socket_folder().display();
        format!("postgres://postgres@/postgres?host={folder}&port={}", self.port.number())
    }

    /// Returns the server's output and log.
    pub fn log_path(&self) -> PathBuf {
        self.process.directory().log_path()
    }

    /// Runs statements through `psql` and returns their rows, columns separated by `|`.
    ///
    /// # Errors
    /// The message of `psql` about a statement that fails.
    pub async fn sql(&self, statements: &str) -> Result<String, Error> {
        let port = self.port.number().to_string();
        let mut psql = Command::new(&self.programs.psql);
        // Over the socket, where no password is asked for.
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-p", &port, "-U", "postgres"]);
        psql.arg("-h").arg(self.socket_folder()).args(["-c", statements]).env("PGCONNECT_TIMEOUT", "5");
        output("psql", psql).await
    }

    /// Hangs the server (SIGSTOP), its processes for single connections included: nothing answers.
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()?;
        self.signal_children(rustix::process::Signal::STOP)
    }

    /// Continues the server after [`PostgresServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.signal_children(rustix::process::Signal::CONT)?;
        self.process.resume()
    }

    /// Kills the server (SIGKILL) with all its connections, and waits until it is gone.
    pub fn kill(&self) -> Result<(), Error> {
        // They would notice that their parent is gone, but not at once.
        self.signal_children(rustix::process::Signal::KILL)?;
        self.process.kill()
    }

    /// Restarts the server on the same port, running, stopped or killed, and waits until it answers.
    ///
    /// [`Data::Keep`] on what was confirmed; [`Data::Lose`] on a new cluster, as after the loss of a disk.
    pub async fn restart(&self, data: Data) -> Result<(), Error> {
        self.kill()?;
        if data == Data::Lose {
            let path = self.data_path();
            std::fs::remove_dir_all(&path).map_err(cannot("remove", path.display()))?;
            self.programs.initdb(self.process.directory(), self.password.as_deref()).await?;
        }
        self.process.start()?;
        self.ready().await
    }

    /// Starts a standby that follows this server, on a port of its own.
    ///
    /// # Errors
    /// If no copy can be made or it does not come up.
    pub async fn standby(&self) -> Result<PostgresServer, Error> {
        let directory = Directory::create("standby")?;
        self.programs.own(directory.path())?;
        let (data, port) = (directory.path().join(DATA), self.port.number().to_string());
        let args: Vec<OsString> = [
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "postgres",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        ]
        .iter()
        .map(OsString::from)
        .chain([OsString::from("-D"), data.into_os_string()])
        .collect();
        self.programs.run("pg_basebackup", args, directory.path()).await?;
        // What a newer `pg_basebackup` writes for the standby has options that an older server does not know. The last
        // line of this file counts, and `ALTER SYSTEM` can still change it; an argument of the server would stay.
        let followed = format!("primary_conninfo = 'host=127.0.0.1 port={port} user=postgres'\n");
        append(&directory.path().join(DATA).join("postgresql.auto.conf"), &followed)?;
        let settings = self.process_settings();
        let (programs, certificates) = (self.programs.clone(), self.certificates.clone());
        builder::launch(programs, directory, &settings, certificates, self.password.clone()).await
    }

    /// Makes a standby the primary, and waits until it is.
    pub async fn promote(&self) -> Result<(), Error> {
        self.sql("SELECT pg_promote(true, 30)").await.map(drop)
    }

    /// Waits until every standby has what this server has confirmed.
    ///
    /// # Errors
    /// If one has not within 20 seconds.
    pub async fn await_standbys(&self, count: usize) -> Result<(), Error> {
        let question = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
        let deadline = Instant::now() + START_LIMIT;
        while self.sql(question).await?.trim() != count.to_string() {
            if Instant::now() > deadline {
                return Err(Error::failed("a standby does not follow"));
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        Ok(())
    }

    fn process_settings(&self) -> Vec<String> {
        let certificates = self.certificates.as_ref();
        certificates.map(builder::tls_settings).unwrap_or_default()
    }

    fn data_path(&self) -> PathBuf {
        self.process.directory().path().join(DATA)
    }

    /// Signals the server's processes, which are in sessions of their own, where a signal to its group does
    /// not reach them.
    fn signal_children(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        let Some(parent) = self.process.pid() else { return Ok(()) };
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(&path).map_err(cannot("read", &path))?;
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            if let Some(child) = rustix::process::Pid::from_raw(child) {
                // One that has just ended is not a fault.
                let _ = rustix::process::kill_process(child, signal);
            }
        }
        Ok(())
    }

    /// Waits until the server answers.
    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let Err(cause) = self.sql("SELECT 1").await else { return Ok(()) };
            if let Some(status) = self.process.exited() {
                let tail = self.process.directory().log_tail();
                if tail.contains("pre-existing shared memory block") || tail.contains("lock file") {
                    // Its predecessor's processes are not all gone yet.
                    tokio::time::sleep(START_PAUSE).await;
                    self.process.start()?;
                    continue;
                }
                let text = format!("postgres ended with {status}:\n{tail}");
                let taken = tail.contains("Address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let tail = self.process.directory().log_tail();
                return Err(Error::failed(format!("postgres does not answer: {cause}\n{tail}")));
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }
}

/// The programs of one version, and how they are run.
#[derive(Debug, Clone)]
struct Programs {
    folder: PathBuf,
    psql: PathBuf,
    /// The program that runs another one as another user, if the tests run as root.
    runner: Option<(PathBuf, u32, u32)>,
    /// The language of its messages.
    language: Option<String>,
    /// The program that starts the server, where it does not start by itself.
    launcher: Option<PathBuf>,
}

impl Programs {
    fn find() -> Result<Self, Error> {
        let psql = || chosen::helper(chosen::POSTGRES, "psql", "postgresql");
        if let Some(folder) = chosen::place(chosen::POSTGRES)? {
            // Asked for, so that its absence is an error that names the choice.
            chosen::program(chosen::POSTGRES, "postgres", "postgresql")?;
            return Ok(Self { folder, psql: psql()?, runner: runner()?, language: None, launcher: None });
        }
        let folder = Self::installed()?;
        // The one in PATH is a script of Debian that looks for this one, which takes longer than the question.
        let own = Some(folder.join("psql")).filter(|own| own.is_file());
        Ok(Self {
            folder,
            psql: own.map_or_else(psql, Ok)?,
            runner: runner()?,
            language: None,
            launcher: None,
        })
    }

    /// Returns the folder of the newest installed version.
    fn installed() -> Result<PathBuf, Error> {
        let missing = || Error::missing("postgres", "postgresql");
        let versions = std::fs::read_dir("/usr/lib/postgresql").map_err(|_| missing())?;
        let mut folders: Vec<PathBuf> = versions
            .filter_map(|version| Some(version.ok()?.path().join("bin")))
            .filter(|folder| folder.join("postgres").is_file())
            .collect();
        folders.sort();
        folders.pop().ok_or_else(missing)
    }

    /// Returns one of the programs. The installed one is used where a chosen version does not bring it.
    fn path(&self, name: &str) -> PathBuf {
        let own = self.folder.join(name);
        match own.exists() {
            true => own,
            false => Self::installed().map_or(own, |folder| folder.join(name)),
        }
    }

    /// Returns the program, and the arguments that come before its own.
    fn command(&self, name: &str) -> (PathBuf, Vec<OsString>) {
        let mut command_line: Vec<OsString> = Vec::new();
        if let Some(language) = &self.language {
            command_line.extend(["env".into(), format!("LANGUAGE={language}").into()]);
        }
        if let Some((setpriv, uid, gid)) = &self.runner {
            command_line.extend([
                setpriv.into(),
                format!("--reuid={uid}").into(),
                format!("--regid={gid}").into(),
            ]);
            command_line.push("--clear-groups".into());
        }
        command_line.push(self.path(name).into_os_string());
        (PathBuf::from(command_line.remove(0)), command_line)
    }

    /// Changes the owner of a directory to the user that the server runs as.
    fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((_, uid, gid)) = self.runner else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(cannot("give away", path.display()))
    }

    async fn run(&self, name: &'static str, args: Vec<OsString>, folder: &Path) -> Result<(), Error> {
        let (program, before) = self.command(name);
        let mut command = Command::new(program);
        command.args(before).args(args).current_dir(folder);
        output(name, command).await.map(drop)
    }
}

fn append(path: &Path, text: &str) -> Result<(), Error> {
    let file = std::fs::OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(cannot("write", path.display()))
}

/// Returns how root becomes the user of the Debian package; `None` for any other user.
fn runner() -> Result<Option<(PathBuf, u32, u32)>, Error> {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let setpriv = require::program("setpriv", "util-linux")?;
    // The package gives this folder to its user.
    let home = "/var/lib/postgresql";
    let owner = std::fs::metadata(home).map_err(cannot("look at", home))?;
    Ok(Some((setpriv, owner.uid(), owner.gid())))
}

const DATA: &str = "data";
/// Reached by what hangs only: one that ends is noticed at once.
const START_LIMIT: Duration = Duration::from_secs(120);
const START_PAUSE: Duration = Duration::from_millis(30);
