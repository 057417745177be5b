//! The place of the ensemble and its options, parsed from a URL.
//!
//! Parsing does no I/O. A password never leaves this file and `session.rs`; no error repeats the URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{
    self, Credentials, Host, Lack, Options, Parts, Scheme, SecretString, StoreUrls, TlsFiles, UrlOption,
    invalid, is_exposed, reveal,
};
use leasehold_core::Failure;

use crate::protocol::dialect::{ALL, Dialect, Mutexes};

/// The URLs of ZooKeeper.
pub static URLS: StoreUrls = StoreUrls {
    title: "ZooKeeper",
    schemes: &[
        Scheme {
            name: "zk",
            form: "zk://[user[:password]@]host[:port][,host[:port]…][/chroot]",
            meaning: "TCP, port 2181 unless given",
            example: "zk://host:2181,host:2181/chroot",
        },
        Scheme {
            name: "zks",
            form: "zks://[user[:password]@]host[:port][,host[:port]…][/chroot]",
            meaning: "TLS, certificate and host name verified, port 2281 unless given",
            example: "zks://host:2281,host:2281/chroot",
        },
    ],
    options: &[&SESSION, &PREFIX, &DIALECT, &MUTEX, &url::TIMEOUT, &url::PASSWORD_FILE, &CA, &CERT, &KEY],
    lacks: &[
        Lack { schemes: &[], options: &["order"], why: "its waiters are served in order" },
        Lack { schemes: &[], options: &["sslmode", "tls"], why: "with TLS the URL begins with zks://" },
    ],
    check: |url| ZooKeeperConfig::parse(url).map(drop),
};

const SESSION: UrlOption<Duration> =
    UrlOption::duration("session", Duration::from_secs(1), Duration::from_secs(600))
        .about("session timeout to request; the servers may grant another one")
        .default("30s");
const PREFIX: UrlOption<String> = UrlOption::plain("prefix", 64, "._:-")
    .about("the node under the chroot in which all locks are")
    .default_note("`leasehold`; with another dialect none")
    .example("leasehold");
const DIALECT: UrlOption<Dialect> = UrlOption::choice("dialect", ALL)
.about(
    "the library in whose form locks are written: `curator` and `kazoo` contend with users of these libraries, for \
     mutexes, read-write locks and single permits of semaphores; their names are paths",
)
.default("native");
const MUTEX: UrlOption<Mutexes> = UrlOption::choice(
    "mutex",
    &[("lock", Mutexes::Locks), ("semaphore", Mutexes::Leases)],
)
.about(
    "whether a mutex contends with mutexes of that library, or with its semaphores of one lease; with `semaphore` \
     only mutexes are supported",
)
.default("lock")
.only_with(&[("dialect", &["curator", "kazoo"])]);
const CA: UrlOption<PathBuf> = url::CA.schemes(SECURED);
const CERT: UrlOption<PathBuf> = url::CERT.schemes(SECURED);
const KEY: UrlOption<PathBuf> = url::KEY.schemes(SECURED);
const SECURED: &[&str] = &["zks"];

/// One ZooKeeper ensemble, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
///
/// A password comes from the URL, else from `password-file`, else from the environment variable
/// `LEASEHOLD_ZOOKEEPER_PASSWORD`. With a user, all nodes are readable and writable by this user only.
///
/// ```
/// use leasehold_zookeeper::ZooKeeperConfig;
/// let config = ZooKeeperConfig::parse("zk://jobs:secret@10.0.0.7,10.0.0.8:2182/team?session=10s").unwrap();
/// assert_eq!(config.to_string(), "zk://jobs:***@10.0.0.7:2181,10.0.0.8:2182/team");
/// let error = ZooKeeperConfig::parse("zk://10.0.0.7?sesion=3s").unwrap_err();
/// assert!(error.to_string().contains("session"));
/// ```
#[derive(Clone, Debug)]
pub struct ZooKeeperConfig {
    /// The servers, at least one.
    pub(crate) hosts: Vec<Host>,
    pub(crate) tls: Option<TlsFiles>,
    /// Empty, or with a slash at its beginning and none at its end.
    chroot: String,
    credentials: Credentials,
    pub(crate) session: Duration,
    prefix: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) mutexes: Mutexes,
    pub(crate) timeout: Duration,
}

