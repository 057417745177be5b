//! Waiting for a condition in a test, with a limit.

use std::time::Duration;

/// Waits until a condition is true.
///
/// # Panics
/// With `what`, after a minute: more than a busy machine takes. A question that is never answered counts, too.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, asking).await.is_ok(), "not within {LIMIT:?}: {what}");
}

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn condition_that_becomes_true_is_awaited() {
        let mut asked = 0;
        until("the third question", async || {
            asked += 1;
            asked == 3
        })
        .await;
        assert_eq!(asked, 3);
    }
}
