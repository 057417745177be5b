//! Checks of a store of rows when it is swept.
//!
//! Ground rules: for tests only, so what must not fail panics.

use std::time::Duration;

use leasehold_core::{Backend, Patience, Release, Renewal};

use crate::calls::{LONG, claim, clock, hold, look_once, release, renew, resource};

/// Checks that a sweep empties the row whose claim is over, and no other. `sweep` spares nothing that is
/// over, and answers how many rows it saw, emptied and removed.
///
/// # Panics
/// If it does anything else.
pub async fn sweep_empties_rows_of_ended_claims(backend: &dyn Backend, sweep: impl AsyncFn() -> [u64; 3]) {
    let (held, freed) = (claim("held", LONG), claim("freed", LONG));
    hold(backend, &held).await;
    hold(backend, &freed).await;
    assert!(matches!(release(backend, &freed).await, Release::Freed));
    let ended = claim("ended", Duration::from_millis(200));
    let before = hold(backend, &ended).await;
    let waiting = Patience::unlimited(clock());
    // A place in the queue is left by a client that does not come back.
    let left = claim("held", LONG);
    let asked = tokio::time::timeout(Duration::from_millis(200), backend.contend(&left, &waiting)).await;
    assert!(!matches!(asked, Ok(Ok(leasehold_core::Step::Granted(_)))), "it is held");
    tokio::time::sleep(Duration::from_millis(250)).await;

    let looked = async || {
        let seen = backend.inspect(&resource("held"), None, &Patience::none(clock())).await;
        let seen = seen.unwrap_or_else(|failure| panic!("{failure}"));
        (seen.holders.len(), seen.waiting.len(), seen.fence)
    };
    let before_sweep = looked().await;
    assert_eq!(sweep().await, [3, 1, 0]);
    assert_eq!(sweep().await, [3, 0, 0], "there is nothing left");
    assert_eq!(looked().await, before_sweep);
    assert!(matches!(renew(backend, &held).await, Renewal::Renewed));
    assert!(matches!(renew(backend, &ended).await, Renewal::Lost));
    assert!(matches!(look_once(backend, &claim("held", LONG)).await, Ok(None)));
    let after = hold(backend, &claim("ended", LONG)).await;
    assert!(after.fence > before.fence, "{after:?} after {before:?}");
}
