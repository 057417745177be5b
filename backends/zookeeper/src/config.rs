//! Where the ensemble is and how it is to be used, parsed from a URL.
//!
//! Parsing does no I/O. A password never leaves this file and `session.rs`; no error repeats the URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};

use crate::dialect::Dialect;

/// One ZooKeeper ensemble, and how leasehold uses it: `zk://[user[:password]@]host[:port][,host[:port]…][/chroot]`.
///
/// | option | meaning | default |
/// |---|---|---|
/// | `session` | session timeout to ask for, 1s to 10m; the servers may give another | `30s` |
/// | `prefix` | the node under the chroot in which all locks are: 1 to 64 of `A-Z a-z 0-9 . _ : -` | `leasehold`, or none in another dialect |
/// | `dialect` | `native`; or `curator` or `kazoo`, to contend with the users of these: mutexes and read-write locks, whose names are paths | `native` |
/// | `timeout` | how long to wait for a connection, and for an answer, 10ms to 5m | `5s` |
/// | `password-file` | file that holds the password, read again for each session | |
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
    /// `host:port`, at least one.
    pub(crate) hosts: Vec<String>,
    /// Empty, or with a slash at its beginning and none at its end.
    pub(crate) chroot: String,
    pub(crate) user: Option<String>,
    password: Option<SecretString>,
    password_file: Option<PathBuf>,
    pub(crate) session: Duration,
    prefix: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Duration,
}

impl ZooKeeperConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<ZooKeeperConfig, Failure> {
        // A URL has one host and one port; a list of them is taken apart here, as ZooKeeper's own clients do.
        let rest = url.strip_prefix("zk://").ok_or_else(|| invalid(format!("write {FORM}")))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, chroot) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = login.map(read_login).transpose()?.unwrap_or_default();
        let mut config = ZooKeeperConfig {
            hosts: hosts.split(',').map(read_host).collect::<Result<_, _>>()?,
            chroot: read_chroot(chroot)?,
            user,
            password,
            password_file: None,
            session: Duration::from_secs(30),
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

    /// What to log in with now: `user:password`, as ZooKeeper's digest scheme writes it.
    pub(crate) fn login(&self) -> Result<Option<SecretString>, Failure> {
        let Some(user) = &self.user else { return Ok(None) };
        let password = match (&self.password, &self.password_file) {
            (Some(password), _) => password.expose_secret().to_owned(),
            (None, Some(path)) => {
                let read = std::fs::read_to_string(path).map_err(|error| {
                    invalid(format!("password-file={} cannot be read: {error}", path.display()))
                        .because(error)
                })?;
                read.trim_end_matches(['\r', '\n']).to_owned()
            }
            (None, None) => std::env::var(PASSWORD_VARIABLE).map_err(|_| {
                invalid(format!("the user {user} has no password: set {PASSWORD_VARIABLE} or password-file"))
            })?,
        };
        Ok(Some(SecretString::from(format!("{user}:{password}"))))
    }

    /// The servers as ZooKeeper's clients write them.
    pub(crate) fn connect_string(&self) -> String {
        self.hosts.join(",")
    }

    /// The path that all locks are below; empty for ZooKeeper's own root.
    pub(crate) fn base(&self) -> String {
        match (&self.prefix, self.dialect) {
            (Some(prefix), _) => format!("{}/{prefix}", self.chroot),
            (None, Dialect::Native) => format!("{}/leasehold", self.chroot),
            // Others write the name as it is.
            (None, Dialect::Curator | Dialect::Kazoo) => self.chroot.clone(),
        }
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "session" => {
                self.session = read_duration(name, value, Duration::from_secs(1), LONGEST_SESSION)?;
            }
            "timeout" => {
                let (min, max) = (Duration::from_millis(10), Duration::from_secs(300));
                self.timeout = read_duration(name, value, min, max)?;
            }
            "prefix" => {
                let plain = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
                if value.is_empty() || value.len() > 64 || !value.chars().all(plain) || is_dots(value) {
                    return Err(invalid("prefix takes 1 to 64 of A-Z a-z 0-9 . _ : -"));
                }
                self.prefix = Some(value.to_owned());
            }
            "dialect" => {
                self.dialect = Dialect::of(value).ok_or_else(|| {
                    invalid(format!("dialect={value} is not known: write native, curator or kazoo"))
                })?;
            }
            "password-file" => self.password_file = Some(PathBuf::from(value)),
            other => {
                let known = OPTIONS.join(", ");
                return Err(invalid(format!("{other} is no option of zk://; known are {known}")));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.user.is_none() && (self.password.is_some() || self.password_file.is_some()) {
            return Err(invalid("a password needs a user: write zk://user@host"));
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(invalid("two passwords: take the one out of the URL, or password-file away"));
        }
        if self.base() == "/zookeeper" || self.base().starts_with("/zookeeper/") {
            return Err(invalid("the node /zookeeper belongs to ZooKeeper itself: take another prefix"));
        }
        Ok(())
    }
}

impl fmt::Display for ZooKeeperConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("zk://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}:***@")?;
        }
        write!(f, "{}{}", self.hosts.join(","), self.chroot)
    }
}

