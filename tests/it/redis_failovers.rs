//! Primaries of Redis are killed under load again and again: the reactions of Sentinels and clusters,
//! and the reports to holders.
//!
//! By default one failover of each kind; `LEASEHOLD_FAILOVERS=20` for the whole campaign, whose figures
//! are in `docs/book/src/track-record.md`.

use std::time::Duration;

use leasehold_tests::{Elected, Missed, kill_primaries};

const LAG: Missed = Missed::All(Duration::from_millis(100));

mod sentinel {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_primary() {
        let Some(group) = Elected::sentinel().await else { return };
        kill_primaries(&group, "", Missed::Nothing).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_primary_that_dies_with_what_its_replicas_miss() {
        let Some(group) = Elected::sentinel().await else { return };
        kill_primaries(&group, "", LAG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_same_when_a_replica_has_to_confirm() {
        let Some(group) = Elected::sentinel().await else { return };
        kill_primaries(&group, "&replicas=1", LAG).await;
    }
}

mod cluster {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_primary() {
        let Some(group) = Elected::cluster(1).await else { return };
        kill_primaries(&group, "", Missed::Nothing).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_primary_that_dies_with_what_its_replica_misses() {
        let Some(group) = Elected::cluster(1).await else { return };
        kill_primaries(&group, "", LAG).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_same_when_a_replica_has_to_confirm() {
        // Two, so that a replica that takes over has one that confirms.
        let Some(group) = Elected::cluster(2).await else { return };
        kill_primaries(&group, "&replicas=1", LAG).await;
    }
}
