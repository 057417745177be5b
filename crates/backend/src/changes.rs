//! Waits for a change of what a store shows: one loop for all observers, of locks and of registers.

use std::time::Duration;

use leasehold_core::{Failure, Patience};

/// Reads the state until it has changed or patience ends; reads once if patience has already ended. Returns what the
/// last look has read.
///
/// Each look returns what was read, and a future that ends as soon as there may be something else; that is
/// dropped when patience ends. No change between the two may be missed: the look subscribes before it asks
/// the store, or the future begins at the revision that was read, or it ends at once after it has subscribed.
/// If a message may be lost, the future ends after the longest pause that its store allows.
///
/// # Errors
/// The first failure of a look or of a wait.
pub async fn until_changed<S, L, C>(
    patience: &Patience,
    is_news: impl Fn(&S) -> bool,
    mut look: impl FnMut() -> L,
) -> Result<S, Failure>
where
    L: Future<Output = Result<(S, C), Failure>>,
    C: Future<Output = Result<(), Failure>>,
{
    loop {
        // Found out before the look, so that the last one shows the state at the end of patience.
        let is_last = patience.is_ended();
        let (state, change) = look().await?;
        if is_last || is_news(&state) {
            return Ok(state);
        }
        tokio::select! {
            biased;
            () = patience_ended(patience) => {}
            changed = change => changed?,
        }
    }
}

/// Waits for an event, for so long at most: an observer looks again in either case, and no wait fails.
///
/// # Errors
/// None; it is of the type that [`until_changed`] waits for.
///
/// # Cancel safety
/// As that of the event.
pub async fn within(pause: Duration, event: impl Future) -> Result<(), Failure> {
    let _ = tokio::time::timeout(pause, event).await;
    Ok(())
}

/// Waits until patience has ended, by cancellation or by its deadline.
///
/// # Cancel safety
/// Dropping the future loses nothing.
pub async fn patience_ended(patience: &Patience) {
    let left = patience.left();
    if left == Duration::MAX {
        return patience.ended().await;
    }
    tokio::select! {
        () = patience.ended() => {}
        () = tokio::time::sleep(left) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};
    use std::sync::Arc;

    use leasehold_core::{ManualClock, Moment};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Observes a number that grows with each look, until it is `news`. Returns it.
    async fn observe<C>(patience: &Patience, news: u32, change: impl Fn() -> C) -> Result<u32, Failure>
    where
        C: Future<Output = Result<(), Failure>>,
    {
        let looks = Cell::new(0);
        let look = || async {
            looks.set(looks.get() + 1);
            Ok((looks.get(), change()))
        };
        until_changed(patience, |number| *number == news, look).await
    }

    #[tokio::test]
    async fn look_is_repeated_after_each_change_until_it_shows_news() {
        let patience = Patience::unlimited(Arc::new(ManualClock::new()));
        assert_eq!(observe(&patience, 3, || ready(Ok(()))).await.unwrap(), 3);
        let refused = || ready(Err(Failure::unavailable("no more watches")));
        assert_eq!(observe(&patience, 1, refused).await.unwrap(), 1, "what is news needs no watch");
        assert!(observe(&patience, 2, refused).await.is_err());
        let patience = Patience::none(Arc::new(ManualClock::new()));
        assert_eq!(observe(&patience, 9, refused).await.unwrap(), 1, "without patience it looks once");
    }

    #[tokio::test(start_paused = true)]
    async fn last_look_is_at_the_end_of_patience() {
        let clock = Arc::new(ManualClock::new());
        let patience = Patience::until(clock.clone(), Moment::START.after(SECOND));
        let end = async {
            tokio::time::sleep(SECOND / 2).await;
            clock.advance(SECOND);
        };
        let looks = tokio::join!(observe(&patience, 9, pending), end).0;
        assert_eq!(looks.unwrap(), 2, "nothing has changed, and no one has called `end`");
    }

    #[tokio::test(start_paused = true)]
    async fn observer_that_may_miss_a_message_looks_after_its_pause() {
        let patience = Patience::unlimited(Arc::new(ManualClock::new()));
        let begun = tokio::time::Instant::now();
        assert_eq!(observe(&patience, 4, || within(SECOND, pending::<()>())).await.unwrap(), 4);
        assert_eq!(begun.elapsed(), 3 * SECOND);
    }
}
