//! Waiting until several servers have agreed on something.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Error;

/// One question. In a box, because only so a test may wait for it from any thread.
pub(super) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<Option<T>, Error>> + Send + 'a>>;

/// Asks again and again, for up to a minute, until there is an answer. `log` is shown where there is none.
///
/// A question that a server did not answer in time is repeated: the machine may be slow. Any other error is
/// returned.
pub(super) async fn until<'a, T>(
    what: &str,
    log: impl FnOnce() -> String,
    mut ask: impl FnMut() -> Asking<'a, T>,
) -> Result<T, Error> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let unanswered = match ask().await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => String::new(),
            Err(error) if error.is_unanswered() => format!(": {error}"),
            Err(error) => return Err(error),
        };
        if Instant::now() > deadline {
            let text = format!(
                "there was not {what} within {SETTLE_LIMIT:?}{unanswered}; a log ends with:\n{}",
                log()
            );
            return Err(Error::failed(text));
        }
        sleep(SETTLE_PAUSE).await;
    }
}

/// The time that a change may take, on a machine that is busy with other tests.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unanswered_question_is_repeated_and_other_errors_are_not() {
        for (first, expected) in
            [(Error::unanswered("late"), Ok(2)), (Error::failed("refused"), Err(Error::failed("refused")))]
        {
            let mut asked = 0;
            let ask = || -> Asking<'_, u32> {
                asked += 1;
                let answer = if asked == 1 { Err(first.clone()) } else { Ok(Some(asked)) };
                Box::pin(std::future::ready(answer))
            };
            assert_eq!(until("an answer", String::new, ask).await, expected);
        }
    }
}
