//! A primary with replicas that real Sentinels watch, with its faults as methods.
//!
//! On request everybody is reached by way of a proxy, whose address is the one that is announced, so that
//! any server can be cut off from clients, Sentinels and other servers alike. The kit itself asks each over
//! its unix socket. The Sentinels' periods are shortened, so that a failover takes about two seconds
//! instead of ten and more; their order of steps stays what it is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::builder::quoted;
use super::until::{Asking, until};
use super::version::{BUS_PORT, version};
use super::{Data, RedisBuilder, RedisServer, Reply};
use crate::error::Error;
use crate::port::Port;
use crate::proxy::Proxy;
use crate::require;

/// One primary, its replicas and the Sentinels that watch them, on free ports of 127.0.0.1.
///
/// # Promises
/// - When a `start` returns, the replicas follow, and every Sentinel knows all servers and all Sentinels.
/// - All are ended when this is dropped, and also when the test's process is killed.
///
/// # Does not promise
/// A fixed primary: Sentinels fail over also without a fault, where the machine stands still for longer
/// than `down_after`.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    password: Option<String>,
    /// `true` if the periods of the Sentinels cannot be set.
    is_old: bool,
}

/// Options for a [`RedisSentinel`]; without any, one primary, two replicas and three Sentinels.
#[derive(Debug, Clone)]
#[must_use = "nothing starts before `start`"]
pub struct RedisSentinelBuilder {
    server: RedisBuilder,
    replicas: usize,
    sentinels: usize,
    sentinel_password: Option<String>,
    down_after: Duration,
    proxies: Proxies,
}

#[derive(Debug)]
struct Node {
    server: RedisServer,
    proxy: Option<Proxy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proxies {
    None,
    Everywhere,
}

impl RedisSentinel {
    /// The name under which the Sentinels watch the primary.
    pub const NAME: &str = "locks";

    /// Returns a builder with options.
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder {
            server: RedisBuilder::new(),
            replicas: 2,
            sentinels: 3,
            sentinel_password: None,
            down_after: Duration::from_millis(1_000),
            proxies: Proxies::None,
        }
    }

    /// Starts one primary, two replicas and three Sentinels, or ends the test as skipped; see
    /// [`require`](crate::require).
    ///
    /// # Panics
    /// As [`require::or_skip`](crate::require::or_skip).
    pub async fn start_or_skip() -> Option<Self> {
        Self::builder().start_or_skip().await
    }

    /// Returns `redis+sentinel://…` with all Sentinels, and the servers' password if they have one.
    pub fn url(&self) -> String {
        let addrs: Vec<SocketAddr> =
            (0..self.sentinels.len()).map(|number| self.sentinel_addr(number)).collect();
        self.url_at(&addrs)
    }

    /// Returns the URL as [`RedisSentinel::url`] does, with other addresses of Sentinels, or with fewer.
    pub fn url_at(&self, sentinels: &[SocketAddr]) -> String {
        let login = self.servers[0].server.password_part();
        let addrs: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
        format!("redis+sentinel://{login}{}/{}", addrs.join(","), Self::NAME)
    }

    /// Returns the password of the servers, if they have one.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns how many servers there are, running or not.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Returns how many Sentinels there are, running or not.
    pub fn sentinels(&self) -> usize {
        self.sentinels.len()
    }

    /// Returns one server, to ask it or to count what it did.
    ///
    /// # Panics
    /// If the server does not exist, here and below.
    pub fn server(&self, number: usize) -> &RedisServer {
        &self.servers[number].server
    }

    /// Returns the address by which a server is known to everybody.
    pub fn addr(&self, number: usize) -> SocketAddr {
        self.servers[number].addr()
    }

    /// Returns one Sentinel, to ask it.
    pub fn sentinel(&self, number: usize) -> &RedisServer {
        &self.sentinels[number].server
    }

    /// Returns the address by which a Sentinel is known to everybody.
    pub fn sentinel_addr(&self, number: usize) -> SocketAddr {
        self.sentinels[number].addr()
    }

