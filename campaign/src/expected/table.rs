//! The table: one function for each kind of fault, so that a cell can be found by its number.

use super::Expected::{self, FencesFall, Holds, NotApplicable, NotRun, Refused, TimingBroken};
use crate::{Fault, Store};

/// Returns what is expected of a store under a fault.
pub fn expected(store: Store, fault: Fault) -> Expected {
    match fault.get() {
        1 | 4 | 20 | 22 | 23 | 27 => Holds,
        2 | 8 | 10 | 11 | 12 | 21 => network(store, fault.get()),
        3 => server_hangs(store),
        5 => server_is_killed(store),
        6 => failover(store),
        7 => old_primary(store),
        9 => servers_parted(store),
        13 => lost_notification(store),
        14 => server_clock(store),
        15 => client_clock(store),
        16 => full(store),
        17 => deleted_by_hand(store),
        18 => ended_session(store),
        19 => pooler(store),
        24 => rolling_restart(store),
        25 => older_state(store),
        26 => minority(store),
        28 => file_system(store),
        29 => nonsense(store),
        _ => revoked_login(store),
    }
}

const NO_NETWORK: &str = "it has no network; F1 pauses and F4 kills its clients";
const NO_SERVER: &str = "it has no server";
const ONE_SERVER: &str = "it is one server";
const FAILOVER: &str = "a failover loses what had not reached the promoted replica";
const MAJORITY: &str =
    "a grant is confirmed by a majority, which no failover loses; F3 and F5 stop and kill its servers";

fn network(store: Store, fault: u8) -> Expected {
    match (store, fault) {
        (Store::File | Store::Sqlite, _) => NotApplicable(NO_NETWORK),
        // All clients are reset at once, which needs no network of their own.
        (Store::Cluster, 11) => Holds,
        // Short, and on the network of the primary, which its replicas share.
        (Store::Sentinel, 10..=12) => Holds,
        (Store::Sentinel | Store::Cluster, _) => NotRun(
            "its servers give each other's addresses to clients, so a proxy would cut servers off as well; F7 and F9 do that",
        ),
        _ => Holds,
    }
}

const PAUSED_ETCD: &str = "etcd below 3.4.42, 3.5.28 and 3.6.9: a server that was paused grants by a lease that has ended; \
     below 3.4.31 and 3.5.13 it also revokes leases that its successor has extended, for seconds after the pause; \
     a newer one can do that if its clock ticks first";

fn server_hangs(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => {
            NotApplicable("it has no server, and syncs once for hundreds of fences")
        }
        Store::Etcd => TimingBroken(PAUSED_ETCD),
        Store::Sentinel | Store::Cluster => TimingBroken(FAILOVER),
        _ => Holds,
    }
}

fn server_is_killed(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Memcached => TimingBroken("a restart forgets every lock"),
        Store::Redis => {
            TimingBroken("a restart without data forgets every lock; the holder sees it at its next renewal")
        }
        Store::Sentinel | Store::Cluster => TimingBroken(FAILOVER),
        Store::Postgres | Store::MariaDb => {
            TimingBroken("a restart without data forgets every lock; the holder sees it at its next renewal")
        }
        // Of several servers one at a time; a connection sees the end of its server.
        _ => Holds,
    }
}

fn failover(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Memcached | Store::Redis => NotApplicable(ONE_SERVER),
        Store::Redlock | Store::Etcd | Store::ZooKeeper => NotApplicable(MAJORITY),
        Store::Sentinel | Store::Cluster => TimingBroken(FAILOVER),
        Store::Postgres | Store::MariaDb => TimingBroken("the promoted standby lacks the last commits"),
        Store::PostgresAdvisory
        | Store::PostgresForUpdate
        | Store::MariaDbGetLock
        | Store::MariaDbForUpdate => {
            TimingBroken("a lock is in the sessions of one server, which the promoted one does not have")
        }
    }
}

