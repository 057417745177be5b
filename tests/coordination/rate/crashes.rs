//! The death of a client, at any request, frees nothing of the rate.

use std::time::Duration;

use futures_util::FutureExt;

use crate::mortal::{Role, at_each_request, says, soon};

pub(crate) const USER: Role = Role {
    name: "rate-user",
    play: |locks, name| {
        async move {
            locks.rate_limit(name, 2, PERIOD).acquire_many(2).await.unwrap();
            says("granted");
            std::future::pending::<()>().await;
        }
        .boxed()
    },
};

/// The process that used up the rate dies: the rate stays used up, and is available again after the
/// period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_survives_a_client_that_dies_at_any_step() {
    at_each_request(&USER, 5, 2, |locks, name, mut player| async move {
        let rate = locks.rate_limit(&name, 2, PERIOD);
        let granted = player.next_message().await.as_deref() == Some("granted");
        if granted {
            player.kill();
            assert!(!rate.try_acquire().await.unwrap(), "the death of the process gave it back");
        }
        soon("the rate", rate.acquire_many(2)).await.unwrap();
        assert!(!rate.try_acquire().await.unwrap());
        !granted
    })
    .await;
}

const PERIOD: Duration = Duration::from_secs(10);
