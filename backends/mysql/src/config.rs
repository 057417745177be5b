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

/// One database of MySQL or MariaDB, and how leasehold uses it:
/// `mysql://user[:password]@host[:port][,host[:port]…]/database`, or `mariadb://…`.
///
/// | option | meaning | default |
/// |---|---|---|
/// | `ssl-mode` | `disabled`, or `verify-identity`: TLS with a verified certificate and host name. `required` and `verify-ca` are taken as `verify-identity` | `disabled` |
/// | `ca`, `cert`, `key` | PEM files: authorities to trust instead of the system's; the client's certificate and its key | |
/// | `password-file` | file that holds the password, read again for each connection | |
/// | `socket` | path of a unix socket, where the URL names no host | |
/// | `table` | table of the locks: 1 to 40 of `A-Z a-z 0-9 _`, no digit first | `leasehold`, or `shedlock` |
/// | `create` | `yes`: tables that are missing are created; `no`: they are not | `yes` |
/// | `method` | `row`: leases in rows; `get-lock`: named locks of one connection, by `GET_LOCK`; `for-update`: rows locked by open transactions | `row` |
/// | `silence` | with `get-lock` and `for-update`: how long a connection may be silent before its locks count as lost, 1s to 5m; the server keeps them for twice as long | `10s` |
/// | `transactions` | with `for-update`: connections that may hold or wait for a lock, 1 to 1000 | `20` |
/// | `dialect` | `shedlock`: locks in ShedLock's table, for which Java schedulers contend too; with `get-lock`: `tooz` or `dotnet`, to contend for the same locks as Python's `tooz` or .NET's DistributedLock | |
/// | `order` | `fifo`, or `unordered`: a free lock goes to the first client that asks | `fifo` |
/// | `connections` | connections at most, 1 to 100 | `8` |
/// | `timeout` | how long to wait for a connection, and for an answer, 10ms to 5m | `5s` |
///
/// Of several servers the first one that is not a replica is used. A password comes from the URL, else from
/// `password-file`, else from the environment variable `MYSQL_PWD`.
///
/// ```
/// use leasehold_mysql::MySqlConfig;
/// let config = MySqlConfig::parse("mysql://jobs:secret@db1,db2:3307/app?ssl-mode=verify-identity").unwrap();
/// assert_eq!(config.to_string(), "mysql://jobs:***@db1:3306,db2:3307/app");
/// let error = MySqlConfig::parse("mysql://jobs@db1/app?ssl-mode=preferred").unwrap_err();
/// assert!(error.to_string().contains("verify-identity"));
/// ```
#[derive(Clone, Debug)]
pub struct MySqlConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) credentials: Credentials,
    pub(crate) database: String,
    pub(crate) tls: Tls,
    pub(crate) tls_files: TlsFiles,
    pub(crate) names: Names,
    pub(crate) method: Method,
    pub(crate) dialect: Dialect,
    pub(crate) sql: SqlOptions,
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(Host),
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Off,
    Verified,
}

/// The mechanism that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A lease in a row.
    Row,
    /// A named lock of a connection.
    GetLock,
    /// A row that an open transaction has locked.
    ForUpdate,
}

/// The format of a lock in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The format of leasehold's own. Named locks are named by digests, so that all names are apart on all
    /// servers, and those of other programs.
    Native,
    /// A row of ShedLock's table.
    ShedLock,
    /// A named lock by the name as it is, as `tooz` does.
    Tooz,
    /// A named lock by the name that .NET's DistributedLock derives.
    DotNet,
}

/// Names of tables, checked, so that they can be used in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    table: String,
}

impl Names {
    /// Returns the table with this ending, quoted.
    pub(crate) fn table(&self, ending: &str) -> String {
        format!("`{}{ending}`", self.table)
    }
}

