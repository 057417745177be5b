//! Addresses of the servers and their options, parsed from a URL.
//!
//! Parsing does no I/O. A password leaves this file only on the way into a connection; no error repeats the
//! URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::sql::{
    CA, CERT, CONNECTIONS, KEY, ORDER, SHEDLOCK, SILENCE, SSLMODE, SqlOptions, TRANSACTIONS, check_shedlock,
    nothing_to_sweep,
};
use leasehold_backend::url::{
    CREATE, Credentials, Host, Lack, Options, PASSWORD_FILE, Parts, Scheme, StoreUrls, TIMEOUT, UrlOption,
    invalid, is_exposed,
};
use leasehold_core::Failure;

pub(crate) use leasehold_backend::url::Create;
pub(crate) use leasehold_backend::url::sql::Tls;

/// The URLs of MySQL and MariaDB.
pub static URLS: StoreUrls = StoreUrls {
    title: "MySQL and MariaDB",
    schemes: &[
        Scheme {
            name: "mysql",
            form: "mysql://user[:password]@host[:port][,host[:port]…]/database",
            meaning: "one database, on the first server that is not a replica",
            example: "mysql://user@host/database",
        },
        Scheme {
            name: "mariadb",
            form: "mariadb://…",
            meaning: "the same",
            example: "mariadb://user@host/database",
        },
    ],
    options: &[
        &SSLMODE,
        &CA,
        &CERT,
        &KEY,
        &PASSWORD_FILE,
        &SOCKET,
        &TABLE,
        &CREATE,
        &METHOD,
        &SILENCE_OF_SESSIONS,
        &TRANSACTIONS,
        &DIALECT,
        &ORDER,
        &CONNECTIONS,
        &TIMEOUT,
    ],
    lacks: &[
        Lack {
            schemes: &[],
            options: &["wait"],
            why: "its waiters poll, because its servers send no notifications",
        },
        Lack { schemes: &[], options: &["host"], why: "write socket=/path of the server's unix socket" },
        Lack { schemes: &[], options: &["tls"], why: "write sslmode=verify-full" },
    ],
    check: |url| MySqlConfig::parse(url).map(drop),
};

const SOCKET: UrlOption<PathBuf> = UrlOption::rooted("socket")
    .about("path of the server's unix socket, where the URL names no host")
    .example("/run/mysqld/mysqld.sock");
const TABLE: UrlOption<String> = UrlOption::sql_name("table", MAX_TABLE)
    .about("table of the locks")
    .default_note("`leasehold`; with `dialect=shedlock` `shedlock`")
    .example("leasehold");
const METHOD: UrlOption<Method> = UrlOption::choice(
    "method",
    &[("row", Method::Row), ("get-lock", Method::GetLock), ("for-update", Method::ForUpdate)],
)
.about("leases in rows, named locks of one connection by `GET_LOCK`, or rows locked by open transactions")
.default("row");
const SILENCE_OF_SESSIONS: UrlOption<Duration> =
    SILENCE.only_with(&[("method", &["get-lock", "for-update"])]);
const DIALECT: UrlOption<Dialect> = UrlOption::choice(
    "dialect",
    &[
        ("native", Dialect::Native),
        ("shedlock", Dialect::ShedLock),
        ("tooz", Dialect::Tooz),
        ("dotnet", Dialect::DotNet),
    ],
)
.about(
    "with `shedlock` the locks are rows of ShedLock's table, for which Java schedulers contend too; with \
     `method=get-lock` locks contend with Python's `tooz` or .NET's DistributedLock",
)
.default("native");

