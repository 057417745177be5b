//! The choice of the store, and its URL without the password.
//!
//! Ground rules: the URL with its password leaves this file in one direction only, into the library.
//! Everything that is shown or passed on comes from [`StoreUrl::shown`] and [`StoreUrl::for_child`]; every
//! text of unknown origin that is shown goes through [`redacted`] first.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, ErrorKind, Note, SweepReport};

use crate::exit::{Exit, Problem};
use crate::output::redact::{is_secret, redacted_url};
use crate::output::text::visible;
use crate::request::config;
use crate::request::reentry::OWNER_VARIABLE;
use crate::request::url_option::{has_option, with_files_in};

/// The store that was named, not yet opened.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    url: String,
    origin: Origin,
    /// The configuration file that has the URL, if the store was given by a name.
    config: Option<PathBuf>,
    /// `true` if a database file, or tables, that are missing are created.
    creates: bool,
    /// The ttl of the locks, if it is known before the store is opened.
    ttl: Option<Duration>,
}

/// The origin of the store's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Flag,
    Environment,
    Default,
}

impl StoreUrl {
    /// Returns `--store`, else `LEASEHOLD_URL`, else the files of this user.
    ///
    /// # Errors
    /// Usage, for an environment that is not text; refused, for a store that could not exclude any
    /// process.
    pub(crate) fn named(on: Option<&str>) -> Result<StoreUrl, Problem> {
        let inherited = std::env::var_os(URL_VARIABLE).filter(|url| !url.is_empty());
        let mut store = StoreUrl::choose(on, inherited.as_deref())?;
        if config::is_name(&store.url) {
            let named = config::find(&store.url)?;
            // A process may be started anywhere, and all of them mean the same file.
            let folder = named.file.parent().filter(|folder| *folder != Path::new(""));
            let url = from_the_root(named.url, folder);
            store = StoreUrl { config: Some(named.file), ..StoreUrl::of(url, store.origin)? };
        }
        Ok(StoreUrl { url: from_the_root(store.url, std::env::current_dir().ok().as_deref()), ..store })
    }

    fn choose(on: Option<&str>, inherited: Option<&OsStr>) -> Result<StoreUrl, Problem> {
        let (url, origin) = match (on, inherited) {
            (Some(url), _) if url.trim().is_empty() => {
                let text =
                    "--store is empty: give the URL of a store, or omit --store for files on this machine";
                return Err(Problem::new(Exit::Usage, text));
            }
            (Some(url), _) => (url.to_owned(), Origin::Flag),
            (None, None) => (DEFAULT_URL.to_owned(), Origin::Default),
            (None, Some(url)) => {
                let url = url.to_str().map(str::to_owned);
                let complaint = format!("{URL_VARIABLE} is not UTF-8 text: write a URL into it, or unset it");
                (url.ok_or_else(|| Problem::new(Exit::Usage, complaint))?, Origin::Environment)
            }
        };
        StoreUrl::of(url, origin)
    }

    fn of(url: String, origin: Origin) -> Result<StoreUrl, Problem> {
        if url.starts_with("mem:") {
            let text = "mem: keeps locks in the memory of one process, so it cannot exclude other processes; use \
                        file:, which excludes the processes of this user on this machine";
            return Err(Problem::new(Exit::Refused, text));
        }
        Ok(StoreUrl { url, origin, config: None, creates: true, ttl: None })
    }

    /// Returns the same store for a command that only looks: a database file, or tables, that are missing
    /// stay missing, and are an error.
    pub(crate) fn read_only(self) -> StoreUrl {
        StoreUrl { creates: false, ..self }
    }

    /// Returns the same store for locks with this ttl, which a store needs to know before it is opened if
    /// its locks live as long as a session.
    pub(crate) fn for_ttl(self, ttl: Option<Duration>) -> StoreUrl {
        StoreUrl { ttl, ..self }
    }

