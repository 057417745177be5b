//! Which database, and how it is used, parsed from a URL. Parsing touches no file.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{self, Create, Lack, Scheme, StoreUrls, UrlOption, invalid};
use leasehold_core::{Failure, QueueOrder};
use percent_encoding::percent_decode_str;

/// The URLs of SQLite.
pub static URLS: StoreUrls = StoreUrls {
    title: "SQLite",
    schemes: &[Scheme {
        name: "sqlite",
        form: "sqlite:path",
        meaning: "a database file, from the root or from the working directory",
        example: "sqlite:/a/path/locks.db",
    }],
    options: &[&url::ORDER, &TABLE, &TIMEOUT, &CREATE],
    lacks: &[
        Lack {
            schemes: &[],
            options: &["ca", "cert", "key", "password-file", "sslmode", "connections"],
            why: "a file has no server to connect to",
        },
        Lack { schemes: &[], options: &["synchronous"], why: "fences are strict without it: leave it out" },
    ],
    check: |url| SqliteConfig::parse(url).map(drop),
};

const TABLE: UrlOption<String> = UrlOption::sql_name("table", 60)
    .about("beginning of the names of the tables, but not `sqlite_`")
    .default("leasehold");
const TIMEOUT: UrlOption<Duration> =
    url::TIMEOUT.about("how long to wait for the database while others write");
const CREATE: UrlOption<Create> = url::CREATE.about("whether a missing database is created");

/// One database file, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
///
/// ```
/// use leasehold_sqlite::SqliteConfig;
/// let config = SqliteConfig::parse("sqlite:/var/lib/app/data.db?order=unordered").unwrap();
/// assert_eq!(config.to_string(), "sqlite:/var/lib/app/data.db");
/// let error = SqliteConfig::parse("sqlite:data.db?tabel=x").unwrap_err();
/// assert!(error.to_string().contains("table"));
/// ```
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    pub(crate) path: PathBuf,
    pub(crate) order: QueueOrder,
    pub(crate) table: String,
    pub(crate) timeout: Duration,
    pub(crate) create: Create,
}

impl SqliteConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub fn parse(url: &str) -> Result<SqliteConfig, Failure> {
        let rest = url
            .strip_prefix("sqlite:")
            .ok_or_else(|| invalid(format!("this is no URL of SQLite: write {FORM}")))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        // `sqlite:///a` is written as often as `sqlite:/a`.
        let path = match path.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(invalid(format!("a database file has no host: write {FORM}"))),
            None => path,
        };
        let path = percent_decode_str(path)
            .decode_utf8()
            .map_err(|_| invalid("the path is not UTF-8 once its %XX are decoded"))?;
        if path.is_empty() || path == ":memory:" || path.ends_with('/') {
            let text = format!(
                "name a file that all processes can open: write {FORM}; for one process there is mem:"
            );
            return Err(invalid(text));
        }
        let options = URLS.options("sqlite", ::url::form_urlencoded::parse(query.as_bytes()).into_owned())?;
        let table = options.get(&TABLE)?;
        if table.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(invalid("table: names that begin with sqlite_ are SQLite's own: write another"));
        }
        Ok(SqliteConfig {
            path: PathBuf::from(path.as_ref()),
            order: options.get(&url::ORDER)?,
            table,
            timeout: options.get(&TIMEOUT)?,
            create: options.get(&CREATE)?,
        })
    }
}

impl fmt::Display for SqliteConfig {
    /// Writes the URL without options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

const FORM: &str = "sqlite:/a/path/locks.db";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_url_are_read() {
        let path = |url| SqliteConfig::parse(url).unwrap().path;
        assert_eq!(path("sqlite:/a/b.db"), PathBuf::from("/a/b.db"));
        assert_eq!(path("sqlite:///a/b.db"), PathBuf::from("/a/b.db"));
        assert_eq!(path("sqlite:b%20c.db?order=fifo"), PathBuf::from("b c.db"));
        let config = SqliteConfig::parse("sqlite:x?table=My_locks2&timeout=1s").unwrap();
        assert_eq!((config.table.as_str(), config.timeout), ("My_locks2", Duration::from_secs(1)));
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("redis://h", "sqlite:/a/path"),
            ("sqlite:", "name a file"),
            ("sqlite::memory:", "mem:"),
            ("sqlite:/a/", "name a file"),
            ("sqlite://host/a", "no host"),
            ("sqlite:x?tabel=y", "did you mean table?; known are order, table, timeout, create"),
            ("sqlite:x?create=maybe", "create=no"),
            ("sqlite:x?table=1a", "no digit first"),
            ("sqlite:x?table=a;drop", "A-Z a-z 0-9 _"),
            ("sqlite:x?sslmode=disable", "no server"),
            ("sqlite:x?table=", "1 to 60"),
            ("sqlite:x?table=sqlite_a", "begin with sqlite_"),
            ("sqlite:x?order=any", "order=fifo"),
            ("sqlite:x?synchronous=full", "strict without it"),
            ("sqlite:x?timeout=1h", "between"),
        ] {
            let refusal = SqliteConfig::parse(url).unwrap_err().to_string();
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }
}
