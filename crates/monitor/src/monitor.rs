//! The monitor of one store: one picture for all receivers, and the locks that are followed.
//!
//! Ground rules: a monitor without receivers asks the store for nothing. Any number of receivers costs the
//! store no more than one, and so does any number of followers of one lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold::{Client, Resource};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::follow::{FollowTask, Followed};
use crate::overview::Overview;
use crate::refresh::Refresher;

/// The settings of a monitor.
#[derive(Clone, Debug)]
pub struct Options {
    /// The shortest time from one refresh to the next; see [`cost`](crate::cost) for what makes it longer.
    pub interval: Duration,
    /// The most locks that an overview keeps.
    pub limit: usize,
    /// Only locks whose names begin with this.
    pub prefix: Option<String>,
    /// The number of past holders that is kept of each followed lock.
    pub history: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { interval: Duration::from_secs(2), limit: 10_000, prefix: None, history: 100 }
    }
}

/// A picture of a store, refreshed in the background until the monitor is dropped.
#[derive(Debug)]
pub struct Monitor {
    client: Client,
    options: Options,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    followed: Mutex<HashMap<Resource, Weak<FollowTask>>>,
}

/// The state that the monitor and its task share.
#[derive(Debug)]
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

impl Monitor {
    /// Starts a monitor. It must be called inside the runtime of the client.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(client: Client, options: Options) -> Monitor {
        let shared = Arc::new(Shared {
            sender: watch::Sender::new(Arc::default()),
            focus: Mutex::default(),
            watched: Notify::new(),
            requested: Notify::new(),
            focused: Notify::new(),
        });
        let refresher = Refresher::new(client.clone(), options.clone(), shared.clone());
        let task = tokio::spawn(refresher.run());
        Monitor { client, options, shared, task, followed: Mutex::default() }
    }

    /// Returns the client that asks the store.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the present picture, and a notification of each later one. While any such receiver exists, the
    /// picture is refreshed.
    ///
    /// A refresh has two steps that are published: after the listing, with what is known of the locks from
    /// before, and after the looks at single locks.
    pub fn overview(&self) -> watch::Receiver<Arc<Overview>> {
        let receiver = self.shared.sender.subscribe();
        self.shared.watched.notify_one();
        receiver
    }

    /// Returns a picture that is not older than the pause between two refreshes, or that says why it is older.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn fresh(&self) -> Arc<Overview> {
        let mut receiver = self.overview();
        let present = receiver.borrow_and_update().clone();
        if present.due.is_some_and(|due| Instant::now() < due) {
            return present;
        }
        let is_newer = |seen: &Arc<Overview>| seen.number > present.number || seen.outage != present.outage;
        match receiver.wait_for(is_newer).await {
            Ok(newer) => newer.clone(),
            // The sender lives as long as this.
            Err(_) => present.clone(),
        }
    }

    /// Names the locks that are looked at first in each refresh, such as those on the screen. Those that were not
    /// looked at yet are looked at without waiting for the next refresh.
    pub fn focus(&self, names: Vec<Resource>) {
        *guarded(&self.shared.focus) = names;
        self.shared.focused.notify_one();
    }

    /// Requests a refresh before the interval is over, as soon as the [bound](crate::cost) of the cost allows it.
    pub fn refresh(&self) {
        self.shared.requested.notify_one();
    }

    /// Follows one lock closely: each state that the store shows, and which claims held it.
    ///
    /// All followers of a lock share one request. If the store reports changes, the request waits for them;
    /// otherwise it polls, twice a second at most. It ends once in each interval, because the end of a lease
    /// moves without a change.
    pub fn follow(&self, name: &Resource) -> Followed {
        let mut followed = guarded(&self.followed);
        followed.retain(|_, task| task.strong_count() > 0);
        if let Some(task) = followed.get(name).and_then(Weak::upgrade) {
            return Followed::of(task);
        }
        let task = Arc::new(FollowTask::start(&self.client, name, &self.options));
        followed.insert(name.clone(), Arc::downgrade(&task));
        Followed::of(task)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
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

fn guarded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