impl MySqlConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead, and without what may be a part of a password. Nothing was
    /// sent anywhere.
    pub fn parse(url: &str) -> Result<MySqlConfig, Failure> {
        MySqlConfig::read(url).map_err(|failure| redact(url, failure))
    }

    fn read(url: &str) -> Result<MySqlConfig, Failure> {
        let parts = Parts::split(url, FORM)?;
        if parts.scheme != "mysql" && parts.scheme != "mariadb" {
            return Err(invalid(format!("write {FORM}")));
        }
        let user = parts.user.clone().filter(|user| !user.is_empty());
        let mut config = MySqlConfig {
            endpoints: Vec::new(),
            credentials: Credentials::new(user, parts.password.clone(), "MYSQL_PWD"),
            database: parts.path.clone(),
            tls: Tls::Off,
            tls_files: TlsFiles::default(),
            names: Names { table: "leasehold".to_owned() },
            method: Method::Row,
            dialect: Dialect::Native,
            sql: SqlOptions::default(),
        };
        if !parts.is_without_host() {
            config.endpoints = parts.hosts(PORT)?.into_iter().map(Endpoint::Tcp).collect();
        }
        for (name, value) in &parts.options {
            config.read_option(name, value)?;
        }
        config.settle_dialect(&parts.options)?;
        config.check_method(&parts)?;
        config.check()?;
        Ok(config)
    }

    /// Returns `true` if a password crosses a network that others may listen on.
    pub(crate) fn exposes_password(&self) -> bool {
        let remote = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Tcp(host) if !host.is_loopback());
        self.tls == Tls::Off && self.credentials.names_password() && self.endpoints.iter().any(remote)
    }

    /// Returns the database's name, quoted.
    pub(crate) fn quoted_database(&self) -> String {
        format!("`{}`", self.database.replace('`', "``"))
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        if self.tls_files.take(name, value) || self.sql.take(name, value)? {
            return Ok(());
        }
        match (name, value) {
            ("method", "row") => self.method = Method::Row,
            ("method", "get-lock") => self.method = Method::GetLock,
            ("method", "for-update") => self.method = Method::ForUpdate,
            ("dialect", "shedlock") => self.dialect = Dialect::ShedLock,
            ("dialect", "tooz") => self.dialect = Dialect::Tooz,
            ("dialect", "dotnet") => self.dialect = Dialect::DotNet,
            ("ssl-mode", mode) => self.tls = read_tls(mode)?,
            ("password-file", path) => self.credentials.read_from(path),
            ("socket", path) if path.starts_with('/') => {
                self.endpoints.push(Endpoint::Unix(PathBuf::from(path)))
            }
            ("table", name) => self.names.table = sql_name("table", name, MAX_TABLE)?,
            (known, _) if CHOICES.iter().any(|(name, _)| *name == known) => {
                let choices = CHOICES.iter().find(|(name, _)| *name == known).map(|(_, choices)| *choices);
                return Err(invalid(format!("{known}: write {}", choices.unwrap_or_default())));
            }
            (other, _) => {
                let known = [OPTIONS, &SqlOptions::NAMES].concat().join(", ");
                return Err(invalid(format!("{other:?} is not an option of mysql://; known are {known}")));
            }
        }
        Ok(())
    }

    /// Applies the changes that a dialect makes to the other settings.
    fn settle_dialect(&mut self, options: &[(String, String)]) -> Result<(), Failure> {
        match self.dialect {
            Dialect::Native => {}
            Dialect::Tooz | Dialect::DotNet if self.method == Method::GetLock => {}
            Dialect::Tooz | Dialect::DotNet => {
                let name = if self.dialect == Dialect::Tooz { "tooz" } else { "dotnet" };
                let text = format!("dialect={name} is for method=get-lock: add that, or take it away");
                return Err(invalid(text));
            }
            Dialect::ShedLock => {
                check_shedlock(options)?;
                if !options.iter().any(|(name, _)| name == "table") {
                    SHEDLOCK.clone_into(&mut self.names.table);
                }
            }
        }
        Ok(())
    }

    /// Checks that there are leases that could be swept.
    pub(crate) fn check_sweep(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native && self.method == Method::Row {
            return Ok(());
        }
        Err(nothing_to_sweep())
    }

    /// Checks that each option is one of the method.
    fn check_method(&self, parts: &Parts) -> Result<(), Failure> {
        for (name, _) in &parts.options {
            let (methods, text): (&[Method], _) = match name.as_str() {
                "order" => (&[Method::Row], "method=row"),
                "silence" => (&[Method::GetLock, Method::ForUpdate], "method=get-lock and method=for-update"),
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
            return Err(invalid(format!("a user is missing: write {FORM}")));
        }
        if self.database.is_empty() {
            return Err(invalid(format!("a database is missing: write {FORM}")));
        }
        if self.tls == Tls::Off && self.tls_files != TlsFiles::default() {
            return Err(invalid("ca, cert and key are for TLS: add ssl-mode=verify-identity"));
        }
        if self.tls == Tls::Verified
            && self.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Unix(_)))
        {
            return Err(invalid("a unix socket has no TLS: take ssl-mode away"));
        }
        self.tls_files.check()?;
        self.credentials.check()
    }
}

impl fmt::Display for MySqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        write!(f, "mysql://{}{}/{}", self.credentials.shown(), endpoints.join(","), self.database)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(host) => host.fmt(f),
            Endpoint::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Reads the TLS mode: the names are those of the programs of MySQL and MariaDB, which write them in any
/// case and with either stroke.
fn read_tls(mode: &str) -> Result<Tls, Failure> {
    match mode.to_ascii_lowercase().replace('_', "-").as_str() {
        "disabled" => Ok(Tls::Off),
        "required" | "verify-ca" | "verify-identity" => Ok(Tls::Verified),
        "preferred" => Err(invalid(
            "ssl-mode=preferred would go on without TLS where somebody in between asks for it: write \
             ssl-mode=verify-identity, or ssl-mode=disabled",
        )),
        _ => Err(invalid("ssl-mode: write ssl-mode=verify-identity or ssl-mode=disabled")),
    }
}

