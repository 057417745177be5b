//! Waiting until several servers have agreed on something.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Error;

/// One question. In a box, because only so a test may wait for it from any thread.
pub(super) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<Option<T>, Error>> + Send + 'a>>;

/// Asks again and again, for up to a minute, until there is an answer. `log` is shown where there is none.
pub(super) async fn until<'a, T>(
    what: &str,
    log: impl FnOnce() -> String,
    mut ask: impl FnMut() -> Asking<'a, T>,
) -> Result<T, Error> {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            let text = format!("there was not {what} within {SETTLE_LIMIT:?}; a log ends with:\n{}", log());
            return Err(Error::failed(text));
        }
        sleep(SETTLE_PAUSE).await;
    }
}

/// The time that a change may take, on a machine that is busy with other tests.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
