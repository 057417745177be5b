//! Errors that real servers give: each text is printed once, however a program prints the chain.

use std::error::Error as _;
use std::time::Duration;

use leasehold::{Client, Error};
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, ZooKeeperEnsemble,
};
use tokio::net::TcpListener;

/// Asserts that no text of the chain is in the text above it, nor twice in the first.
fn says_everything_once(error: &Error, what: &str) {
    let text = error.to_string();
    let mut above = text.clone();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        assert!(!above.contains(&cause_text), "{what}: `{cause_text}` is in `{above}`");
        (above, next) = (cause_text, cause.source());
    }
    // A wrapped error often begins with the text of the one around it.
    let parts: Vec<&str> = text.split([':', '(', ';']).map(str::trim).collect();
    assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "{what}: a part is repeated in `{text}`");
    let mut cause =
        error.failure().and_then(|failure| failure.cause()).map(|cause| cause as &dyn std::error::Error);
    while let Some(error) = cause {
        let said = text.matches(&error.to_string()).count();
        assert!(said <= 1, "{what}: `{error}` is {said} times in `{text}`");
        cause = error.source();
    }
}

/// Opens a store and uses it, where one of both has to fail.
async fn fails(url: &str) -> Error {
    let attempt = async {
        let locks = Client::open(url).await?;
        let held = locks.mutex("messages/errors").lock().await?;
        held.release().await
    };
    let Ok(outcome) = tokio::time::timeout(LIMIT, attempt).await else { panic!("{url}: no outcome") };
    let Err(error) = outcome else { panic!("{url} is served") };
    error
}

const LIMIT: Duration = Duration::from_secs(60);

/// Asserts it for a URL of a server that is well, changed so that it cannot serve.
pub(crate) async fn say_everything_once(url: &str) {
    let mut wrong = vec![format!("{url}{}no-such-option=1", if url.contains('?') { '&' } else { '?' })];
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let login = authority.rfind('@').map_or("", |at| &authority[..=at]);
            let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let silent = silent.local_addr().map(|address| (silent, address)).unwrap();
            let mark = if path.contains('?') { '&' } else { '?' };
            let tls = match scheme {
                "postgres" => format!("{url}{mark}sslmode=require"),
                "mysql" => format!("{url}{mark}ssl-mode=REQUIRED"),
                _ => url.replacen(scheme, &scheme.replacen("redis", "rediss", 1).replacen("zk", "zks", 1), 1),
            };
            let tls = match scheme {
                "etcd" | "memcached" | "redlock" => url.replacen(scheme, &format!("{scheme}s"), 1),
                _ => tls,
            };
            wrong.extend([
                // No server listens there.
                format!("{scheme}://{login}127.0.0.1:9{path}"),
                // A server that never answers.
                format!("{scheme}://{login}{}{path}{mark}timeout=1s", silent.1),
                tls,
            ]);
            for url in &wrong {
                says_everything_once(&fails(url).await, url);
            }
            drop(silent);
        }
        // A file in the place of a directory, and a directory in that of a database.
        None if !url.starts_with("mem:") => {
            let dir = tempfile::tempdir().unwrap();
            let scheme = url.split(':').next().unwrap();
            let file = dir.path().join("file");
            std::fs::write(&file, "neither a database nor a directory, and longer than the head of one")
                .unwrap();
            wrong.push(format!("{scheme}:{}", file.display()));
            wrong.push(format!("{scheme}:{}", file.join("below").display()));
            wrong.push(format!("{scheme}:/proc/none/locks"));
            for url in &wrong {
                says_everything_once(&fails(url).await, url);
            }
        }
        // Memory has no server that could fail.
        None => {}
    }
}

/// Returns the URL with another login.
fn with(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let hosts = rest[..end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{login}@{}", &rest[hosts..])
}

async fn refuses(url: &str, login: &str) {
    let url = with(url, login);
    let error = fails(&url).await;
    says_everything_once(&error, &url);
    let kind = error.kind();
    assert!(matches!(kind, leasehold::ErrorKind::Denied | leasehold::ErrorKind::Unavailable), "{error}");
}

#[tokio::test]
async fn wrong_passwords_and_missing_rights_are_reported_once() {
    if let Some(server) =
        RedisServer::builder().password("right").acl_user("none", "pw", "-@all").start_or_skip().await
    {
        refuses(&server.url(), ":wrong").await;
        refuses(&server.url(), "none:pw").await;
    }
    if let Some(server) = PostgresServer::builder().password("right").start_or_skip().await {
        refuses(&server.url(), "postgres:wrong").await;
        refuses(&server.url(), "nobody").await;
        server.sql("create role jobs login password 'pw'").await.unwrap();
        server.sql("revoke create on schema public from public").await.unwrap();
        refuses(&server.url(), "jobs:pw").await;
    }
    if let Some(server) = MariaDbServer::builder().password("right").start_or_skip().await {
        refuses(&server.url(), "root:wrong").await;
        server.sql("create user jobs@'%' identified by 'pw'").await.unwrap();
        refuses(&server.url(), "jobs:pw").await;
    }
    if let Some(server) = MemcachedServer::builder().login("jobs", "right").start_or_skip().await {
        refuses(&server.url(), "jobs:wrong").await;
    }
    if let Some(server) = EtcdCluster::start_or_skip().await {
        for args in [
            vec!["user", "add", "root:right"],
            vec!["user", "grant-role", "root", "root"],
            vec!["user", "add", "jobs:pw"],
            vec!["auth", "enable"],
        ] {
            server.etcdctl(&args).unwrap();
        }
        refuses(&server.url(), "root:wrong").await;
        refuses(&server.url(), "jobs:pw").await;
    }
    if let Some(server) = ZooKeeperEnsemble::start_or_skip(1).await {
        let locks = Client::open(&with(&server.url(), "jobs:right")).await.unwrap();
        locks.mutex("messages/errors").lock().await.unwrap().release().await.unwrap();
        refuses(&server.url(), "jobs:wrong").await;
    }
}