const FORM: &str = "mysql://user@host/database";
const PORT: u16 = 3306;
/// Names of tables have 64 characters; ours get endings.
const MAX_TABLE: usize = 40;
const CHOICES: &[(&str, &str)] = &[
    ("method", "method=row, method=get-lock or method=for-update"),
    ("dialect", "dialect=shedlock, dialect=tooz or dialect=dotnet"),
    ("socket", "socket=/path of the server's unix socket"),
];
const OPTIONS: &[&str] =
    &["method", "ssl-mode", "ca", "cert", "key", "password-file", "socket", "table", "dialect"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::FailureKind;

    use super::*;

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config = MySqlConfig::parse("mariadb://me@a:1,[::1]/db?timeout=250ms&connections=3").unwrap();
        assert_eq!(config.to_string(), "mysql://me@a:1,[::1]:3306/db");
        assert_eq!((config.sql.timeout, config.sql.connections), (Duration::from_millis(250), 3));
        assert_eq!(config.names.table(""), "`leasehold`");

        let config = MySqlConfig::parse("mysql://me@/d%60b?socket=/run/sock&table=Jobs&method=row").unwrap();
        assert_eq!(config.endpoints, [Endpoint::Unix("/run/sock".into())]);
        assert_eq!(config.names.table("_meta"), "`Jobs_meta`");
        assert_eq!(config.quoted_database(), "`d``b`");
        for (mode, tls) in [
            ("DISABLED", Tls::Off),
            ("VERIFY_IDENTITY", Tls::Verified),
            ("required", Tls::Verified),
            ("verify-ca", Tls::Verified),
        ] {
            let config = MySqlConfig::parse(&format!("mysql://me@h/d?ssl-mode={mode}")).unwrap();
            assert_eq!(config.tls, tls, "{mode}");
        }
    }

    #[test]
    fn a_dialect_has_a_table_of_its_own() {
        let table = |url: &str| MySqlConfig::parse(url).unwrap().names.table("");
        assert_eq!(table("mysql://me@h/d?dialect=shedlock"), "`shedlock`");
        assert_eq!(table("mysql://me@h/d?table=mine&dialect=shedlock"), "`mine`");
        assert_eq!(table("mysql://me@h/d?dialect=tooz&method=get-lock"), "`leasehold`");
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = MySqlConfig::parse("mysql://me:hunter2@db.example/app").unwrap();
        assert!(config.exposes_password());
        assert!(!format!("{config} {config:?}").contains("hunter2"));
        for bad in ["mysql://me:hunter2@h/d?nonsense=1", "mysql://me:hunter2@h:99999/d"] {
            let error = MySqlConfig::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(!MySqlConfig::parse("mysql://me:x@db/a?ssl-mode=required").unwrap().exposes_password());
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("postgres://h", "mysql://user@host"),
            ("mysql://me@/db", "host is missing"),
            ("mysql://a/db", "user is missing"),
            ("mysql://me@a", "database is missing"),
            ("mysql://me@a/d?ssl-mode=preferred", "verify-identity"),
            ("mysql://me@a/d?ssl-mode=yes", "verify-identity or ssl-mode=disabled"),
            ("mysql://me@a/d?ca=/x", "add ssl-mode"),
            ("mysql://me@a/d?ssl-mode=required&cert=/x", "belong together"),
            ("mysql://me@a/d?table=a`b", "1 to 40"),
            ("mysql://me@a/d?table=1a", "no digit first"),
            ("mysql://me@a/d?table=", "1 to 40"),
            ("mysql://me@a/d?connections=0", "1 to 100"),
            ("mysql://me@a/d?method=magic", "method=row"),
            ("mysql://me@a/d?dialect=zope&method=get-lock", "dialect=tooz"),
            ("mysql://me@a/d?dialect=tooz", "dialect=tooz is for method=get-lock"),
            ("mysql://me@a/d?dialect=dotnet", "dialect=dotnet is for method=get-lock"),
            ("mysql://me@a/d?dialect=shedlock&order=fifo", "the first client that asks"),
            ("mysql://me@a/d?method=get-lock&order=fifo", "order is for method=row"),
            ("mysql://me@a/d?method=get-lock&silence=1ms", "silence"),
            ("mysql://me@a/d?socket=here", "socket=/path"),
            ("mysql://me@a/d?silence=5s", "silence is for method=get-lock and method=for-update"),
            ("mysql://me@a/d?transactions=5&method=get-lock", "transactions is for method=for-update"),
            ("mysql://me@a/d?transactions=0&method=for-update", "1 to 1000"),
            ("mysql://me@a/d?dialect=tooz&method=for-update", "dialect=tooz is for method=get-lock"),
            ("mysql://me@a/d?tabel=x", "known are method"),
            ("mysql://u:p@a/d?password-file=/x", "two passwords"),
            ("mysql://me@/db?socket=/run/s&ssl-mode=required", "no TLS"),
        ] {
            let failure = MySqlConfig::parse(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
            assert!(failure.to_string().contains(hint), "{url}: {failure}");
        }
    }
}
