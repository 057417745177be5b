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

/// The URLs of PostgreSQL.
pub static URLS: StoreUrls = StoreUrls {
    title: "PostgreSQL",
    schemes: &[
        Scheme {
            name: "postgres",
            form: "postgres://[user[:password]@]host[:port][,host[:port]…][/database]",
            meaning: "one database, on the first server that is not a standby",
            example: "postgres://user@host/database",
        },
        Scheme {
            name: "postgresql",
            form: "postgresql://…",
            meaning: "the same",
            example: "postgresql://user@host/database",
        },
    ],
    options: &[
        &SSLMODE,
        &CA,
        &CERT,
        &KEY,
        &PASSWORD_FILE,
        &HOST,
        &SOCKET_PORT,
        &SCHEMA,
        &TABLE,
        &DIALECT,
        &CREATE,
        &WAIT,
        &ORDER,
        &METHOD,
        &SILENCE_OF_SESSIONS,
        &TRANSACTIONS,
        &CONNECTIONS,
        &TIMEOUT,
    ],
    lacks: &[
        Lack {
            schemes: &[],
            options: &["socket"],
            why: "write host=/folder, and port= where it is not 5432",
        },
        Lack { schemes: &[], options: &["tls"], why: "write sslmode=verify-full" },
    ],
    check: |url| PostgresConfig::parse(url).map(drop),
};

const HOST: UrlOption<PathBuf> = UrlOption::rooted("host")
    .about("folder of the server's unix socket, where the URL names no host")
    .example("/run/postgresql");
const SOCKET_PORT: UrlOption<u16> = UrlOption::number("port", 1, 65535)
    .about("number in the name of the unix socket")
    .default_note("`5432`")
    .example("5432")
    .hint("elsewhere write host:port")
    .only_with(&[("host", &[])]);
const SCHEMA: UrlOption<String> = UrlOption::sql_name("schema", 63)
    .about("schema of the tables")
    .default_note("that to which the search path leads when the client connects")
    .example("locks");
const TABLE: UrlOption<String> = UrlOption::sql_name("table", MAX_TABLE)
    .about(
        "table of the locks; with `method=advisory` clients of another `schema` or `table` exclude each other, and their \
         fences cannot be compared",
    )
    .default_note("`leasehold`; with `dialect=shedlock` `shedlock`")
    .example("leasehold");
const DIALECT: UrlOption<Dialect> =
    UrlOption::choice("dialect", &[("native", Dialect::Native), ("shedlock", Dialect::ShedLock)])
        .about(
            "with `shedlock` the locks are rows of ShedLock's table, for which Java schedulers contend too",
        )
        .default("native");
const WAIT: UrlOption<Wait> = UrlOption::choice("wait", &[("listen", Wait::Listen), ("poll", Wait::Poll)])
    .about(
        "how a waiter learns of a release: by a notification, or by polling; behind a pooler that shares sessions it \
         always polls",
    )
    .default("listen")
    .only_with(&[("method", &["row"])]);
const METHOD: UrlOption<Method> = UrlOption::choice(
    "method",
    &[("row", Method::Row), ("advisory", Method::Advisory), ("for-update", Method::ForUpdate)],
)
.about("leases in rows, advisory locks of one connection, or rows locked by open transactions")
.default("row");
const SILENCE_OF_SESSIONS: UrlOption<Duration> =
    SILENCE.only_with(&[("method", &["advisory", "for-update"])]);

/// One PostgreSQL database, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
///
/// A password comes from the URL, else from
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

/// Names of tables, checked or quoted, so that they can be used in a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// That of the URL; else that which the first connection has found, of any characters.
    schema: Option<String>,
    is_schema_named: bool,
    table: String,
}

impl Names {
    /// Returns the table with this ending, quoted.
    pub(crate) fn table(&self, ending: &str) -> String {
        let table = format!("\"{}{ending}\"", self.table);
        match &self.schema {
            Some(schema) => format!("{}.{table}", quoted(schema)),
            None => table,
        }
    }

    /// Returns the table with this ending as a text of SQL, for what reads the name when it runs.
    pub(crate) fn text(&self, ending: &str) -> String {
        let text = self.table(ending).replace('\'', "''");
        match text.contains('\\') {
            true => format!("E'{}'", text.replace('\\', r"\\")),
            false => format!("'{text}'"),
        }
    }

