//! The places of a fenced number, and how each kind is opened, read and written.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use async_trait::async_trait;
use leasehold::fenced::{FencedFile, FencedRedis, FencedRedisError, ObjectTag, RedisEval};
use leasehold::{Fence, Guard, ZooKeeperProof};
use leasehold_testkit::{RedisServer, require};

use crate::columns::{At, Row};
use crate::web::{HttpCounter, ObjectCounter};

/// A newer holder was here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The place that keeps the number.
#[derive(Debug)]
pub(crate) enum Place {
    File(PathBuf),
    Row(At),
    Redis(String),
    Etcd(SocketAddr),
    ZooKeeper(SocketAddr),
    Http(SocketAddr),
    Object(SocketAddr),
    Generation(SocketAddr),
}

/// A number that was opened with a fence.
#[async_trait]
pub(crate) trait Counter: Send {
    async fn read(&mut self) -> Result<u64, Refused>;
    async fn write(&mut self, number: u64) -> Result<(), Refused>;
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "file {}", path.display()),
            Place::Row(At::Sqlite(path)) => write!(f, "sqlite {}", path.display()),
            Place::Row(At::Postgres(url)) => write!(f, "postgres {url}"),
            Place::Row(At::MySql(url)) => write!(f, "mysql {url}"),
            Place::Redis(url) => write!(f, "redis {url}"),
            Place::Etcd(addr) => write!(f, "etcd {addr}"),
            Place::ZooKeeper(addr) => write!(f, "zookeeper {addr}"),
            Place::Http(addr) => write!(f, "http {addr}"),
            Place::Object(addr) => write!(f, "object {addr}"),
            Place::Generation(addr) => write!(f, "generation {addr}"),
        }
    }
}

impl Place {
    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Place {
        let (kind, at) = text.split_once(' ').unwrap();
        match kind {
            "file" => Place::File(at.into()),
            "sqlite" => Place::Row(At::Sqlite(at.into())),
            "postgres" => Place::Row(At::Postgres(at.to_owned())),
            "mysql" => Place::Row(At::MySql(at.to_owned())),
            "redis" => Place::Redis(at.to_owned()),
            "etcd" => Place::Etcd(at.parse().unwrap()),
            "zookeeper" => Place::ZooKeeper(at.parse().unwrap()),
            "http" => Place::Http(at.parse().unwrap()),
            "object" => Place::Object(at.parse().unwrap()),
            "generation" => Place::Generation(at.parse().unwrap()),
            other => panic!("{other}"),
        }
    }

    pub(crate) async fn open(&self, guard: &Guard) -> Result<Box<dyn Counter>, Refused> {
        let fence = guard.fence();
        Ok(match self {
            Place::File(path) => Box::new(FileCounter(FencedFile::open(path, fence).map_err(|_| Refused)?)),
            Place::Row(at) => Box::new(Row::open(at, fence).await?),
            Place::Redis(url) => Box::new(RedisCounter::open(url, fence).await?),
            Place::Etcd(addr) => Box::new(EtcdCounter::open(*addr, fence.unwrap())?),
            Place::ZooKeeper(addr) => Box::new(ZooKeeperCounter::open(*addr, guard)),
            Place::Http(addr) => Box::new(HttpCounter::open(*addr, fence).await?),
            Place::Object(addr) => Box::new(ObjectCounter::open(*addr, ObjectTag::Absent, fence).await?),
            Place::Generation(addr) => {
                Box::new(ObjectCounter::open(*addr, ObjectTag::Generation(0), fence).await?)
            }
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    str::from_utf8(bytes).unwrap().trim().parse().unwrap()
}

struct FileCounter(FencedFile);

#[async_trait]
impl Counter for FileCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        self.0.read().map(|bytes| number(&bytes)).map_err(|_| Refused)
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        self.0.write(number.to_string().as_bytes()).map_err(|_| Refused)
    }
}

/// A connection of the crate `redis`, as a program would have it.
#[derive(Clone)]
struct Connection(redis::aio::MultiplexedConnection);

#[async_trait]
impl RedisEval for Connection {
    type Error = redis::RedisError;

    async fn eval(
        &self,
        script: &str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Vec<Vec<u8>>, redis::RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command.query_async(&mut self.0.clone()).await
    }
}

struct RedisCounter(FencedRedis<Connection>);

impl RedisCounter {
    async fn open(url: &str, fence: Option<Fence>) -> Result<RedisCounter, Refused> {
        let client = redis::Client::open(url).unwrap();
        let connection = Connection(client.get_multiplexed_async_connection().await.unwrap());
        FencedRedis::open(connection, "counter", fence).await.map(RedisCounter).map_err(only_stale)
    }
}

fn only_stale(error: FencedRedisError<redis::RedisError>) -> Refused {
    assert!(matches!(error, FencedRedisError::Stale(_)), "{error}");
    Refused
}

#[async_trait]
impl Counter for RedisCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        self.0.get().await.map(|bytes| number(&bytes.unwrap())).map_err(only_stale)
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        self.0.set(number.to_string().as_bytes()).await.map_err(only_stale)
    }
}

