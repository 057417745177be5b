//! Helpers of the tests of this backend.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "not each test uses all of it")]
#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::Arc;

pub use leasehold_conformance::calls::{
    LONG, claim, clock, hold, in_the_end, look_once, release, release_until_known, renew, renew_until_known,
    resource, take, wait_for_holder,
};
use leasehold_core::{Backend, Failure};
use leasehold_postgres::PostgresConfig;

pub async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_postgres::connect(PostgresConfig::parse(url)?, clock()).await
}

/// Opens a URL. Tries again where the server is late: the time limit of the URL may be short.
pub async fn open(url: &str) -> Arc<dyn Backend> {
    in_the_end(|| connect(url)).await
}
