//! Every kind of store, opened for one test.

use std::any::Any;

use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisQuorum, ZooKeeperEnsemble,
};
use leasehold_tests::arm;

/// A store of its own for one test, removed with it.
pub(crate) struct Store {
    pub(crate) url: String,
    /// What is added to the URL where a client shall be known as dead soon.
    pub(crate) mortal: &'static str,
    /// Whether other processes reach it.
    pub(crate) is_shared: bool,
    _keep: Box<dyn Any + Send>,
}

impl Store {
    fn of(url: String, keep: impl Any + Send) -> Option<Store> {
        Some(Store { url, mortal: "", is_shared: true, _keep: Box::new(keep) })
    }
}

pub(crate) async fn memory() -> Option<Store> {
    Store::of("mem:coordination".to_owned(), ()).map(|store| Store { is_shared: false, ..store })
}

pub(crate) async fn file() -> Option<Store> {
    let dir = tempfile::tempdir().unwrap();
    Store::of(format!("file:{}", dir.path().display()), dir)
}

pub(crate) async fn sqlite() -> Option<Store> {
    let dir = tempfile::tempdir().unwrap();
    Store::of(format!("sqlite:{}", dir.path().join("locks.db").display()), dir)
}

pub(crate) async fn redis() -> Option<Store> {
    let store = leasehold_tests::Store::redis().await?;
    Store::of(store.url(), store)
}

pub(crate) async fn redis_polling() -> Option<Store> {
    let store = leasehold_tests::Store::redis().await?;
    Store::of(format!("{}?wait=poll&order=unordered", store.url()), store)
}

pub(crate) async fn redis_cluster() -> Option<Store> {
    let cluster = RedisCluster::builder().replicas(0).start_or_skip().await?;
    Store::of(cluster.url(), cluster)
}

pub(crate) async fn redlock() -> Option<Store> {
    let servers = RedisQuorum::start_or_skip(3).await?;
    let url = format!("redlock://{}", servers.hosts());
    arm(&leasehold::Leasehold::open(&url).await.unwrap()).await;
    Store::of(url, servers)
}

pub(crate) async fn etcd() -> Option<Store> {
    let cluster = EtcdCluster::start_or_skip().await?;
    Store::of(cluster.url(), cluster)
}

pub(crate) async fn zookeeper() -> Option<Store> {
    let ensemble = ZooKeeperEnsemble::start_or_skip(1).await?;
    let store = Store::of(ensemble.url(), ensemble);
    store.map(|store| Store { mortal: "?session=4s", ..store })
}

pub(crate) async fn memcached() -> Option<Store> {
    let server = MemcachedServer::start_or_skip().await?;
    Store::of(server.url(), server)
}

pub(crate) async fn postgres() -> Option<Store> {
    postgres_with("").await
}

pub(crate) async fn postgres_advisory() -> Option<Store> {
    postgres_with("?method=advisory").await
}

pub(crate) async fn postgres_for_update() -> Option<Store> {
    postgres_with("?method=for-update").await
}

async fn postgres_with(options: &str) -> Option<Store> {
    let server = PostgresServer::start_or_skip().await?;
    Store::of(format!("{}{options}", server.url()), server)
}

pub(crate) async fn mysql() -> Option<Store> {
    let server = MariaDbServer::start_or_skip().await?;
    Store::of(server.url(), server)
}
