//! Which servers are a quorum, and how they are used, parsed from a URL.

pub(crate) mod member;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Failure;
use leasehold_core::quorum::Member;

use crate::config::{RedisConfig, invalid};
use crate::redlock::member::RedisNode;
use crate::topology::server::{MAX_TTL, MIN_TTL};

#[doc = include_str!("redlock.md")]
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
        let (scheme, rest) = match url.split_once("://") {
            Some(("redlock", rest)) => ("redis", rest),
            Some(("redlocks", rest)) => ("rediss", rest),
            _ => return Err(invalid(format!("this is no URL of a quorum: write {FORM}"))),
        };
        // A password may hold anything, so what follows the hosts is looked for behind it.
        let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (hosts, tail) = rest.split_at(end);
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let (query, max_ttl) = read_query(query)?;
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            let parsed = RedisConfig::parse(&format!("{scheme}://{login}{host}{path}?{query}"));
            servers
                .push(parsed.map_err(|failure| invalid(format!("server {host:?}: {}", failure.detail())))?);
        }
        let config = RedlockConfig { servers, max_ttl };
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

    /// Returns the servers, not connected to yet.
    pub fn members(&self) -> Vec<Arc<dyn Member>> {
        let member = |config: &RedisConfig| Arc::new(RedisNode::new(config.clone())) as Arc<dyn Member>;
        if self.servers.iter().any(RedisConfig::exposes_password) {
            tracing::warn!(servers = %self, "the password crosses the network in the clear: use redlocks://");
        }
        self.servers.iter().map(member).collect()
    }

    fn check(&self) -> Result<(), Failure> {
        let count = self.servers.len();
        if !(3..=MAX_SERVERS).contains(&count) {
            return Err(invalid(format!(
                "{count} servers: a majority that survives the loss of one takes three at least, and no more than \
                 {MAX_SERVERS} may be named; three, five and seven are good numbers; write {FORM}"
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

/// Splits the options of each server from the option of all of them together.
fn read_query(query: &str) -> Result<(String, Duration), Failure> {
    let mut options = Vec::new();
    let mut max_ttl = DEFAULT_MAX_TTL;
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("max-ttl", value) => {
                max_ttl = humantime::parse_duration(value)
                    .map_err(|error| invalid(format!("max-ttl={value}: {error}; write max-ttl=1m")))?;
            }
            (name @ ("order" | "wait"), _) => {
                return Err(invalid(format!(
                    "{name} cannot be chosen for a quorum: its waiters have no common line, and are sent word"
                )));
            }
            (name @ ("dialect" | "replicas"), _) => {
                return Err(invalid(format!(
                    "{name} means nothing to a quorum, whose locks have one form and need no replicas: leave it out"
                )));
            }
            (name, _) if !OPTIONS.contains(&name) => {
                return Err(invalid(format!("unknown option {name}: known are {}", OPTIONS.join(", "))));
            }
            _ => options.push(option),
        }
    }
    if !(MIN_TTL..=MAX_TTL).contains(&max_ttl) {
        return Err(invalid("max-ttl: write a duration between 100ms and 24h"));
    }
    if !options.iter().any(|option| option.starts_with("timeout=")) {
        options.push(DEFAULT_TIMEOUT);
    }
    Ok((options.join("&"), max_ttl))
}

const FORM: &str = "redlock://host1:6379,host2:6379,host3:6379";
const OPTIONS: &[&str] = &["max-ttl", "timeout", "prefix", "password-file", "ca", "cert", "key"];
const DEFAULT_TIMEOUT: &str = "timeout=1s";
const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);
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
            ("redlock://a,b,c?order=fifo", "no common line"),
            ("redlock://a,b,c?wait=poll", "no common line"),
            ("redlock://a,b,c?dialect=plain", "leave it out"),
            ("redlock://a,b,c?replicas=1", "leave it out"),
            ("redlock://a,b,c?max-ttl=soon", "max-ttl=1m"),
            ("redlock://a,b,c?max-ttl=2d", "between 100ms and 24h"),
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
