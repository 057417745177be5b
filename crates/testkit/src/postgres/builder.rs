//! The options of a PostgreSQL server, and how it is started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{DATA, PostgresServer, Programs};
use crate::certificates::Certificates;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::require;

/// Options of a [`PostgresServer`].
#[derive(Debug, Clone, Default)]
pub struct PostgresBuilder {
    settings: Vec<String>,
    tls: bool,
    password: Option<String>,
    language: Option<String>,
    launcher: Option<PathBuf>,
}

impl PostgresBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds one setting of the configuration: `.setting("fsync", "on")`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// Speaks TLS as well, with certificates made for this server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Asks clients that connect over the network for this password, which needs no escaping in a URL.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Speaks in this language, `de` for instance, where its messages are installed.
    #[must_use]
    pub fn language(mut self, language: &str) -> Self {
        self.language = Some(language.to_owned());
        self.setting("lc_messages", "C.UTF-8")
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
    pub async fn start(self) -> Result<PostgresServer, Error> {
        on_free_ports(|| self.start_once()).await
    }

    /// Starts as [`PostgresBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<PostgresServer> {
        require::or_skip("postgres", self.start().await)
    }

    async fn start_once(&self) -> Result<PostgresServer, Error> {
        let programs = Programs::find()?;
        let directory = Directory::create("postgres")?;
        programs.own(directory.path())?;
        let certificates = self.tls.then(|| Certificates::create(&directory)).transpose()?;
        if let Some(certificates) = &certificates {
            // The server insists on being the only user that can read its key.
            let server = certificates.server();
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&server.key, private).map_err(cannot("close", server.key.display()))?;
            for path in [certificates.ca_path(), server.certificate.as_path(), server.key.as_path()] {
                programs.own(path)?;
            }
        }
        programs.fill(&directory, self.password.as_deref()).await?;
        let mut settings = certificates.as_ref().map(tls_settings).unwrap_or_default();
        settings.extend(self.settings.iter().cloned());
        let (language, launcher) = (self.language.clone(), self.launcher.clone());
        let programs = Programs { language, launcher, ..programs };
        launch(programs, directory, &settings, certificates, self.password.clone()).await
    }
}

/// Starts a server on the data in `directory` and waits until it answers.
pub(super) async fn launch(
    programs: Programs,
    directory: Directory,
    settings: &[String],
    certificates: Option<Certificates>,
    password: Option<String>,
) -> Result<PostgresServer, Error> {
    let port = Port::take()?;
    let launcher = programs.launcher.clone();
    let (program, mut args) = programs.command("postgres");
    args.extend(["-D".into(), directory.path().join(DATA).into_os_string()]);
    let sockets = format!("unix_socket_directories={}", directory.path().display());
    let own = [format!("port={}", port.number()), sockets];
    for setting in DEFAULTS.iter().copied().chain(own.iter().map(String::as_str)) {
        args.extend([OsString::from("-c"), OsString::from(setting)]);
    }
    for setting in settings {
        args.extend([OsString::from("-c"), OsString::from(setting)]);
    }
    let process = Process::spawn_by(launcher.as_deref(), &program, args, directory)?;
    let server = PostgresServer { process, port, programs, certificates, password };
    server.ready().await?;
    Ok(server)
}

pub(super) fn tls_settings(certificates: &Certificates) -> Vec<String> {
    let path = |name: &str, path: &Path| format!("{name}={}", path.display());
    let server = certificates.server();
    vec![
        "ssl=on".to_owned(),
        path("ssl_cert_file", &server.certificate),
        path("ssl_key_file", &server.key),
        path("ssl_ca_file", certificates.ca_path()),
    ]
}

/// Small and quick, on this machine only. A setting that comes later wins.
const DEFAULTS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=200",
    "wal_level=replica",
    "max_wal_senders=4",
    "autovacuum_naptime=5s",
    // In files below its directory: segments in /dev/shm outlive a server that is killed, for ever.
    "dynamic_shared_memory_type=mmap",
];