/// Checks the script on fences that are missing, damaged, or longer than others, and on scripts of the
/// program's own.
pub(crate) async fn redis_that_forgets(server: &RedisServer) {
    let client = redis::Client::open(server.url()).unwrap();
    let connection = Connection(client.get_multiplexed_async_connection().await.unwrap());
    let open = async |fence: Fence| FencedRedis::open(connection.clone(), "list", fence).await;
    let mut opened = Vec::new();
    for fence in [Fence::new(0, 9, 0), Fence::new(0, 9, 1), Fence::new(0, 10, 0), Fence::new(1, 1, 0)] {
        opened.push(open(fence).await.unwrap());
        for old in &opened[..opened.len() - 1] {
            assert!(matches!(old.get().await, Err(FencedRedisError::Stale(stale)) if stale.seen == fence));
        }
    }
    assert!(matches!(open(Fence::new(0, u64::MAX, 0)).await, Err(FencedRedisError::Stale(_))));
    let newest = opened.pop().unwrap();
    let push = "for _, text in ipairs(ARGV) do redis.call('rpush', KEYS[1], text) end return redis.call('lrange', KEYS[1], 0, -1)";
    assert_eq!(newest.eval(push, &[b"a", b"b"]).await.unwrap(), [b"a", b"b"]);
    assert!(matches!(opened[0].eval(push, &[b"c"]).await, Err(FencedRedisError::Stale(_))));
    server.command(&["DEL", "{list}:fenced"]).await.unwrap();
    assert!(matches!(newest.get().await, Err(FencedRedisError::Forgotten { .. })), "an evicted fence");
    server.command(&["SET", "{list}:fenced", "12 apples"]).await.unwrap();
    assert!(matches!(open(Fence::new(9, 9, 9)).await, Err(FencedRedisError::Damaged { .. })));
    let none = FencedRedis::open(connection.clone(), "list", None).await;
    assert!(matches!(none, Err(FencedRedisError::NoFence(_))));
}

/// Keys of etcd behind a fence of any store: the newest fence is in a key beside them, and each
/// transaction compares it.
struct EtcdCounter {
    addr: SocketAddr,
    fence: Fence,
}

impl EtcdCounter {
    fn open(addr: SocketAddr, fence: Fence) -> Result<EtcdCounter, Refused> {
        let counter = EtcdCounter { addr, fence };
        // A client that finds a newer fence leaves it; a key that does not exist yet does not count as newer.
        let newer = format!("value(\"counter/fence\") > \"{fence}\"");
        match counter.transact(&newer, "get counter/fence", &format!("put counter/fence {fence}")) {
            None => Ok(counter),
            Some(_) => Err(Refused),
        }
    }

    /// Returns the output of the transaction if the condition held; `None` if it did not.
    fn transact(&self, condition: &str, then: &str, otherwise: &str) -> Option<Vec<String>> {
        let mut command = Command::new(require::program("etcdctl", "etcd-client").unwrap());
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.addr)).arg("txn");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let text = format!("{condition}\n\n{then}\n\n{otherwise}\n\n");
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines().filter(|line| !line.is_empty()).map(str::to_owned);
        match lines.next().as_deref() {
            Some("SUCCESS") => Some(lines.collect()),
            Some("FAILURE") => None,
            other => panic!("etcdctl: {other:?}"),
        }
    }

    fn opened(&self) -> String {
        format!("value(\"counter/fence\") = \"{}\"", self.fence)
    }
}

#[async_trait]
impl Counter for EtcdCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        let lines = self.transact(&self.opened(), "get counter", "").ok_or(Refused)?;
        Ok(number(lines.last().unwrap().as_bytes()))
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        self.transact(&self.opened(), &format!("put counter {number}"), "").map(drop).ok_or(Refused)
    }
}

/// A node of the ensemble that keeps the lock: the claim's own node is the fence.
struct ZooKeeperCounter {
    addr: SocketAddr,
    proof: ZooKeeperProof,
}

pub(crate) async fn prepare_zookeeper(addr: SocketAddr) {
    let user = zookeeper_client::Client::connect(&addr.to_string()).await.unwrap();
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    user.create("/counter", b"5", &options).await.unwrap();
}

impl ZooKeeperCounter {
    fn open(addr: SocketAddr, guard: &Guard) -> ZooKeeperCounter {
        ZooKeeperCounter { addr, proof: guard.proof().get::<ZooKeeperProof>().unwrap().clone() }
    }

    /// A session of the user's own each time: one that was stopped has ended, which is not what is shown
    /// here.
    async fn user(&self) -> zookeeper_client::Client {
        zookeeper_client::Client::connect(&self.addr.to_string()).await.unwrap()
    }
}

#[async_trait]
impl Counter for ZooKeeperCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        Ok(number(&self.user().await.get_data("/counter").await.unwrap().0))
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let user = self.user().await;
        let mut multi = user.new_multi_writer();
        multi.add_check_version(self.proof.path(), self.proof.version()).unwrap();
        multi.add_set_data("/counter", number.to_string().as_bytes(), None).unwrap();
        match multi.commit().await {
            Ok(_) => Ok(()),
            Err(zookeeper_client::MultiWriteError::OperationFailed { index: 0, .. }) => Err(Refused),
            Err(error) => panic!("{error}"),
        }
    }
}
