//! Cells whose fault another test program makes happen already: it is run, and not written a second time.

use crate::{Fault, Store};

/// A test program of this workspace that is a cell: it makes the fault happen on the store of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its package.
    pub package: &'static str,
    /// Its name; the tests in the sources of the package if there is none.
    pub test: Option<&'static str>,
    /// The part of the names of its tests before the last colons, or nothing.
    pub module: &'static str,
    /// The rest of the part of their names.
    pub filter: &'static str,
}

impl Existing {
    const fn of(package: &'static str, test: &'static str, filter: &'static str) -> Existing {
        Existing { package, test: Some(test), module: "", filter }
    }

    const fn sources(package: &'static str, filter: &'static str) -> Existing {
        Existing { package, test: None, module: "", filter }
    }

    /// A law of the seam, on one of the subjects of a store.
    const fn law(
        package: &'static str,
        test: &'static str,
        module: &'static str,
        law: &'static str,
    ) -> Existing {
        Existing { package, test: Some(test), module, filter: law }
    }

    /// Returns the part of the names of its tests.
    pub fn names(&self) -> String {
        format!("{}{}", self.module, self.filter)
    }

    /// Returns the command that runs it.
    pub fn command(&self) -> String {
        let test = self.test.map_or("--lib".to_owned(), |test| format!("--test {test}"));
        format!("cargo test -p {} {test} {}", self.package, self.names()).trim_end().to_owned()
    }
}

/// Returns the test program that is this cell, if there is one.
pub fn existing(store: Store, fault: Fault) -> Option<Existing> {
    match fault.get() {
        16 => full_disk(store),
        22 => Some(released_twice(store)),
        27 => Some(Existing::of("leasehold", "engine_fork", forked(store))),
        29 => nonsense(store),
        _ => None,
    }
}

fn full_disk(store: Store) -> Option<Existing> {
    match store {
        Store::Postgres => Some(Existing::of("leasehold-postgres", "it", "faults::full_disk")),
        Store::MariaDb => Some(Existing::of("leasehold-mysql", "it", "faults::full_disk")),
        _ => None,
    }
}

/// The store is asked a second time to end a claim. That owners count is a test of the engine, `engine_owner`.
fn released_twice(store: Store) -> Existing {
    let law = |package, test, module| {
        Existing::law(package, test, module, "idempotence::second_release_answers_gone")
    };
    match store {
        Store::File => law("leasehold", "conformance_file", "on_disk::"),
        Store::Sqlite => law("leasehold-sqlite", "it", "conformance::fifo::"),
        Store::Memcached => law("leasehold-memcached", "it", "conformance::native::"),
        Store::Redis => law("leasehold-redis", "it", "conformance::pubsub_fifo::"),
        Store::Sentinel => law("leasehold-redis", "it", "conformance_sentinel::alone::"),
        Store::Cluster => law("leasehold-redis", "it", "conformance::cluster::"),
        Store::Redlock => law("leasehold-tests", "it", "conformance_redlock::"),
        Store::Etcd => law("leasehold-etcd", "it", "conformance::three_servers::"),
        Store::ZooKeeper => law("leasehold-zookeeper", "it", "conformance::three_servers::"),
        Store::Postgres => law("leasehold-postgres", "it", "conformance::row::"),
        Store::PostgresAdvisory => law("leasehold-postgres", "it", "conformance::advisory::"),
        Store::PostgresForUpdate => law("leasehold-postgres", "it", "conformance::for_update::"),
        Store::MariaDb => law("leasehold-mysql", "it", "conformance::row::"),
        Store::MariaDbGetLock => law("leasehold-mysql", "it", "conformance::get_lock::"),
        Store::MariaDbForUpdate => law("leasehold-mysql", "it", "conformance::for_update::"),
    }
}

/// Each of these forks a process that holds locks of this store.
fn forked(store: Store) -> &'static str {
    match store {
        Store::File => "a_child_ends_no_sign_of_life_of_its_parent",
        Store::Sqlite => "a_child_ends_no_claim_of_its_parent_in_sqlite",
        Store::Memcached => "a_child_ends_no_claim_of_its_parent_on_memcached",
        Store::Redis => "releases_nothing",
        Store::Sentinel => "a_child_ends_no_claim_of_its_parent_behind_sentinels",
        Store::Cluster => "a_child_ends_no_claim_of_its_parent_in_a_redis_cluster",
        Store::Redlock => "a_child_ends_no_vote_of_its_parent_on_redlock",
        Store::Etcd => "a_child_ends_no_claim_of_its_parent_on_etcd",
        Store::ZooKeeper => "a_child_ends_no_session_of_its_parent_on_zookeeper",
        Store::Postgres | Store::PostgresAdvisory | Store::PostgresForUpdate => {
            "a_child_ends_no_session_of_its_parent_on_postgres"
        }
        Store::MariaDb | Store::MariaDbGetLock | Store::MariaDbForUpdate => {
            "a_child_ends_no_session_of_its_parent_on_mysql"
        }
    }
}

/// A store has a test of its own if no proxy is before its servers alone.
fn nonsense(store: Store) -> Option<Existing> {
    match store {
        Store::File => Some(Existing::sources("leasehold", "local::file::fuzz")),
        Store::Sqlite => Some(Existing::of("leasehold-sqlite", "it", "faults::files_that_cannot_be_used")),
        Store::Sentinel | Store::Cluster => Some(Existing::sources("leasehold-redis", "fuzz")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_of_the_package_of_its_store() {
        for fault in Fault::all() {
            for store in Store::ALL {
                let Some(existing) = existing(store, fault) else { continue };
                let of_all = ["leasehold", "leasehold-tests"].contains(&existing.package);
                let family = match store {
                    _ if store.is_redis() => "redis",
                    _ if store.is_postgres() => "postgres",
                    _ if store.is_mariadb() => "mysql",
                    _ => store.word(),
                };
                assert!(of_all || existing.package == format!("leasehold-{family}"), "{store} {fault}");
                assert!(!existing.filter.is_empty(), "{store} {fault} would be every test of a program");
            }
        }
    }
}
