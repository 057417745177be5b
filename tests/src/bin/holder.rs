//! `holder URL NAME TTL_MS REGISTER`: holds a lock in a process of its own, by commands on stdin.
//!
//! | command | answers |
//! |---|---|
//! | `lock` | `held FENCE`, or `held without a fence` |
//! | `check` | `valid` or `lost` |
//! | `write` | `written`, or `refused` by the register |
//! | `release` | `released` or `lost` |
//! | `lost` | `lost NANOS NANOS`: the last time at which a check said that the lock is valid, and that of the report |
//!
//! Both are times of the machine's monotonic clock. The first is 0 if the lock was lost before the command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "it is part of tests")]

use std::path::PathBuf;
use std::time::Duration;

use leasehold::Guard;
use leasehold::fenced::FencedFileError;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("usage: holder URL NAME TTL_MS REGISTER");
    let (url, name, ttl, register) = (next(), next(), next(), PathBuf::from(next()));
    let locks = leasehold_tests::opened(&url).await;
    let mutex = locks.mutex(&name).ttl(Duration::from_millis(ttl.parse().unwrap()));
    let mut held: Option<Guard> = None;
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(command) = commands.next_line().await.unwrap() {
        match (command.as_str(), &held) {
            ("lock", _) => {
                let guard = mutex.lock().await.unwrap();
                println!(
                    "held {}",
                    guard.fence().map_or("without a fence".to_owned(), |fence| fence.to_string())
                );
                held = Some(guard);
            }
            ("check", Some(guard)) => println!("{}", if guard.check().is_ok() { "valid" } else { "lost" }),
            ("write", Some(guard)) => match leasehold_tests::add_one(&register, guard.fence().unwrap()) {
                Ok(()) => println!("written"),
                Err(FencedFileError::Stale(_)) => println!("refused"),
                Err(error) => panic!("{error}"),
            },
            ("lost", Some(guard)) => {
                let mut valid = Duration::ZERO;
                loop {
                    let now = leasehold_tests::monotonic();
                    if guard.check().is_err() {
                        break;
                    }
                    valid = now;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                guard.lost().await;
                println!("lost {} {}", valid.as_nanos(), leasehold_tests::monotonic().as_nanos());
            }
            ("release", Some(_)) => {
                let released = held.take().unwrap().release().await;
                println!("{}", if released.is_ok() { "released" } else { "lost" });
            }
            (other, _) => panic!("{other}"),
        }
    }
}
