#![forbid(unsafe_code)]
//! Real lock servers for tests, with faults as methods.
//!
//! Each server is the real program of its Debian package, started for one test on a free port of 127.0.0.1
//! in a temporary directory, and ended with the test, no matter how the test ends. Nothing here imitates a
//! server, and nothing here knows leasehold, so the kit also tests other clients.
//!
//! # A worked example
//!
//! A client asks a server to set a key. The network loses the answer. Did it happen?
//!
//! ```
//! use leasehold_testkit::{Proxy, RedisServer, Reply};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::TcpStream;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A test would be `#[tokio::test]` and say `return` here.
//! let Some(server) = RedisServer::start_or_skip().await else { return Ok(()) };
//! let proxy = Proxy::start(server.addr()).await?;
//! proxy.drop_replies();
//!
//! // The client under test; a real one takes `server.url_at(proxy.addr())`.
//! let mut client = TcpStream::connect(proxy.addr()).await?;
//! client.write_all(b"SET job held\r\n").await?;
//! let answer = client.read(&mut [0; 16]).await;
//! assert!(matches!(answer, Ok(0) | Err(_)), "the connection ended without an answer");
//!
//! // It happened, and its client cannot know.
//! assert_eq!(server.command(&["GET", "job"]).await?, Reply::Bytes(b"held".to_vec()));
//! assert_eq!(proxy.lost_replies(), 1);
//! # Ok(()) }
//! ```
//!
//! # Which fault is which method
//!
//! | fault | method |
//! |---|---|
//! | the server hangs | [`RedisServer::stop`], [`RedisServer::resume`] |
//! | the server crashes | [`RedisServer::kill`], then [`RedisServer::restart`] |
//! | the server restarts, with or without its data | [`RedisServer::restart`] |
//! | the server is down, connections are refused | [`Proxy::cut`] |
//! | a member of a cluster hangs, crashes, comes back | [`EtcdCluster::stop`], [`EtcdCluster::kill`], [`EtcdCluster::restart`] |
//! | the leader of a cluster goes | the same with [`EtcdCluster::leader`] |
//! | PostgreSQL hangs, crashes, comes back with or without its data | [`PostgresServer::stop`], [`PostgresServer::kill`], [`PostgresServer::restart`] |
//! | MariaDB hangs, crashes, comes back with or without its data | [`MariaDbServer::stop`], [`MariaDbServer::kill`], [`MariaDbServer::restart`] |
//! | a replica of MariaDB takes over | [`MariaDbServer::replica`], [`MariaDbServer::promote`] |
//! | servers of MariaDB decide together, and too few of them are left | [`GaleraCluster::start_or_skip`], [`GaleraCluster::form_cluster_alone`] |
//! | a standby of PostgreSQL takes over | [`PostgresServer::standby`], [`PostgresServer::promote`] |
//! | a primary of a Redis Cluster hangs, crashes, comes back | [`RedisCluster::stop`], [`RedisCluster::kill`], [`RedisCluster::restart`] with [`RedisCluster::primary_of`] |
//! | a primary that Sentinels watch hangs, crashes, comes back, is cut off | [`RedisSentinel::stop`], [`RedisSentinel::kill`], [`RedisSentinel::restart`], [`RedisSentinel::proxy`] with [`RedisSentinel::primary`] |
//! | Sentinels fail over in order | [`RedisSentinel::failover`] |
//! | a replica takes over in order | [`RedisCluster::fail_over`] |
//! | a slot moves to another server | [`RedisCluster::move_slot`], or its steps from [`RedisCluster::begin_move`] on |
//! | the disk is full | [`SmallDisk::fill`], [`SmallDisk::empty`] |
//! | the network is down, both ways or one way | [`Proxy::blackhole`] |
//! | the network was down for a while, what was sent comes late | [`Proxy::hold`] |
//! | the network is slow | [`Proxy::delay`] |
//! | a request happened, its answer was lost | [`Proxy::drop_replies`], [`Proxy::cut_after_request`] |
//! | all of the network's faults end | [`Proxy::heal`] |
//!
//! Faults are injected synchronously and have happened when their methods return; those that change streams,
//! [`Proxy::blackhole`], [`Proxy::hold`], [`Proxy::delay`] and the lost replies, hold for every byte that
//! reaches the proxy from then on.
//!
//! # Servers that are not installed
//!
//! A test that starts its server by `start_or_skip` ends as skipped where the server is not installed, with a
//! line `LEASEHOLD-SKIPPED <test> <reason>` on stderr and in the file named by `LEASEHOLD_SKIP_LOG`. With
//! `LEASEHOLD_REQUIRE=all`, or a list such as `redis,etcd`, it fails instead. See [`require`].
//!
//! # Other versions
//!
//! Each server is the installed one, unless a variable chooses another: `LEASEHOLD_REDIS_SERVER`,
//! `LEASEHOLD_ETCD_SERVER`, `LEASEHOLD_ZOOKEEPER_SERVER`, `LEASEHOLD_POSTGRES_SERVER`,
//! `LEASEHOLD_MARIADB_SERVER` or `LEASEHOLD_MEMCACHED_SERVER`. Its value is a folder that has the programs by
//! their usual names (for ZooKeeper its jars), one program, or the name of a version below
//! `target/servers`, such as `valkey-9.1`. What was chosen and is not there fails the test.
//!
//! # Other libraries
//!
//! [`peers`] brings and drives programs of other libraries, for tests of what both write on the same server.
//!
//! # Programs that a test writes
//!
//! [`write_executable`] and [`copy_executable`] make programs that can be started while other threads of the test start
//! processes.
//!
//! # Limits on a busy machine
//!
//! [`Lateness`] measures how long the machine itself stood still while a test measured a time.
//! [`until`] waits for a condition, and panics where it does not come true.
//!
//! # When a test fails
//!
//! A server that is dropped by a panic leaves its [`Directory`] behind, prints where it is, and the last 30
//! lines of its log. `LEASEHOLD_KEEP_DIRS=1` keeps the directories of successful tests too.
//!
//! # Adding a server
//!
//! One file a server, of the same parts: a [`Directory`], its [`Port`]s, a [`Process`], [`Certificates`]
//! where it speaks TLS; a builder that ends in `start` and `start_or_skip`; a readiness check by the
//! server's own protocol; and `restart`, because only the server's type knows where its data are.
//!
//! # Limits
//!
//! For Unix with `/bin/sh`. Two processes (the server and the shell that guards it) per server.

