//! The options of a MariaDB server, and how it is started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{DATA, LOG_SIZE, MYSQL_OPTIONS, MariaDbServer, Programs, SOCKET};
use crate::certificates::Certificates;
use crate::directory::Directory;
use crate::error::Error;
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::require;

/// Options of a [`MariaDbServer`].
#[derive(Debug, Clone, Default)]
pub struct MariaDbBuilder {
    settings: Vec<String>,
    tls: bool,
    password: Option<String>,
    launcher: Option<PathBuf>,
}

impl MariaDbBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds one setting of the configuration: `.setting("innodb-flush-log-at-trx-commit", "2")`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("--{name}={value}"));
        self
    }

    /// Adds an option without a value.
    #[must_use]
    pub(super) fn flag(mut self, name: &str) -> Self {
        self.settings.push(format!("--{name}"));
        self
    }

    /// Writes the log that replicas follow.
    #[must_use]
    pub fn replicated(self) -> Self {
        self.setting("server-id", "1").setting("log-bin", "log")
    }

    /// Speaks TLS as well, with certificates made for this server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Asks clients that connect over the network for this password, which needs no escaping in a URL or in
    /// SQL.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Starts the server by this program, which gets the command line of the server as its arguments.
    #[must_use]
    pub fn launcher(mut self, launcher: impl Into<PathBuf>) -> Self {
        self.launcher = Some(launcher.into());
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the programs are not installed. Otherwise the end of the server's log is
    /// in the text. A port that another program took meanwhile is not an error: the start is tried on
    /// others, 5 times.
    pub async fn start(self) -> Result<MariaDbServer, Error> {
        on_free_ports(|| self.start_once()).await
    }

    /// Starts as [`MariaDbBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<MariaDbServer> {
        require::or_skip("mariadb", self.start().await)
    }

    async fn start_once(&self) -> Result<MariaDbServer, Error> {
        let programs = Programs::find()?;
        let directory = Directory::create("mariadb")?;
        programs.fill(&directory).await?;
        let certificates = self.tls.then(|| Certificates::create(&directory)).transpose()?;
        let port = Port::take()?;
        let path = |name: &str, path: &Path| OsString::from(format!("--{name}={}", path.display()));
        let mut args: Vec<OsString> = vec!["--no-defaults".into()];
        args.extend(DEFAULTS.iter().map(OsString::from));
        match programs.is_mysql() {
            true => args.extend(MYSQL_OPTIONS.iter().map(OsString::from)),
            false => args.push(LOG_SIZE.into()),
        }
        args.extend(programs.user_option());
        args.push(format!("--port={}", port.number()).into());
        args.push(path("datadir", &directory.path().join(DATA)));
        args.push(path("socket", &directory.path().join(SOCKET)));
        // A server that starts removes the temporary tables that it finds, also those of another one.
        args.push(path("tmpdir", directory.path()));
        if let Some(certificates) = &certificates {
            let server = certificates.server();
            for file in [certificates.ca_path(), &server.certificate, &server.key] {
                programs.own(file)?;
            }
            args.push(path("ssl-ca", certificates.ca_path()));
            args.push(path("ssl-cert", &server.certificate));
            args.push(path("ssl-key", &server.key));
        }
        args.extend(self.settings.iter().map(OsString::from));
        let process = Process::spawn_by(self.launcher.as_deref(), &programs.mariadbd, args, directory)?;
        let password = self.password.clone();
        let server = MariaDbServer { process, port, programs, certificates, password };
        server.ready().await?;
        Ok(server)
    }
}

/// Small and quick, on this machine only. A setting that comes later wins.
const DEFAULTS: &[&str] = &[
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=16M",
    "--innodb-buffer-pool-load-at-startup=off",
    "--innodb-buffer-pool-dump-at-shutdown=off",
    "--innodb-flush-method=nosync",
    "--performance-schema=off",
    "--max-connections=300",
];
