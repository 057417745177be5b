//! Checks of locks in rows when the server's disk is full.
//!
//! Ground rules: for tests only, so what must not fail panics.

use leasehold_core::{Backend, Claim, Effect, FailureKind, Grant, Note, Release, Renewal};

use crate::calls::{LONG, claim, hold, look_once, release, renew};

/// Checks that newcomers are refused, sooner or later, and with the reason; a lock that has a page
/// continues in it. `fill` leaves no room. Answers the claim on `held` that still holds, with its grant.
///
/// # Panics
/// If that is not so.
pub async fn full_disk_refuses_new_locks_only(backend: &dyn Backend, fill: impl FnOnce()) -> (Claim, Grant) {
    let (held, known) = (claim("held", LONG), claim("known", LONG));
    let first = hold(backend, &held).await;
    hold(backend, &known).await;
    fill();
    let refused = refused(backend).await;
    let (kind, effect) = (FailureKind::Unavailable, Effect::None);
    assert_eq!((refused.kind, refused.effect), (kind, effect), "{refused}");
    assert!(refused.to_string().contains("make room on the server's disk"), "{refused}");
    assert!(matches!(renew(backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(backend, &known).await, Release::Freed));
    assert!(matches!(look_once(backend, &claim("held", LONG)).await, Ok(None)));
    (held, first)
}

/// Returns the failure, as new rows need new pages sooner or later.
async fn refused(backend: &dyn Backend) -> leasehold_core::Failure {
    let note = Note::clipped(&"x".repeat(1000));
    for n in 0..NEWCOMERS {
        let new = claim(&format!("new/{n}"), LONG).note(note.clone());
        if let Err(failure) = look_once(backend, &new).await {
            return failure;
        }
    }
    panic!("the disk is full, and {NEWCOMERS} new rows have room");
}

/// Rows of a little more than their notes, which need more than any server has in reserve.
const NEWCOMERS: usize = 2_000;
