//! Checks of a store of rows when it is swept.
//!
//! Ground rules: for tests only, so what must not fail panics.

use std::time::Duration;

use leasehold_core::{Backend, Patience, Release, Renewal, Step};

use crate::calls::{LONG, claim, clock, hold, in_the_end, look_once, release, renew, resource};

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
    let looked = async || {
        let at = resource("held");
        let seen = in_the_end(async || backend.inspect(&at, None, &Patience::none(clock())).await).await;
        (seen.holders.len(), seen.waiting.len(), seen.fence)
    };
    // A place in the queue is left by a client that does not come back.
    let (left, waiting) = (claim("held", LONG), Patience::unlimited(clock()));
    let is_queued = async {
        while looked().await.1 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let asking = async {
        loop {
            let step = in_the_end(|| backend.contend(&left, &waiting)).await;
            let Step::Busy(hint) = step else { panic!("it is held: {step:?}") };
            tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await;
        }
    };
    let queued = async {
        tokio::select! {
            () = asking => {}
            () = is_queued => {}
        }
    };
    assert!(tokio::time::timeout(LONG, queued).await.is_ok(), "it is never queued");
    tokio::time::sleep(Duration::from_millis(250)).await;

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
