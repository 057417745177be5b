//! Addresses of the servers and their options, parsed from a URL. Parsing does no I/O.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{
    self, Credentials, Host, Lack, Options, Parts, Scheme, StoreUrls, TlsFiles, UrlOption, invalid,
    is_exposed,
};
use leasehold_core::Failure;

/// The URLs of memcached.
pub static URLS: StoreUrls = StoreUrls {
    title: "memcached",
    schemes: &[
        Scheme {
            name: "memcached",
            form: "memcached://[user:password@]host[:port][,host[:port]…]",
            meaning: "TCP, port 11211 unless given",
            example: "memcached://host1:11211,host2:11211",
        },
        Scheme {
            name: "memcacheds",
            form: "memcacheds://[user:password@]host[:port][,host[:port]…]",
            meaning: "the same with TLS, certificate and host name verified",
            example: "memcacheds://host1:11211,host2:11211",
        },
    ],
    options: &[&DIALECT, &PREFIX, &SETTLE, &url::TIMEOUT, &url::PASSWORD_FILE, &CA, &CERT, &KEY],
    lacks: &[Lack {
        schemes: &[],
        options: &["sslmode", "tls"],
        why: "with TLS the URL begins with memcacheds://",
    }],
    check: |url| MemcachedConfig::parse(url).map(drop),
};

const DIALECT: UrlOption<Dialect> = UrlOption::choice(
    "dialect",
    &[("native", Dialect::Native), ("plain", Dialect::Plain)],
)
.about(
    "`native` has mutexes, read-write locks, semaphores and a queue of waiters; `plain` has mutexes only, in \
             the form of most libraries: one item by `add`",
)
.default("native");
const PREFIX: UrlOption<String> = UrlOption::plain_or_empty("prefix", 64, "._:/-")
    .about("beginning of every key; with `dialect=plain` it may be empty, so that a key is the name itself")
    .default_note("`lh:`; with `dialect=plain` `lock:`")
    .example("lh:");
const SETTLE: UrlOption<Duration> = UrlOption::duration("settle", MIN_SETTLE, Duration::from_secs(3600))
    .about("how long a server must have run before it is used")
    .default("2s");
const CA: UrlOption<PathBuf> = url::CA.schemes(SECURED);
const CERT: UrlOption<PathBuf> = url::CERT.schemes(SECURED);
const KEY: UrlOption<PathBuf> = url::KEY.schemes(SECURED);
const SECURED: &[&str] = &["memcacheds"];

/// One memcached server or several, and how leasehold uses them.
///
#[doc = include_str!("options.md")]
///
/// With several servers each resource lives on one of them, chosen by its name and by the *set of hosts as
/// written*: every client must name the same servers by the same names, in any order. `dialect=plain` has one
/// server.
///
/// A password comes from the URL, else from `password-file`, else from the environment variable
/// `LEASEHOLD_MEMCACHED_PASSWORD`. It is sent as the text protocol of memcached 1.6 does it (`-Y`); SASL is
/// not spoken.
///
/// ```
/// use leasehold_memcached::MemcachedConfig;
/// let config = MemcachedConfig::parse("memcached://jobs:secret@c1,c2:11222?settle=30s").unwrap();
/// assert_eq!(config.to_string(), "memcached://jobs:***@c1:11211,c2:11222");
/// let error = MemcachedConfig::parse("memcached://c1?tiemout=3s").unwrap_err();
/// assert!(error.to_string().contains("timeout"));
/// ```
#[derive(Clone, Debug)]
pub struct MemcachedConfig {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Credentials,
    /// `Some` where the servers speak TLS.
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) dialect: Dialect,
    pub(crate) prefix: String,
    pub(crate) settle: Duration,
    pub(crate) timeout: Duration,
}

/// The format of a lock on the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// One item per resource holds the queue of its claims.
    Native,
    /// One item per lock, which exists while it is held.
    Plain,
}

