//! The place of the server and its options, parsed from a URL.
//!
//! Parsing does no I/O: certificates and passwords in files are read when a connection is made, so that
//! they may be renewed while a program runs. A password never leaves this file and `connection.rs`; no
//! error repeats the URL.

mod dialect;
mod sentinel_group;

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_backend::url::{Credentials, Host, SecretString};
use leasehold_core::{Failure, QueueOrder};
use percent_encoding::percent_decode_str;
use url::Url;

pub(crate) use leasehold_backend::url::{invalid, reveal};

pub(crate) use dialect::Dialect;
pub(crate) use sentinel_group::{Group, SENTINEL_PORT};

/// One Redis or Valkey server, or a group of them, and how leasehold uses it.
///
/// | URL | connection |
/// |---|---|
/// | `redis://[user[:password]@]host[:port][/db]` | TCP |
/// | `rediss://[user[:password]@]host[:port][/db]` | TLS, certificate and host name verified |
/// | `redis+unix:///path/to.sock` | Unix socket |
/// | `redis+sentinel://[user[:password]@]host[:port][,host[:port]]…/name` | the server that these Sentinels name as the primary of `name` |
/// | `rediss+sentinel://…` | the same, with TLS to the Sentinels and the servers |
/// | `redis+cluster://[user[:password]@]host[:port][,host[:port]]…` | a cluster, found by way of any of these servers |
/// | `rediss+cluster://…` | the same, with TLS to each of its servers |
///
/// | option | meaning | default |
/// |---|---|---|
/// | `wait` | `pubsub`: a waiter is sent word; `poll`: it asks again, and no publish or subscribe is ever sent | `pubsub` |
/// | `order` | `fifo`: waiters are served in order; `unordered`: the first request after a release | `fifo` |
/// | `prefix` | beginning of every key and channel: 1 to 32 of `A-Z a-z 0-9 . _ -` | `lh` |
/// | `dialect` | whose form of a lock: `native`, `plain`, `redisson` or `python-redis-lock`; or `dual:` and one of these, which takes that lock and the native one together | `native` |
/// | `key-prefix` | not for `native`: what stands before the name in the key, up to 128 bytes | |
/// | `timeout` | how long to wait for a connection, and for an answer, 10ms to 5m | `5s` |
/// | `replicas` | how many replicas have to confirm a grant or a renewal before it counts, 0 to 16 | `0` |
/// | `password-file` | file that holds the password, read again for each connection | |
/// | `ca` | TLS only: PEM file of the authorities to trust instead of the system's | |
/// | `cert`, `key` | TLS only: PEM files of the client's certificate and key | |
/// | `db` | `redis+unix` and Sentinels only: database number | `0` |
/// | `user` | `redis+unix` only: user name | |
/// | `sentinel-user`, `sentinel-password-file` | Sentinels only: who logs in to them, where they want that | |
///
/// A password comes from the URL, else from `password-file`, else from the environment variable
/// `LEASEHOLD_REDIS_PASSWORD`. One for the Sentinels comes from `sentinel-password-file`, else from
/// `LEASEHOLD_SENTINEL_PASSWORD`; a URL has room for one password only, which is the servers'.
///
/// ```
/// use leasehold_redis::RedisConfig;
/// let config = RedisConfig::parse("redis://jobs:secret@10.0.0.7/2?order=unordered").unwrap();
/// assert_eq!(config.to_string(), "redis://jobs:***@10.0.0.7:6379/2");
/// let error = RedisConfig::parse("redis://10.0.0.7?tiemout=3s").unwrap_err();
/// assert!(error.to_string().contains("timeout"));
/// ```
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// The server, or the first of those that are asked for it. Its TLS files are used for all of them.
    pub(crate) endpoint: Endpoint,
    pub(crate) deployment: Deployment,
    pub(crate) credentials: Credentials,
    pub(crate) db: i64,
    pub(crate) wait: Wait,
    pub(crate) order: QueueOrder,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) dialect: Dialect,
    pub(crate) key_prefix: String,
    /// The number of replicas that have to confirm a grant or a renewal.
    pub(crate) replicas: u32,
    pub(crate) dual: bool,
}