fn old_primary(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Memcached | Store::Redis => NotApplicable(ONE_SERVER),
        Store::Redlock | Store::Etcd | Store::ZooKeeper => NotApplicable(MAJORITY),
        Store::Sentinel => FencesFall(
            "clients that are cut off with the deposed primary are granted fences of its old epoch",
        ),
        Store::Cluster => NotRun("the kit has no network between the members of a cluster"),
        Store::Postgres | Store::PostgresAdvisory | Store::PostgresForUpdate => {
            FencesFall("clients of the old primary are granted fences of its old timeline")
        }
        Store::MariaDb | Store::MariaDbGetLock | Store::MariaDbForUpdate => NotApplicable(
            "MariaDB has no order of failovers: its page asks to end the old primary before a replica is promoted",
        ),
    }
}

fn servers_parted(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Etcd => TimingBroken(PAUSED_ETCD),
        Store::ZooKeeper | Store::Redlock => Holds,
        Store::Sentinel => TimingBroken(FAILOVER),
        Store::Cluster => TimingBroken(FAILOVER),
        _ => NotApplicable(ONE_SERVER),
    }
}

fn lost_notification(store: Store) -> Expected {
    match store {
        Store::File => NotApplicable("the kernel wakes its waiters"),
        Store::Sqlite
        | Store::Memcached
        | Store::MariaDb
        | Store::PostgresAdvisory
        | Store::MariaDbGetLock => NotApplicable("its waiters poll"),
        Store::PostgresForUpdate | Store::MariaDbForUpdate => {
            NotApplicable("its waiters wait in a statement, which the server ends")
        }
        _ => Holds,
    }
}

fn server_clock(store: Store) -> Expected {
    match store {
        Store::File => NotApplicable("it has no lease"),
        Store::Sqlite => {
            NotApplicable("its leases are measured by the machine's running clock, which has no steps")
        }
        Store::Redis | Store::Postgres | Store::MariaDb => {
            TimingBroken("leases end by the server's wall clock")
        }
        Store::Memcached => {
            NotRun("the kit cannot start it behind the library; measured by hand: it ignores the step")
        }
        Store::Sentinel | Store::Cluster | Store::Redlock => {
            NotRun("one server of it is the cell of Redis; a majority of clocks is not stepped here")
        }
        Store::Etcd => NotRun("etcd reads the clock without the C library, so no library can move it"),
        Store::ZooKeeper => NotRun("its sessions end by a clock without steps"),
        // A session ends with its connection.
        _ => Holds,
    }
}

fn client_clock(store: Store) -> Expected {
    match store {
        // What holds the lock there is the kernel.
        Store::File => Holds,
        // And there a connection, whose signs of life follow timers and not the clock of leases.
        _ if store.is_session() => Holds,
        _ => TimingBroken(
            "a client whose clock is slow relies on its lease after the store has ended it, until its next renewal; \
             the rates of clocks may differ by the drift, 1 %",
        ),
    }
}

fn full(store: Store) -> Expected {
    match store {
        Store::Memcached => TimingBroken("a full memory evicts locks"),
        Store::ZooKeeper => NotRun("its servers have no limit that can be reached in time"),
        Store::PostgresAdvisory
        | Store::PostgresForUpdate
        | Store::MariaDbGetLock
        | Store::MariaDbForUpdate => NotApplicable("it writes nothing but its fences"),
        _ => Holds,
    }
}

fn deleted_by_hand(store: Store) -> Expected {
    match store {
        Store::File => FencesFall("removing the store's files removes locks and fences"),
        Store::PostgresAdvisory
        | Store::PostgresForUpdate
        | Store::MariaDbGetLock
        | Store::MariaDbForUpdate => NotApplicable("the lock is in a session, which F18 ends"),
        // A minority.
        Store::Redlock => Holds,
        _ => TimingBroken("an operator ended the claim of a holder that sees it at its next renewal"),
    }
}

