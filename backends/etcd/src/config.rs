//! Where the servers are and how they are to be used, parsed from a URL.
//!
//! Parsing does no I/O: certificates and passwords in files are read when a connection is made. A password never leaves
//! this file and `auth.rs`; no error repeats the URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};

use crate::wire::Dialect;

/// One etcd cluster, and how leasehold uses it.
///
/// | URL | connection |
/// |---|---|
/// | `etcd://[user[:password]@]host[:port][,host[:port]]…` | TCP |
/// | `etcds://[user[:password]@]host[:port][,host[:port]]…` | TLS, certificate and host name verified |
///
/// | option | meaning | default |
/// |---|---|---|
/// | `prefix` | beginning of every key: 1 to 64 of `A-Z a-z 0-9 . _ : / -` | `leasehold/`, or none in the other dialect |
/// | `dialect` | `native`; or `concurrency`, to contend with `etcdctl lock` and Go's `concurrency` package; or `etcd3`, with Python's `etcd3` and `etcd3gw`: both mutexes only | `native` |
/// | `timeout` | how long to wait for an answer, over all servers, 100ms to 5m | `5s` |
/// | `password-file` | file that holds the password, read again at each login | |
/// | `ca` | `etcds` only: PEM file of the authorities to trust instead of the system's | |
/// | `cert`, `key` | `etcds` only: PEM files of the client's certificate and key | |
///
/// The port is 2379 unless given. A password comes from the URL, else from `password-file`, else from the environment
/// variable `LEASEHOLD_ETCD_PASSWORD`.
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
    pub(crate) user: Option<String>,
    password: Option<SecretString>,
    password_file: Option<PathBuf>,
    prefix: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Duration,
}

impl EtcdConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<EtcdConfig, Failure> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| invalid(format!("this is no etcd URL: write {FORMS}")))?;
        let tls = match scheme {
            "etcd" => None,
            "etcds" => Some(TlsFiles::default()),
            _ => return Err(invalid(format!("{scheme}:// is no etcd cluster: write {FORMS}"))),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(invalid("a cluster has no path: write the beginning of the keys as ?prefix=…"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = login.map(read_login).transpose()?.unwrap_or_default();
        let mut config = EtcdConfig {
            hosts: hosts.split(',').map(read_host).collect::<Result<_, _>>()?,
            tls,
            user,
            password,
            password_file: None,
            prefix: None,
            dialect: Dialect::Native,
            timeout: Duration::from_secs(5),
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            config.read_option(&name, &value)?;
        }
        config.check()?;
        Ok(config)
    }

    /// The beginning of every key.
    pub(crate) fn prefix(&self) -> &str {
        match (&self.prefix, self.dialect) {
            (Some(prefix), _) => prefix,
            (None, Dialect::Native) => "leasehold/",
            // Others write the name as it is.
            (None, Dialect::Concurrency) => "",
            (None, Dialect::Etcd3) => "/locks/",
        }
    }

    /// The user and the password to log in with now; `None` where no user is named.
    pub(crate) fn login(&self) -> Result<Option<(String, SecretString)>, Failure> {
        let Some(user) = self.user.clone() else { return Ok(None) };
        if let Some(password) = self.password.clone() {
            return Ok(Some((user, password)));
        }
        if let Some(path) = &self.password_file {
            let text = String::from_utf8(read_file(path, "password-file")?)
                .map_err(|_| invalid(format!("the password file {} is not UTF-8 text", path.display())))?;
            return Ok(Some((user, SecretString::from(text.trim_end_matches(['\r', '\n'])))));
        }
        match std::env::var(PASSWORD_VARIABLE) {
            Ok(password) if !password.is_empty() => Ok(Some((user, SecretString::from(password)))),
            // A client certificate may stand for the user, who then needs none.
            _ if self.tls.as_ref().is_some_and(|files| files.cert.is_some()) => Ok(None),
            _ => Err(invalid(format!(
                "the user {user} has no password: write it into the URL, password-file or {PASSWORD_VARIABLE}"
            ))),
        }
    }

    /// Whether a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        let loopback = |host: &Host| {
            host.name == "localhost"
                || host.name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        self.tls.is_none() && self.user.is_some() && !self.hosts.iter().all(loopback)
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match (name, &mut self.tls) {
            ("prefix", _) => self.prefix = Some(value.to_owned()),
            ("dialect", _) => {
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
            ("timeout", _) => {
                self.timeout = humantime::parse_duration(value)
                    .map_err(|error| invalid(format!("timeout={value}: {error}; write timeout=5s")))?;
            }
            ("password-file", _) => self.password_file = Some(PathBuf::from(value)),
            ("ca", Some(files)) => files.ca = Some(PathBuf::from(value)),
            ("cert", Some(files)) => files.cert = Some(PathBuf::from(value)),
            ("key", Some(files)) => files.key = Some(PathBuf::from(value)),
            ("ca" | "cert" | "key", None) => {
                return Err(invalid(format!("{name} belongs to TLS: write etcds:// instead of etcd://")));
            }
            _ => return Err(invalid(format!("unknown option {name}: known are {}", OPTIONS.join(", ")))),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        let is_plain = |prefix: &String| (1..=64).contains(&prefix.len()) && prefix.bytes().all(plain);
        if !self.prefix.as_ref().is_none_or(is_plain) {
            return Err(invalid("prefix: write 1 to 64 of the characters A-Z a-z 0-9 . _ : / -"));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(300)).contains(&self.timeout) {
            return Err(invalid("timeout: write a duration between 100ms and 5m"));
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(invalid("two passwords: one is in the URL, the other in password-file; keep one"));
        }
        if self.password_file.is_some() && self.user.is_none() {
            return Err(invalid("password-file needs a user: write etcd://user@host"));
        }
        if self.tls.as_ref().is_some_and(|files| files.cert.is_some() != files.key.is_some()) {
            return Err(invalid("cert and key belong together: name both files, or neither"));
        }
        Ok(())
    }
}

impl fmt::Display for EtcdConfig {
    /// The URL without options, and without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "etcds://" } else { "etcd://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}{}@", if self.password.is_some() { ":***" } else { "" })?;
        }
        for (n, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// One server of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// PEM files of a TLS connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Reads a file that the URL's `option` names.
pub(crate) fn read_file(path: &Path, option: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        invalid(format!("{option}={} cannot be read: {error}", path.display())).because(error)
    })
}

/// A failure of what was written in the URL or in a file that it names.
pub(crate) fn invalid(detail: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, Effect::None, detail)
}

