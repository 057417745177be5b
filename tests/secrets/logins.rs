//! Passwords in URLs: right ones, wrong ones, and ones in unexpected places.

use std::time::Duration;

use leasehold::local::FileConfig;
use leasehold::mysql::MySqlConfig;
use leasehold::postgres::PostgresConfig;
use leasehold::{Client, blocking};
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisQuorum, RedisSentinel,
    RedisServer, ZooKeeperEnsemble, require,
};
use leasehold_tests::{arm, opened};

use crate::logged;
use crate::written::{Secret, Written};

/// A password that the servers know. It is part of their command lines and files, so its letters are plain.
const RIGHT: &str = "c0rrect-h0rse-battery-stap1e";

/// One that no server knows, with everything in it that a URL, a quoted text or an escape may change.
const WRONG: &str = "sw0rdf1sh@7hat/n0b0dy?kn0ws#t1ll%41&now=\"it\\is'kn0wn;to:a11";

/// Options by which other programs take passwords, and some by which no program does.
const OPTIONS: [&str; 10] =
    ["password", "pasword", "pass", "pwd", "auth", "token", "sslkey", "sslpassword", "key", "secret"];

/// Fails where a client, a configuration or an error shows a password.
pub(crate) async fn are_not_repeated(url: &str) {
    let mut urls = attempts(url, "somebody", &encoded(WRONG));
    urls.extend(attempts(url, "", &encoded(WRONG)));
    // Written as it is, it changes what is a host and what is an option.
    for left_out in [&[][..], &['@'], &['@', '/'], &['@', '?', '#']] {
        urls.push(with(url, "somebody", &WRONG.replace(left_out, "")));
    }
    let mut texts = Written::default();
    open_all(&mut texts, urls).await;
    ends(texts, url);
}

/// The same with a server that knows a password, by its URL without one.
async fn of_a_server(url: &str, user: &str) {
    let mut texts = Written::default();
    // ZooKeeper takes any password: what the first login creates belongs to it.
    let locks = opened(&with(url, user, RIGHT)).await;
    let guard = locks.mutex("logins").lock().await.unwrap();
    texts.shown("a guard", &guard);
    guard.release().await.unwrap();
    let mut urls = attempts(url, user, RIGHT);
    urls.extend(attempts(url, user, &encoded(WRONG)));
    open_all(&mut texts, urls).await;
    texts.shown("findings", &locks.diagnose(Duration::from_secs(30)).await);
    texts.shown("a client that is logged in", &locks);
    texts.shown("its backend", locks.backend());
    ends(texts, url);
}

fn ends(texts: Written, url: &str) {
    assert!(!texts.is_empty(), "on {url}");
    texts.have_none_of(url, &[Secret::word("a wrong password", WRONG), Secret::word("the password", RIGHT)]);
}

/// Everything that can be tried with one login.
fn attempts(url: &str, user: &str, password: &str) -> Vec<String> {
    let login = with(url, user, password);
    let mark = if login.contains('?') { '&' } else { '?' };
    let mut urls =
        ["", "no-such-option=1", "timeout=never"].map(|option| format!("{login}{mark}{option}")).to_vec();
    urls.extend(OPTIONS.map(|option| format!("{url}{mark}{option}={password}")));
    let Some((scheme, rest)) = login.split_once("://") else { return urls };
    let (start, place) = rest.split_at(rest.rfind('@').unwrap_or_default());
    let path = &place[place.find(['/', '?']).unwrap_or(place.len())..];
    // A port without a server; no port; no host; another protocol; an unknown scheme.
    for host in ["@127.0.0.1:9", "@127.0.0.1:99999", "@127.0.0.1:x:/", "@", "@h,,h", "@:"] {
        urls.push(format!("{scheme}://{start}{host}{path}"));
    }
    urls.extend(["s", "+unix", "x"].map(|kind| format!("{scheme}{kind}://{rest}")));
    urls.push(rest.to_owned());
    urls
}

/// The URL with a login. One without hosts has none, so there it stands where a user might put it.
fn with(url: &str, user: &str, password: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{user}:{password}@{}", &rest[start..])
        }
        None => url.replacen(':', &format!("://{user}:{password}@"), 1),
    }
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Takes down what comes of URLs, each in every way that a program can give it.
async fn open_all(texts: &mut Written, urls: Vec<String>) {
    futures_util::future::join_all(urls.iter().map(|url| open(url)))
        .await
        .into_iter()
        .for_each(|some| texts.also(some));
}

async fn open(url: &str) -> Written {
    let mut texts = Written::default();
    // Some wait for a server that is away.
    if let Ok(opened) = tokio::time::timeout(Duration::from_secs(5), Client::open(url)).await {
        texts.record_outcome("a client", &opened);
        if let Ok(client) = opened {
            texts.shown("a backend", client.backend());
            texts.record_outcome("a look", &client.inspect("x").await);
            texts.record_outcome("a try", &client.mutex("x").try_lock().await);
        }
    }
    texts.record_outcome("a schema", &leasehold::schema(url));
    configured(&mut texts, FileConfig::from_url(url));
    configured(&mut texts, PostgresConfig::parse(url));
    configured(&mut texts, MySqlConfig::parse(url));
    texts
}

