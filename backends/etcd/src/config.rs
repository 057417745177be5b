//! The places of the servers and their options, parsed from a URL.
//!
//! Parsing does no I/O: certificates and passwords in files are read when a connection is made. A
//! password leaves this file only on the way into a login; no error repeats the URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{
    self, Credentials, Host, Lack, Options, Parts, Scheme, SecretString, StoreUrls, TlsFiles, UrlOption,
    invalid, is_exposed,
};
use leasehold_core::Failure;

use crate::protocol::layout::Dialect;

/// The URLs of etcd.
pub static URLS: StoreUrls = StoreUrls {
    title: "etcd",
    schemes: &[
        Scheme {
            name: "etcd",
            form: "etcd://[user[:password]@]host[:port][,host[:port]]…",
            meaning: "TCP, port 2379 unless given",
            example: "etcd://host:2379",
        },
        Scheme {
            name: "etcds",
            form: "etcds://[user[:password]@]host[:port][,host[:port]]…",
            meaning: "the same with TLS, certificate and host name verified",
            example: "etcds://host1:2379,host2:2379",
        },
    ],
    options: &[&PREFIX, &DIALECT, &TIMEOUT, &SERVERS, &url::PASSWORD_FILE, &CA, &CERT, &KEY],
    lacks: &[
        Lack {
            schemes: &[],
            options: &["order"],
            why: "its waiters are served in order; servers=given is for servers",
        },
        Lack { schemes: &[], options: &["sslmode", "tls"], why: "with TLS the URL begins with etcds://" },
    ],
    check: |url| EtcdConfig::parse(url).map(drop),
};

const PREFIX: UrlOption<String> = UrlOption::plain("prefix", 64, "._:/-")
    .about("beginning of every key; its only `/` is at the end, but another dialect allows `/` anywhere")
    .default_note("`leasehold/`; with `dialect=concurrency` none, with `etcd3` `/locks/`")
    .example("leasehold/");
const DIALECT: UrlOption<Dialect> = UrlOption::choice(
    "dialect",
    &[("native", Dialect::Native), ("concurrency", Dialect::Concurrency), ("etcd3", Dialect::Etcd3)],
)
.about(
    "the library in whose form locks are written: `concurrency` contends with `etcdctl lock` and Go's `concurrency` \
     package, `etcd3` with Python's `etcd3` and `etcd3gw`; both have mutexes only",
)
.default("native");
const TIMEOUT: UrlOption<Duration> =
    UrlOption::duration("timeout", Duration::from_millis(100), Duration::from_secs(300))
        .about("how long to wait for an answer, over all servers")
        .default("5s");
const SERVERS: UrlOption<Order> = UrlOption::choice(
    "servers",
    &[("random", Order::Random), ("given", Order::Given)],
)
.about(
    "the server that a client uses first: a random one, or the first one that the URL names; it uses the next one \
     only if this one fails",
)
.default("random");
const CA: UrlOption<PathBuf> = url::CA.schemes(SECURED);
const CERT: UrlOption<PathBuf> = url::CERT.schemes(SECURED);
const KEY: UrlOption<PathBuf> = url::KEY.schemes(SECURED);
const SECURED: &[&str] = &["etcds"];

/// One etcd cluster, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
///
/// A password comes from the URL, else from `password-file`, else from the environment variable
/// `LEASEHOLD_ETCD_PASSWORD`.
///
/// ```
/// use leasehold_etcd::EtcdConfig;
/// let config = EtcdConfig::parse("etcd://jobs:secret@db1,db2:2479/?timeout=3s").unwrap();
/// assert_eq!(config.to_string(), "etcd://jobs:***@db1:2379,db2:2479");
/// let error = EtcdConfig::parse("etcd://db1?tiemout=3s").unwrap_err();
/// assert!(error.to_string().contains("did you mean timeout?"));
/// ```
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    pub(crate) hosts: Vec<Host>,
    pub(crate) tls: Option<TlsFiles>,
    credentials: Credentials,
    prefix: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Duration,
    pub(crate) order: Order,
}

/// The server that a client asks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Any of them, so that clients are spread over all.
    Random,
    /// The first one of the URL.
    Given,
}