impl RedisConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead. Nothing was sent anywhere.
    pub fn parse(url: &str) -> Result<RedisConfig, Failure> {
        // The parser's own message does not repeat the URL, which may carry a password.
        let (url, hosts) = first_of_many(url);
        let url = Url::parse(&url)
            .map_err(|error| invalid(format!("this is no Redis URL ({error}): write {FORMS}")))?;
        if url.fragment().is_some() {
            // The rest behind it would be lost, even where it is the rest of a password and the host.
            return Err(invalid(
                "a # has no meaning in the URL of a store: write %23 where it is part of a name or password",
            ));
        }
        let mut config = RedisConfig {
            endpoint: read_endpoint(&url)?,
            deployment: read_deployment(&url, hosts)?,
            credentials: Credentials::new(
                decoded(url.username(), "user name")?,
                url.password()
                    .map(|password| decoded(password, "password"))
                    .transpose()?
                    .flatten()
                    .map(SecretString::from),
                PASSWORD_VARIABLE,
            ),
            db: read_path_db(&url)?,
            wait: Wait::Pubsub,
            order: QueueOrder::Fifo,
            prefix: "lh".to_owned(),
            timeout: Duration::from_secs(5),
            dialect: Dialect::Native,
            key_prefix: String::new(),
            replicas: 0,
            dual: false,
        };
        for (name, value) in url.query_pairs() {
            config.read_option(&name, &value)?;
        }
        config.check()?;
        config.fit_dialect(&url)?;
        Ok(config)
    }

    /// Returns `true` if a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        let Endpoint::Tcp { host, port } = &self.endpoint else { return false };
        let first = Host { name: host.clone(), port: *port };
        // Of a group at least those that are named are known; the others are taken to be where these are.
        let loopback = match &self.deployment {
            Deployment::Cluster(seeds) => seeds.iter().all(Host::is_loopback),
            Deployment::Single | Deployment::Sentinel(_) => first.is_loopback(),
        };
        !loopback && !matches!(self.credentials.password(), Ok(None))
    }

    fn read_option(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match (name, &mut self.endpoint) {
            ("wait", _) => {
                self.wait = match value {
                    "pubsub" => Wait::Pubsub,
                    "poll" => Wait::Poll,
                    _ => return Err(invalid(format!("wait={value}: write wait=pubsub or wait=poll"))),
                }
            }
            ("order", _) => {
                self.order = match value {
                    "fifo" => QueueOrder::Fifo,
                    "unordered" => QueueOrder::Unordered,
                    _ => return Err(invalid(format!("order={value}: write order=fifo or order=unordered"))),
                }
            }
            ("prefix", _) => self.prefix = value.to_owned(),
            ("timeout", _) => {
                self.timeout = humantime::parse_duration(value)
                    .map_err(|error| invalid(format!("timeout={value}: {error}; write timeout=5s")))?;
            }
            ("dialect", _) => (self.dialect, self.dual) = Dialect::read(value)?,
            ("key-prefix", _) => self.key_prefix = value.to_owned(),
            ("replicas", _) => {
                let number = value.parse::<u32>().ok().filter(|number| *number <= MAX_REPLICAS);
                let refusal =
                    || invalid(format!("replicas={value}: write a number from 0 to {MAX_REPLICAS}"));
                self.replicas = number.ok_or_else(refusal)?;
            }
            ("password-file", _) => self.credentials.read_from(value),
            ("ca", Endpoint::Tls { files, .. }) => files.ca = Some(PathBuf::from(value)),
            ("cert", Endpoint::Tls { files, .. }) => files.cert = Some(PathBuf::from(value)),
            ("key", Endpoint::Tls { files, .. }) => files.key = Some(PathBuf::from(value)),
            ("ca" | "cert" | "key", _) => {
                return Err(invalid(format!("{name} belongs to TLS: write rediss:// instead of redis://")));
            }
            ("db", Endpoint::Unix { .. }) => self.db = read_db(value)?,
            ("db", _) if matches!(self.deployment, Deployment::Sentinel(_)) => self.db = read_db(value)?,
            ("sentinel-user" | "sentinel-password-file", _) => match &mut self.deployment {
                Deployment::Sentinel(group) => group.read_option(name, value),
                Deployment::Single | Deployment::Cluster(_) => {
                    return Err(invalid(format!("{name} belongs to Sentinels: write redis+sentinel://")));
                }
            },
            ("user", Endpoint::Unix { .. }) => self.credentials.user = Some(value.to_owned()),
            ("db", _) if matches!(self.deployment, Deployment::Cluster(_)) => {
                return Err(invalid(ONE_DATABASE));
            }
            ("db", _) => return Err(invalid(format!("write the database number as a path: …/{value}"))),
            ("user", _) => return Err(invalid(format!("write the user before the host: {value}@host"))),
            _ => return Err(invalid(format!("unknown option {name}: known are {}", OPTIONS.join(", ")))),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        // Prefix `a` with name `b:c` and prefix `a:b` with name `c` would be one lock.
        if self.prefix.contains(':') {
            let text = "prefix: a colon ends it in the keys, so a lock could be one of a shorter prefix: write . or - in its place";
            return Err(invalid(text));
        }
        if self.prefix.is_empty() || self.prefix.len() > 32 || !self.prefix.bytes().all(plain) {
            return Err(invalid("prefix: write 1 to 32 of the characters A-Z a-z 0-9 . _ -"));
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(300)).contains(&self.timeout) {
            return Err(invalid("timeout: write a duration between 10ms and 5m"));
        }
        self.credentials.check()?;
        if self.replicas > 0 && self.dialect != Dialect::Native {
            return Err(invalid(
                "replicas belongs to the native dialect: the others wait for none, so leave it out",
            ));
        }
        if let Endpoint::Tls { files, .. } = &self.endpoint
            && files.cert.is_some() != files.key.is_some()
        {
            return Err(invalid("cert and key belong together: name both files, or neither"));
        }
        Ok(())
    }
}