    /// Returns `true` if the ttl is a setting of the whole store, so that its locks have none of their own.
    pub(crate) fn takes_ttl(&self) -> bool {
        self.ttl.is_some_and(|ttl| with_session(self.url.clone(), ttl) != self.url)
    }

    /// Returns `true` if it is a store in files, whose locks live as long as a process.
    pub(crate) fn is_files(&self) -> bool {
        self.url.starts_with("file:")
    }

    /// Returns the URL for people: a password is masked.
    pub(crate) fn shown(&self) -> String {
        redacted_url(&self.url)
    }

    /// Returns the URL for the command's environment: a password is left out.
    pub(crate) fn for_child(&self) -> Option<String> {
        without_password(&self.url)
    }

    /// Returns the URL with its password, for a library that passes it on to its own processes over a pipe.
    #[cfg(feature = "torture")]
    pub(crate) fn for_workers(&self) -> String {
        match self.ttl {
            Some(ttl) => with_session(self.url.clone(), ttl),
            None => self.url.clone(),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// As the library's `open`, with what to check.
    pub(crate) async fn open(&self, note: Note) -> Result<Client, Problem> {
        self.open_by(Client::builder().note(note)).await
    }

    /// Opens it with the settings of this builder.
    ///
    /// # Errors
    /// As [`StoreUrl::open`].
    pub(crate) async fn open_by(&self, builder: ClientBuilder) -> Result<Client, Problem> {
        let url = if self.creates { self.url.clone() } else { without_creating(self.url.clone()) };
        let url = match self.ttl {
            Some(ttl) => with_session(url, ttl),
            None => url,
        };
        let opened = builder.open(&url).await;
        opened.map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::Denied if self.may_lack_password() => {
                    password_hint(std::env::var_os(OWNER_VARIABLE).is_some())
                }
                _ if !self.creates => self.hint_on_missing_tables(&error),
                _ => "",
            };
            Problem::from(error).hint(format!("the store is {}, {}{hint}", self.shown(), self.origin()))
        })
    }

    /// Returns the statements that create its tables.
    ///
    /// # Errors
    /// As the library's `schema`.
    pub(crate) fn schema(&self) -> Result<String, Problem> {
        leasehold::schema(&self.url).map_err(|error| {
            Problem::from(error).hint(format!("the store is {}, {}", self.shown(), self.origin()))
        })
    }

    /// Removes the remains of locks that were not used for so long, and reports how far it is.
    ///
    /// # Errors
    /// As the library's `sweep`.
    pub(crate) async fn sweep(
        &self,
        unused_for: Duration,
        progress: impl Fn(SweepReport) + Send + Sync,
    ) -> Result<SweepReport, Problem> {
        // A database without locks has nothing to sweep, and may be the wrong one.
        let url = without_creating(self.url.clone());
        leasehold::sweep_under(&url, "", unused_for, progress).await.map_err(|error| {
            let hint = self.hint_on_missing_tables(&error);
            Problem::from(error).hint(format!("the store is {}, {}{hint}", self.shown(), self.origin()))
        })
    }

    /// Returns what to say besides an error where tables may be missing.
    fn hint_on_missing_tables(&self, error: &Error) -> &'static str {
        let is_named =
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("leasehold schema");
        if is_named && has_tables_on_a_server(&self.url) {
            "; a client that locks creates missing tables, unless its URL says create=no"
        } else {
            ""
        }
    }

    /// Returns `true` if a missing password may be the reason: files know none, and where one is named
    /// it is not missing.
    fn may_lack_password(&self) -> bool {
        let is_server = self.url.contains("://") && !self.url.starts_with("file:");
        is_server && redacted_url(&self.url) == self.url && !has_option(&self.url, "password-file")
    }

    fn origin(&self) -> String {
        let named = match self.origin {
            Origin::Flag => "named by --store",
            Origin::Environment => "named by LEASEHOLD_URL",
            Origin::Default => "the default; name another with --store or LEASEHOLD_URL",
        };
        match &self.config {
            Some(file) => format!("{named}, from {}", visible(&file.to_string_lossy())),
            None => named.to_owned(),
        }
    }
}

