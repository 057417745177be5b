//! Which servers are a quorum, and how they are used, parsed from a URL.

pub(crate) mod member;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::url::{
    self, Credentials, Host, Lack, Options, PASSWORD_FILE, Parts, Scheme, StoreUrls, TlsFiles, UrlOption,
    warn_of_exposed_password,
};
use leasehold_core::Failure;
use leasehold_core::quorum::Member;

use crate::config::{Endpoint, PASSWORD_VARIABLE, PORT, PREFIX, RedisConfig, invalid, read_path_db};
use crate::redlock::member::RedisNode;
use crate::topology::server_info::{MAX_TTL, MIN_TTL};

/// The URLs of a quorum of Redis servers.
pub static REDLOCK_URLS: StoreUrls = StoreUrls {
    title: "Redlock",
    schemes: &[
        Scheme {
            name: "redlock",
            form: "redlock://[user[:password]@]host[:port],host[:port],host[:port]…[/db]",
            meaning: "several independent Redis servers that decide together",
            example: "redlock://host1:6379,host2:6379,host3:6379",
        },
        Scheme {
            name: "redlocks",
            form: "redlocks://…",
            meaning: "the same with TLS, certificate and host name verified",
            example: "redlocks://host1:6379,host2:6379,host3:6379",
        },
    ],
    options: &[&LONGEST_TTL, &TIMEOUT, &PREFIX, &PASSWORD_FILE, &CA, &CERT, &KEY],
    lacks: &[
        Lack {
            schemes: &[],
            options: &["order", "wait"],
            why: "the waiters of a quorum have no common queue, and are always notified",
        },
        Lack {
            schemes: &[],
            options: &["dialect", "key-prefix", "watchdog", "replicas"],
            why: "the locks of a quorum have one form and need no replicas: leave it out",
        },
        Lack { schemes: &[], options: &["db"], why: "write the database number as a path" },
        Lack { schemes: &[], options: &["sslmode", "tls"], why: "with TLS the URL begins with redlocks://" },
    ],
    check: |url| RedlockConfig::parse(url).map(drop),
};

const LONGEST_TTL: UrlOption<Duration> = UrlOption::duration("max-ttl", MIN_TTL, MAX_TTL)
    .about(
        "the longest lease; a server that has lost its memory is not counted for this time after the loss was noticed",
    )
    .default("1m");
const TIMEOUT: UrlOption<Duration> = url::TIMEOUT.about("how long to wait for one server").default("1s");
const CA: UrlOption<PathBuf> = url::CA.schemes(SECURED);
const CERT: UrlOption<PathBuf> = url::CERT.schemes(SECURED);
const KEY: UrlOption<PathBuf> = url::KEY.schemes(SECURED);
const SECURED: &[&str] = &["redlocks"];

#[doc = include_str!("redlock.md")]
///
/// # URLs
///
#[doc = include_str!("redlock/options.md")]
#[derive(Clone, Debug)]
pub struct RedlockConfig {
    servers: Vec<RedisConfig>,
    max_ttl: Duration,
}

