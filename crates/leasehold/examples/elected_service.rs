//! A service of several instances, of which one leads. The leader does what must be done once; the
//! others wait, and know which instance leads.
//!
//! Each instance serves all the time. It also campaigns; while it leads it also works through the queue.
//! If it loses leadership, after a pause or because of a stopped network, that work is dropped at once
//! and the instance campaigns again.
//!
//! ```console
//! $ cargo run -p leasehold --example elected_service                               # three instances in one process
//! $ cargo run -p leasehold --example elected_service etcd://127.0.0.1 10.0.0.7:80  # one of many, with the feature `etcd`
//! ```

use std::time::Duration;

use leasehold::{Client, Election, ErrorKind};

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let mut args = std::env::args().skip(1);
    if let (Some(url), Some(address)) = (args.next(), args.next()) {
        let locks = Client::open(&url).await?;
        return instance(locks, address, u32::MAX).await;
    }
    // One store, and a client of it for each machine. The load balancer is there first.
    let watched = Client::open("mem:example").await?.election("queue");
    let balancer = tokio::spawn(async move { watch(&watched).await });
    let mut instances = Vec::new();
    for number in 1..=3 {
        let locks = Client::open("mem:example").await?;
        instances.push(tokio::spawn(instance(locks, format!("10.0.0.{number}:80"), 2)));
    }
    for instance in instances {
        instance.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }
    balancer.abort();
    println!("all have led and resigned");
    Ok(())
}

/// Campaigns, leads, and campaigns again after a loss of leadership. After `terms` pieces of work the
/// instance resigns, so that a new version of the service can be rolled out without a gap.
async fn instance(locks: Client, address: String, terms: u32) -> leasehold::Result<()> {
    let election = locks.election("queue").ttl(Duration::from_secs(10));
    loop {
        let leadership = election.campaign(&address).await?;
        match leadership.run(lead(&address, terms)).await {
            Ok(()) => return leadership.resign().await,
            Err(lost) if matches!(lost.kind(), ErrorKind::Lost(_)) => println!("{address}: {lost}"),
            Err(error) => return Err(error),
        }
    }
}

/// Does the work of the leader. This future is dropped at an await when leadership is lost; everything
/// that it writes elsewhere should carry the fence.
async fn lead(address: &str, pieces: u32) {
    for piece in 0..pieces {
        println!("{address} leads, and does piece {piece}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Follows the leader, as a load balancer does.
async fn watch(election: &Election) -> leasehold::Result<()> {
    let mut observer = election.observe();
    loop {
        match observer.next().await? {
            Some(leader) => println!("requests go to {}", leader.value),
            None => println!("nobody leads"),
        }
    }
}