impl EtcdConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<EtcdConfig, Failure> {
        URLS.read(url, EtcdConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<EtcdConfig, Failure> {
        if !parts.path.is_empty() {
            return Err(invalid("a cluster has no path: write the beginning of the keys as ?prefix=…"));
        }
        if parts.user.as_deref() == Some("") {
            return Err(invalid("the user's name is missing before @: write etcd://user:password@host"));
        }
        if parts.user.is_none() && options.has("password-file") {
            return Err(invalid("password-file needs a user: write etcd://user@host"));
        }
        let config = EtcdConfig {
            hosts: parts.hosts(PORT)?,
            tls: (parts.scheme == "etcds").then(|| TlsFiles::of(options)).transpose()?,
            credentials: Credentials::of(parts.user, parts.password, options, PASSWORD_VARIABLE)?,
            prefix: options.find(&PREFIX)?,
            dialect: options.get(&DIALECT)?,
            timeout: options.get(&TIMEOUT)?,
            order: options.get(&SERVERS)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Returns the beginning of every key.
    pub(crate) fn prefix(&self) -> &str {
        match (&self.prefix, self.dialect) {
            (Some(prefix), _) => prefix,
            (None, Dialect::Native) => "leasehold/",
            // Others write the name as it is.
            (None, Dialect::Concurrency) => "",
            (None, Dialect::Etcd3) => "/locks/",
        }
    }

    /// Returns the user that logs in.
    pub(crate) fn user(&self) -> Option<&str> {
        self.credentials.user.as_deref()
    }

    /// Returns the user and the password to log in with now; `None` where no user is named.
    pub(crate) fn login(&self) -> Result<Option<(String, SecretString)>, Failure> {
        let Some(user) = self.user() else { return Ok(None) };
        match self.credentials.password()? {
            Some(password) => Ok(Some((user.to_owned(), password))),
            // A client certificate may replace the user, which then needs no password.
            None if self.tls.as_ref().is_some_and(|files| files.cert.is_some()) => Ok(None),
            None => Err(invalid(format!(
                "the user {user} has no password: write it into the URL, password-file or {PASSWORD_VARIABLE}"
            ))),
        }
    }

    /// Returns `true` if a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        self.tls.is_none() && is_exposed(&self.hosts, || self.user().is_some())
    }

    fn check(&self) -> Result<(), Failure> {
        // Prefix `a/` with name `b/c` and prefix `a/b/` with name `c` would be one lock.
        let ends = |prefix: &str| prefix.find('/').is_some_and(|at| at > 0 && at + 1 == prefix.len());
        if self.dialect == Dialect::Native && !ends(self.prefix()) {
            let prefix = self.prefix();
            let better = prefix.trim_matches('/').replace('/', ".");
            return Err(invalid(format!(
                "prefix={prefix}: it ends at its first /, so a lock could be one of another prefix: write prefix={better}/"
            )));
        }
        Ok(())
    }
}

impl fmt::Display for EtcdConfig {
    /// Writes the URL without options, and without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "etcds://" } else { "etcd://" })?;
        f.write_str(&self.credentials.shown())?;
        for (n, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

const PASSWORD_VARIABLE: &str = "LEASEHOLD_ETCD_PASSWORD";
const PORT: u16 = 2379;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leasehold_backend::url::reveal;
    use leasehold_core::FailureKind;

    use super::*;

    fn refusal(url: &str) -> String {
        let failure = EtcdConfig::parse(url).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
        failure.to_string()
    }

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config = EtcdConfig::parse("etcd://h").unwrap();
        assert_eq!(config.hosts, [Host { name: "h".into(), port: 2379 }]);
        assert_eq!((config.prefix(), config.timeout), ("leasehold/", Duration::from_secs(5)));
        assert!(config.tls.is_none() && config.login().unwrap().is_none());

        let config = EtcdConfig::parse("etcd://a,[::1]:7000,10.0.0.1/?prefix=x.y:z/&timeout=250ms").unwrap();
        assert_eq!(config.to_string(), "etcd://a:2379,[::1]:7000,10.0.0.1:2379");
        assert_eq!((config.prefix(), config.timeout), ("x.y:z/", Duration::from_millis(250)));

        let config = EtcdConfig::parse("etcds://h?ca=/c.pem&cert=/a.pem&key=/k.pem").unwrap();
        assert_eq!(config.tls.unwrap().key.as_deref(), Some(Path::new("/k.pem")));
    }

    #[test]
    fn a_password_is_read_but_never_shown() {
        let config = EtcdConfig::parse("etcd://me:p%40ss%2Fword@h").unwrap();
        let (user, password) = config.login().unwrap().unwrap();
        assert_eq!((user.as_str(), reveal(&password)), ("me", "p@ss/word"));
        let shown = format!("{config} {config:?} {config:#?}");
        assert!(!shown.contains("p@ss") && !shown.contains("p%40ss"), "{shown}");
        for bad in ["etcd://me:hunter2@h?nonsense=1", "etcd://me:hunter2@h:99999", "etcd://me:hunter2@h/x"] {
            assert!(!refusal(bad).contains("hunter2"));
        }
    }

    #[test]
    fn a_password_file_is_read_at_each_login() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let config = EtcdConfig::parse(&format!("etcd://me@h?password-file={}", path.display())).unwrap();
        assert!(config.login().unwrap_err().detail().contains("password-file"));
        for password in ["first", "second"] {
            std::fs::write(&path, format!("{password}\n")).unwrap();
            assert_eq!(reveal(&config.login().unwrap().unwrap().1), password);
        }
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("http://h", "etcd://host:2379"),
            ("nonsense", "etcd://host:2379"),
            ("etcd://", "host is missing"),
            ("etcd://a,,b", "host is missing"),
            ("etcd://h:0", "1 to 65535"),
            ("etcd://[zz]:1", "IPv6"),
            ("etcd://a b", "a name or an address"),
            ("etcd://h/locks", "?prefix="),
            ("etcd://:pw@h", "user's name is missing"),
            ("etcd://h?tiemout=1s", "did you mean timeout?; known are prefix, dialect, timeout"),
            ("etcd://h?timeout=soon", "timeout=5s"),
            ("etcd://h?timeout=1h", "between 100ms and 5m"),
            ("etcd://h?dialect=go", "dialect=concurrency"),
            ("etcd://h?servers=last", "servers=given"),
            ("etcd://h?order=fifo", "its waiters are served in order"),
            ("etcd://h?prefix=", "1 to 64"),
            ("etcd://h?prefix=a/b/", "write prefix=a.b/"),
            ("etcd://h?prefix=/a", "write prefix=a/"),
            ("etcd://h?prefix=a", "write prefix=a/"),
            ("etcd://h?prefix=a!b", "1 to 64"),
            ("etcd://h?ca=/x", "etcds://"),
            ("etcds://h?cert=/x", "belong together"),
            ("etcd://a:p@h?password-file=/x", "two passwords"),
            ("etcd://h?password-file=/x", "needs a user"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }
}
