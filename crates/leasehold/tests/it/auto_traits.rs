//! The auto traits of the public types and futures. A change of one breaks users, so each is pinned here.
//!
//! Nothing runs: that this file compiles is the test.

use std::panic::{RefUnwindSafe, UnwindSafe};

use leasehold::{
    Barrier, Client, ClientBuilder, Condition, Election, Error, Guard, Latch, Leadership, MultiGuard,
    MultiLock, Mutex, Observer, Owner, RateLimit, Revocation, RwLock, Semaphore, SingleFlight, StripedMutex,
    TransferToken, Upgradable, Versioned, blocking,
};

fn send_sync<T: Send + Sync + 'static>() {}
fn unpin<T: Unpin>() {}
fn unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
fn send<T: Send>(_: T) {}
fn kept<T: Send + Unpin + 'static>(_: T) {}

#[test]
fn handles_and_guards_are_send_and_sync() {
    send_sync::<(Client, ClientBuilder, Error, Owner, Revocation, TransferToken)>();
    send_sync::<(Mutex, RwLock, Semaphore, MultiLock, StripedMutex)>();
    send_sync::<(Guard, MultiGuard, Upgradable)>();
    send_sync::<(Election, Leadership, Observer)>();
    send_sync::<(Barrier, Condition, Latch, RateLimit, SingleFlight, Versioned)>();
    send_sync::<(blocking::Client, blocking::Mutex, blocking::Guard)>();
}

#[test]
fn handles_and_guards_can_be_moved_out_of_pins() {
    unpin::<(Client, Mutex, RwLock, Semaphore, Guard, MultiGuard, Upgradable, Leadership, Observer, Error)>();
}

#[test]
fn transfer_tokens_pass_a_panic() {
    unwind_safe::<TransferToken>();
}

#[test]
fn futures_can_be_spawned() {
    // Never called: the futures only have to be of the right types.
    #[allow(dead_code)]
    async fn all(client: Client, mutex: Mutex, rwlock: RwLock, guard: Guard) {
        send(Client::open("mem:"));
        send(client.inspect("a"));
        // Names are taken in any form, and nothing is borrowed from them.
        send(client.inspect(String::from("a")));
        kept(client.watch(String::from("a").as_str()));
        send(client.close(std::time::Duration::ZERO));
        send(client.election("a").campaign("b"));
        send(client.lock_all(["a", "b"]).lock());
        send(mutex.lock());
        send(mutex.try_lock());
        send(mutex.try_lock_for(std::time::Duration::ZERO));
        send(rwlock.read());
        send(rwlock.write());
        send(rwlock.upgradable_read());
        send(guard.lost());
        send(guard.run(std::future::ready(())));
        send(guard.release());
    }
}