    /// Stops a server (SIGSTOP): connections stay open, and nothing answers.
    pub fn stop(&self, number: usize) -> Result<(), Error> {
        self.server(number).stop()
    }

    /// Continues a server after [`RedisSentinel::stop`].
    pub fn resume(&self, number: usize) -> Result<(), Error> {
        self.server(number).resume()
    }

    /// Kills a server (SIGKILL), stopped or not.
    pub fn kill(&self, number: usize) -> Result<(), Error> {
        self.server(number).kill()
    }

    /// Restarts a server as [`RedisServer::restart`] does, in the last role that it was given.
    pub async fn restart(&self, number: usize, data: Data) -> Result<(), Error> {
        self.server(number).restart(data).await
    }

    /// Returns the proxy of a server, where [`RedisSentinelBuilder::proxies`] were asked for. One that
    /// blackholes both ways cuts the server off: it runs, and no client reaches it.
    ///
    /// # Errors
    /// Without proxies.
    pub fn proxy(&self, number: usize) -> Result<&Proxy, Error> {
        self.servers[number].proxy()
    }

    /// Returns the proxy of a Sentinel, as [`RedisSentinel::proxy`]. One that is cut off continues to see
    /// the servers.
    ///
    /// # Errors
    /// Without proxies.
    pub fn sentinel_proxy(&self, number: usize) -> Result<&Proxy, Error> {
        self.sentinels[number].proxy()
    }

    /// Kills a Sentinel.
    pub fn kill_sentinel(&self, number: usize) -> Result<(), Error> {
        self.sentinel(number).kill()
    }

    /// Starts a Sentinel that was killed again, with what it knew.
    pub async fn restart_sentinel(&self, number: usize) -> Result<(), Error> {
        self.sentinel(number).restart(Data::Keep).await?;
        self.hurry(number).await
    }

    /// Returns what a Sentinel says of the primary.
    pub async fn view(&self, number: usize) -> Result<HashMap<String, String>, Error> {
        let answer = self.sentinel(number).command(&["SENTINEL", "MASTER", Self::NAME]).await?;
        let texts = answer.into_texts()?;
        Ok(texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
    }

    /// Returns the server that all running Sentinels name as the primary, without a failover under way, and
    /// that says so itself. Waits up to a minute for one.
    pub async fn primary(&self) -> Result<usize, Error> {
        self.until("a primary", || Box::pin(self.named_by_all())).await
    }

    /// Returns the primary as [`RedisSentinel::primary`] does, once it is another than `old`.
    pub async fn promoted(&self, old: usize) -> Result<usize, Error> {
        let other = || -> Asking<'_, _> {
            Box::pin(async move { Ok(self.named_by_all().await?.filter(|primary| *primary != old)) })
        };
        self.until(&format!("another primary than server {old}"), other).await
    }

