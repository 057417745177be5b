//! A loader that dies, at any request, is replaced by another.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::LoadError;

use crate::mortal::{Role, TTL, at_each_request, soon};

pub(crate) const LOADER: Role = Role {
    name: "flight-loader",
    play: |locks, name| {
        async move {
            let load = || async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok::<_, String>(Some(b"old".to_vec()))
            };
            let flight = locks.single_flight(name).with(|turn| Ok(turn.ttl(TTL))).unwrap();
            flight.get_or_load(Duration::from_secs(60), load).await.unwrap();
        }
        .boxed()
    },
};

/// A loader dies: another takes over, and all get a value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loader_dies_at_each_step() {
    at_each_request(&LOADER, 30, 12, |locks, name, mut player| async move {
        player.holds(&locks, &format!("{name}!loading")).await;
        let asks = (0..3).map(|_| {
            let flight = locks.single_flight(&name).with(|turn| Ok(turn.ttl(TTL))).unwrap();
            let load = || async { Ok::<_, String>(Some(b"new".to_vec())) };
            async move { flight.get_or_load(Duration::from_secs(60), load).await }
        });
        for loaded in soon("loading", futures_util::future::join_all(asks)).await {
            let loaded: Result<_, LoadError<String>> = loaded;
            assert!(matches!(loaded.unwrap().value.as_deref(), Some(b"new" | b"old")));
        }
        player.is_killed().await
    })
    .await;
}