impl RedisConfig {
    /// Returns the endpoint of another server of the same deployment: reached as the first one is.
    pub(crate) fn endpoint_at(&self, host: &Host) -> Endpoint {
        let (host, port) = (host.name.clone(), host.port);
        match &self.endpoint {
            Endpoint::Tls { files, .. } => Endpoint::Tls { host, port, files: files.clone() },
            Endpoint::Tcp { .. } | Endpoint::Unix { .. } => Endpoint::Tcp { host, port },
        }
    }

    /// Returns `true` if connections use TLS.
    pub(crate) fn is_secured(&self) -> bool {
        matches!(self.endpoint, Endpoint::Tls { .. })
    }

    /// Returns the servers by which a cluster is found.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = Endpoint> {
        let seeds = match &self.deployment {
            Deployment::Cluster(seeds) => seeds.as_slice(),
            Deployment::Single | Deployment::Sentinel(_) => &[],
        };
        seeds.iter().map(|seed| self.endpoint_at(seed))
    }

    /// Returns the configuration for talking to one Sentinel.
    pub(crate) fn for_sentinel(&self, group: &Group, sentinel: &Host) -> RedisConfig {
        RedisConfig {
            endpoint: self.endpoint_at(sentinel),
            deployment: Deployment::Single,
            credentials: group.credentials.clone(),
            db: 0,
            ..self.clone()
        }
    }
}

impl fmt::Display for RedisConfig {
    /// Writes the URL without options, and without its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.credentials.shown();
        let scheme = if let Endpoint::Tls { .. } = self.endpoint { "rediss" } else { "redis" };
        match (&self.endpoint, &self.deployment) {
            (Endpoint::Unix { .. }, _) => write!(f, "redis+unix://{}?db={}", self.endpoint, self.db),
            (_, Deployment::Single) => write!(f, "{scheme}://{user}{}/{}", self.endpoint, self.db),
            (_, Deployment::Sentinel(group)) => {
                let hosts: Vec<String> = group.sentinels.iter().map(ToString::to_string).collect();
                write!(f, "{scheme}+sentinel://{user}{}/{}?db={}", hosts.join(","), group.name, self.db)
            }
            (_, Deployment::Cluster(seeds)) => {
                let hosts: Vec<String> = seeds.iter().map(ToString::to_string).collect();
                write!(f, "{scheme}+cluster://{user}{}", hosts.join(","))
            }
        }
    }
}

/// The number of servers, and the authority that says which of them decides.
#[derive(Clone, Debug)]
pub(crate) enum Deployment {
    /// One.
    Single,
    /// The primary that the Sentinels name.
    Sentinel(Group),
    /// Those that serve the slots of a cluster, found by way of these.
    Cluster(Vec<Host>),
}

/// The address at which the server listens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, files: TlsFiles },
    Unix { path: PathBuf },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } | Endpoint::Tls { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Endpoint::Tcp { host, port } | Endpoint::Tls { host, port, .. } => write!(f, "{host}:{port}"),
            Endpoint::Unix { path } => write!(f, "{}", path.display()),
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

/// The way in which a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Pubsub,
    Poll,
}

