//! Options of a Redis server, and its start.
//!
//! Options become a configuration file, not arguments, so that passwords are not seen in the list of
//! processes and a failed test keeps them beside the log.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use super::{ADMIN, Admin, DATA, RedisServer, SNAPSHOT, SOCKET};
use crate::certificates::Certificates;
use crate::chosen;
use crate::directory::Directory;
use crate::error::{Error, cannot};
use crate::port::{Port, on_free_ports};
use crate::process::Process;
use crate::require;

/// Options for a [`RedisServer`]; without any, a server without persistence, password and TLS.
#[derive(Debug, Clone)]
#[must_use = "nothing starts before `start`"]
pub struct RedisBuilder {
    program: String,
    args: Vec<String>,
    appendonly: Appendonly,
    password: Option<String>,
    users: Vec<String>,
    tls: Option<Tls>,
    /// The certificates of an authority that other servers share; else the server has one of its own.
    certificates: Option<Certificates>,
    lines: Vec<String>,
}

/// The writes of the server to its append-only file, and so what a kill leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appendonly {
    /// Nothing: a kill loses all data.
    None,
    /// Every command, brought to the disk each second.
    Everysec,
    /// Every command, brought to the disk before its reply.
    Always,
}

/// The side that proves its identity on the TLS port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// The server; a client may.
    Server,
    /// The server and each client.
    Mutual,
}

impl RedisBuilder {
    pub(super) fn new() -> Self {
        Self {
            program: PROGRAM.to_owned(),
            args: Vec::new(),
            appendonly: Appendonly::None,
            password: None,
            users: Vec::new(),
            tls: None,
            certificates: None,
            lines: Vec::new(),
        }
    }