    /// Lets the Sentinels fail over although nothing is wrong, and says which server is the primary then.
    pub async fn failover(&self) -> Result<usize, Error> {
        let old = self.primary().await?;
        let command = ["SENTINEL", "FAILOVER", Self::NAME];
        let port = self.addr(old).port().to_string();
        let done = || -> Asking<'_, _> {
            let (command, port) = (&command, &port);
            Box::pin(async move {
                if let Some(primary) = self.named_by_all().await?.filter(|primary| *primary != old) {
                    return Ok(Some(primary));
                }
                // Refused while one is under way, right after another, and while replicas are not known
                // well enough. One that is given up, because another Sentinel made the chosen replica
                // follow again, has to be asked for again.
                if self.view(0).await?.get("port") == Some(port) {
                    drop(self.sentinel(0).command(command).await);
                }
                Ok(None)
            })
        };
        self.until(&format!("another primary than server {old}, which was asked to step down"), done).await
    }

    /// Waits up to a minute until all running servers are in step with the primary, and the Sentinels know
    /// them and each other.
    pub async fn settle(&self) -> Result<(), Error> {
        // Sentinels end all connections of a server that they make follow another, the kit's as well.
        let settled = || -> Asking<'_, _> {
            Box::pin(async { Ok(self.is_settled().await.unwrap_or_default().then_some(())) })
        };
        self.until("a primary with all its replicas", settled).await
    }

    async fn named_by_all(&self) -> Result<Option<usize>, Error> {
        let mut named = None;
        for number in self.running_sentinels() {
            let view = self.view(number).await?;
            let at = |number: &usize| {
                let addr = self.addr(*number);
                view.get("port") == Some(&addr.port().to_string())
            };
            let found = (0..self.servers()).find(at);
            let busy = view.get("flags").is_none_or(|flags| flags.contains("failover_in_progress"));
            if busy || found.is_none() || named.is_some() && named != found {
                return Ok(None);
            }
            named = found;
        }
        let Some(primary) = named.filter(|primary| self.is_running(*primary)) else { return Ok(None) };
        // A stopped server does not answer: then it is not known to be one.
        let role = self.server(primary).info_field("role").await;
        Ok(role.is_ok_and(|role| role.as_deref() == Some("master")).then_some(primary))
    }

    async fn is_settled(&self) -> Result<bool, Error> {
        let Some(primary) = self.named_by_all().await? else { return Ok(false) };
        let port = self.addr(primary).port().to_string();
        for number in (0..self.servers()).filter(|number| *number != primary && self.is_running(*number)) {
            let field = async |name| self.server(number).info_field(name).await;
            let follows = field("master_port").await?.as_deref() == Some(&port);
            if !follows || field("master_link_status").await?.as_deref() != Some("up") {
                return Ok(false);
            }
        }
        let running = (0..self.servers()).filter(|number| self.is_running(*number)).count();
        for number in self.running_sentinels() {
            let view = self.view(number).await?;
            let others = view.get("num-other-sentinels").and_then(|text| text.parse::<usize>().ok());
            let Reply::Many(replicas) =
                self.sentinel(number).command(&["SENTINEL", "REPLICAS", Self::NAME]).await?
            else {
                return Ok(false);
            };
            if others != Some(self.sentinels.len() - 1) || replicas.len() + 1 < running {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_running(&self, number: usize) -> bool {
        self.server(number).pid().is_some()
    }

    fn running_sentinels(&self) -> impl Iterator<Item = usize> {
        (0..self.sentinels.len()).filter(|number| self.sentinel(*number).pid().is_some())
    }

    async fn until<'a, T>(&'a self, what: &str, ask: impl FnMut() -> Asking<'a, T>) -> Result<T, Error> {
        until(what, || self.sentinel(0).process.directory().log_tail(), ask).await
    }

    /// Shortens the periods of a Sentinel that no file can set. Sentinels before 7.0 keep theirs, and a failover
    /// takes them ten seconds and more.
    async fn hurry(&self, number: usize) -> Result<(), Error> {
        if self.is_old {
            return Ok(());
        }
        let args =
            ["SENTINEL", "DEBUG"].into_iter().chain(PERIODS.iter().flat_map(|(name, ms)| [*name, *ms]));
        self.sentinel(number).command(&args.collect::<Vec<_>>()).await.map(drop)
    }
}

impl RedisSentinelBuilder {
    /// Options of each server: `.server(RedisServer::builder().password("secret"))`. A password is what
    /// they and the Sentinels log in with as well.
    pub fn server(mut self, server: RedisBuilder) -> Self {
        self.server = server;
        self
    }

    /// Sets how many replicas follow the primary.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets a password for clients of the Sentinels.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Sets after which silence a primary is taken for dead.
    pub fn down_after(mut self, down_after: Duration) -> Self {
        self.down_after = down_after;
        self
    }

    /// Makes all reachable by way of a proxy.
    pub fn proxies(mut self) -> Self {
        self.proxies = Proxies::Everywhere;
        self
    }

    /// Starts everybody and waits until they know each other.
    ///
    /// # Errors
    /// [`Error::is_missing`] when the program is not installed. Otherwise the end of a log is in the text.
    pub async fn start(self) -> Result<RedisSentinel, Error> {
        let is_old = version(&self.server.find()?)? < BUS_PORT;
        let password = self.server.login().0.map(str::to_owned);
        let mut servers: Vec<Node> = Vec::new();
        for _ in 0..=self.replicas {
            let mut server =
                self.server.clone().line("repl-diskless-sync-delay 0").line("repl-ping-replica-period 1");
            server = server.lines(password.iter().map(|password| format!("masterauth {}", quoted(password))));
            server = server
                .lines(servers.first().map(|first| format!("replicaof 127.0.0.1 {}", first.addr().port())));
            servers.push(Node::start(server, self.proxies, "replica-announce-").await?);
        }
        let primary = servers[0].addr();
        let quorum = self.sentinels / 2 + 1;
        let mut sentinels = Vec::new();
        for _ in 0..self.sentinels {
            let name = RedisSentinel::NAME;
            let mut sentinel = RedisBuilder::new()
                .arg("--sentinel")
                .line(format!("sentinel monitor {name} 127.0.0.1 {} {quorum}", primary.port()))
                .line(format!("sentinel down-after-milliseconds {name} {}", self.down_after.as_millis()))
                .line(format!("sentinel failover-timeout {name} {FAILOVER_TIMEOUT_MS}"))
                .line(format!("sentinel parallel-syncs {name} {}", self.replicas.max(1)));
            sentinel = sentinel
                .lines(password.iter().map(|text| format!("sentinel auth-pass {name} {}", quoted(text))));
            if let Some(password) = &self.sentinel_password {
                sentinel =
                    sentinel.password(password).line(format!("sentinel sentinel-pass {}", quoted(password)));
            }
            sentinels.push(Node::start(sentinel, self.proxies, "sentinel announce-").await?);
        }
        let started = RedisSentinel { servers, sentinels, password, is_old };
        for number in 0..self.sentinels {
            started.hurry(number).await?;
        }
        started.settle().await?;
        Ok(started)
    }

    /// Starts as [`RedisSentinelBuilder::start`] does, or ends the test as skipped; see [`require`].
    ///
    /// # Panics
    /// As [`require::or_skip`].
    pub async fn start_or_skip(self) -> Option<RedisSentinel> {
        require::or_skip("redis", self.start().await)
    }
}

impl Node {
    /// Starts a server, behind a proxy where there are some, whose address it announces by the directives
    /// that begin so.
    async fn start(server: RedisBuilder, proxies: Proxies, announce: &str) -> Result<Self, Error> {
        if proxies == Proxies::None {
            return Ok(Self { server: server.start().await?, proxy: None });
        }
        // The proxy is started first, so that the server can name it; until the server is started, it leads
        // nowhere.
        let own = Port::take()?;
        let proxy = Proxy::start(own.addr()).await?;
        let server = server
            .line(format!("{announce}ip 127.0.0.1"))
            .line(format!("{announce}port {}", proxy.addr().port()))
            .start_at(own)
            .await?;
        Ok(Self { server, proxy: Some(proxy) })
    }

    fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or_else(|| self.server.addr(), Proxy::addr)
    }

    fn proxy(&self) -> Result<&Proxy, Error> {
        self.proxy.as_ref().ok_or_else(|| Error::failed("this group was started without proxies"))
    }
}

/// The time for which the Sentinels wait before they try again, and for replicas to follow.
const FAILOVER_TIMEOUT_MS: u32 = 4_000;

/// Periods of the Sentinels, in milliseconds; the greatest part of a failover is to wait for the next of
/// these.
const PERIODS: [(&str, &str); 5] = [
    ("info-period", "500"),
    ("ask-period", "200"),
    ("publish-period", "400"),
    ("slave-reconf-timeout", "2000"),
    ("tilt-period", "1000"),
];