impl ZooKeeperConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<ZooKeeperConfig, Failure> {
        URLS.read(url, ZooKeeperConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<ZooKeeperConfig, Failure> {
        let is_secured = parts.scheme == "zks";
        let config = ZooKeeperConfig {
            hosts: parts.hosts(if is_secured { 2281 } else { 2181 })?,
            tls: is_secured.then(|| TlsFiles::of(options)).transpose()?,
            chroot: read_chroot(&parts.path)?,
            credentials: Credentials::of(parts.user, parts.password, options, PASSWORD_VARIABLE)?,
            session: options.get(&SESSION)?,
            prefix: options.find(&PREFIX)?,
            dialect: options.get(&DIALECT)?,
            mutexes: options.get(&MUTEX)?,
            timeout: options.get(&url::TIMEOUT)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Returns the user that logs in.
    pub(crate) fn user(&self) -> Option<&str> {
        self.credentials.user.as_deref()
    }

    /// Returns the login of now: `user:password`, as ZooKeeper's digest scheme writes it.
    pub(crate) fn login(&self) -> Result<Option<SecretString>, Failure> {
        let Some(user) = self.user() else { return Ok(None) };
        let password = self.credentials.password()?.ok_or_else(|| {
            invalid(format!("the user {user} has no password: set {PASSWORD_VARIABLE} or password-file"))
        })?;
        Ok(Some(SecretString::from(format!("{user}:{}", reveal(&password)))))
    }

    /// Returns `true` if a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        self.tls.is_none() && is_exposed(&self.hosts, || self.user().is_some())
    }

    /// Returns the path that all locks are below; empty for ZooKeeper's own root.
    pub(crate) fn base(&self) -> String {
        match (&self.prefix, self.dialect) {
            (Some(prefix), _) => format!("{}/{prefix}", self.chroot),
            (None, Dialect::Native) => format!("{}/leasehold", self.chroot),
            // Others write the name as it is.
            (None, Dialect::Curator | Dialect::Kazoo) => self.chroot.clone(),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.user().is_none() && self.credentials.names_password() {
            return Err(invalid("a password needs a user: write zk://user@host"));
        }
        if self.user().is_some_and(|user| user.contains(':')) {
            return Err(invalid("a user name of ZooKeeper cannot contain a colon"));
        }
        if self.base() == "/zookeeper" || self.base().starts_with("/zookeeper/") {
            return Err(invalid("the node /zookeeper belongs to ZooKeeper itself: take another prefix"));
        }
        if self.prefix.as_deref().is_some_and(is_dots) {
            return Err(invalid("prefix: ZooKeeper does not allow a name of dots alone"));
        }
        Ok(())
    }
}

impl fmt::Display for ZooKeeperConfig {
    /// Writes the URL without options, and without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        let scheme = if self.tls.is_some() { "zks" } else { "zk" };
        write!(f, "{scheme}://{}{}{}", self.credentials.shown(), hosts.join(","), self.chroot)
    }
}

fn read_chroot(path: &str) -> Result<String, Failure> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let bad = |part: &str| part.is_empty() || is_dots(part) || part.chars().any(char::is_control);
    if path.split('/').any(bad) {
        return Err(invalid(
            "the chroot must be a path of ZooKeeper: names between slashes, neither empty nor dots",
        ));
    }
    Ok(format!("/{path}"))
}

fn is_dots(name: &str) -> bool {
    name == "." || name == ".."
}

const PASSWORD_VARIABLE: &str = "LEASEHOLD_ZOOKEEPER_PASSWORD";

#[cfg(test)]
mod tests {
    use leasehold_core::FailureKind;

    use super::*;

