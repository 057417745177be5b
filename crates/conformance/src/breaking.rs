//! Checks of locks that a connection holds when an operator takes them away.
//!
//! Ground rules: for tests only, so what must not fail panics.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backend, BreakOutcome, LossCause, Release, Renewal};

use crate::calls::{LONG, claim, hold, must, release, renew, take};
use crate::random;

/// Checks that a holder loses what is broken, by another client, and what its connection holds beside it; a
/// waiter gets it. A client named by an id that does not hold, or no longer does, loses nothing.
///
/// `notified_within` is the time after which a holder is notified of the end of its connection.
///
/// # Panics
/// If that is not so.
pub async fn break_ends_only_what_its_connection_holds(
    clients: [Arc<dyn Backend>; 3],
    shared: Shared,
    notified_within: Duration,
) {
    let [holder, operator, next] = clients;
    let (job, other) = (claim("job", LONG), claim("other", LONG));
    let mut signal = must(hold(&*holder, &job).await.lost.ok_or("no signal of its loss exists"));
    let mut other_signal = must(hold(&*holder, &other).await.lost.ok_or("no signal of its loss exists"));
    let wrong_id = job.clone().id(must(random::id()));
    let wrong_name = job.clone().resource(other.resource.clone());
    for wrong in [&wrong_id, &wrong_name] {
        assert_eq!(must(operator.break_claim(wrong).await), BreakOutcome::Gone, "{wrong:?}");
    }
    for claim in [&job, &other] {
        assert!(
            matches!(renew(&*holder, claim).await, Renewal::Alive),
            "{claim:?} was ended by another's id"
        );
    }
    assert!(matches!(release(&*operator, &job).await, Release::Gone), "a release is for one's own");
    let successor = claim("job", LONG);
    let waiting = tokio::spawn({
        let (next, successor) = (next.clone(), successor.clone());
        async move { take(&*next, &successor).await }
    });
    let lost = match shared {
        Shared::Yes => vec![other.resource.clone()],
        Shared::No => Vec::new(),
    };
    assert_eq!(must(operator.break_claim(&job).await), BreakOutcome::Ended { also_released: lost });
    let cause = tokio::time::timeout(notified_within, signal.fired()).await;
    assert_eq!(must(cause), LossCause::SessionEnded);
    must(waiting.await);
    if shared == Shared::Yes {
        let cause = tokio::time::timeout(notified_within, other_signal.fired()).await;
        assert_eq!(must(cause), LossCause::SessionEnded);
    } else {
        assert!(matches!(renew(&*holder, &other).await, Renewal::Alive), "it has a connection of its own");
    }
    // The id is an old one by now.
    assert_eq!(must(operator.break_claim(&job).await), BreakOutcome::Gone);
    assert!(matches!(renew(&*next, &successor).await, Renewal::Alive), "the next holder was hit");
    // A client's own lock is released, and its other locks stay.
    let (mine, stays) = (claim("mine", LONG), claim("stays", LONG));
    for claim in [&mine, &stays] {
        hold(&*operator, claim).await;
    }
    let ended = BreakOutcome::Ended { also_released: Vec::new() };
    assert_eq!(must(operator.break_claim(&mine).await), ended);
    assert!(matches!(renew(&*operator, &stays).await, Renewal::Alive));
}

/// The choice whether all locks of a client share one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// All share one.
    Yes,
    /// Each has its own.
    No,
}

/// Checks that a client that may not end the connection of a holder gets an error that says what to grant,
/// and that no holder loses anything.
///
/// # Panics
/// If that is not so.
pub async fn break_without_rights_names_the_missing_grant(
    holder: &dyn Backend,
    operator: &dyn Backend,
    grant: &str,
) {
    let job = claim("theirs", LONG);
    hold(holder, &job).await;
    let Err(failure) = operator.break_claim(&job).await else {
        panic!("it may break what is another user's")
    };
    assert_eq!(failure.kind, leasehold_core::FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains(grant), "{failure}");
    assert!(matches!(renew(holder, &job).await, Renewal::Alive), "it was ended all the same");
}
