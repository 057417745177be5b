//! The advice of `doctor`: it fits the store that was asked.

use std::time::Duration;

use leasehold_tests::opened;

/// Asserts that no finding advises the store itself, describes another one, or grants less to a user that may
/// do anything.
pub(crate) async fn fits_the_store(url: &str) {
    let locks = opened(url).await;
    let findings = locks.diagnose(Duration::from_secs(30)).await;
    assert!(!findings.is_empty(), "{url}");
    // These servers have no other user than the one that may do anything. Locks of connections and other
    // dialects need other rights, which are not listed.
    let is_by_user = ["postgres:", "mysql:"].iter().any(|scheme| url.starts_with(scheme));
    let grants = findings.iter().filter(|finding| finding.advice.contains("TO \"leasehold\""));
    let grants = grants.chain(findings.iter().filter(|finding| finding.advice.contains("TO 'leasehold'")));
    assert!(!is_by_user || url.contains('?') || grants.count() > 0, "{url}: {findings:#?}");
    for finding in findings {
        let text = format!("{}; {}; {}", finding.found, finding.meaning, finding.advice);
        for wrong in
            ["use etcd", "or ZooKeeper", "TO \"postgres\"", "'root'@", "`root`@", "TO root", "TO postgres"]
        {
            assert!(!text.contains(wrong), "{url}: `{wrong}` in {text}");
        }
        let is_by_revision = ["etcd:", "zk:"].iter().any(|scheme| url.starts_with(scheme));
        assert!(!is_by_revision || !text.contains("clock takes over"), "{url} has a clock in {text}");
    }
}
