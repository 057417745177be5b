//! The crate rslock, driven by lines, for tests in which it contends with leasehold: `peer URL`.
//!
//! `acquire NAME TTL WAIT`, in milliseconds, answers `held` or `busy`; `release` answers `released`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::BufRead;
use std::time::Duration;

use rslock::{Lock, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).ok_or("usage: peer URL")?;
    let mut held: Option<Lock> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let arguments: Vec<&str> = line.split_whitespace().collect();
        match arguments[..] {
            ["acquire", name, ttl, wait] => {
                let mut manager = LockManager::new(vec![url.as_str()]);
                // It pauses for a part of the delay that is drawn by chance.
                manager.set_retry((wait.parse::<u32>()? / 25).max(1), Duration::from_millis(50));
                held = manager.lock(name, Duration::from_millis(ttl.parse()?)).await.ok();
                println!("{}", if held.is_some() { "held" } else { "busy" });
            }
            _ => {
                if let Some(lock) = held.take() {
                    lock.release().await;
                }
                println!("released");
            }
        }
    }
    Ok(())
}