/// Reads a file that the URL's `option` names.
pub(crate) fn read_file(path: &Path, option: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        invalid(format!("{option}={} cannot be read: {error}", path.display())).because(error)
    })
}

/// More replicas than any primary has.
const MAX_REPLICAS: u32 = 16;

const PASSWORD_VARIABLE: &str = "LEASEHOLD_REDIS_PASSWORD";
const FORMS: &str = "redis://host:6379/0, rediss://host:6379/0, redis+unix:///path/to.sock, redis+sentinel://h1,h2,h3/name or redis+cluster://h1,h2,h3";
const OPTIONS: &[&str] = &[
    "wait",
    "order",
    "prefix",
    "dialect",
    "key-prefix",
    "timeout",
    "replicas",
    "password-file",
    "ca",
    "cert",
    "key",
    "db",
    "user",
    "sentinel-user",
    "sentinel-password-file",
];

/// Leaves one host in a URL that names several, so that it can be read as any other, and answers with
/// all of them.
fn first_of_many(url: &str) -> (Cow<'_, str>, &str) {
    let Some(start) = url.find("://").map(|at| at + 3) else { return (Cow::Borrowed(url), "") };
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    let start = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    let hosts = &url[start..end];
    match hosts.split_once(',') {
        None => (Cow::Borrowed(url), hosts),
        Some((first, _)) => (Cow::Owned([&url[..start], first, &url[end..]].concat()), hosts),
    }
}

fn read_deployment(url: &Url, hosts: &str) -> Result<Deployment, Failure> {
    match url.scheme() {
        "redis+sentinel" | "rediss+sentinel" => Ok(Deployment::Sentinel(Group::read(hosts, url.path())?)),
        "redis+cluster" | "rediss+cluster" => Ok(Deployment::Cluster(read_seeds(hosts)?)),
        _ if hosts.contains(',') => Err(invalid(
            "several hosts: write redis+sentinel://h1,h2,h3/name or redis+cluster://h1,h2,h3, or name one server",
        )),
        _ => Ok(Deployment::Single),
    }
}

fn read_seeds(hosts: &str) -> Result<Vec<Host>, Failure> {
    let seeds: Vec<&str> = hosts.split(',').collect();
    if seeds.len() > MAX_SEEDS {
        return Err(invalid(format!("name at most {MAX_SEEDS} servers: any of them knows the others")));
    }
    seeds.into_iter().map(|seed| Host::read(seed, 6379, "redis+cluster://h1,h2,h3")).collect()
}

/// The most servers of a cluster that are named; it may have more.
const MAX_SEEDS: usize = 32;

const ONE_DATABASE: &str = "a cluster has database 0 only: leave the number out";

fn read_endpoint(url: &Url) -> Result<Endpoint, Failure> {
    let port = url.port().unwrap_or(6379);
    let sentinel_port = url.port().unwrap_or(SENTINEL_PORT);
    match url.scheme() {
        "redis+sentinel" => Ok(Endpoint::Tcp { host: read_host(url)?, port: sentinel_port }),
        "rediss+sentinel" => {
            Ok(Endpoint::Tls { host: read_host(url)?, port: sentinel_port, files: TlsFiles::default() })
        }
        "redis" | "redis+cluster" => Ok(Endpoint::Tcp { host: read_host(url)?, port }),
        "rediss" | "rediss+cluster" => {
            Ok(Endpoint::Tls { host: read_host(url)?, port, files: TlsFiles::default() })
        }
        "redis+unix" => {
            if url.has_host() {
                return Err(invalid("a Unix socket has no host: write redis+unix:///path/to.sock"));
            }
            let path = decoded(url.path(), "path")?.unwrap_or_default();
            if path.len() < 2 {
                return Err(invalid("the path of the socket is missing: write redis+unix:///path/to.sock"));
            }
            Ok(Endpoint::Unix { path: PathBuf::from(path) })
        }
        other => Err(invalid(format!("{other}:// is no Redis server: write {FORMS}"))),
    }
}

fn read_host(url: &Url) -> Result<String, Failure> {
    match url.host() {
        Some(url::Host::Domain(name)) if !name.is_empty() => Ok(decoded(name, "host")?.unwrap_or_default()),
        Some(url::Host::Ipv4(address)) => Ok(address.to_string()),
        Some(url::Host::Ipv6(address)) => Ok(address.to_string()),
        _ => Err(invalid(format!("the host is missing: write {FORMS}"))),
    }
}

