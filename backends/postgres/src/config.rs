//! Addresses of the servers and their options, parsed from a URL.
//!
//! Parsing does no I/O. A password leaves this file only on the way into a connection; no error repeats the
//! URL.

use std::fmt;
use std::path::PathBuf;

use leasehold_backend::url::{
    Credentials, Host, Parts, SHEDLOCK, SqlOptions, TlsFiles, check_shedlock, invalid, nothing_to_sweep,
    redact, sql_name,
};
use leasehold_core::Failure;

pub(crate) use leasehold_backend::url::Create;

/// One PostgreSQL database, and how leasehold uses it:
/// `postgres://[user[:password]@]host[:port][,host[:port]…][/database]`, or `postgresql://…`.
///
/// | option | meaning | default |
/// |---|---|---|
/// | `sslmode` | `disable`, or `verify-full`: TLS with a verified certificate and host name. `require` and `verify-ca` are taken as `verify-full` | `disable` |
/// | `ca`, `cert`, `key` | PEM files: authorities to trust instead of the system's; the client's certificate and its key | |
/// | `password-file` | file that holds the password, read again for each connection | |
/// | `host` | folder of a unix socket, where the URL names no host | |
/// | `schema` | schema of the tables: 1 to 63 of `A-Z a-z 0-9 _`, no digit first | that of the search path |
/// | `table` | table of the locks; the same characters, up to 40. With `method=advisory` clients of another `schema` or `table` exclude each other, and their fences cannot be compared | `leasehold`, or `shedlock` |
/// | `dialect` | `shedlock`: locks in ShedLock's table, for which Java schedulers contend too | |
/// | `create` | `yes`: tables that are missing are created; `no`: they are not | `yes` |
/// | `wait` | `listen` for notifications, or `poll`. Behind a pooler that shares sessions it is always `poll` | `listen` |
/// | `order` | `fifo`, or `unordered`: a free lock goes to the first client that asks | `fifo` |
/// | `method` | `row`: leases in rows; `advisory`: advisory locks of one connection; `for-update`: rows locked by open transactions | `row` |
/// | `silence` | with `advisory` and `for-update`: how long a connection may be silent before its locks count as lost, 1s to 5m; the server keeps them for twice as long | `10s` |
/// | `transactions` | with `for-update`: connections that may hold or wait for a lock, 1 to 1000 | `20` |
/// | `connections` | connections at most for everything else, 1 to 100 | `8` |
/// | `timeout` | how long to wait for a connection, and for an answer, 10ms to 5m | `5s` |
///
/// Of several servers the first one that is not a standby is used. A password comes from the URL, else from
/// `password-file`, else from the environment variable `PGPASSWORD`; a user from the URL, else from
/// `PGUSER`.
///
/// ```
/// use leasehold_postgres::PostgresConfig;
/// let config = PostgresConfig::parse("postgres://jobs:secret@db1,db2:5433/app?sslmode=verify-full").unwrap();
/// assert_eq!(config.to_string(), "postgres://jobs:***@db1:5432,db2:5433/app");
/// let error = PostgresConfig::parse("postgres://db1/app?sslmode=prefer").unwrap_err();
/// assert!(error.to_string().contains("verify-full"));
/// ```
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) credentials: Credentials,
    pub(crate) database: Option<String>,
    pub(crate) tls: Tls,
    pub(crate) tls_files: TlsFiles,
    pub(crate) names: Names,
    pub(crate) dialect: Dialect,
    pub(crate) method: Method,
    pub(crate) wait: Wait,
    pub(crate) sql: SqlOptions,
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(Host),
    /// The folder of the socket, and the port that its name ends in.
    Unix(PathBuf, u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Off,
    Verified,
}

/// The format of a lock in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Native,
    ShedLock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Listen,
    Poll,
}

/// The mechanism that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A lease in a row.
    Row,
    /// An advisory lock of a connection.
    Advisory,
    /// A transaction that has a row locked.
    ForUpdate,
}

/// Names of tables, checked, so that they can be used in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    schema: Option<String>,
    table: String,
}

impl Names {
    /// Returns the table with this ending, quoted.
    pub(crate) fn table(&self, ending: &str) -> String {
        let table = format!("\"{}{ending}\"", self.table);
        match &self.schema {
            Some(schema) => format!("\"{schema}\".{table}"),
            None => table,
        }
    }

    /// Returns the name with this ending, for what lives in the schema of its table.
    pub(crate) fn bare(&self, ending: &str) -> String {
        format!("{}{ending}", self.table)
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }
}

