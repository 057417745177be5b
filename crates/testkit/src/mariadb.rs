//! A real MariaDB server with its faults as methods, a replica of it, and a cluster of several.
//!
//! MariaDB refuses to run as root. If the tests do, the server runs as the user `mysql` of its Debian
//! package, which owns its directory. The kit asks its server through the program `mariadb`, over the
//! server's socket.

mod builder;
mod galera;

pub use builder::MariaDbBuilder;
pub use galera::GaleraCluster;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::certificates::Certificates;
use crate::chosen;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::peers;
use crate::port::Port;
use crate::process::{Process, output, output_here};
use crate::redis::Data;

/// A MariaDB server of this test alone, on a free port of 127.0.0.1, with a database `locks`. Everybody may
/// log in as `root`, unless that has a password.
///
/// # Promises
/// - When `start` returns, the server answers on its port.
/// - The server is ended when this is dropped, and also when the test's process is killed.
/// - Its directory is removed then; after a panic it stays, and the end of its log is printed.
///
/// # Does not promise
/// Survival of a loss of power: nothing is forced to the disk of a temporary directory. What was confirmed
/// survives [`MariaDbServer::kill`].
#[derive(Debug)]
pub struct MariaDbServer {
    // Dropped in this order: the process ends before its port is free for others.
    process: Process,
    port: Port,
    programs: Programs,
    certificates: Option<Certificates>,
    password: Option<String>,
}

impl MariaDbServer {
    /// Options for a server.
    pub fn builder() -> MariaDbBuilder {
        MariaDbBuilder::new()
    }

    /// Starts a server with the default options, or ends the test as skipped; see
    /// [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns `mysql://…` with `root` and the database.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Returns the URL as [`MariaDbServer::url`] does, by way of another address: a
    /// [`Proxy`](crate::Proxy)'s.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        match &self.password {
            Some(password) => format!("mysql://root:{password}@{addr}/{DATABASE}"),
            None => format!("mysql://root@{addr}/{DATABASE}"),
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

    /// Returns the unix socket.
    pub fn socket(&self) -> PathBuf {
        self.process.directory().path().join(SOCKET)
    }

    /// Returns the server's output and log.
    pub fn log_path(&self) -> PathBuf {
        self.process.directory().log_path()
    }

    /// Runs statements in the database and returns their rows, columns separated by tabs.
    ///
    /// # Errors
    /// The server's message about a statement that fails.
    pub async fn sql(&self, statements: &str) -> Result<String, Error> {
        self.ask(&["-D", DATABASE], statements).await
    }

    /// Hangs the server (SIGSTOP): connections stay open, and nothing answers. See [`Process::stop`].
    pub fn stop(&self) -> Result<(), Error> {
        self.process.stop()
    }

    /// Continues the server after [`MariaDbServer::stop`].
    pub fn resume(&self) -> Result<(), Error> {
        self.process.resume()
    }

    /// Kills the server (SIGKILL), stopped or not, and waits until it is gone.
    pub fn kill(&self) -> Result<(), Error> {
        self.process.kill()
    }

    /// Restarts the server on the same port, running, stopped or killed, and waits until it answers.
    ///
    /// [`Data::Keep`] on what was confirmed; [`Data::Lose`] with an empty database, as after the loss of a
    /// disk.
    pub async fn restart(&self, data: Data) -> Result<(), Error> {
        self.kill()?;
        if data == Data::Lose {
            let path = self.process.directory().path().join(DATA);
            std::fs::remove_dir_all(&path).map_err(cannot("remove", path.display()))?;
            self.programs.fill(self.process.directory()).await?;
        }
        self.process.start()?;
        self.ready().await
    }

