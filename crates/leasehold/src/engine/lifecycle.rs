//! Whether a client is open, and how it is closed: by its user, or because a task that it depends on has ended.
//!
//! Ground rules: nothing is granted by a client that is closed, and what is under way then is ended or waited for. In a
//! fork nothing of the client belongs to the process, so nothing is ended there.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::error::{Error, Result};

impl Engine {
    /// Checks that the client may still send requests.
    ///
    /// # Errors
    /// `Closed` where the client is closed, its runtime has ended, or this process is a fork of the one
    /// that opened it.
    pub(crate) fn check_open(&self, op: &'static str) -> Result<()> {
        // The fork comes first: the token has a mutex, which may be locked there for ever.
        if self.is_forked() || self.closed.is_cancelled() {
            return Err(Error::closed(op));
        }
        Ok(())
    }

    /// Returns `true` if this process is a fork of the one that opened the client. Nothing of the client
    /// then belongs to this process.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Waits until the client is closed.
    pub(crate) async fn closing(&self) {
        self.closed.cancelled().await;
    }

    /// Ends every wait and every hold, and waits up to `limit` for the releases. Returns `false` if some
    /// were not confirmed by then.
    pub(crate) async fn close(self: &Arc<Self>, limit: Duration) -> bool {
        if self.is_forked() {
            // Nothing of it belongs to this process, and what waits for its runtime waits for ever.
            return true;
        }
        self.closed.cancel();
        let unanswered = self.reaper.close();
        self.end_waits();
        self.end_direct_requests();
        self.tracked.close();
        let answered = async {
            self.renewer.lose_all().await;
            // Contenders come first, because each gives up its place itself or leaves that to the reaper.
            self.tracked.wait().await;
            self.reaper.flush(unanswered).await
        };
        tokio::select! {
            biased;
            answered = answered => answered,
            () = self.sleep_on(limit) => false,
        }
    }

    /// Closes the client without a wait for releases, because a task that it depends on has ended: with its runtime, or
    /// by a panic. With its runtime the renewer ends, too, and marks everything that is held as lost. After a panic of the
    /// reaper what is held stays valid and renewed, and what is released then ends with its lease.
    pub(super) fn close_abruptly(self: &Arc<Self>) {
        self.closed.cancel();
        self.end_waits();
        self.end_direct_requests();
    }
}
