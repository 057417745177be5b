//! `actor URL COUNTER ROUNDS TTL_MS`: raises a counter behind a fence, under a lock, and reports each round.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "it is part of tests")]

use std::path::PathBuf;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("usage: actor URL COUNTER ROUNDS TTL_MS");
    let (url, counter, rounds, ttl) = (next(), PathBuf::from(next()), next(), next());
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    leasehold_tests::increment(&url, &counter, rounds.parse().unwrap(), ttl).await;
}