impl MemcachedConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<MemcachedConfig, Failure> {
        URLS.read(url, MemcachedConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<MemcachedConfig, Failure> {
        if !parts.path.is_empty() {
            return Err(invalid("memcached has no path: write a beginning for its keys as ?prefix=name:"));
        }
        let dialect = options.get(&DIALECT)?;
        let prefix = options.find(&PREFIX)?.unwrap_or_else(|| match dialect {
            Dialect::Native => "lh:".to_owned(),
            Dialect::Plain => "lock:".to_owned(),
        });
        let config = MemcachedConfig {
            hosts: parts.hosts(PORT)?,
            tls: (parts.scheme == "memcacheds").then(|| TlsFiles::of(options)).transpose()?,
            login: Credentials::of(parts.user, parts.password, options, PASSWORD_VARIABLE)?,
            dialect,
            prefix,
            settle: options.get(&SETTLE)?,
            timeout: options.get(&url::TIMEOUT)?,
        };
        config.check()?;
        Ok(config)
    }

    /// Returns `true` if a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        self.tls.is_none() && is_exposed(&self.hosts, || self.login.may_have_password())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.login.names_password() && self.login.user.is_none() {
            return Err(invalid("a password without a user: write user:password@host"));
        }
        if self.hosts.len() > MAX_SERVERS {
            return Err(invalid(format!(
                "{} servers are too many: name {MAX_SERVERS} at most",
                self.hosts.len()
            )));
        }
        if self.dialect == Dialect::Native && self.prefix.is_empty() {
            return Err(invalid(
                "an empty prefix is for dialect=plain: choose another, or leave it out for lh:",
            ));
        }
        if self.dialect == Dialect::Plain && self.hosts.len() > 1 {
            return Err(invalid(
                "dialect=plain has one server: with several, each library chooses the server of a lock in a way of its \
                 own, and two would hold the same lock on different ones",
            ));
        }
        let mut names: Vec<&Host> = self.hosts.iter().collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(invalid(format!("{} is named twice", pair[0])));
        }
        Ok(())
    }
}

impl fmt::Display for MemcachedConfig {
    /// Writes the URL without its password and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "memcacheds" } else { "memcached" };
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{scheme}://{}{}", self.login.shown(), hosts.join(","))
    }
}

const PORT: u16 = 11211;
const PASSWORD_VARIABLE: &str = "LEASEHOLD_MEMCACHED_PASSWORD";
const MAX_SERVERS: usize = 100;
/// Shorter, and two starts of a server could fall into one second, which names the epoch of its fences.
pub(crate) const MIN_SETTLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        MemcachedConfig::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let config = MemcachedConfig::parse("memcached://h").unwrap();
        assert_eq!(config.to_string(), "memcached://h:11211");
        assert_eq!((config.dialect, config.prefix.as_str()), (Dialect::Native, "lh:"));
        assert_eq!((config.settle, config.timeout), (Duration::from_secs(2), Duration::from_secs(5)));
        assert!(config.tls.is_none());
        let plain = MemcachedConfig::parse("memcacheds://h?dialect=plain&ca=/ca.pem").unwrap();
        assert_eq!((plain.dialect, plain.prefix.as_str()), (Dialect::Plain, "lock:"));
        assert!(plain.tls.unwrap().ca.is_some());
        let tooz = MemcachedConfig::parse("memcached://h?dialect=plain&prefix=__TOOZ_LOCK_").unwrap();
        assert_eq!(tooz.prefix, "__TOOZ_LOCK_");
        assert_eq!(MemcachedConfig::parse("memcached://h?dialect=plain&prefix=").unwrap().prefix, "");
    }

    /// Another library would look for the lock on another server.
    #[test]
    fn plain_dialect_has_one_server_and_may_have_no_prefix() {
        let refused = refusal("memcached://h,i?dialect=plain");
        assert!(refused.contains("dialect=plain has one server"), "{refused}");
        assert!(MemcachedConfig::parse("memcached://h,i").is_ok());
        let refused = refusal("memcached://h?prefix=");
        assert!(refused.contains("an empty prefix is for dialect=plain"), "{refused}");
    }

    #[test]
    fn unusable_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("redis://h", "memcached://host1:11211"),
            ("memcached://", "host is missing"),
            ("memcached://h/0", "?prefix="),
            ("memcached://h?dialect=redlock", "dialect=native or dialect=plain"),
            ("memcached://h?prefix=a%20b", "characters"),
            ("memcached://h?prefix=a%0d%0ab", "characters"),
            ("memcached://h?settle=1s", "between 2s and 1h"),
            ("memcached://h?timeout=1ms", "between 10ms and 5m"),
            ("memcached://h?ca=/x", "memcacheds://"),
            ("memcacheds://h?cert=/x", "belong together"),
            ("memcached://h,h:11211", "named twice"),
            ("memcached://:secret@h", "without a user"),
            ("memcached://h?sasl=yes", "known are dialect"),
            ("memcached://h?order=fifo", "does not support order, an option of other stores"),
        ] {
            assert!(refusal(url).contains(hint), "{url}: {}", refusal(url));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = MemcachedConfig::parse("memcached://me:hunter2@h").unwrap();
        assert!(!format!("{config:?} {config}").contains("hunter2"));
        assert!(config.exposes_password());
        assert!(!MemcachedConfig::parse("memcacheds://me:hunter2@h").unwrap().exposes_password());
        assert!(!MemcachedConfig::parse("memcached://me:hunter2@127.0.0.1").unwrap().exposes_password());
        assert!(!refusal("memcached://me:hunter2@h?bad=1").contains("hunter2"));
    }
}
