//! The cost of a lock: commands on the server, by its own counts.

use crate::common::*;
use leasehold_core::{Proof, Release, Renew, Renewal};
use leasehold_testkit::MemcachedServer;

/// Writes, reads that found something, and removals that did.
async fn counts(server: &MemcachedServer) -> [u64; 3] {
    [
        server.stat("cmd_set").await.unwrap(),
        server.stat("get_hits").await.unwrap(),
        server.stat("delete_hits").await.unwrap(),
    ]
}

#[tokio::test]
async fn uncontended_cycle_is_an_add_with_a_read_and_a_removal() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    for dialect in ["native", "plain"] {
        let backend = connect(&format!("{}?dialect={dialect}", server.url())).await;
        let before = counts(&server).await;
        for n in 0..50 {
            let claim = mutex(&format!("job-{n}"));
            hold(&*backend, &claim).await;
            assert!(freed(&*backend, &claim).await);
        }
        let after = counts(&server).await;
        let used = [0, 1, 2].map(|n| after[n] - before[n]);
        assert_eq!(used, [50, 50, 50], "{dialect}");
        assert_eq!(server.stat("curr_items").await.unwrap(), 0, "{dialect}");
    }
}

#[tokio::test]
async fn renewal_batch_reads_once_and_writes_once_per_claim() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    for dialect in ["native", "plain"] {
        let backend = connect(&format!("{}?dialect={dialect}", server.url())).await;
        let claims: Vec<_> = (0..700).map(|n| mutex(&format!("job-{n}"))).collect();
        for claim in &claims {
            hold(&*backend, claim).await;
        }
        let (gone, proof) = (mutex("never-held"), Proof::none());
        let mut batch: Vec<_> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
        batch[333] = Renew { claim: &gone, proof: &proof };
        let before = counts(&server).await;
        let renewals = backend.renew(&batch).await;
        let after = counts(&server).await;
        for (n, renewal) in renewals.iter().enumerate() {
            assert_eq!(matches!(renewal, Renewal::Renewed), n != 333, "{dialect} {n}: {renewal:?}");
            assert_eq!(matches!(renewal, Renewal::Lost), n == 333, "{dialect} {n}: {renewal:?}");
        }
        assert_eq!([0, 1, 2].map(|n| after[n] - before[n]), [699, 699, 0], "{dialect}");
        let released = backend.release(&claims.iter().collect::<Vec<_>>()).await;
        assert!(released.iter().all(|release| matches!(release, Release::Freed)), "{dialect}");
    }
}