/// A failure of what was written in the URL or in a file that it names.
fn invalid(detail: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, Effect::None, detail)
}

fn read_login(login: &str) -> Result<(Option<String>, Option<SecretString>), Failure> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let user = decoded(user, "user name")?;
    if user.contains(':') {
        return Err(invalid("a user name of ZooKeeper cannot contain a colon"));
    }
    let password = password.map(|password| decoded(password, "password")).transpose()?;
    Ok((Some(user).filter(|user| !user.is_empty()), password.map(SecretString::from)))
}

fn read_host(text: &str) -> Result<String, Failure> {
    // The brackets of an IPv6 address hold colons that are no ports.
    let name_end = text.rfind(']').map_or(0, |bracket| bracket + 1);
    let (name, port) = match text[name_end..].rfind(':') {
        Some(colon) => (&text[..name_end + colon], &text[name_end + colon + 1..]),
        None => (text, "2181"),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_[]:%".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(invalid(format!("a host is missing or unreadable: write {FORM}")));
    }
    let port: u16 = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| invalid(format!("a port of {name} is no number from 1 to 65535: write {FORM}")))?;
    Ok(format!("{name}:{port}"))
}

fn read_chroot(path: &str) -> Result<String, Failure> {
    let path = decoded(path, "path")?;
    let path = path.trim_end_matches('/');
    let bad = |part: &str| part.is_empty() || is_dots(part) || part.chars().any(char::is_control);
    if path.split('/').skip(1).any(bad) {
        return Err(invalid(
            "the chroot must be a path of ZooKeeper: names between slashes, neither empty nor dots",
        ));
    }
    Ok(path.to_owned())
}

fn is_dots(name: &str) -> bool {
    name == "." || name == ".."
}

fn read_duration(name: &str, value: &str, min: Duration, max: Duration) -> Result<Duration, Failure> {
    let duration = humantime::parse_duration(value)
        .map_err(|_| invalid(format!("{name}={value} is no duration: write {name}=30s")))?;
    if !(min..=max).contains(&duration) {
        let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
        return Err(invalid(format!("{name} must lie between {min} and {max}")));
    }
    Ok(duration)
}

fn decoded(text: &str, what: &str) -> Result<String, Failure> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| invalid(format!("the {what} is not UTF-8 once its %XX are decoded")))
}

const PASSWORD_VARIABLE: &str = "LEASEHOLD_ZOOKEEPER_PASSWORD";
const FORM: &str = "zk://host:2181,host:2181/chroot";
const OPTIONS: &[&str] = &["session", "prefix", "dialect", "timeout", "password-file"];
const LONGEST_SESSION: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config = ZooKeeperConfig::parse("zk://a").unwrap();
        assert_eq!(config.connect_string(), "a:2181");
        assert_eq!(config.base(), "/leasehold");
        assert_eq!((config.session, config.timeout), (Duration::from_secs(30), Duration::from_secs(5)));
        assert!(config.login().unwrap().is_none());

        let url = "zk://a:1,[::1]:2182,[::2]/x/y/?session=1500ms&prefix=p.q&timeout=250ms";
        let config = ZooKeeperConfig::parse(url).unwrap();
        assert_eq!(config.connect_string(), "a:1,[::1]:2182,[::2]:2181");
        assert_eq!(config.base(), "/x/y/p.q");
        assert_eq!((config.session.as_millis(), config.timeout.as_millis()), (1500, 250));

        let config = ZooKeeperConfig::parse("zk://a/x?dialect=curator").unwrap();
        assert_eq!((config.base().as_str(), config.dialect), ("/x", Dialect::Curator));
        let config = ZooKeeperConfig::parse("zk://a?dialect=kazoo&prefix=locks").unwrap();
        assert_eq!((config.base().as_str(), config.dialect), ("/locks", Dialect::Kazoo));
    }

    #[test]
    fn a_password_is_read_but_never_shown() {
        let config = ZooKeeperConfig::parse("zk://me:p%40ss%2Fword@h/x").unwrap();
        assert_eq!(config.login().unwrap().unwrap().expose_secret(), "me:p@ss/word");
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
            assert_eq!(config.login().unwrap().unwrap().expose_secret(), format!("me:{password}"));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_to_write() {
        for (url, hint) in [
            ("http://h", "zk://host:2181"),
            ("zk://", "host is missing"),
            ("zk:///x", "host is missing"),
            ("zk://a,,b", "host is missing"),
            ("zk://a:x", "no number"),
            ("zk://a:0", "no number"),
            ("zk://a//b", "chroot"),
            ("zk://a/../b", "chroot"),
            ("zk://a?sesion=1s", "known are session"),
            ("zk://a?session=soon", "session=30s"),
            ("zk://a?session=1ms", "between 1s and 10m"),
            ("zk://a?prefix=a/b", "1 to 64"),
            ("zk://a?prefix=..", "1 to 64"),
            ("zk://a?prefix=zookeeper", "belongs to ZooKeeper"),
            ("zk://a?dialect=java", "native, curator or kazoo"),
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
