//! Checks of locks that take a connection each, when no connection is left.
//!
//! Ground rules: for tests only, so what must not fail panics.

use leasehold_core::{Backend, Release, Severity};

use crate::calls::{LONG, claim, hold, look_once, release};

/// Checks that, where two connections may hold a lock, an examination says so, and a third lock is refused
/// with advice, until one of them is free.
///
/// # Panics
/// If that is not so.
pub async fn third_of_two_transactions_is_refused(backend: &dyn Backend) {
    let findings = backend.diagnose(LONG).await;
    let reported = findings.iter().find(|finding| finding.topic == "connections");
    assert!(
        reported.is_some_and(|reported| reported.found.contains("up to 2 of the server's")),
        "{findings:?}"
    );
    assert!(reported.is_some_and(|reported| reported.severity == Severity::Notice), "{findings:?}");
    let claims = [claim("a", LONG), claim("b", LONG)];
    for claim in &claims {
        hold(backend, claim).await;
    }
    let Err(failure) = look_once(backend, &claim("c", LONG)).await else {
        panic!("a third lock was granted");
    };
    assert!(failure.is_transient() && failure.detail().contains("raise transactions="), "{failure}");
    assert!(matches!(release(backend, &claims[0]).await, Release::Freed));
    hold(backend, &claim("c", LONG)).await;
}
