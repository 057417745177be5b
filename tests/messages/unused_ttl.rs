//! A ttl that the store does not use: it is reported once, and what counts instead can be asked for.

use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold_testkit::Warnings;
use leasehold_tests::opened;

const TTL: Duration = Duration::from_secs(6);

pub(crate) async fn is_reported_once(url: &str) {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let of_a_ttl = || warnings.count("has no effect");
    let locks = opened(url).await;
    let mutex = || locks.mutex("messages/ttl");
    let (effective, reports) = match locks.profile().liveness {
        Liveness::Lease { .. } => (Some(TTL), 0),
        Liveness::Heartbeat { valid } => (Some(valid), 1),
        _ => (None, 0),
    };
    assert_eq!(mutex().ttl(TTL).effective_ttl(), effective, "{url}");
    mutex().lock().await.unwrap().release().await.unwrap();
    assert_eq!(of_a_ttl(), 0, "nobody has set a ttl for {url}");
    for _ in 0..2 {
        mutex().ttl(TTL).lock().await.unwrap().release().await.unwrap();
        assert_eq!(of_a_ttl(), reports, "{url}: {warnings:?}");
    }
    if let Some(ttl) = effective {
        let quiet = opened(url).await;
        quiet.mutex("messages/ttl").ttl(ttl).lock().await.unwrap().release().await.unwrap();
        assert_eq!(of_a_ttl(), reports, "{url} keeps it for exactly {ttl:?}");
    }
    // `doctor` sets a ttl of its own accord.
    let quiet = opened(url).await;
    quiet.diagnose(TTL).await;
    assert_eq!(of_a_ttl(), reports, "{url}");
}