fn read_path_db(url: &Url) -> Result<i64, Failure> {
    if matches!(url.scheme(), "redis+unix" | "redis+sentinel" | "rediss+sentinel") {
        return Ok(0);
    }
    match url.path().trim_start_matches('/') {
        "" => Ok(0),
        _ if url.scheme().ends_with("+cluster") => Err(invalid(ONE_DATABASE)),
        number => read_db(number),
    }
}

fn read_db(text: &str) -> Result<i64, Failure> {
    text.parse::<u32>()
        .map(i64::from)
        .map_err(|_| invalid(format!("{text} is not a database number: write 0, 1, 2 …")))
}

fn decoded(text: &str, what: &str) -> Result<Option<String>, Failure> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| invalid(format!("the {what} is not UTF-8 once its %XX are decoded")))?;
    Ok(Some(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use leasehold_core::FailureKind;

    use super::*;

    fn refusal(url: &str) -> String {
        let failure = RedisConfig::parse(url).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid, "{url}");
        failure.to_string()
    }

    #[test]
    fn the_forms_of_a_url_are_read() {
        let config = RedisConfig::parse("redis://h").unwrap();
        assert_eq!(config.endpoint, Endpoint::Tcp { host: "h".into(), port: 6379 });
        assert_eq!((config.db, config.wait, config.order), (0, Wait::Pubsub, QueueOrder::Fifo));
        assert_eq!((config.prefix.as_str(), config.timeout), ("lh", Duration::from_secs(5)));

        let config = RedisConfig::parse("redis://[::1]:7000/3?wait=poll&timeout=250ms&prefix=a.b").unwrap();
        assert_eq!(config.endpoint.to_string(), "[::1]:7000");
        assert_eq!((config.db, config.wait, config.prefix.as_str()), (3, Wait::Poll, "a.b"));

        let config = RedisConfig::parse("rediss://h?ca=/c.pem&cert=/a.pem&key=/k.pem").unwrap();
        let Endpoint::Tls { files, .. } = &config.endpoint else { panic!("{config:?}") };
        assert_eq!(files.key.as_deref(), Some(Path::new("/k.pem")));

        let config = RedisConfig::parse("redis+unix:///run/a%20b.sock?db=4&user=me").unwrap();
        assert_eq!(config.endpoint, Endpoint::Unix { path: "/run/a b.sock".into() });
        assert_eq!((config.db, config.credentials.user.as_deref()), (4, Some("me")));
        assert_eq!(config.to_string(), "redis+unix:///run/a b.sock?db=4");
    }

    #[test]
    fn a_cluster_is_named_by_any_of_its_servers() {
        let config =
            RedisConfig::parse("rediss+cluster://me:p%2Fw@a,[::1]:7001?ca=/c.pem&wait=poll").unwrap();
        assert!(config.is_secured() && config.wait == Wait::Poll);
        assert_eq!(config.to_string(), "rediss+cluster://me:***@a:6379,[::1]:7001");
        assert_eq!(reveal(&config.credentials.password().unwrap().unwrap()), "p/w");
        let seeds: Vec<Endpoint> = config.seeds().collect();
        assert_eq!((seeds.len(), seeds[1].to_string().as_str()), (2, "[::1]:7001"));
        assert!(matches!(&seeds[1], Endpoint::Tls { files, .. } if files.ca.is_some()));
        for (url, hint) in [
            ("redis+cluster://a,b/3", "database 0 only"),
            ("redis+cluster://a,b?db=3", "database 0 only"),
            ("redis+cluster://a,,b", "host is missing"),
            ("redis+cluster://", "host is missing"),
            ("redis+cluster://a,b?ca=/x", "rediss"),
            ("redis://a,b", "redis+cluster://"),
            ("redis+cluster://a?sentinel-user=x", "redis+sentinel://"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }

    #[test]
    fn sentinels_are_read_with_a_login_of_their_own() {
        let url = "rediss+sentinel://me:p%40ss@h1,[::1]:7,h3:9/m%C3%BC?db=4&ca=/c.pem&sentinel-user=watch&order=unordered";
        let config = RedisConfig::parse(url).unwrap();
        assert_eq!(config.to_string(), "rediss+sentinel://me:***@h1:26379,[::1]:7,h3:9/mü?db=4");
        assert_eq!((config.db, config.order), (4, QueueOrder::Unordered));
        let Deployment::Sentinel(group) = &config.deployment else { panic!("{config:?}") };
        let sentinel = config.for_sentinel(group, &group.sentinels[1]);
        assert_eq!((sentinel.db, sentinel.endpoint.to_string().as_str()), (0, "[::1]:7"));
        assert_eq!(sentinel.credentials.user.as_deref(), Some("watch"));
        assert!(!sentinel.credentials.names_password(), "the servers' password is not for the Sentinels");
        let Endpoint::Tls { files, .. } = sentinel.endpoint else { panic!("{sentinel:?}") };
        assert_eq!(files.ca.as_deref(), Some(Path::new("/c.pem")));
    }

    #[test]
    fn a_password_is_read_but_never_shown() {
        let config = RedisConfig::parse("redis://me:p%40ss%2Fword@h").unwrap();
        assert_eq!(reveal(&config.credentials.password().unwrap().unwrap()), "p@ss/word");
        let shown = format!("{config} {config:?} {config:#?}");
        assert!(!shown.contains("p@ss") && !shown.contains("p%40ss"), "{shown}");
        for bad in ["redis://me:hunter2@h?nonsense=1", "redis://me:hunter2@h:99999", "redis://me:hunter2@h/x"]
        {
            assert!(!refusal(bad).contains("hunter2"));
        }
    }

    #[test]
    fn a_password_file_is_read_at_each_login() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let config = RedisConfig::parse(&format!("redis://h?password-file={}", path.display())).unwrap();
        assert!(config.credentials.password().unwrap_err().detail().contains("password-file"));
        for password in ["first", "second"] {
            std::fs::write(&path, format!("{password}\n")).unwrap();
            assert_eq!(reveal(&config.credentials.password().unwrap().unwrap()), password);
        }
    }

    #[test]
    fn invalid_url_is_refused_with_a_hint() {
        for (url, hint) in [
            ("http://h", "redis://host:6379"),
            ("nonsense", "redis://host:6379"),
            ("redis://", "host is missing"),
            ("redis:///5", "host is missing"),
            ("redis://h/abc", "database number"),
            ("redis://h/-1", "database number"),
            ("redis://h/0#x", "%23"),
            ("redis://h?tiemout=1s", "known are wait, order, prefix, dialect"),
            ("redis://h?dialect=java", "native, plain, redisson, python-redis-lock"),
            ("redis://h?key-prefix=a", "write prefix"),
            ("redis://h?dialect=plain&replicas=1", "replicas belongs to the native dialect"),
            ("redis://h?dialect=dual:native", "before any but the first"),
            ("redis://h?dialect=plain&prefix=a", "write key-prefix"),
            ("redis://h?dialect=plain&order=fifo", "native dialect keeps a line"),
            ("redis://h?dialect=plain&wait=pubsub", "not published"),
            ("redis://h?dialect=plain&key-prefix=a%0Ab", "control characters"),
            ("redis://h?wait=long", "wait=poll"),
            ("redis://h?order=lifo", "order=unordered"),
            ("redis://h?timeout=soon", "timeout=5s"),
            ("redis://h?timeout=1h", "between 10ms and 5m"),
            ("redis://h?replicas=many", "from 0 to 16"),
            ("redis://h?replicas=17", "from 0 to 16"),
            ("redis://h?replicas=1&dialect=plain", "native dialect"),
            ("redis://h?prefix=", "1 to 32"),
            ("redis://h?prefix=a:b", "a colon ends it in the keys"),
            ("redis://h?prefix=a{b}", "1 to 32"),
            ("redis://h?ca=/x", "rediss://"),
            ("rediss://h?cert=/x", "belong together"),
            ("redis://h?db=3", "as a path"),
            ("redis://:p@h?password-file=/x", "two passwords"),
            ("redis+unix://h/x", "no host"),
            ("redis+unix:///", "path of the socket"),
            ("redis://a,b", "redis+sentinel://"),
            ("redis+sentinel://a,b", "name of a primary"),
            ("redis+sentinel://a,b/x/y", "name of a primary"),
            ("redis+sentinel://a,,b/x", "host is missing"),
            ("redis+sentinel://a,b:0/x", "1 to 65535"),
            ("redis+sentinel:///x", "host is missing"),
            ("redis+sentinel://a/x?ca=/y", "rediss://"),
            ("redis://a?sentinel-user=me", "redis+sentinel://"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }
}
