//! The place of the server and its options, parsed from a URL.
//!
//! Parsing does no I/O: certificates and passwords in files are read when a connection is made, so that
//! they may be renewed while a program runs. A password never leaves this file and `connection.rs`; no
//! error repeats the URL.

mod dialect;
mod sentinel_group;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_backend::url::{
    self, Credentials, Host, Lack, Options, Parts, Scheme, StoreUrls, TlsFiles, UrlOption, is_exposed,
};
use leasehold_core::{Failure, QueueOrder};

pub(crate) use leasehold_backend::url::{invalid, reveal};

pub(crate) use dialect::Dialect;
pub(crate) use sentinel_group::{Group, SENTINEL_PORT};

/// The URLs of Redis and Valkey.
pub static URLS: StoreUrls = StoreUrls {
    title: "Redis",
    schemes: &[
        Scheme {
            name: "redis",
            form: "redis://[user[:password]@]host[:port][/db]",
            meaning: "TCP",
            example: "redis://host:6379/0",
        },
        Scheme {
            name: "rediss",
            form: "rediss://[user[:password]@]host[:port][/db]",
            meaning: "TLS, certificate and host name verified; needs the feature `redis-tls` of the library",
            example: "rediss://host:6379/0",
        },
        Scheme {
            name: "redis+unix",
            form: "redis+unix:///path/to.sock",
            meaning: "Unix socket",
            example: "redis+unix:///path/to.sock",
        },
        Scheme {
            name: "redis+sentinel",
            form: "redis+sentinel://[user[:password]@]host[:port][,host[:port]]…/name",
            meaning: "the server that these Sentinels name as the primary of `name`",
            example: "redis+sentinel://h1,h2,h3/name",
        },
        Scheme {
            name: "rediss+sentinel",
            form: "rediss+sentinel://…",
            meaning: "the same, with TLS to the Sentinels and the servers",
            example: "rediss+sentinel://h1,h2,h3/name",
        },
        Scheme {
            name: "redis+cluster",
            form: "redis+cluster://[user[:password]@]host[:port][,host[:port]]…",
            meaning: "a cluster, found by way of any of these servers",
            example: "redis+cluster://h1,h2,h3",
        },
        Scheme {
            name: "rediss+cluster",
            form: "rediss+cluster://…",
            meaning: "the same, with TLS to each of its servers",
            example: "rediss+cluster://h1,h2,h3",
        },
    ],
    options: &[
        &WAIT,
        &url::ORDER,
        &PREFIX,
        &dialect::DIALECT,
        &dialect::KEY_PREFIX,
        &dialect::WATCHDOG,
        &url::TIMEOUT,
        &REPLICAS,
        &url::PASSWORD_FILE,
        &CA,
        &CERT,
        &KEY,
        &DB,
        &USER,
        &sentinel_group::USER,
        &sentinel_group::PASSWORD_FILE,
    ],
    lacks: &[
        Lack { schemes: &["redis+cluster", "rediss+cluster"], options: &["db"], why: ONE_DATABASE },
        Lack { schemes: &[], options: &["db"], why: "write the database number as a path: redis://host/3" },
        Lack { schemes: &[], options: &["user"], why: "write the user before the host: redis://user@host" },
        Lack { schemes: &[], options: &["sslmode", "tls"], why: "with TLS the URL begins with rediss://" },
    ],
    check: |url| RedisConfig::parse(url).map(drop),
};

const WAIT: UrlOption<Wait> = UrlOption::choice("wait", &[("pubsub", Wait::Pubsub), ("poll", Wait::Poll)])
    .about(
        "how a waiter learns of a release: by a notification, or by polling; with `poll` no `SUBSCRIBE` is sent, and \
         `PUBLISH` with `dialect=redisson` only",
    )
    .default("pubsub");
pub(crate) const PREFIX: UrlOption<String> = UrlOption::plain("prefix", 32, "._-")
    .about("beginning of every key and channel of the native dialect")
    .default("lh")
    .hint(
        "a colon ends it in the keys, so a lock could be one of a shorter prefix; for another dialect write key-prefix",
    );
const REPLICAS: UrlOption<u32> = UrlOption::number("replicas", 0, 16)
    .about("how many replicas have to confirm a grant or a renewal before it counts")
    .default("0")
    .only_with(&[("dialect", &["native", "dual:plain", "dual:redisson", "dual:python-redis-lock"])]);
const DB: UrlOption<i64> = UrlOption::number("db", 0, u32::MAX)
    .about("database number")
    .default("0")
    .schemes(&["redis+unix", "redis+sentinel", "rediss+sentinel"]);
