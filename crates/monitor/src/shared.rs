//! The state that a monitor and its task share: the picture, the focus, and the reasons to refresh.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::Resource;
use tokio::sync::{Notify, watch};

use crate::overview::Overview;

/// The state that the monitor and its task share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) sender: watch::Sender<Arc<Overview>>,
    /// The locks that are looked at first.
    focus: Mutex<Vec<Resource>>,
    /// Notified if a receiver was made.
    watched: Notify,
    /// Notified if a refresh was requested.
    requested: Notify,
    /// Notified if the focus has changed.
    focused: Notify,
}

impl Shared {
    /// Returns a receiver of the pictures, which is enough for them to be refreshed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Overview>> {
        let receiver = self.sender.subscribe();
        self.watched.notify_one();
        receiver
    }

    pub(crate) fn set_focus(&self, names: Vec<Resource>) {
        *guarded(&self.focus) = names;
        self.focused.notify_one();
    }

    /// Requests a refresh.
    pub(crate) fn request(&self) {
        self.requested.notify_one();
    }

    pub(crate) fn focus(&self) -> Vec<Resource> {
        guarded(&self.focus).clone()
    }

    /// Waits until there is a receiver.
    pub(crate) async fn until_watched(&self) {
        while self.sender.receiver_count() == 0 {
            self.watched.notified().await;
        }
    }

    /// Waits until the focus changes.
    pub(crate) async fn until_focused(&self) {
        self.focused.notified().await;
    }

    /// Waits until a refresh is requested.
    pub(crate) async fn until_requested(&self) {
        self.requested.notified().await;
    }
}

pub(crate) fn guarded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
