//! The program of the README: one lock, and work that is cancelled if the lock is lost.
//!
//! ```console
//! $ cargo run -p leasehold --example first_lock
//! ```

use std::time::Duration;

use leasehold::{Client, Fence};

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    // Files of this user on this machine. "redis://127.0.0.1", "etcd://…", "postgres://…" work the same way.
    let locks = Client::open("file:").await?;
    let lock = locks.mutex("nightly-report").ttl(Duration::from_secs(30));

    let guard = lock.lock().await?; // queued in order of arrival, renewed in the background
    guard.run(write_report(guard.fence())).await?; // cancelled if the lock is lost
    guard.release().await
}

async fn write_report(fence: Option<Fence>) {
    println!("writing under fence {}", fence.map(|fence| fence.to_string()).unwrap_or_default());
}