/// Adds to the URL of a SQL database that its file or its tables are not to be created, unless the URL says
/// what happens then.
fn without_creating(url: String) -> String {
    if url.starts_with("sqlite:") || has_tables_on_a_server(&url) {
        with_default(url, "create", "no")
    } else {
        url
    }
}

/// Returns `true` if the locks are in tables of a database server.
fn has_tables_on_a_server(url: &str) -> bool {
    ["postgres:", "postgresql:", "mysql:", "mariadb:"].iter().any(|scheme| url.starts_with(scheme))
}

/// Adds to the URL of ZooKeeper, where a lock lives as long as a session, that the session is as long as
/// the ttl, or 4 s, unless the URL says how long it is.
fn with_session(url: String, ttl: Duration) -> String {
    if !url.starts_with("zk://") && !url.starts_with("zks://") {
        return url;
    }
    let session = ttl.clamp(SHORTEST_SESSION, LONGEST_SESSION);
    with_default(url, "session", &format!("{}ms", session.as_millis()))
}

/// Adds an option to a URL that does not have it.
fn with_default(url: String, option: &str, value: &str) -> String {
    if has_option(&url, option) {
        return url;
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{option}={value}")
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, {:?})", self.shown(), self.origin)
    }
}

/// Returns the URL without its password; `None` where it cannot be known which part of it is one.
///
/// The login ends where it ends for the library, at the last `@` before the options. A parser of ordinary URLs ends it
/// at the first `/` or `#`, and would take the user for a host and the password for its port and a path.
fn without_password(url: &str) -> Option<String> {
    if redacted_url(url) == url {
        return Some(url.to_owned());
    }
    let (scheme, rest) = url.split_once("://")?;
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let options = || query.split('&').filter(|option| !option.is_empty());
    let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
    // No option has such a name: it is the rest of a password.
    if options().any(|option| name(option).contains('@')) {
        return None;
    }
    let (login, hosts) = address.rsplit_once('@').unwrap_or(("", address));
    let user = login.split(':').next().filter(|user| !user.is_empty());
    let login = user.map(|user| format!("{user}@")).unwrap_or_default();
    let plain: Vec<&str> = options().filter(|option| !is_secret(&name(option))).collect();
    let query = if plain.is_empty() { String::new() } else { format!("?{}", plain.join("&")) };
    Some(format!("{scheme}://{login}{hosts}{query}"))
}

/// Returns the URL with this folder in front of the path of a database file, and of those of files among its options,
/// where they are relative: the command may change its directory, and a `leasehold run` in it means the same files.
fn from_the_root(url: String, folder: Option<&Path>) -> String {
    let url = folder.map(|folder| with_files_in(&url, folder)).unwrap_or(url);
    // The library decodes the path first.
    let begins_encoded = |path: &str| {
        let first = path.get(..3).unwrap_or_default();
        ["%2F", "%3A"].iter().any(|code| first.eq_ignore_ascii_case(code))
    };
    match (url.strip_prefix("sqlite:"), folder.and_then(Path::to_str)) {
        (Some(path), Some(folder))
            if !path.is_empty() && !path.starts_with(['/', ':', '?']) && !begins_encoded(path) =>
        {
            let folder = folder.replace('%', "%25").replace('?', "%3F");
            format!("sqlite:{}/{path}", folder.trim_end_matches('/'))
        }
        _ => url,
    }
}

/// Returns where a password may come from. A process that lacks one is most often inside a `run` of the
/// same user.
fn password_hint(is_nested: bool) -> &'static str {
    if is_nested {
        "; `leasehold run` passes no password on to its command, but it does pass on ?password-file=/path"
    } else {
        "; if a password is missing, put it into a file and name the file with ?password-file=/path"
    }
}