impl RedlockConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<RedlockConfig, Failure> {
        REDLOCK_URLS.read(url, RedlockConfig::of)
    }

    fn of(parts: Parts, options: &Options) -> Result<RedlockConfig, Failure> {
        let db = read_path_db(&parts)?;
        let hosts = parts.hosts(PORT)?;
        let credentials = Credentials::of(parts.user, parts.password, options, PASSWORD_VARIABLE)?;
        let files = (parts.scheme == "redlocks").then(|| TlsFiles::of(options)).transpose()?;
        let server = |Host { name: host, port }| {
            let endpoint = match files.clone() {
                Some(files) => Endpoint::Tls { host, port, files },
                None => Endpoint::Tcp { host, port },
            };
            let timeout = options.get(&TIMEOUT)?;
            Ok(RedisConfig { timeout, ..RedisConfig::of(endpoint, credentials.clone(), db, options)? })
        };
        let servers = hosts.into_iter().map(server).collect::<Result<_, Failure>>()?;
        let config = RedlockConfig { servers, max_ttl: options.get(&LONGEST_TTL)? };
        config.check()?;
        Ok(config)
    }

    /// Returns the longest lease.
    pub fn max_ttl(&self) -> Duration {
        self.max_ttl
    }

    /// Returns the shortest lease.
    pub fn min_ttl(&self) -> Duration {
        MIN_TTL
    }

    /// Logs a warning if the password crosses a network in the clear, once for all servers. It is called before they
    /// are connected to.
    pub fn warn_of_exposed_password(&self) {
        if self.servers.iter().any(RedisConfig::exposes_password) {
            warn_of_exposed_password(self, "use redlocks://");
        }
    }

    /// Returns the servers, not connected to yet.
    pub fn members(&self) -> Vec<Arc<dyn Member>> {
        let member = |config: &RedisConfig| Arc::new(RedisNode::new(config.clone())) as Arc<dyn Member>;
        self.servers.iter().map(member).collect()
    }

    fn check(&self) -> Result<(), Failure> {
        let count = self.servers.len();
        if !(3..=MAX_SERVERS).contains(&count) {
            return Err(invalid(format!(
                "{count} named: name three at least, so that a majority survives the loss of one, and {MAX_SERVERS} at most; \
                 three, five and seven are good numbers; write {}",
                REDLOCK_URLS.form()
            )));
        }
        for (number, server) in self.servers.iter().enumerate() {
            if self.servers[..number].iter().any(|other| other.endpoint == server.endpoint) {
                return Err(invalid(format!(
                    "{} is named twice: one server has one vote, name each once",
                    server.endpoint
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Display for RedlockConfig {
    /// Writes the servers, without login and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(|server| server.endpoint.to_string()).collect();
        write!(f, "redlock://{}", servers.join(","))
    }
}

const MAX_SERVERS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        RedlockConfig::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config =
            RedlockConfig::parse("redlocks://me:p%40s,s@a,[::1]:7000,c/2?prefix=x&max-ttl=90s").unwrap();
        assert_eq!(config.to_string(), "redlock://a:6379,[::1]:7000,c:6379");
        assert_eq!((config.max_ttl(), config.members().len()), (Duration::from_secs(90), 3));
        assert!(config.servers.iter().all(|server| server.prefix == "x" && server.db == 2));
        assert!(config.servers.iter().all(|server| server.timeout == Duration::from_secs(1)));
        let config = RedlockConfig::parse("redlock://a,b,c?timeout=200ms").unwrap();
        assert!(config.servers.iter().all(|server| server.timeout == Duration::from_millis(200)));
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("redis://a,b,c", "redlock://"),
            ("redlock://a", "three at least"),
            ("redlock://a,b", "three at least"),
            ("redlock://a,b,a:6379", "named twice"),
            ("redlock://a,,c", "host is missing"),
            ("redlock://a,b,c?order=fifo", "no common queue"),
            ("redlock://a,b,c?wait=poll", "no common queue"),
            ("redlock://a,b,c?dialect=plain", "leave it out"),
            ("redlock://a,b,c?replicas=1", "leave it out"),
            ("redlock://a,b,c?max-ttl=soon", "max-ttl=1m"),
            ("redlock://a,b,c?max-ttl=2d", "between 100ms and 1day"),
            ("redlock://a,b,c?tiemout=1s", "known are"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for url in
            ["redlock://me:hunter2@a,b", "redlock://me:hunter2@a,b,c:x", "redlock://me:hunter2@a,b,c?x=1"]
        {
            assert!(!refusal(url).contains("hunter2"), "{url}");
        }
        let config = RedlockConfig::parse("redlock://me:hunter2@a,b,c").unwrap();
        assert!(!format!("{config} {config:?} {:?}", config.members()).contains("hunter2"));
    }
}
