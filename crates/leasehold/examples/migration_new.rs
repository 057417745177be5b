//! The new half of a fleet that migrates from redis-py's lock: it takes both the old lock and the native
//! one.
//!
//! While any process of the fleet takes redis-py's lock alone (`migration_old.py`), the new processes
//! take both locks. After that they take the native one alone: the same program with a shorter URL.
//!
//! ```console
//! $ python3 crates/leasehold/examples/migration_old.py redis://127.0.0.1 20 &
//! $ cargo run -p leasehold --example migration_new 'redis://127.0.0.1?dialect=dual:plain' 20
//! $ redis-cli get counter
//! ```

use std::time::Duration;

use leasehold::Client;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(rounds)) = (args.next(), args.next()) else {
        return Err("usage: migration_new 'redis://HOST?dialect=dual:plain' ROUNDS".into());
    };
    let locks = Client::open(&url).await?;
    let mutex = locks.mutex("nightly").ttl(Duration::from_secs(30));
    // The counter is on the same server, and is reached without the options of the lock.
    let server = url.split_once('?').map_or(url.as_str(), |(server, _)| server);
    let counter = redis::Client::open(server)?.get_multiplexed_async_connection().await?;
    let rounds: u32 = rounds.parse()?;
    for _ in 0..rounds {
        let guard = mutex.lock().await?;
        guard.run(add_one(counter.clone())).await??;
        guard.release().await?;
    }
    println!("new: added {rounds}");
    Ok(())
}

/// Adds one, as the old half does: without the lock, additions would be lost.
async fn add_one(mut counter: MultiplexedConnection) -> redis::RedisResult<()> {
    let seen: Option<u64> = counter.get("counter").await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    counter.set("counter", seen.unwrap_or(0) + 1).await
}