impl PostgresConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead, and without what may be a part of a password. Nothing was
    /// sent anywhere.
    pub fn parse(url: &str) -> Result<PostgresConfig, Failure> {
        PostgresConfig::read(url).map_err(|failure| redact(url, failure))
    }

    fn read(url: &str) -> Result<PostgresConfig, Failure> {
        let parts = Parts::split(url, FORM)?;
        if parts.scheme != "postgres" && parts.scheme != "postgresql" {
            return Err(invalid(format!("write {FORM}")));
        }
        let user = parts.user.clone().filter(|user| !user.is_empty());
        let user = user.or_else(|| std::env::var("PGUSER").ok().filter(|user| !user.is_empty()));
        let mut config = PostgresConfig {
            endpoints: Vec::new(),
            credentials: Credentials::new(user, parts.password.clone(), "PGPASSWORD"),
            database: Some(parts.path.clone()).filter(|name| !name.is_empty()),
            tls: Tls::Off,
            tls_files: TlsFiles::default(),
            names: Names { schema: None, table: "leasehold".to_owned() },
            dialect: Dialect::Native,
            method: Method::Row,
            wait: Wait::Listen,
            sql: SqlOptions::default(),
        };
        if !parts.is_without_host() {
            config.endpoints = parts.hosts(PORT)?.into_iter().map(Endpoint::Tcp).collect();
        }
        for (name, value) in &parts.options {
            config.read_option(name, value)?;
        }
        config.settle_dialect(&parts.options)?;
        config.check_method(&parts.options)?;
        config.check()?;
        Ok(config)
    }

    /// Returns `true` if a password crosses a network that others may listen on.
    pub(crate) fn exposes_password(&self) -> bool {
        let remote = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Tcp(host) if !host.is_loopback());
        self.tls == Tls::Off && self.credentials.names_password() && self.endpoints.iter().any(remote)
    }

    /// Checks that there are leases that could be swept.
    pub(crate) fn check_sweep(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native && self.method == Method::Row {
            return Ok(());
        }
        Err(nothing_to_sweep())
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        if self.tls_files.take(name, value) || self.sql.take(name, value)? {
            return Ok(());
        }
        match (name, value) {
            ("method", "row") => self.method = Method::Row,
            ("method", "advisory") => self.method = Method::Advisory,
            ("method", "for-update") => self.method = Method::ForUpdate,
            ("sslmode", "disable") => self.tls = Tls::Off,
            ("sslmode", "require" | "verify-ca" | "verify-full") => self.tls = Tls::Verified,
            ("sslmode", "prefer" | "allow") => {
                return Err(invalid(format!(
                    "sslmode={value} would go on without TLS where somebody in between asks for it: write \
                     sslmode=verify-full, or sslmode=disable"
                )));
            }
            ("password-file", path) => self.credentials.read_from(path),
            ("host", folder) if folder.starts_with('/') => {
                self.endpoints.push(Endpoint::Unix(PathBuf::from(folder), PORT));
            }
            ("port", port) => self.read_port(port)?,
            ("schema", name) => self.names.schema = Some(sql_name("schema", name, 63)?),
            ("table", name) => self.names.table = sql_name("table", name, MAX_TABLE)?,
            ("dialect", "shedlock") => self.dialect = Dialect::ShedLock,
            ("wait", "listen") => self.wait = Wait::Listen,
            ("wait", "poll") => self.wait = Wait::Poll,
            (known, _) if CHOICES.iter().any(|(name, _)| *name == known) => {
                let choices = CHOICES.iter().find(|(name, _)| *name == known).map(|(_, choices)| *choices);
                return Err(invalid(format!("{known}: write {}", choices.unwrap_or_default())));
            }
            (other, _) => {
                return Err(invalid(format!(
                    "{other:?} is not an option of postgres://; known are {}",
                    [OPTIONS, &SqlOptions::NAMES].concat().join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Applies the changes that a dialect makes to the other settings.
    fn settle_dialect(&mut self, options: &[(String, String)]) -> Result<(), Failure> {
        if self.dialect == Dialect::Native {
            return Ok(());
        }
        check_shedlock(options)?;
        if !options.iter().any(|(name, _)| name == "table") {
            SHEDLOCK.clone_into(&mut self.names.table);
        }
        Ok(())
    }

    /// Reads the port of a unix socket, for which the URL's host part has no place.
    fn read_port(&mut self, port: &str) -> Result<(), Failure> {
        let number: Option<u16> = port.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| invalid("port: write a number from 1 to 65535"))?;
        match self.endpoints.last_mut() {
            Some(Endpoint::Unix(_, port)) => *port = number,
            _ => {
                return Err(invalid(
                    "port belongs to host=/folder and comes behind it; others write host:port",
                ));
            }
        }
        Ok(())
    }

    /// Refuses an option that does nothing with the method: a user would believe that it did something.
    fn check_method(&self, options: &[(String, String)]) -> Result<(), Failure> {
        for (name, _) in options {
            let (methods, text): (&[Method], _) = match name.as_str() {
                "wait" | "order" => (&[Method::Row], "method=row"),
                "silence" => {
                    (&[Method::Advisory, Method::ForUpdate], "method=advisory and method=for-update")
                }
                "transactions" => (&[Method::ForUpdate], "method=for-update"),
                _ => continue,
            };
            if !methods.contains(&self.method) {
                return Err(invalid(format!("{name} is for {text}: take it away, or change the method")));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.endpoints.is_empty() {
            return Err(invalid(format!("a host is missing: write {FORM}")));
        }
        if self.credentials.user.is_none() {
            return Err(invalid("a user is missing: write postgres://user@host/database, or set PGUSER"));
        }
        if self.tls == Tls::Off && self.tls_files != TlsFiles::default() {
            return Err(invalid("ca, cert and key are for TLS: add sslmode=verify-full"));
        }
        if self.tls == Tls::Verified
            && self.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Unix(..)))
        {
            return Err(invalid("a unix socket has no TLS: take sslmode away"));
        }
        self.tls_files.check()?;
        self.credentials.check()
    }
}

impl fmt::Display for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        write!(f, "postgres://{}{}", self.credentials.shown(), endpoints.join(","))?;
        match &self.database {
            Some(database) => write!(f, "/{database}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(host) => host.fmt(f),
            Endpoint::Unix(folder, port) => write!(f, "{}/.s.PGSQL.{port}", folder.display()),
        }
    }
}

const FORM: &str = "postgres://user@host/database";
const PORT: u16 = 5432;
/// Names in PostgreSQL have 63 bytes; ours get endings.
const MAX_TABLE: usize = 40;
const CHOICES: &[(&str, &str)] = &[
    ("method", "method=row, method=advisory or method=for-update"),
    ("sslmode", "sslmode=verify-full or sslmode=disable"),
    ("host", "host=/folder of the server's unix socket"),
    ("dialect", "dialect=shedlock"),
    ("wait", "wait=listen or wait=poll"),
];
const OPTIONS: &[&str] = &[
    "method",
    "sslmode",
    "ca",
    "cert",
    "key",
    "password-file",
    "host",
    "port",
    "schema",
    "table",
    "dialect",
    "wait",
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::FailureKind;

    use super::*;

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config =
            PostgresConfig::parse("postgresql://me@a:1,[::1]/db?timeout=250ms&connections=3").unwrap();
        assert_eq!(config.to_string(), "postgres://me@a:1,[::1]:5432/db");
        assert_eq!((config.sql.timeout, config.sql.connections), (Duration::from_millis(250), 3));
        assert_eq!(config.names.table(""), "\"leasehold\"");

        let url = "postgres://me@/db?host=/run/pg&port=5433&schema=locks&table=Jobs&method=row";
        let config = PostgresConfig::parse(url).unwrap();
        assert_eq!(config.endpoints, [Endpoint::Unix("/run/pg".into(), 5433)]);
        assert_eq!(config.names.table("_meta"), "\"locks\".\"Jobs_meta\"");
    }

    #[test]
    fn a_dialect_has_a_table_of_its_own() {
        let config = PostgresConfig::parse("postgres://me@h?dialect=shedlock&schema=jobs").unwrap();
        assert_eq!(config.names.table(""), "\"jobs\".\"shedlock\"");
        let config = PostgresConfig::parse("postgres://me@h?table=mine&dialect=shedlock").unwrap();
        assert_eq!(config.names.table(""), "\"mine\"");
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = PostgresConfig::parse("postgres://me:hunter2@db.example/app").unwrap();
        assert!(config.exposes_password());
        assert!(!format!("{config} {config:?}").contains("hunter2"));
        for bad in ["postgres://me:hunter2@h?nonsense=1", "postgres://me:hunter2@h:99999"] {
            let error = PostgresConfig::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(!PostgresConfig::parse("postgres://me:x@db/a?sslmode=require").unwrap().exposes_password());
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("mysql://h", "postgres://user@host"),
            ("postgres://me@/db", "host is missing"),
            ("postgres://me@a?sslmode=prefer", "verify-full"),
            ("postgres://me@a?sslmode=yes", "verify-full or sslmode=disable"),
            ("postgres://me@a?ca=/x", "add sslmode"),
            ("postgres://me@a?sslmode=require&cert=/x", "belong together"),
            ("postgres://me@a?table=a\"b", "1 to 40"),
            ("postgres://me@a?schema=1a", "no digit first"),
            ("postgres://me@a?schema=a;drop", "1 to 63"),
            ("postgres://me@a?connections=0", "1 to 100"),
            ("postgres://me@a?method=magic", "method=row"),
            ("postgres://me@a?dialect=quartz", "dialect=shedlock"),
            ("postgres://me@a?order=fifo&dialect=shedlock", "the first client that asks"),
            ("postgres://me@a?method=advisory&order=fifo", "order is for method=row"),
            ("postgres://me@a?silence=5s", "silence is for method=advisory"),
            ("postgres://me@a?transactions=5&method=advisory", "transactions is for method=for-update"),
            ("postgres://me@a?transactions=0&method=for-update", "1 to 1000"),
            ("postgres://me@a?tabel=x", "known are method"),
            ("postgres://me@a?port=7", "host:port"),
            ("postgres://u:p@a?password-file=/x", "two passwords"),
            ("postgres://me@/db?host=/run&sslmode=require", "no TLS"),
        ] {
            let failure = PostgresConfig::parse(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
            assert!(failure.to_string().contains(hint), "{url}: {failure}");
        }
    }
}
