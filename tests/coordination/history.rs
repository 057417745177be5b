//! The grants of a few resources, as their holders record them, and the law that they keep: one holder at
//! a time, and fences that rise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::{Client, Fence};

use crate::world::{Chance, on_schedules};

/// Clients over one store, as processes are over one server.
const CLIENTS: usize = 2;
const TASKS: usize = 5;

/// The events, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A task acquired the resource, under this fence.
    Took(usize, Fence),
    /// The task is about to release it.
    Gives(usize),
}

#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Event>>>);

impl History {
    /// Adds an event.
    pub(crate) fn note(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    /// Returns the fence of the last grant of this resource.
    pub(crate) fn newest(&self, resource: usize) -> Option<Fence> {
        let fence = |event: &Event| match *event {
            Event::Took(taken, fence) if taken == resource => Some(fence),
            _ => None,
        };
        self.0.lock().unwrap().iter().rev().find_map(fence)
    }

    /// Asserts that no resource had two holders, and that each grant had a later fence than the one
    /// before it. Returns the number of events.
    pub(crate) fn judge(&self) -> usize {
        let events = self.0.lock().unwrap();
        let mut holders = BTreeSet::new();
        let mut newest = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            match *event {
                Event::Took(resource, fence) => {
                    let is_alone = holders.insert(resource);
                    let rises = newest.insert(resource, fence).is_none_or(|before| before < fence);
                    assert!(is_alone && rises, "event {index}: {:?}", &events[..=index]);
                }
                Event::Gives(resource) => assert!(holders.remove(&resource)),
            }
        }
        assert!(holders.is_empty(), "{holders:?} were never released");
        events.len()
    }
}

/// Runs some tasks of two clients in each schedule, and checks their history. Returns the number of events
/// that were checked.
pub(crate) fn crowds<F>(task: impl Fn(Client, History, Chance) -> F) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let (task, events) = (&task, &AtomicUsize::new(0));
    on_schedules(async |mut world| {
        let clients: [_; CLIENTS] = std::array::from_fn(|_| world.calm_client().locks);
        let history = History::default();
        let mut tasks = Vec::new();
        for number in 0..TASKS {
            let locks = clients[number % CLIENTS].clone();
            tasks.push(tokio::spawn(task(locks, history.clone(), world.chance.fork())));
        }
        for task in tasks {
            task.await.unwrap();
        }
        events.fetch_add(history.judge(), Ordering::SeqCst);
    });
    events.load(Ordering::SeqCst)
}
