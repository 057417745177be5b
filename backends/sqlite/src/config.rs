//! Which database, and how it is used, parsed from a URL. Parsing touches no file.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{duration_between, invalid};
use leasehold_core::{Failure, FenceGrade, QueueOrder};
use percent_encoding::percent_decode_str;

/// One database file, and how leasehold uses it.
///
/// `sqlite:/a/path/locks.db`, or `sqlite:locks.db` from the working directory, with these options:
///
/// | option | meaning | default |
/// |---|---|---|
/// | `synchronous` | `full`: each change is on the disk before it is answered; `normal`: a loss of power may take the last back | `full` |
/// | `order` | `fifo`: waiters are queued; `unordered`: the first that asks after a release | `fifo` |
/// | `table` | beginning of the names of the tables: 1 to 60 of `A-Z a-z 0-9 _`, not a digit first | `leasehold` |
/// | `create` | `yes`: a database that is missing is created; `no`: it is an error | `yes` |
/// | `timeout` | how long to wait for the database while others write, 10ms to 5m | `5s` |
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
    pub(crate) synchronous: Synchronous,
    pub(crate) order: QueueOrder,
    pub(crate) table: String,
    pub(crate) timeout: Duration,
    pub(crate) create: Create,
}

/// The behaviour where no database exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Create {
    Yes,
    No,
}

/// The moment at which a change is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronous {
    Full,
    Normal,
}

impl Synchronous {
    pub(crate) fn pragma_value(self) -> &'static str {
        match self {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        }
    }

    pub(crate) fn grade(self) -> FenceGrade {
        match self {
            Synchronous::Full => FenceGrade::Strict,
            Synchronous::Normal => FenceGrade::BestEffort,
        }
    }
}

impl SqliteConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub fn parse(url: &str) -> Result<SqliteConfig, Failure> {
        let rest = url
            .strip_prefix("sqlite:")
            .ok_or_else(|| invalid(format!("this is no SQLite URL: write {FORM}")))?;
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
        let mut config = SqliteConfig {
            path: PathBuf::from(path.as_ref()),
            synchronous: Synchronous::Full,
            order: QueueOrder::Fifo,
            table: "leasehold".to_owned(),
            timeout: Duration::from_secs(5),
            create: Create::Yes,
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            config.read_option(&name, &value)?;
        }
        Ok(config)
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "synchronous" => {
                self.synchronous = match value {
                    "full" => Synchronous::Full,
                    "normal" => Synchronous::Normal,
                    _ => {
                        return Err(invalid(format!(
                            "synchronous={value}: write synchronous=full or synchronous=normal"
                        )));
                    }
                }
            }
            "create" => {
                self.create = match value {
                    "yes" => Create::Yes,
                    "no" => Create::No,
                    _ => return Err(invalid(format!("create={value}: write create=yes or create=no"))),
                }
            }
            "order" => {
                self.order = match value {
                    "fifo" => QueueOrder::Fifo,
                    "unordered" => QueueOrder::Unordered,
                    _ => return Err(invalid(format!("order={value}: write order=fifo or order=unordered"))),
                }
            }
            "table" => {
                let is_name = (1..=60).contains(&value.len())
                    && !value.as_bytes()[0].is_ascii_digit()
                    && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                    && !value.to_ascii_lowercase().starts_with("sqlite_");
                if !is_name {
                    return Err(invalid(
                        "table: write 1 to 60 of the characters A-Z a-z 0-9 _, not a digit first, nor sqlite_",
                    ));
                }
                value.clone_into(&mut self.table);
            }
            "timeout" => {
                self.timeout =
                    duration_between(name, value, Duration::from_millis(10), Duration::from_secs(300))?;
            }
            _ => return Err(invalid(format!("unknown option {name}: known are {}", OPTIONS.join(", ")))),
        }
        Ok(())
    }
}

impl fmt::Display for SqliteConfig {
    /// Writes the URL without options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

const FORM: &str = "sqlite:/a/path/locks.db";
const OPTIONS: &[&str] = &["synchronous", "order", "table", "timeout", "create"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_url_are_read() {
        let path = |url| SqliteConfig::parse(url).unwrap().path;
        assert_eq!(path("sqlite:/a/b.db"), PathBuf::from("/a/b.db"));
        assert_eq!(path("sqlite:///a/b.db"), PathBuf::from("/a/b.db"));
        assert_eq!(path("sqlite:b%20c.db?order=fifo"), PathBuf::from("b c.db"));
        let config = SqliteConfig::parse("sqlite:x?table=My_locks2&synchronous=normal&timeout=1s").unwrap();
        assert_eq!((config.table.as_str(), config.synchronous), ("My_locks2", Synchronous::Normal));
        assert_eq!(config.timeout, Duration::from_secs(1));
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("redis://h", "sqlite:/a/path"),
            ("sqlite:", "name a file"),
            ("sqlite::memory:", "mem:"),
            ("sqlite:/a/", "name a file"),
            ("sqlite://host/a", "no host"),
            ("sqlite:x?tabel=y", "known are synchronous, order, table, timeout, create"),
            ("sqlite:x?create=maybe", "create=no"),
            ("sqlite:x?table=1a", "not a digit first"),
            ("sqlite:x?table=a;drop", "A-Z a-z 0-9 _"),
            ("sqlite:x?table=", "1 to 60"),
            ("sqlite:x?table=sqlite_a", "nor sqlite_"),
            ("sqlite:x?order=any", "order=fifo"),
            ("sqlite:x?synchronous=off", "synchronous=full"),
            ("sqlite:x?timeout=1h", "between"),
        ] {
            let refusal = SqliteConfig::parse(url).unwrap_err().to_string();
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }
}