    /// Starts a replica that follows this server, read-only, on a port of its own. This server must have
    /// been started by [`MariaDbBuilder::replicated`].
    ///
    /// # Errors
    /// If it does not come up or does not follow.
    pub async fn replica(&self) -> Result<MariaDbServer, Error> {
        if self.programs.is_mysql() {
            return Err(Error::absent("the kit starts replicas of MariaDB only"));
        }
        let replica = Self::builder().setting("server-id", "2").setting("read-only", "on").start().await?;
        let port = self.port.number();
        let follow = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root', \
             MASTER_CONNECT_RETRY = 1; START SLAVE"
        );
        replica.sql(&follow).await?;
        replica.await_replication(self).await?;
        Ok(replica)
    }

    /// Waits until this replica has what `primary` has confirmed.
    ///
    /// # Errors
    /// If it has not within 20 seconds.
    pub async fn await_replication(&self, primary: &MariaDbServer) -> Result<(), Error> {
        let position = primary.sql("SELECT @@gtid_binlog_pos").await?;
        let wait = format!("SELECT MASTER_GTID_WAIT('{}', {})", position.trim(), START_LIMIT.as_secs());
        match self.sql(&wait).await?.trim() {
            "0" => Ok(()),
            other => Err(Error::failed(format!("the replica does not follow: {other}"))),
        }
    }

    /// Makes a replica a primary that may be written to.
    pub async fn promote(&self) -> Result<(), Error> {
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF").await.map(drop)
    }

    async fn ask(&self, options: &[&str], statements: &str) -> Result<String, Error> {
        let mut mariadb = Command::new(&self.programs.mariadb);
        // Over the socket, where no password is asked for.
        mariadb.args(["--no-defaults", "-uroot", "-BN", "--connect-timeout=5", "-S"]).arg(self.socket());
        mariadb.args(options).args(["-e", statements]);
        output("mariadb", mariadb).await
    }

    /// Waits until the server answers, and makes it ask for the password.
    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let Err(cause) = self.ask(&[], &self.login()).await else { return Ok(()) };
            if let Some(status) = self.process.exited() {
                let tail = self.process.directory().log_tail();
                let text = format!("mariadbd ended with {status}:\n{tail}");
                let taken = tail.contains("Address already in use");
                return Err(if taken { Error::port_taken(text) } else { Error::failed(text) });
            }
            if Instant::now() > deadline {
                let tail = self.process.directory().log_tail();
                return Err(Error::failed(format!("mariadbd does not answer: {cause}\n{tail}")));
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    fn login(&self) -> String {
        match &self.password {
            Some(password) => format!("ALTER USER root@'127.0.0.1' IDENTIFIED BY '{password}'"),
            None => "SELECT 1".to_owned(),
        }
    }
}

/// The maker of fresh data, and so the kind of the server.
#[derive(Debug, Clone)]
enum Install {
    /// A program beside the server.
    MariaDb(PathBuf),
    /// The server itself.
    Mysql,
}

/// The programs, and the user that the server runs as.
#[derive(Debug, Clone)]
struct Programs {
    mariadbd: PathBuf,
    mariadb: PathBuf,
    install: Install,
    /// `true` if it is not the installed version.
    is_chosen: bool,
    /// The user of the server, if the tests run as root.
    user: Option<(u32, u32)>,
}

impl Programs {
    fn find() -> Result<Self, Error> {
        use std::os::unix::fs::MetadataExt;
        let place = chosen::place(chosen::MARIADB)?;
        let is_chosen = place.is_some();
        let is_mysql = place.is_some_and(|place| place.join("mysqld").is_file());
        let program = |name| chosen::program(chosen::MARIADB, name, "mariadb-server");
        let helper = |name| chosen::helper(chosen::MARIADB, name, "mariadb-server");
        let (mariadbd, mariadb, install) = match is_mysql {
            true => (program("mysqld")?, helper("mysql")?, Install::Mysql),
            false => {
                let install = Install::MariaDb(program("mariadb-install-db")?);
                (program("mariadbd")?, helper("mariadb")?, install)
            }
        };
        let mut user = None;
        if rustix::process::geteuid().is_root() {
            // The package gives this folder to its user.
            let home = std::fs::metadata(HOME).map_err(cannot("look at", HOME))?;
            user = Some((home.uid(), home.gid()));
        }
        Ok(Self { mariadbd, mariadb, install, is_chosen, user })
    }

    /// Puts fresh data into a directory: a copy of what was made once, since making it takes seconds.
    async fn fill(&self, directory: &Directory) -> Result<(), Error> {
        let programs = self.clone();
        let template = tokio::task::spawn_blocking(move || programs.template()).await;
        let template = template.map_err(cannot("wait for", "mariadb-install-db"))??;
        self.own(directory.path())?;
        let mut copy = Command::new("cp");
        copy.args(["-R", "--"]).arg(template.join(DATA)).arg(directory.path().join(DATA));
        output("cp", copy).await?;
        self.own_all(&directory.path().join(DATA))
    }