    /// Sets another program than `redis-server`, by name or path, such as `valkey-server`.
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.program = program.into();
        self
    }

    /// Sets a version of the cache that `cargo xtask servers` fills, such as `redis-6.2`. The server is missing where
    /// the cache does not have it.
    pub fn version(self, version: &str) -> Self {
        let programs = chosen::cached(version).unwrap_or_else(|| PathBuf::from(version));
        self.program(programs.join(PROGRAM).display().to_string())
    }

    /// Adds one more argument for the server, after the kit's configuration, which it may override:
    /// `.arg("--maxmemory").arg("16mb")`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets what the server writes to its append-only file.
    pub fn persistence(mut self, appendonly: Appendonly) -> Self {
        self.appendonly = appendonly;
        self
    }

    /// Sets the password of the default user, which has none otherwise.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds one more user, with a password and rules as of `ACL SETUSER`: `.acl_user("app", "secret",
    /// "~lh:* +@all")`.
    pub fn acl_user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.users.push(format!("user {name} on {} {rules}", quoted(&format!(">{password}"))));
        self
    }

    /// Adds a second port that speaks TLS, with certificates made for this server.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Adds one more line of the configuration file.
    pub(super) fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds as many more lines.
    pub(super) fn lines(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.lines.extend(lines);
        self
    }

    /// Sets up TLS with certificates that others have, too.
    pub(super) fn certificates(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }

    /// Returns the `password` and `tls` that were asked for.
    pub(super) fn login(&self) -> (Option<&str>, Option<Tls>) {
        (self.password.as_deref(), self.tls)
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of the server's log is in
    /// the text. A port that another program took meanwhile is not an error: the start is tried on others,
    /// 5 times.
    pub async fn start(self) -> Result<RedisServer, Error> {
        on_free_ports(|| async { self.start_at(Port::take()?).await }).await
    }

    /// Starts as [`RedisBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<RedisServer> {
        // Valkey is a server of its own: a run that requires Redis does not require it.
        let server = if self.program.ends_with("valkey-server") { "valkey-server" } else { "redis" };
        require::or_skip(server, self.start().await)
    }

    /// Starts as [`RedisBuilder::start`] does, on this port or not at all.
    pub(super) async fn start_at(&self, port: Port) -> Result<RedisServer, Error> {
        let program = self.find()?;
        let directory = Directory::create("redis")?;
        let data = directory.path().join(DATA);
        std::fs::create_dir(&data).map_err(cannot("create", data.display()))?;
        let tls = match self.tls {
            Some(_) => {
                let shared = self.certificates.clone();
                Some((Port::take()?, shared.map_or_else(|| Certificates::create(&directory), Ok)?))
            }
            None => None,
        };
        let admin = random_secret();
        let config = self.config(&directory, &port, tls.as_ref(), &admin)?;
        let config = directory.write("redis.conf", &config)?;
        let args = std::iter::once(config.into_os_string()).chain(self.args.iter().map(Into::into));
        let process = Process::spawn(&program, args, directory)?;
        let server = RedisServer {
            process,
            port,
            tls,
            password: self.password.clone(),
            appendonly: self.appendonly,
            admin: Admin::new(admin),
        };
        server.ready().await.map_err(|error| without_tls(error, self.tls))?;
        Ok(server)
    }

    /// Returns the program: the one that was asked for by name, else the chosen or the installed one.
    ///
    /// # Errors
    /// [`Error::is_missing`] where it is not installed; another error where what was chosen is not there.
    pub fn find(&self) -> Result<PathBuf, Error> {
        match self.program.as_str() {
            PROGRAM => chosen::program(chosen::REDIS, PROGRAM, PROGRAM),
            other => require::program(other, other),
        }
    }

    fn config(
        &self,
        directory: &Directory,
        port: &Port,
        tls: Option<&(Port, Certificates)>,
        admin: &str,
    ) -> Result<String, Error> {
        let path = |path: &std::path::Path| quoted(&path.display().to_string());
        let socket = directory.path().join(SOCKET);
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            let text =
                format!("{} is too long for a unix socket; set TMPDIR to a shorter path", socket.display());
            return Err(Error::failed(text));
        }
        let (appendonly, appendfsync) = match self.appendonly {
            Appendonly::None => ("no", "no"),
            Appendonly::Everysec => ("yes", "everysec"),
            Appendonly::Always => ("yes", "always"),
        };
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", port.number()),
            format!("unixsocket {}", path(&socket)),
            "unixsocketperm 700".to_owned(),
            format!("dir {}", path(&directory.path().join(DATA))),
            format!("dbfilename {SNAPSHOT}"),
            "save \"\"".to_owned(),
            format!("appendonly {appendonly}"),
            format!("appendfsync {appendfsync}"),
            format!("user {ADMIN} on {} ~* &* +@all", quoted(&format!(">{admin}"))),
        ];
        if let Some((port, certificates)) = tls {
            let server = certificates.server();
            let clients = if self.tls == Some(Tls::Mutual) { "yes" } else { "optional" };
            lines.push(format!("tls-port {}", port.number()));
            lines.push(format!("tls-cert-file {}", path(&server.certificate)));
            lines.push(format!("tls-key-file {}", path(&server.key)));
            lines.push(format!("tls-ca-cert-file {}", path(certificates.ca_path())));
            lines.push(format!("tls-auth-clients {clients}"));
        }
        lines.extend(self.password.iter().map(|password| format!("requirepass {}", quoted(password))));
        lines.extend(self.users.iter().chain(&self.lines).cloned());
        Ok(lines.join("\n") + "\n")
    }
}

/// Turns the refusal of a program that was built without TLS into a server that is missing.
fn without_tls(error: Error, tls: Option<Tls>) -> Error {
    let text = error.to_string();
    let is_unknown = tls.is_some() && text.contains("Bad directive") && text.contains("tls-port");
    // Since Redis 8.
    let is_absent = text.contains("Failed finding TLS support");
    if is_unknown || is_absent { Error::absent("this redis-server was built without TLS") } else { error }
}

/// The program of a test that does not ask for another one.
pub(super) const PROGRAM: &str = "redis-server";
/// The shortest limit among the systems that the kit runs on, in bytes.
const MAX_SOCKET_PATH: usize = 103;

/// Quotes a value of the configuration file, byte by byte where a byte means something there.
pub(super) fn quoted(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
    let escaped = value.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("\\x{byte:02x}"),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns a text that a client cannot guess, from the keys that the standard library draws for its hash
/// maps.
fn random_secret() -> String {
    let draw = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", draw(), draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_values_are_quoted() {
        assert_eq!(quoted("a\"b\\c d\né"), r#""a\x22b\x5cc\x20d\x0a\xc3\xa9""#);
    }

    #[test]
    fn random_secrets_differ() {
        assert_ne!(random_secret(), random_secret());
    }
}
