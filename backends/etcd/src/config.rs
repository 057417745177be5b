//! The places of the servers and their options, parsed from a URL.
//!
//! Parsing does no I/O: certificates and passwords in files are read when a connection is made. A
//! password leaves this file only on the way into a login; no error repeats the URL.

use std::fmt;
use std::time::Duration;

use leasehold_backend::url::{
    Credentials, Host, Parts, SecretString, TlsFiles, duration_between, invalid, plain_text,
};
use leasehold_core::Failure;

use crate::protocol::layout::Dialect;

/// One etcd cluster, and how leasehold uses it.
///
/// | URL | connection |
/// |---|---|
/// | `etcd://[user[:password]@]host[:port][,host[:port]]…` | TCP |
/// | `etcds://[user[:password]@]host[:port][,host[:port]]…` | TLS, certificate and host name verified |
///
/// | option | meaning | default |
/// |---|---|---|
/// | `prefix` | beginning of every key: 1 to 64 of `A-Z a-z 0-9 . _ : -`, and one `/` at its end; with another dialect `/` anywhere | `leasehold/`; with another dialect none, or `/locks/` |
/// | `dialect` | `native`; or `concurrency`, to contend with `etcdctl lock` and Go's `concurrency` package; or `etcd3`, with Python's `etcd3` and `etcd3gw`: both mutexes only | `native` |
/// | `timeout` | how long to wait for an answer, over all servers, 100ms to 5m | `5s` |
/// | `password-file` | file that holds the password, read again at each login | |
/// | `order` | `random` or `given`: which server a client asks first, any of them or the first that is named; the next one is asked only after it failed | `random` |
/// | `ca` | `etcds` only: PEM file of the authorities to trust instead of the system's | |
/// | `cert`, `key` | `etcds` only: PEM files of the client's certificate and key | |
///
/// The port is 2379 unless given. A password comes from the URL, else from `password-file`, else from
/// the environment variable `LEASEHOLD_ETCD_PASSWORD`.
///
/// ```
/// use leasehold_etcd::EtcdConfig;
/// let config = EtcdConfig::parse("etcd://jobs:secret@db1,db2:2479/?timeout=3s").unwrap();
/// assert_eq!(config.to_string(), "etcd://jobs:***@db1:2379,db2:2479");
/// let error = EtcdConfig::parse("etcd://db1?tiemout=3s").unwrap_err();
/// assert!(error.to_string().contains("timeout"));
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
        let parts = Parts::split(url, FORMS)?;
        let tls = match parts.scheme.as_str() {
            "etcd" => None,
            "etcds" => Some(TlsFiles::default()),
            scheme => return Err(invalid(format!("{scheme}:// is not an etcd cluster: write {FORMS}"))),
        };
        if !parts.path.is_empty() {
            return Err(invalid("a cluster has no path: write the beginning of the keys as ?prefix=…"));
        }
        if parts.user.as_deref() == Some("") {
            return Err(invalid("the user's name is missing before @: write etcd://user:password@host"));
        }
        let mut config = EtcdConfig {
            hosts: parts.hosts(PORT)?,
            tls,
            credentials: Credentials::new(parts.user, parts.password, PASSWORD_VARIABLE),
            prefix: None,
            dialect: Dialect::Native,
            timeout: Duration::from_secs(5),
            order: Order::Random,
        };
        for (name, value) in &parts.options {
            config.read_option(name, value)?;
        }
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
        self.tls.is_none() && self.user().is_some() && !self.hosts.iter().all(Host::is_loopback)
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        if self.tls.as_mut().is_some_and(|files| files.take(name, value)) {
            return Ok(());
        }
        match name {
            "prefix" => self.prefix = Some(plain_text(name, value, 64, "._:/-")?),
            "dialect" => {
                self.dialect = match value {
                    "native" => Dialect::Native,
                    "concurrency" => Dialect::Concurrency,
                    "etcd3" => Dialect::Etcd3,
                    _ => {
                        let known = "write dialect=native, dialect=concurrency or dialect=etcd3";
                        return Err(invalid(format!("dialect={value}: {known}")));
                    }
                }
            }
            "order" => {
                self.order = match value {
                    "random" => Order::Random,
                    "given" => Order::Given,
                    _ => return Err(invalid(format!("order={value}: write order=random or order=given"))),
                }
            }
            "timeout" => {
                let (min, max) = (Duration::from_millis(100), Duration::from_secs(300));
                self.timeout = duration_between(name, value, min, max)?;
            }
            "password-file" if self.user().is_none() => {
                return Err(invalid("password-file needs a user: write etcd://user@host"));
            }
            "password-file" => self.credentials.read_from(value),
            "ca" | "cert" | "key" => {
                return Err(invalid(format!("{name} belongs to TLS: write etcds:// instead of etcd://")));
            }
            _ => return Err(invalid(format!("unknown option {name}: known are {}", OPTIONS.join(", ")))),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        self.tls.as_ref().map_or(Ok(()), TlsFiles::check)?;
        // Prefix `a/` with name `b/c` and prefix `a/b/` with name `c` would be one lock.
        let ends = |prefix: &str| prefix.find('/').is_some_and(|at| at > 0 && at + 1 == prefix.len());
        if self.dialect == Dialect::Native && !ends(self.prefix()) {
            let prefix = self.prefix();
            let better = prefix.trim_matches('/').replace('/', ".");
            return Err(invalid(format!(
                "prefix={prefix}: it ends at its first /, so a lock could be one of another prefix: write prefix={better}/"
            )));
        }
        self.credentials.check()
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
const FORMS: &str = "etcd://host:2379 or etcds://host1:2379,host2:2379";
const OPTIONS: &[&str] = &["prefix", "dialect", "timeout", "order", "password-file", "ca", "cert", "key"];

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
            ("etcd://h?tiemout=1s", "known are prefix, dialect, timeout"),
            ("etcd://h?timeout=soon", "timeout=5s"),
            ("etcd://h?timeout=1h", "between 100ms and 5m"),
            ("etcd://h?dialect=go", "dialect=concurrency"),
            ("etcd://h?order=last", "order=given"),
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
