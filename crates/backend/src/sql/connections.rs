//! Connections to databases: which of several servers one leads to, and how many there are at once.

use std::fmt::Display;
use std::time::Duration;

use leasehold_core::{Failure, FailureKind};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::error::Elapsed;

use crate::url::sql::SqlOptions;

/// Dials one endpoint after the other, each for `limit` at most, until one is connected.
///
/// # Errors
/// The failure of the last one; its cause is the `Elapsed` of tokio if that one did not answer. A failure that is not
/// `Unavailable` ends the search: no other endpoint is dialled.
pub async fn dial_in_turn<'a, E, T, F>(
    endpoints: &'a [E],
    limit: Duration,
    dial: impl Fn(&'a E) -> F,
) -> Result<T, Failure>
where
    E: Display,
    F: Future<Output = Result<T, Failure>>,
{
    let mut last = None;
    for endpoint in endpoints {
        match tokio::time::timeout(limit, dial(endpoint)).await {
            Ok(Ok(dialled)) => return Ok(dialled),
            Ok(Err(failure)) if failure.kind != FailureKind::Unavailable => return Err(failure),
            Ok(Err(failure)) => last = Some(failure),
            Err(elapsed) => {
                let text = format!("{endpoint} did not answer within {limit:?}");
                last = Some(Failure::unavailable(text).because(elapsed));
            }
        }
    }
    Err(last.unwrap_or_else(|| Failure::unavailable("no server is named")))
}

/// Returns `true` if a dial failed because the last endpoint did not answer in time: it may be busy. One that refuses is
/// not.
pub(super) fn is_silent(failure: &Failure) -> bool {
    failure.cause().is_some_and(|cause| cause.is::<Elapsed>())
}

/// Waits for one of the connections to `server`, for as long as for an answer.
///
/// # Errors
/// `Unavailable` if others use all of them for so long.
pub async fn permit<'a>(
    connections: &'a Semaphore,
    options: &SqlOptions,
    server: &str,
) -> Result<SemaphorePermit<'a>, Failure> {
    let SqlOptions { connections: most, timeout, .. } = options;
    match tokio::time::timeout(*timeout, connections.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(Failure::unavailable(format!(
            "all {most} connections to {server} were busy for {timeout:?}: raise connections= of the URL"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::Effect;

    use super::*;

    /// Dials endpoints that are silent, away, not for this user, or fine, by their names.
    async fn dial(endpoint: &&'static str) -> Result<&'static str, Failure> {
        match *endpoint {
            "silent" => std::future::pending().await,
            "away" => Err(Failure::unavailable("nothing listens there")),
            "denied" => Err(Failure::new(FailureKind::Denied, Effect::None, "no such user")),
            fine => Ok(fine),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_are_dialled_until_one_is_connected() {
        let dialled = async |endpoints| dial_in_turn(endpoints, Duration::from_secs(5), dial).await;
        assert_eq!(dialled(&["silent", "away", "fine", "other"][..]).await.unwrap(), "fine");
        for (endpoints, why, silent) in [
            (&["away", "silent"][..], "silent did not answer within 5s", true),
            (&["silent", "away"], "nothing listens there", false),
            (&["away", "denied", "fine"], "no such user", false),
            (&[], "no server is named", false),
        ] {
            let failure = dialled(endpoints).await.unwrap_err();
            assert_eq!((failure.detail(), is_silent(&failure)), (why, silent), "{endpoints:?}");
        }
    }
}