fn configured<T: std::fmt::Debug>(texts: &mut Written, parsed: Result<T, leasehold::backend::Failure>) {
    match parsed {
        Ok(config) => texts.shown("a configuration", &config),
        Err(failure) => texts.failed("no configuration", &failure),
    }
}

/// Drops the login of a URL.
fn without(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{}", &rest[rest.rfind('@').map_or(0, |at| at + 1)..])
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_with_a_password() {
    logged::listen();
    let builder = || RedisServer::builder().password(RIGHT);
    let Some(server) = builder().start_or_skip().await else { return };
    of_a_server(&without(&server.url()), "default").await;
    let url = without(&server.url());
    of_a_server(&format!("{url}?dialect=dual:redisson"), "default").await;
    let cluster = RedisCluster::builder().replicas(0).server(builder()).start_or_skip().await.unwrap();
    of_a_server(&without(&cluster.url()), "default").await;
    let quorum = require::or_skip("redis", RedisQuorum::start_with(3, builder()).await).unwrap();
    let hosts = quorum.hosts();
    let url = without(&format!("redlock://{hosts}"));
    arm(&opened(&with(&url, "default", RIGHT)).await).await;
    of_a_server(&url, "default").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_with_a_password() {
    logged::listen();
    let server = RedisServer::builder().password(RIGHT);
    let builder = RedisSentinel::builder().server(server).sentinel_password(RIGHT);
    let Some(servers) = builder.start_or_skip().await else { return };
    let url = servers.url();
    let mut texts = Written::default();
    open_all(&mut texts, vec![url.replace(RIGHT, &encoded(WRONG)), without(&url), url.clone()]).await;
    ends(texts, &without(&url));
}

#[tokio::test(flavor = "multi_thread")]
async fn memcached_with_a_password() {
    logged::listen();
    let Some(server) = MemcachedServer::builder().login("jobs", RIGHT).start_or_skip().await else { return };
    of_a_server(&without(&server.url()), "jobs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_with_a_password() {
    logged::listen();
    let Some(server) = PostgresServer::builder().password(RIGHT).start_or_skip().await else { return };
    for way in ["", "?method=advisory", "?method=for-update&table=locked", "?dialect=shedlock"] {
        of_a_server(&format!("{}{way}", without(&server.url())), "postgres").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_with_a_password() {
    logged::listen();
    let Some(server) = MariaDbServer::builder().password(RIGHT).start_or_skip().await else { return };
    for way in ["", "?method=get-lock", "?method=for-update&table=locked"] {
        of_a_server(&format!("{}{way}", without(&server.url())), "root").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_a_password() {
    logged::listen();
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    for args in [
        vec!["user", "add", &format!("root:{RIGHT}")],
        vec!["user", "grant-role", "root", "root"],
        vec!["auth", "enable"],
    ] {
        server.etcdctl(&args).unwrap();
    }
    of_a_server(&server.url(), "root").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_with_a_password() {
    logged::listen();
    let Some(server) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    of_a_server(&server.url(), "jobs").await;
    // What the first of them has made is not to be read by others.
    let mut texts = Written::default();
    open_all(&mut texts, vec![with(&server.url(), "jobs", &encoded(WRONG))]).await;
    ends(texts, &server.url());
}

/// Keys and password files are read, and not repeated where they make no sense.
#[tokio::test(flavor = "multi_thread")]
async fn passwords_in_files_are_never_printed() {
    logged::listen();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let mut texts = Written::default();
    for content in
        [format!("{RIGHT}\n"), format!("-----BEGIN PRIVATE KEY-----\n{RIGHT}\n-----END PRIVATE KEY-----\n")]
    {
        std::fs::write(&file, content).unwrap();
        let file = file.display();
        let mut urls = Vec::new();
        for scheme in ["redis", "etcd", "memcached", "zk"] {
            urls.push(format!("{scheme}://me@127.0.0.1:9?password-file={file}&timeout=1s"));
            urls.push(format!("{scheme}s://127.0.0.1:9?cert={file}&key={file}&ca={file}"));
        }
        for scheme in ["postgres", "mysql"] {
            for options in ["sslmode=verify-full", "tls=verify-full", "tls=on"] {
                urls.push(format!("{scheme}://127.0.0.1:9/d?{options}&cert={file}&key={file}&ca={file}"));
            }
        }
        open_all(&mut texts, urls).await;
    }
    let url = "redis://127.0.0.1:9".to_owned();
    let threads = tokio::task::spawn_blocking(move || blocking::Client::open(&with(&url, "me", RIGHT)));
    texts.record_outcome("a client of threads", &threads.await.unwrap());
    ends(texts, "files");
}
