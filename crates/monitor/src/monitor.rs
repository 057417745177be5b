//! The monitor of one store: one picture for all receivers, and the locks that are followed.
//!
//! Ground rules: a monitor without receivers asks the store for nothing. Any number of receivers costs the
//! store no more than one, and so does any number of followers of one lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use leasehold::{Client, Resource};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::follow::{FollowTask, Followed};
use crate::options::Options;
use crate::overview::Overview;
use crate::refresh::Refresher;
use crate::shared::{Shared, guarded};

/// A picture of a store, refreshed in the background until the monitor is dropped.
#[derive(Debug)]
pub struct Monitor {
    client: Client,
    options: Options,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    followed: Mutex<HashMap<Resource, Weak<FollowTask>>>,
}

impl Monitor {
    /// Starts a monitor. It must be called inside the runtime of the client.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(client: Client, options: Options) -> Monitor {
        let shared = Arc::new(Shared::default());
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
        self.shared.subscribe()
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
        self.shared.set_focus(names);
    }

    /// Requests a refresh before the interval is over, as soon as the [bound](crate::cost) of the cost allows it.
    pub fn refresh(&self) {
        self.shared.request();
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