    /// Returns the name with this ending, for what lives in the schema of its table.
    pub(crate) fn bare(&self, ending: &str) -> String {
        format!("{}{ending}", self.table)
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// Returns `true` if the URL names the schema.
    pub(crate) fn is_schema_named(&self) -> bool {
        self.is_schema_named
    }
}

/// Returns a name of the database in quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl PostgresConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead, and without what may be a part of a password. Nothing was
    /// sent anywhere.
    pub fn parse(url: &str) -> Result<PostgresConfig, Failure> {
        URLS.read(url, PostgresConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<PostgresConfig, Failure> {
        let mut endpoints = Vec::new();
        if !parts.is_without_host() {
            endpoints.extend(parts.hosts(PORT)?.into_iter().map(Endpoint::Tcp));
        }
        if let Some(folder) = options.find(&HOST)? {
            endpoints.push(Endpoint::Unix(folder, options.find(&SOCKET_PORT)?.unwrap_or(PORT)));
        }
        let dialect = options.get(&DIALECT)?;
        if dialect == Dialect::ShedLock {
            check_shedlock(options)?;
        }
        let table = options.find(&TABLE)?.unwrap_or_else(|| match dialect {
            Dialect::Native => "leasehold".to_owned(),
            Dialect::ShedLock => SHEDLOCK.to_owned(),
        });
        let schema = options.find(&SCHEMA)?;
        let user = parts.user.filter(|user| !user.is_empty());
        let user = user.or_else(|| std::env::var("PGUSER").ok());
        let config = PostgresConfig {
            endpoints,
            credentials: Credentials::of(user, parts.password, options, "PGPASSWORD")?,
            database: Some(parts.path).filter(|name| !name.is_empty()),
            names: Names { is_schema_named: schema.is_some(), schema, table },
            dialect,
            method: options.get(&METHOD)?,
            wait: options.get(&WAIT)?,
            sql: SqlOptions::of(options)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Returns `true` if a password crosses a network that others may listen on.
    pub(crate) fn exposes_password(&self) -> bool {
        let hosts = self.endpoints.iter().filter_map(|endpoint| match endpoint {
            Endpoint::Tcp(host) => Some(host),
            Endpoint::Unix(..) => None,
        });
        self.sql.tls == Tls::Off && is_exposed(hosts, || self.credentials.may_have_password())
    }

    /// Names the tables in this schema from now on, whatever the search path of a session is.
    pub(crate) fn in_schema(&self, schema: String) -> PostgresConfig {
        let names = Names { schema: Some(schema), ..self.names.clone() };
        PostgresConfig { names, ..self.clone() }
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
            return Err(invalid("a user is missing: write postgres://user@host/database, or set PGUSER"));
        }
        self.sql.check_sockets(&self.endpoints, |endpoint| matches!(endpoint, Endpoint::Unix(..)))
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
    fn a_schema_that_is_found_may_have_any_characters() {
        let config = PostgresConfig::parse("postgres://me@h?table=jobs").unwrap();
        let names = config.in_schema(r#"a"b'c\d"#.to_owned()).names;
        assert_eq!(names.table("_meta"), r#""a""b'c\d"."jobs_meta""#);
        assert_eq!(names.text("_meta"), r#"E'"a""b''c\\d"."jobs_meta"'"#);
        assert!(!names.is_schema_named());
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
        // The variable of the password may be set; this one is, where tests run.
        let mut config = PostgresConfig::parse("postgres://me@db/a").unwrap();
        config.credentials = Credentials::new(Some("me".to_owned()), None, "PATH");
        assert!(config.exposes_password());
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("mysql://h", "postgres://user@host"),
            ("postgres://me@/db", "host is missing"),
            ("postgres://me@a?sslmode=prefer", "verify-full"),
            ("postgres://me@a?sslmode=yes", "sslmode=disable or sslmode=verify-full"),
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
            ("postgres://me@a?silence=5s", "silence is for method=advisory and method=for-update"),
            ("postgres://me@a?transactions=5&method=advisory", "transactions is for method=for-update"),
            ("postgres://me@a?transactions=0&method=for-update", "1 to 1000"),
            ("postgres://me@a?tabel=x", "did you mean table?"),
            ("postgres://me@a?port=7", "host:port"),
            ("postgres://me@a?socket=/run/s", "write host=/folder"),
            ("postgres://me@a?ssl-mode=disable", "did you mean sslmode?"),
            ("postgres://u:p@a?password-file=/x", "two passwords"),
            ("postgres://me@/db?host=/run&sslmode=require", "no TLS"),
        ] {
            let failure = PostgresConfig::parse(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
            assert!(failure.to_string().contains(hint), "{url}: {failure}");
        }
    }
}