    fn shown(config: &ZooKeeperConfig) -> Vec<String> {
        config.hosts.iter().map(Host::to_string).collect()
    }

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config = ZooKeeperConfig::parse("zk://a").unwrap();
        assert_eq!(shown(&config), ["a:2181"]);
        assert_eq!(config.base(), "/leasehold");
        assert_eq!((config.session, config.timeout), (Duration::from_secs(30), Duration::from_secs(5)));
        assert!(config.login().unwrap().is_none());

        let url = "zk://a:1,[::1]:2182,[::2]/x/y/?session=1500ms&prefix=p.q&timeout=250ms";
        let config = ZooKeeperConfig::parse(url).unwrap();
        assert_eq!(shown(&config), ["a:1", "[::1]:2182", "[::2]:2181"]);
        assert_eq!(config.base(), "/x/y/p.q");
        assert_eq!((config.session.as_millis(), config.timeout.as_millis()), (1500, 250));

        let config = ZooKeeperConfig::parse("zks://a,b:1/x?ca=/c.pem").unwrap();
        assert_eq!(config.to_string(), "zks://a:2281,b:1/x");
        assert!(config.tls.is_some_and(|files| files.ca.is_some()));

        let config = ZooKeeperConfig::parse("zk://a/x?dialect=curator").unwrap();
        assert_eq!((config.base().as_str(), config.dialect), ("/x", Dialect::Curator));
        let config = ZooKeeperConfig::parse("zk://a?dialect=kazoo&prefix=locks").unwrap();
        assert_eq!((config.base().as_str(), config.dialect), ("/locks", Dialect::Kazoo));
    }

    #[test]
    fn a_password_is_read_but_never_shown() {
        let config = ZooKeeperConfig::parse("zk://me:p%40ss%2Fword@h/x").unwrap();
        assert_eq!(config.login().unwrap().as_ref().map(reveal), Some("me:p@ss/word"));
        let shown = format!("{config} {config:?} {config:#?}");
        assert!(!shown.contains("p@ss") && !shown.contains("p%40ss"), "{shown}");
        for bad in ["zk://me:hunter2@h?nonsense=1", "zk://me:hunter2@h:99999", "zk://me:hunter2@h//x"] {
            let error = ZooKeeperConfig::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_file_is_read_at_each_login() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let url = format!("zk://me@h?password-file={}", path.display());
        let config = ZooKeeperConfig::parse(&url).unwrap();
        assert!(config.login().unwrap_err().detail().contains("password-file"));
        for password in ["first", "second"] {
            std::fs::write(&path, format!("{password}\n")).unwrap();
            assert_eq!(config.login().unwrap().as_ref().map(reveal), Some(format!("me:{password}").as_str()));
        }
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("http://h", "zk://host:2181"),
            ("zk://", "host is missing"),
            ("zk:///x", "host is missing"),
            ("zk://a,,b", "host is missing"),
            ("zk://a:x", "1 to 65535"),
            ("zk://a:0", "1 to 65535"),
            ("zk://a//b", "chroot"),
            ("zk://a/../b", "chroot"),
            ("zk://a?sesion=1s", "did you mean session?; known are session"),
            ("zk://a?session=soon", "session=30s"),
            ("zk://a?session=1ms", "between 1s and 10m"),
            ("zk://a?prefix=a/b", "1 to 64"),
            ("zk://a?prefix=..", "dots alone"),
            ("zk://a?ca=/x", "zks://"),
            ("zks://a?cert=/x", "belong together"),
            ("zk://a?prefix=zookeeper", "belongs to ZooKeeper"),
            ("zk://a?dialect=java", "dialect=native, dialect=curator or dialect=kazoo"),
            ("zk://a?dialect=kazoo&mutex=lease", "mutex=lock or mutex=semaphore"),
            ("zk://a?mutex=semaphore", "mutex is for dialect=curator and dialect=kazoo"),
            ("zk://a/zookeeper?dialect=kazoo", "belongs to ZooKeeper"),
            ("zk://:p@a", "needs a user"),
            ("zk://u:p@a?password-file=/x", "two passwords"),
        ] {
            let failure = ZooKeeperConfig::parse(url).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
            assert!(failure.to_string().contains(hint), "{url}: {failure}");
        }
    }
}
