//! The primitives that are built on locks: each has a folder here with all that it keeps.
//!
//! - `stores.rs` has what it keeps on every store: there is one list of primitives, one of stores, and
//!   each runs on each. A primitive is a suite of rules, and the parts that a process can play in it. Each
//!   part is played by a process of its own (this program, started again as the test `player`), which is
//!   killed at each of its steps; the others must come through. What a store cannot carry is refused, as
//!   its profile says, before anything is sent: the suites check that too. The fixture is `fixture.rs`.
//! - `laws.rs` has what it keeps in memory: on random schedules in virtual time, with lost and late
//!   requests and answers, with waits that are dropped and clients that fall silent for good; and in the
//!   single cases that need a fault or a moment of the test's choice. The fixture is `world.rs`.
//! - `crashes.rs` has what it keeps if a process dies before or after any of its requests. The fixture is
//!   `mortal.rs`.
//!
//! To add a primitive, write its folder and a line in `PRIMITIVES`. To add a store, write it in
//! `tests/src/stores.rs`, with its server's name below.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod barrier {
    pub(crate) mod crashes;
    mod laws;
    pub(crate) mod stores;
}
mod condition {
    pub(crate) mod crashes;
    mod laws;
    pub(crate) mod stores;
}
mod deadlock {
    mod laws;
    pub(crate) mod stores;
}
mod election {
    mod laws;
    pub(crate) mod stores;
}
mod fixture;
mod flight {
    pub(crate) mod crashes;
    mod laws;
    pub(crate) mod stores;
}
mod history;
mod latch {
    pub(crate) mod crashes;
    mod laws;
    pub(crate) mod stores;
}
mod lock_delay {
    pub(crate) mod stores;
}
mod mortal;
mod multi {
    mod laws;
    pub(crate) mod stores;
}
mod player;
mod rate {
    pub(crate) mod crashes;
    mod laws;
    pub(crate) mod stores;
}
mod revocation {
    mod laws;
    pub(crate) mod stores;
}
mod semaphore {
    pub(crate) mod stores;
}
mod striped {
    mod laws;
    pub(crate) mod stores;
}
mod transfer {
    mod laws;
    pub(crate) mod stores;
}
mod upgrade {
    mod laws;
    pub(crate) mod stores;
}
mod versioned {
    mod laws;
    mod servers;
    pub(crate) mod stores;
}
mod world;

use std::sync::Arc;

use fixture::{Fixture, Primitive};
use leasehold_tests::stores::{self, Store};
use mortal::Role;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const PRIMITIVES: &[Primitive] = &[
    multi::stores::PRIMITIVE,
    striped::stores::PRIMITIVE,
    election::stores::PRIMITIVE,
    versioned::stores::PRIMITIVE,
    latch::stores::PRIMITIVE,
    barrier::stores::PRIMITIVE,
    condition::stores::PRIMITIVE,
    rate::stores::PRIMITIVE,
    flight::stores::PRIMITIVE,
    semaphore::stores::PRIMITIVE,
    upgrade::stores::PRIMITIVE,
    lock_delay::stores::PRIMITIVE,
    transfer::stores::PRIMITIVE,
    revocation::stores::PRIMITIVE,
    deadlock::stores::PRIMITIVE,
];

/// The roles whose processes die at each of their requests, on one kind of server.
const ROLES: &[&Role] = &[
    &barrier::crashes::ALONE,
    &barrier::crashes::PARTY,
    &condition::crashes::NOTIFIER,
    &condition::crashes::WAITER,
    &flight::crashes::LOADER,
    &latch::crashes::COUNTER,
    &rate::crashes::USER,
];

macro_rules! on_each_store {
    ($($store:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $store() {
            if let Some(stores) = stores::$store().await {
                futures_util::future::join_all(stores.all.iter().map(all_primitives)).await;
            }
        }
    )*};
}

on_each_store! {
    memory file sqlite redis redis_sentinel redis_cluster redlock etcd zookeeper memcached postgres mysql
}

/// Plays a part if this program was started for one; otherwise does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn player() {
    player::play_if_asked(PRIMITIVES, ROLES).await;
}

/// Runs all suites and all deaths, and fails with the errors of each.
async fn all_primitives(store: &Store) {
    let fixture = Arc::new(Fixture::over(store).await);
    let mut running = JoinSet::new();
    let mut names = std::collections::HashMap::new();
    for primitive in PRIMITIVES {
        let (here, name) = (fixture.clone(), primitive.name);
        names.insert(running.spawn(async move { (primitive.rules)(&here).await }).id(), name.to_owned());
        for part in primitive.parts.iter().filter(|_| fixture.is_shared()) {
            for step in 0..=part.steps {
                let here = fixture.clone();
                let task = running.spawn(async move {
                    let place = PROCESSES.acquire().await.unwrap();
                    (part.around)(&here, here.victim(primitive, part, step, place)).await;
                });
                names.insert(task.id(), format!("{name}: {} killed at step {step}", part.name));
            }
        }
    }
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        if let Err(error) = ended {
            failed.push(names[&error.id()].clone());
        }
    }
    assert!(failed.is_empty(), "on {}: {failed:#?}", store.url);
    fixture.settled().await;
}

/// So many processes at a time, for all stores. What follows a death is mostly waiting, and takes no place.
static PROCESSES: Semaphore = Semaphore::const_new(8);