/// The secret's text, for the client that logs in with it.
pub(crate) fn reveal(password: &SecretString) -> &str {
    password.expose_secret()
}

const PASSWORD_VARIABLE: &str = "LEASEHOLD_ETCD_PASSWORD";
const FORMS: &str = "etcd://host:2379 or etcds://host1:2379,host2:2379";
const OPTIONS: &[&str] = &["prefix", "dialect", "timeout", "password-file", "ca", "cert", "key"];

fn read_login(login: &str) -> Result<(Option<String>, Option<SecretString>), Failure> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decoded(password, "password")?)),
        None => (login, None),
    };
    let user = decoded(user, "user name")?;
    if user.is_empty() {
        return Err(invalid("the user's name is missing before @: write etcd://user:password@host"));
    }
    Ok((Some(user), password.map(SecretString::from)))
}

fn read_host(text: &str) -> Result<Host, Failure> {
    let missing = || invalid(format!("a host is missing: write {FORMS}"));
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(missing)?;
            if name.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(invalid("between brackets an IPv6 address is written, as in [::1]:2379"));
            }
            (name, port.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let port = match port {
        None => 2379,
        Some(port) => port
            .parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| invalid("a port is a number from 1 to 65535, as in host:2379"))?,
    };
    if name.is_empty() {
        return Err(missing());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if !name.bytes().all(plain) {
        return Err(invalid(
            "a host is a name or an address: write others than A-Z a-z 0-9 . _ - in punycode",
        ));
    }
    Ok(Host { name: name.to_owned(), port })
}

fn decoded(text: &str, what: &str) -> Result<String, Failure> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| invalid(format!("the {what} is not UTF-8 once its %XX are decoded")))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
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

        let config = EtcdConfig::parse("etcd://a,[::1]:7000,10.0.0.1/?prefix=x/y:z&timeout=250ms").unwrap();
        assert_eq!(config.to_string(), "etcd://a:2379,[::1]:7000,10.0.0.1:2379");
        assert_eq!((config.prefix(), config.timeout), ("x/y:z", Duration::from_millis(250)));

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
    fn what_cannot_be_meant_is_refused_with_what_to_write() {
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
            ("etcd://h?prefix=", "1 to 64"),
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