fn ended_session(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Memcached => NotApplicable("it has no sessions; F11 resets its connections"),
        Store::Etcd => TimingBroken("the revoked lease frees the lock before its holder sees it"),
        Store::ZooKeeper => NotRun("only its client or its silence ends a session; F8 does"),
        Store::PostgresAdvisory
        | Store::PostgresForUpdate
        | Store::MariaDbGetLock
        | Store::MariaDbForUpdate => TimingBroken(
            "the server frees the lock as it ends the session, and its client reads that afterwards",
        ),
        _ => Holds,
    }
}

fn pooler(store: Store) -> Expected {
    match store {
        Store::Postgres | Store::PostgresForUpdate => Holds,
        Store::PostgresAdvisory => Refused("the sessions that hold the locks are shared"),
        _ => NotApplicable("no pooler of this kind exists for it"),
    }
}

fn rolling_restart(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable(NO_SERVER),
        Store::Memcached => NotApplicable("it comes back without data, as in F5"),
        Store::Sentinel | Store::Cluster => TimingBroken(FAILOVER),
        _ => Holds,
    }
}

fn older_state(store: Store) -> Expected {
    match store {
        Store::File => NotRun("F17 removes its files"),
        Store::Memcached => NotApplicable("it has no snapshots"),
        Store::Redis => {
            TimingBroken("the snapshot lacks the newest claims; the counter continues from the clock")
        }
        Store::Postgres | Store::MariaDb => {
            TimingBroken("the backup lacks the newest claims; fences continue from the clock")
        }
        Store::Sqlite => FencesFall(
            "a holder notices the other file at its next renewal, and an older copy counts on from the fences that it knows",
        ),
        Store::Etcd => NotRun(
            "open clients refuse a cluster whose revision went back; fences of new ones fall, as its page says",
        ),
        Store::ZooKeeper => NotRun("fences fall with the snapshot, as its page says"),
        Store::Sentinel | Store::Cluster | Store::Redlock => {
            NotRun("one server of it is the cell of Redis, and its other servers have the newer state")
        }
        _ => NotApplicable("the lock is in a session, which no snapshot has"),
    }
}

fn minority(store: Store) -> Expected {
    match store {
        Store::Redlock => Holds,
        _ => NotApplicable("the fault is one of Redlock; F3, F5 and F9 are those of other stores"),
    }
}

fn file_system(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => Holds,
        _ => NotApplicable("its server decides where its data are"),
    }
}

fn nonsense(store: Store) -> Expected {
    if store.is_session() {
        return TimingBroken(
            "the client closes a connection that answers nonsense, the server frees its locks, and their holder learns of \
             it some milliseconds later",
        );
    }
    Holds
}

fn revoked_login(store: Store) -> Expected {
    match store {
        Store::File | Store::Sqlite => NotApplicable("it has no login"),
        Store::PostgresAdvisory
        | Store::PostgresForUpdate
        | Store::MariaDbGetLock
        | Store::MariaDbForUpdate => TimingBroken(
            "the server frees the lock as it ends the session, and its client reads that afterwards",
        ),
        Store::Redis | Store::Redlock | Store::Postgres | Store::MariaDb | Store::Etcd => Holds,
        _ => NotRun("the campaign starts it without users"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_has_a_reason() {
        for store in Store::ALL {
            for fault in Fault::all() {
                let expected = expected(store, fault);
                assert!(expected.reason().is_none_or(|why| why.len() > 10), "{store} {fault}: {expected:?}");
            }
        }
    }

    #[test]
    fn what_stores_promise_without_exception_holds() {
        for store in Store::ALL {
            for fault in [1, 4, 20, 22, 23, 27] {
                assert_eq!(expected(store, Fault::number(fault)), Holds, "{store} F{fault}");
            }
        }
        for store in Store::ALL {
            let has_leases = store != Store::File && !store.is_session();
            let apart = expected(store, Fault::number(15));
            assert_eq!(matches!(apart, TimingBroken(_)), has_leases, "{store}: {apart:?}");
        }
        assert_eq!(expected(Store::ZooKeeper, Fault::number(3)), Holds);
        assert!(matches!(expected(Store::PostgresAdvisory, Fault::number(19)), Refused(_)));
    }
}
