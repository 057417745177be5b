//! The list of all calls that block: one line for each public method of the asynchronous types that waits.
//!
//! Ground rules: `cargo xtask tidy` compares this list with the asynchronous types, and names a method that
//! has no line. What a line means is said at `mirror!`.

use std::borrow::Borrow;
use std::time::Duration;

use leasehold_core::deadlock::Deadlock;
use leasehold_core::{
    BreakOutcome, ClaimInfo, Durability, FenceGrade, Finding, LossCause, Note, QueueOrder, Snapshot,
    SnapshotVersion,
};

use super::mirror::{IntoTwin, mirror, within};
use super::{
    Barrier, Client, Election, Guard, Latch, Leadership, Lock, MultiGuard, MultiLock, Mutex, Observer,
    RateLimit, RwLock, Semaphore, SingleFlight, Stripe, StripedMutex, Versioned,
};
use crate::coord::{BarrierWaitResult, Condition, FlightOutcome, Leader, Loss, VersionedValue, WaitOutcome};
use crate::error::Result;
use crate::lock::TransferToken;

mirror! {
    Client as Client {
        make mutex(name: impl AsRef<str>) -> Mutex;
        make rwlock(name: impl AsRef<str>) -> RwLock;
        make semaphore(name: impl AsRef<str>, permits: u32) -> Semaphore;
        make lock_all(names: impl IntoIterator<Item = impl AsRef<str>>) -> MultiLock;
        make striped_mutex(name: impl AsRef<str>, count: u32) -> StripedMutex;
        make election(name: impl AsRef<str>) -> Election;
        make versioned(name: impl AsRef<str>) -> Versioned;
        make condition(name: impl AsRef<str>) -> Condition;
        make latch(name: impl AsRef<str>, count: u32) -> Latch;
        make barrier(name: impl AsRef<str>, parties: u32) -> Barrier;
        make rate_limit(name: impl AsRef<str>, count: u32, period: Duration) -> RateLimit;
        make single_flight(key: impl AsRef<str>) -> SingleFlight;
        call inspect[name]() -> Snapshot;
        call changed[name](seen: &SnapshotVersion, limit: Duration) -> Snapshot;
        call revoke[name](reason: &str) -> Vec<ClaimInfo>;
        call revoke_claims[name](claims: &Claims, reason: &str) -> Vec<ClaimInfo>;
        call break_claim[name](claim: &ClaimInfo) -> BreakOutcome;
        call deadlocks() -> Vec<Deadlock>;
        plain diagnose(ttl: Duration) -> Vec<Finding>;
        plain close(limit: Duration) -> bool;
    }

    Lock<K> as Lock for K {
        set ttl(ttl: Duration);
        set max_hold(limit: Duration);
        set min_hold(time: Duration);
        set lock_delay(time: Duration);
        set linger(time: Duration);
        set priority(priority: i32);
        set detect_deadlocks(after: Duration);
        set announce_wait(after: Duration);
        set note(note: Note);
        require require_fencing(grade: FenceGrade);
        require require_order(order: QueueOrder);
        require require_durability(durability: Durability);
        require transferable();
        require revocable();
        call inspect() -> Snapshot;
        call changed(seen: &SnapshotVersion, limit: Duration) -> Snapshot;
    }

    Mutex as Mutex {
        call lock() -> Guard;
        call try_lock() -> Option<Guard>;
        call try_lock_for(limit: Duration) -> Option<Guard>;
        change accept_transfer(token: &TransferToken) -> Guard;
    }

    RwLock as RwLock {
        call read() -> Guard;
        call try_read() -> Option<Guard>;
        call try_read_for(limit: Duration) -> Option<Guard>;
        call write() -> Guard;
        call try_write() -> Option<Guard>;
        call try_write_for(limit: Duration) -> Option<Guard>;
        change accept_transfer(token: &TransferToken) -> Guard;
    }

    Semaphore as Semaphore {
        call acquire() -> Guard;
        call try_acquire() -> Option<Guard>;
        call try_acquire_for(limit: Duration) -> Option<Guard>;
        call acquire_many(permits: u32) -> Guard;
        call try_acquire_many(permits: u32) -> Option<Guard>;
        call try_acquire_many_for(permits: u32, limit: Duration) -> Option<Guard>;
        change accept_transfer(token: &TransferToken) -> Guard;
    }

    MultiLock as MultiLock {
        call lock() -> MultiGuard;
        call try_lock() -> Option<MultiGuard>;
        call try_lock_for(limit: Duration) -> Option<MultiGuard>;
    }

    StripedMutex as StripedMutex {
        call lock_any() -> Guard;
        call try_lock_any() -> Option<Guard>;
        call try_lock_any_for(limit: Duration) -> Option<Guard>;
    }

    Stripe as Stripe {
        call lock() -> Guard;
        call try_lock() -> Option<Guard>;
        call try_lock_for(limit: Duration) -> Option<Guard>;
    }

    Guard as Guard {
        call notify_one(condition: &Condition) -> ();
        call notify_all(condition: &Condition) -> ();
        within lost_within = lost() -> LossCause;
        end wait(condition: &Condition) -> Guard;
        end wait_for(condition: &Condition, limit: Duration) -> (Guard, WaitOutcome);
        end transfer() -> TransferToken;
        end release() -> ();
    }

    MultiGuard as MultiGuard {
        within lost_within = lost() -> Loss;
        end release() -> ();
    }

    Leadership as Leadership {
        call proclaim(value: &str) -> ();
        within lost_within = lost() -> LossCause;
        end resign() -> ();
    }

    Election as Election {
        call campaign(value: &str) -> Leadership;
        call try_campaign(value: &str) -> Option<Leadership>;
        call try_campaign_for(value: &str, limit: Duration) -> Option<Leadership>;
        call leader() -> Option<Leader>;
        make observe() -> Observer;
    }

    Latch as Latch {
        change count_down() -> ();
        change count_down_as(member: &str) -> ();
        call remaining() -> u32;
        call wait() -> ();
        change reset() -> ();
    }

    Barrier as Barrier {
        change wait() -> BarrierWaitResult;
        change wait_for(limit: Duration) -> BarrierWaitResult;
        call arrived() -> u32;
        call is_broken() -> bool;
        change reset() -> ();
    }

    RateLimit as RateLimit {
        call acquire() -> ();
        call try_acquire() -> bool;
        call try_acquire_for(limit: Duration) -> bool;
        call acquire_many(weight: u32) -> ();
        call try_acquire_many(weight: u32) -> bool;
        call try_acquire_many_for(weight: u32, limit: Duration) -> bool;
    }

    Versioned as Versioned {
        call read() -> VersionedValue;
        call changed(seen: &VersionedValue, limit: Duration) -> VersionedValue;
    }

    SingleFlight as SingleFlight {
        call get() -> Option<FlightOutcome>;
        change invalidate() -> ();
    }
}

/// Claims, as a name that a line can have.
type Claims = [ClaimInfo];