/// One database of MySQL or MariaDB, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
///
/// A password comes from the URL, else from
/// `password-file`, else from the environment variable `MYSQL_PWD`.
///
/// ```
/// use leasehold_mysql::MySqlConfig;
/// let config = MySqlConfig::parse("mysql://jobs:secret@db1,db2:3307/app?sslmode=verify-full").unwrap();
/// assert_eq!(config.to_string(), "mysql://jobs:***@db1:3306,db2:3307/app");
/// let error = MySqlConfig::parse("mysql://jobs@db1/app?sslmode=preferred").unwrap_err();
/// assert!(error.to_string().contains("verify-full"));
/// ```
#[derive(Clone, Debug)]
pub struct MySqlConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) credentials: Credentials,
    pub(crate) database: String,
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
    /// The dialect of leasehold. Named locks are named by digests, so that all names are apart on all
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
        URLS.read(url, MySqlConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<MySqlConfig, Failure> {
        let mut endpoints = Vec::new();
        if !parts.is_without_host() {
            endpoints.extend(parts.hosts(PORT)?.into_iter().map(Endpoint::Tcp));
        }
        endpoints.extend(options.find(&SOCKET)?.map(Endpoint::Unix));
        let (method, dialect) = (options.get(&METHOD)?, options.get(&DIALECT)?);
        if let (Dialect::Tooz | Dialect::DotNet, Method::Row | Method::ForUpdate) = (dialect, method) {
            let name = if dialect == Dialect::Tooz { "tooz" } else { "dotnet" };
            let text = format!("dialect={name} is for method=get-lock: add that, or take it away");
            return Err(invalid(text));
        }
        if dialect == Dialect::ShedLock {
            check_shedlock(options)?;
        }
        let table = options.find(&TABLE)?.unwrap_or_else(|| match dialect {
            Dialect::ShedLock => SHEDLOCK.to_owned(),
            Dialect::Native | Dialect::Tooz | Dialect::DotNet => "leasehold".to_owned(),
        });
        let user = parts.user.filter(|user| !user.is_empty());
        let config = MySqlConfig {
            endpoints,
            credentials: Credentials::of(user, parts.password, options, "MYSQL_PWD")?,
            database: parts.path,
            names: Names { table },
            method,
            dialect,
            sql: SqlOptions::of(options)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Returns `true` if a password crosses a network that others may listen on.
    pub(crate) fn exposes_password(&self) -> bool {
        let hosts = self.endpoints.iter().filter_map(|endpoint| match endpoint {
            Endpoint::Tcp(host) => Some(host),
            Endpoint::Unix(_) => None,
        });
        self.sql.tls == Tls::Off && is_exposed(hosts, || self.credentials.may_have_password())
    }

    /// Returns the database's name, quoted.
    pub(crate) fn quoted_database(&self) -> String {
        format!("`{}`", self.database.replace('`', "``"))
    }

    /// Checks that there are leases that could be swept.
    pub(crate) fn check_sweep(&self) -> Result<(), Failure> {
        if self.dialect == Dialect::Native && self.method == Method::Row {
            return Ok(());
        }
        Err(nothing_to_sweep())
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
        self.sql.check_sockets(&self.endpoints, |endpoint| matches!(endpoint, Endpoint::Unix(_)))
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

const FORM: &str = "mysql://user@host/database";
const PORT: u16 = 3306;
/// Names of tables have 64 characters; ours get endings.
const MAX_TABLE: usize = 40;

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
        let config = MySqlConfig::parse("mysql://me@h/d?sslmode=VERIFY_IDENTITY").unwrap();
        assert_eq!(config.sql.tls, Tls::Verified);
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
        assert!(!MySqlConfig::parse("mysql://me:x@db/a?sslmode=required").unwrap().exposes_password());
        // The variable of the password may be set; this one is, where tests run.
        let mut config = MySqlConfig::parse("mysql://me@db/a").unwrap();
        config.credentials = Credentials::new(Some("me".to_owned()), None, "PATH");
        assert!(config.exposes_password());
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("postgres://h", "mysql://user@host"),
            ("mysql://me@/db", "host is missing"),
            ("mysql://a/db", "user is missing"),
            ("mysql://me@a", "database is missing"),
            ("mysql://me@a/d?ssl-mode=disabled", "did you mean sslmode?"),
            ("mysql://me@a/d?sslmode=preferred", "verify-full"),
            ("mysql://me@a/d?sslmode=yes", "sslmode=disable or sslmode=verify-full"),
            ("mysql://me@a/d?ca=/x", "add sslmode"),
            ("mysql://me@a/d?sslmode=required&cert=/x", "belong together"),
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
            ("mysql://me@a/d?socket=here", "socket=/run/mysqld/mysqld.sock"),
            ("mysql://me@a/d?silence=5s", "silence is for method=get-lock and method=for-update"),
            ("mysql://me@a/d?transactions=5&method=get-lock", "transactions is for method=for-update"),
            ("mysql://me@a/d?transactions=0&method=for-update", "1 to 1000"),
            ("mysql://me@a/d?dialect=tooz&method=for-update", "dialect=tooz is for method=get-lock"),
            ("mysql://me@a/d?tabel=x", "did you mean table?"),
            ("mysql://me@a/d?wait=poll", "its waiters poll"),
            ("mysql://u:p@a/d?password-file=/x", "two passwords"),
            ("mysql://me@/db?socket=/run/s&sslmode=required", "no TLS"),
        ] {
            let failure = MySqlConfig::parse(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
            assert!(failure.to_string().contains(hint), "{url}: {failure}");
        }
    }
}