    /// Returns the folder of the data that all servers begin with.
    fn template(&self) -> Result<PathBuf, Error> {
        let version = Command::new(&self.mariadbd).arg("--version").output();
        let version = version.map_err(cannot("start", "mariadbd"))?.stdout;
        let version = String::from_utf8_lossy(&version);
        let version = version.split_whitespace().skip_while(|field| *field != "Ver").nth(1);
        let kind = if self.is_mysql() { "mysql" } else { "mariadb" };
        let name = format!("{kind}-{}", version.unwrap_or("unknown"));
        peers::folder(&name, |folder| {
            // Made in a temporary directory, because the server's user may not reach the folder beside the
            // tests.
            let directory = Directory::create("mariadb")?;
            self.own(directory.path())?;
            let data = directory.path().join(DATA);
            output_here("the maker of fresh data", self.install_command(&directory, &data)?)?;
            let mut copy = Command::new("cp");
            copy.args(["-R", "--"]).arg(&data).arg(folder.join(DATA));
            output_here("cp", copy).map(drop)
        })
    }

    /// Returns the command that makes fresh data with the database, so that a server that lost its own never
    /// answers without it.
    fn install_command(&self, directory: &Directory, data: &Path) -> Result<Command, Error> {
        let mut statements = format!("CREATE DATABASE {DATABASE};\n");
        let (mut install, file) = match &self.install {
            Install::MariaDb(program) => {
                let mut install = Command::new(program);
                install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                install.args(["--skip-test-db", "--skip-name-resolve", LOG_SIZE]);
                // Else it takes the programs of the installed version.
                let real = program.canonicalize().map_err(cannot("look at", program.display()))?;
                let base = real.parent().and_then(Path::parent);
                if let Some(base) = base.filter(|_| self.is_chosen) {
                    install.arg(format!("--basedir={}", base.display()));
                }
                (install, "--extra-file")
            }
            Install::Mysql => {
                // MariaDB has this user by itself.
                statements += "CREATE USER root@'127.0.0.1'; \
                               GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";
                let mut install = Command::new(&self.mariadbd);
                install.args(["--no-defaults", "--initialize-insecure"]).args(MYSQL_OPTIONS);
                (install, "--init-file")
            }
        };
        let database = directory.write("database.sql", &statements)?;
        self.own(&database)?;
        install.args(self.user_option()).current_dir(directory.path());
        // The server's user may not write into the temporary directory of the tests.
        install.env("TMPDIR", directory.path());
        install.arg(format!("--datadir={}", data.display())).arg(format!("{file}={}", database.display()));
        Ok(install)
    }

    fn is_mysql(&self) -> bool {
        matches!(self.install, Install::Mysql)
    }

    fn user_option(&self) -> Option<OsString> {
        self.user.map(|_| "--user=mysql".into())
    }

    /// Changes the owner of a directory or file to the user that the server runs as.
    fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((uid, gid)) = self.user else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(cannot("give away", path.display()))
    }

    /// Changes the owner of a directory with all that is in it.
    fn own_all(&self, folder: &Path) -> Result<(), Error> {
        if self.user.is_none() {
            return Ok(());
        }
        self.own(folder)?;
        for entry in std::fs::read_dir(folder).map_err(cannot("read", folder.display()))? {
            let path = entry.map_err(cannot("read", folder.display()))?.path();
            if path.is_dir() { self.own_all(&path)? } else { self.own(&path)? }
        }
        Ok(())
    }
}

/// The home of the package's user.
const HOME: &str = "/var/lib/mysql";
const DATA: &str = "data";
const DATABASE: &str = "locks";
const SOCKET: &str = "socket";
/// The log of changes, which is written whole at the start.
const LOG_SIZE: &str = "--innodb-log-file-size=4M";
/// The same for MySQL, which has no option for the size of single files, and what it does not need here.
const MYSQL_OPTIONS: &[&str] =
    &["--innodb-redo-log-capacity=8M", "--mysqlx=OFF", "--secure-file-priv=NULL", "--disable-log-bin"];
/// Reached by what hangs only: one that ends is noticed at once. A server that joins others copies all that
/// they have first.
const START_LIMIT: Duration = Duration::from_secs(120);
const START_PAUSE: Duration = Duration::from_millis(30);
