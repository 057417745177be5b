//! Helpers of the tests of this backend.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "not each test uses all of it")]
#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::Arc;
use std::time::Duration;

pub use leasehold_conformance::calls::{
    LONG, claim, clock, hold, in_the_end, look_once, release, release_until_known, renew, renew_until_known,
    resource, take, wait_for_holder,
};
use leasehold_core::{Backend, Failure};
use leasehold_mysql::MySqlConfig;
use leasehold_testkit::MariaDbServer;

pub async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_mysql::connect(MySqlConfig::parse(url)?, clock()).await
}

/// Opens a URL. Tries again where the server is late: the time limit of the URL may be short.
pub async fn open(url: &str) -> Arc<dyn Backend> {
    in_the_end(|| connect(url)).await
}

/// Waits until the server answers this.
pub async fn wait_for_count(server: &MariaDbServer, query: &str, expected: &str) {
    let mut found = String::new();
    for _ in 0..500 {
        found = server.sql(query).await.unwrap();
        if found.trim() == expected {
            return;
        }
        // The server refreshes its view of transactions only if nobody has read it for a tenth of a second.
        tokio::time::sleep(Duration::from_millis(130)).await;
    }
    panic!("{query}: {found} and not {expected}");
}

/// One of the server's counters.
pub async fn counter(server: &MariaDbServer, name: &str) -> i64 {
    let answer = server.sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'")).await.unwrap();
    answer.split_whitespace().nth(1).unwrap().parse().unwrap()
}