const USER: UrlOption<String> =
    UrlOption::text("user", 512).about("user name").example("jobs").schemes(&["redis+unix"]);
const CA: UrlOption<PathBuf> = url::CA.schemes(SECURED);
const CERT: UrlOption<PathBuf> = url::CERT.schemes(SECURED);
const KEY: UrlOption<PathBuf> = url::KEY.schemes(SECURED);
const SECURED: &[&str] = &["rediss", "rediss+sentinel", "rediss+cluster"];

/// One Redis or Valkey server, or a group of them, and how leasehold uses it.
///
#[doc = include_str!("options.md")]
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
/// assert!(error.to_string().contains("did you mean timeout?"));
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
    /// The time to which a Java process sets the leases of all readers of a lock.
    pub(crate) watchdog: Duration,
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
        URLS.read(url, |parts, options| {
            let deployment = read_deployment(&parts)?;
            let endpoint = read_endpoint(&parts, options)?;
            let db = match options.find(&DB)? {
                Some(number) => number,
                None => read_path_db(&parts)?,
            };
            let user = options.find(&USER)?.or(parts.user);
            let credentials = Credentials::of(user, parts.password, options, PASSWORD_VARIABLE)?;
            let mut config = RedisConfig::of(endpoint, credentials, db, options)?;
            config.deployment = deployment;
            if let Deployment::Sentinel(group) = &mut config.deployment {
                group.read_login(options)?;
            }
            Ok(config)
        })
    }

    /// Reads the options of one server.
    pub(crate) fn of(
        endpoint: Endpoint,
        credentials: Credentials,
        db: i64,
        options: &Options,
    ) -> Result<RedisConfig, Failure> {
        let (dialect, dual) = options.get(&dialect::DIALECT)?;
        let mut config = RedisConfig {
            endpoint,
            deployment: Deployment::Single,
            credentials,
            db,
            wait: options.get(&WAIT)?,
            order: options.get(&url::ORDER)?,
            prefix: options.get(&PREFIX)?,
            timeout: options.get(&url::TIMEOUT)?,
            dialect,
            key_prefix: options.find(&dialect::KEY_PREFIX)?.unwrap_or_default(),
            watchdog: options.get(&dialect::WATCHDOG)?,
            replicas: options.get(&REPLICAS)?,
            dual,
        };
        config.fit_dialect(options)?;
        Ok(config)
    }

    /// Returns `true` if a password would cross a network in the clear.
    pub(crate) fn exposes_password(&self) -> bool {
        let Endpoint::Tcp { host, port } = &self.endpoint else { return false };
        let first = Host { name: host.clone(), port: *port };
        // Of a group at least those that are named are known; the others are taken to be where these are.
        let (named, sentinels): (&[Host], _) = match &self.deployment {
            Deployment::Single => (std::slice::from_ref(&first), None),
            Deployment::Sentinel(group) => (&group.sentinels, Some(&group.credentials)),
            Deployment::Cluster(seeds) => (seeds, None),
        };
        let mut logins = [&self.credentials].into_iter().chain(sentinels);
        is_exposed(named, || logins.any(Credentials::may_have_password))
    }

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

/// The way in which a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Pubsub,
    Poll,
}

pub(crate) const PASSWORD_VARIABLE: &str = "LEASEHOLD_REDIS_PASSWORD";

fn read_deployment(parts: &Parts) -> Result<Deployment, Failure> {
    if parts.scheme == "redis+unix" {
        return Ok(Deployment::Single);
    }
    match parts.scheme.as_str() {
        "redis+sentinel" | "rediss+sentinel" => {
            Ok(Deployment::Sentinel(Group::read(parts.hosts(SENTINEL_PORT)?, &parts.path)?))
        }
        "redis+cluster" | "rediss+cluster" => {
            let seeds = parts.hosts(PORT)?;
            if seeds.len() > MAX_SEEDS {
                return Err(invalid(format!(
                    "name at most {MAX_SEEDS} servers: any of them knows the others"
                )));
            }
            Ok(Deployment::Cluster(seeds))
        }
        _ if parts.hosts(PORT)?.len() > 1 => Err(invalid(
            "several hosts: write redis+sentinel://h1,h2,h3/name or redis+cluster://h1,h2,h3, or name one server",
        )),
        _ => Ok(Deployment::Single),
    }
}

/// The most servers of a cluster that are named; it may have more.
const MAX_SEEDS: usize = 32;

const ONE_DATABASE: &str = "a cluster has database 0 only: leave the number out";

/// The port on which servers listen by default.
pub(crate) const PORT: u16 = 6379;

