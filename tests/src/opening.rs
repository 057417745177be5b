//! Opening clients on a machine that may be busy.

use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, ErrorKind, blocking};

/// Opens a client whose time limit is short: a busy machine may take longer for a connection.
pub async fn opened(url: &str) -> Client {
    opened_with(Client::builder, url).await
}

/// As [`opened`], with more settings.
pub async fn opened_with(settings: impl Fn() -> ClientBuilder, url: &str) -> Client {
    let began = Instant::now();
    loop {
        match settings().open(url).await {
            Ok(locks) => return locks,
            Err(error) => expect_late(&error, began),
        }
    }
}

/// As [`opened`], for threads that block.
pub fn opened_by_threads(url: &str) -> blocking::Client {
    let began = Instant::now();
    loop {
        match blocking::Client::open(url) {
            Ok(locks) => return locks,
            Err(error) => expect_late(&error, began),
        }
    }
}

fn expect_late(error: &Error, began: Instant) {
    let is_late = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
    assert!(is_late && began.elapsed() < LIMIT, "{error}");
}

/// No step takes this long on any machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