mod certificates;
mod chosen;
mod directory;
mod error;
mod etcd;
mod executable;
mod lateness;
mod mariadb;
mod memcached;
pub mod peers;
mod port;
mod postgres;
mod process;
mod proxy;
mod redis;
pub mod require;
mod small_disk;
pub mod surroundings;
mod until;
mod warnings;
mod zookeeper;

pub use certificates::{Certificates, Identity};
pub use directory::Directory;
pub use error::Error;
pub use etcd::{EtcdBuilder, EtcdCluster};
pub use executable::{copy_executable, write_executable};
pub use lateness::Lateness;
pub use mariadb::{GaleraCluster, MariaDbBuilder, MariaDbServer};
pub use memcached::{MemcachedBuilder, MemcachedServer};
pub use port::Port;
pub use postgres::{PgBouncer, PoolMode, PostgresBuilder, PostgresRelay, PostgresServer};
pub use process::{Process, stop};
pub use proxy::{Proxy, Way};
pub use redis::{
    Appendonly, Counts, Data, RedisBuilder, RedisCluster, RedisClusterBuilder, RedisQuorum, RedisSentinel,
    RedisSentinelBuilder, RedisServer, Reply, SlotMove, Tls,
};
pub use small_disk::SmallDisk;
pub use until::until;
pub use warnings::{Warnings, subscribe};
pub use zookeeper::ZooKeeperEnsemble;