fn read_endpoint(parts: &Parts, options: &Options) -> Result<Endpoint, Failure> {
    if parts.scheme == "redis+unix" {
        return read_socket(parts);
    }
    let port = if parts.scheme.ends_with("+sentinel") { SENTINEL_PORT } else { PORT };
    // At least one is named, or it is an error.
    let Host { name: host, port } = parts.hosts(port)?.swap_remove(0);
    match SECURED.contains(&parts.scheme.as_str()) {
        true => Ok(Endpoint::Tls { host, port, files: TlsFiles::of(options)? }),
        false => Ok(Endpoint::Tcp { host, port }),
    }
}

fn read_socket(parts: &Parts) -> Result<Endpoint, Failure> {
    if !parts.is_without_host() {
        return Err(invalid("a Unix socket has no host: write redis+unix:///path/to.sock"));
    }
    if parts.path.is_empty() {
        return Err(invalid("the path of the socket is missing: write redis+unix:///path/to.sock"));
    }
    Ok(Endpoint::Unix { path: PathBuf::from(format!("/{}", parts.path)) })
}

/// Reads the number of the database, where the path is one.
pub(crate) fn read_path_db(parts: &Parts) -> Result<i64, Failure> {
    let is_number = !matches!(parts.scheme.as_str(), "redis+unix" | "redis+sentinel" | "rediss+sentinel");
    match parts.path.as_str() {
        number if is_number && !number.is_empty() => match parts.scheme.ends_with("+cluster") {
            true => Err(invalid(ONE_DATABASE)),
            false => number
                .parse::<u32>()
                .map(i64::from)
                .map_err(|_| invalid(format!("{number} is not a database number: write 0, 1, 2 …"))),
        },
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
            ("redis+cluster://a,b?ca=/x", "rediss+cluster://"),
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
    fn password_for_any_named_server_is_exposed_without_tls() {
        let is_exposed = |url: &str| RedisConfig::parse(url).unwrap().exposes_password();
        for url in [
            "redis://:x@h",
            "redis+cluster://:x@127.0.0.1,h",
            "redis+sentinel://:x@127.0.0.1,h/a",
            "redis+sentinel://127.0.0.1,h/a?sentinel-password-file=/x",
        ] {
            assert!(is_exposed(url), "{url}");
        }
        for url in [
            "redis://:x@127.0.0.1",
            "rediss+sentinel://:x@h/a?sentinel-password-file=/x",
            "redis+sentinel://:x@127.0.0.1,localhost/a?sentinel-password-file=/x",
        ] {
            assert!(!is_exposed(url), "{url}");
        }
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
    fn replicas_confirm_the_native_lock_of_two() {
        let config = RedisConfig::parse("redis://h?dialect=dual:plain&replicas=1").unwrap();
        let (old, new) = config.dual().unwrap();
        assert_eq!((old.replicas, new.replicas), (0, 1));
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
            ("redis://h?tiemout=1s", "did you mean timeout?; known are wait, order, prefix, dialect"),
            (
                "redis://h?dialect=java",
                "dialect=plain, dialect=redisson, dialect=python-redis-lock, dialect=dual:plain",
            ),
            ("redis://h?key-prefix=a", "write prefix"),
            ("redis://h?dialect=plain&replicas=1", "replicas is for dialect=native, dialect=dual:plain"),
            ("redis://h?dialect=plain&watchdog=30s", "watchdog is for dialect=redisson"),
            ("redis://h?dialect=redisson&watchdog=0s", "between 1s and 1day"),
            (
                "redis://h?dialect=dual:native",
                "dialect=dual:plain, dialect=dual:redisson or dialect=dual:python-redis-lock",
            ),
            ("redis://h?dialect=plain&prefix=a", "write key-prefix"),
            ("redis://h?dialect=plain&order=fifo", "native dialect keeps a queue"),
            ("redis://h?dialect=plain&wait=pubsub", "not published"),
            ("redis://h?dialect=plain&key-prefix=a%0Ab", "control characters"),
            ("redis://h?wait=long", "wait=poll"),
            ("redis://h?order=lifo", "order=unordered"),
            ("redis://h?timeout=soon", "timeout=5s"),
            ("redis://h?timeout=1h", "between 10ms and 5m"),
            ("redis://h?replicas=many", "from 0 to 16"),
            ("redis://h?replicas=17", "from 0 to 16"),
            ("redis://h?replicas=1&dialect=plain", "replicas is for dialect=native"),
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
            ("redis+sentinel://a/x?ca=/y", "rediss+sentinel://"),
            ("redis://a?sentinel-user=me", "redis+sentinel://"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(hint), "{url}: {refusal}");
        }
    }
}