/// The variable that names a store.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_URL";
/// Variables of the library that hold passwords. `PGPASSWORD` is not among them: it is PostgreSQL's
/// own, and a command may need it for itself.
pub(crate) const SECRET_VARIABLES: &[&str] = &[
    "LEASEHOLD_ETCD_PASSWORD",
    "LEASEHOLD_MEMCACHED_PASSWORD",
    "LEASEHOLD_REDIS_PASSWORD",
    "LEASEHOLD_SENTINEL_PASSWORD",
    "LEASEHOLD_ZOOKEEPER_PASSWORD",
];
const DEFAULT_URL: &str = "file:";
/// Two ticks of servers that do not say how long theirs are; shorter sessions may be refused.
const SHORTEST_SESSION: Duration = Duration::from_secs(4);
/// The longest value of the option `session`.
const LONGEST_SESSION: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_command_creates_neither_a_database_nor_tables() {
        let looks = |url: &str| without_creating(url.to_owned());
        assert_eq!(looks("sqlite:/a.db"), "sqlite:/a.db?create=no");
        assert_eq!(looks("sqlite:/a.db?order=fifo"), "sqlite:/a.db?order=fifo&create=no");
        assert_eq!(looks("sqlite:/a.db?create=yes"), "sqlite:/a.db?create=yes");
        assert_eq!(looks("postgres://h/db"), "postgres://h/db?create=no");
        assert_eq!(looks("postgresql://h/db?table=a"), "postgresql://h/db?table=a&create=no");
        assert_eq!(looks("mysql://h/db?create=yes"), "mysql://h/db?create=yes");
        assert_eq!(looks("mariadb://h/db?create=no"), "mariadb://h/db?create=no");
        assert_eq!(looks("redis://h?prefix=a"), "redis://h?prefix=a");
    }

    #[test]
    fn session_of_zookeeper_is_as_long_as_the_ttl() {
        let session = |url: &str, seconds| with_session(url.to_owned(), Duration::from_secs(seconds));
        assert_eq!(session("zk://h/jobs", 5), "zk://h/jobs?session=5000ms");
        assert_eq!(session("zks://h?prefix=a", 5), "zks://h?prefix=a&session=5000ms");
        assert_eq!(session("zk://h?session=9s", 3), "zk://h?session=9s");
        assert_eq!(session("zk://h", 1), "zk://h?session=4000ms");
        assert_eq!(session("zk://h", 86_400), "zk://h?session=600000ms");
        assert_eq!(session("redis://h", 3), "redis://h");
    }

    #[test]
    fn flag_overrides_environment_and_environment_overrides_default() {
        let choose = |on, inherited: Option<&str>| {
            let store = StoreUrl::choose(on, inherited.map(OsStr::new)).unwrap();
            (store.url, store.origin)
        };
        assert_eq!(choose(Some("file:/a"), Some("file:/b")), ("file:/a".into(), Origin::Flag));
        assert_eq!(choose(None, Some("file:/b")), ("file:/b".into(), Origin::Environment));
        assert_eq!(choose(None, None), ("file:".into(), Origin::Default));
        assert_eq!(StoreUrl::choose(Some("mem:"), None).unwrap_err().exit, Exit::Refused);
    }

    #[test]
    fn relative_path_is_passed_on_as_an_absolute_path() {
        let from = |url: &str| from_the_root(url.to_owned(), Some(Path::new("/a%/b?")));
        assert_eq!(from("sqlite:locks.db?timeout=1s"), "sqlite:/a%25/b%3F/locks.db?timeout=1s");
        for same in ["sqlite:/a/locks.db", "sqlite::memory:", "sqlite:", "file:", "redis://h"] {
            assert_eq!(from(same), same);
        }
        // The library decodes the path before it asks whether it begins at the root.
        for same in ["sqlite:%2Fa%2Fb.db", "sqlite:%2fa?timeout=1s", "sqlite:%3Amemory:"] {
            assert_eq!(from(same), same);
        }
        assert_eq!(from("sqlite:%61%2Fb.db"), "sqlite:/a%25/b%3F/%61%2Fb.db");
        assert_eq!(from_the_root("sqlite:x".to_owned(), Some(Path::new("/"))), "sqlite:/x");
    }

    #[test]
    fn a_password_that_is_named_is_not_missing() {
        let lacks = |url: &str| StoreUrl::choose(Some(url), None).unwrap().may_lack_password();
        for url in ["redis://h", "postgres://me@h/db", "redis+sentinel://h/a?sentinel-password-file=/x"] {
            assert!(lacks(url), "{url}");
        }
        for url in ["file:///a", "sqlite:/a", "redis://me:x@h", "redis://h?password-file=/x"] {
            assert!(!lacks(url), "{url}");
        }
    }

    #[test]
    fn url_for_the_command_opens_the_same_store_without_password() {
        for (url, passed) in [
            ("file:", Some("file:")),
            ("redis://h:7000/2?wait=poll", Some("redis://h:7000/2?wait=poll")),
            ("redis://me:hunter2@h/2?wait=poll", Some("redis://me@h/2?wait=poll")),
            ("redis://:hunter2@h", Some("redis://h")),
            ("redis+unix:///s?pass=hunter2&db=1", Some("redis+unix:///s?db=1")),
            ("redis+unix:///s?pass=hunter2", Some("redis+unix:///s")),
            ("redis://me:hunter2@h:port", Some("redis://me@h:port")),
            // What begins like a port is part of the password all the same.
            ("redis://me:/hunter2@h:7/0", Some("redis://me@h:7/0")),
            ("redis://me:12/hunter2@h:7/0", Some("redis://me@h:7/0")),
            ("redis://me:#hunter2@h:7/0", Some("redis://me@h:7/0")),
            ("redis://me:7#hunter2@h:7/0", Some("redis://me@h:7/0")),
            ("redis://me:7/a@hunter2@h", Some("redis://me@h")),
            ("redis://h:7?prefix=a@b", Some("redis://h:7?prefix=a@b")),
            ("redis+unix:///s?db=1&p%61ss=hunter2", Some("redis+unix:///s?db=1")),
            ("redlock://me:hunter2@a:1,b:2,c/2?max-ttl=9s", Some("redlock://me@a:1,b:2,c/2?max-ttl=9s")),
            ("redlock://:hun,ter2@a:1,b:2?pass=hunter2", Some("redlock://a:1,b:2")),
            ("redlock://me:hun?ter2@a:1,b:2", None),
        ] {
            assert_eq!(without_password(url).as_deref(), passed, "{url}");
        }
    }

    #[test]
    fn no_part_of_a_password_is_in_the_url_for_the_command() {
        let marks = ["", "1", "65535", "/", "#", "@", ":", ",", "[", "]", "%2F", "&", "=", "\\", " "];
        for before in marks.iter().flat_map(|one| marks.map(|other| format!("{one}{other}"))) {
            for after in marks.iter().flat_map(|one| marks.map(|other| format!("{one}{other}"))) {
                for address in ["h", "h:7/0?wait=poll", "a:1,b:2/0", "[::1]:7"] {
                    for user in ["", "me", "m@e"] {
                        let url = format!("redis://{user}:{before}hunter2{after}@{address}");
                        let login = if user.is_empty() { String::new() } else { format!("{user}@") };
                        let passed = format!("redis://{login}{address}");
                        assert_eq!(without_password(&url), Some(passed), "{url}");
                    }
                }
            }
        }
        // Behind a question mark are the options, for the library too, which refuses to open such a store.
        for url in ["redis://me:?hunter2@h", "redis://me:7?hunter2@h", "redis://me:7/?a&hunter2@h?x=y"] {
            assert_eq!(without_password(url), None, "{url}");
        }
    }
}
