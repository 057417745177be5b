//! The time after which a wait looks again without being woken.

use std::time::Duration;

use crate::client::Shared;
use crate::protocol::version::Watches;

/// The time for which a watch is trusted on a server that may keep silent about a delete.
///
/// It does so when the watch is opened, if at all: so the first look comes early, and further ones, for
/// streams that were opened anew, more and more rarely.
pub(crate) struct WatchTimeout {
    watches: Watches,
    trusted: Duration,
}

impl WatchTimeout {
    pub(crate) fn of(shared: &Shared) -> WatchTimeout {
        WatchTimeout { watches: shared.watches, trusted: TRUSTED }
    }

    /// Waits until it is time to look again.
    pub(crate) async fn expires(&mut self) {
        match self.watches {
            Watches::Complete => std::future::pending().await,
            Watches::MayMiss => tokio::time::sleep(self.trusted).await,
        }
        self.trusted = (self.trusted * TRUSTED_MORE).min(TRUSTED_MOST);
    }
}

const TRUSTED: Duration = Duration::from_secs(3);
const TRUSTED_MORE: u32 = 8;
const TRUSTED_MOST: Duration = Duration::from_secs(300);
