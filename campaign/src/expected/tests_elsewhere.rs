//! Cells whose fault another test program makes happen already: it is run, and not written a second time.

use crate::{Fault, Store};

/// A test program of this workspace that is a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its package.
    pub package: &'static str,
    /// Its name; the tests in the sources of the package if there is none.
    pub test: Option<&'static str>,
    /// A part of the names of its tests, or nothing for all of them.
    pub filter: &'static str,
}

impl Existing {
    const fn of(package: &'static str, test: &'static str, filter: &'static str) -> Existing {
        Existing { package, test: Some(test), filter }
    }

    const fn sources(package: &'static str) -> Existing {
        Existing { package, test: None, filter: "" }
    }

    /// Returns `true` if it is a test of the engine over one store, and so says nothing about the others.
    pub fn is_of_engine(&self) -> bool {
        self.package == "leasehold" && self.test.is_some_and(|test| test.starts_with("engine_"))
    }

    /// Returns the command that runs it.
    pub fn command(&self) -> String {
        let test = self.test.map_or("--lib".to_owned(), |test| format!("--test {test}"));
        format!("cargo test -p {} {test} {}", self.package, self.filter).trim_end().to_owned()
    }
}

/// Returns the test program that is this cell, if there is one.
pub fn existing(store: Store, fault: Fault) -> Option<Existing> {
    match fault.get() {
        15 => Some(Existing::of("leasehold", "engine_supervision", "suspend")),
        16 => full_disk(store),
        17 if store == Store::Sqlite => Some(Existing::of("leasehold-sqlite", "faults", "deleted_row")),
        20 => Some(cancelled(store)),
        22 => Some(Existing::of("leasehold", "engine_owner", "")),
        25 if store == Store::Sqlite => Some(Existing::of("leasehold-sqlite", "faults", "replaced_database")),
        27 => Some(Existing::of("leasehold", "engine_fork", "")),
        29 => Some(nonsense(store)),
        _ => None,
    }
}

fn full_disk(store: Store) -> Option<Existing> {
    match store {
        Store::Sqlite => Some(Existing::of("leasehold-sqlite", "faults", "full_disk")),
        Store::Postgres => Some(Existing::of("leasehold-postgres", "faults", "full_disk")),
        Store::MariaDb => Some(Existing::of("leasehold-mysql", "faults", "full_disk")),
        _ => None,
    }
}

fn cancelled(store: Store) -> Existing {
    let every_store = Existing::of("leasehold-tests", "cancelled_waits", "");
    // The laws drop waits at their ends, and ask what is left.
    match store {
        Store::Sentinel => Existing::of("leasehold-redis", "conformance_sentinel", "residue"),
        Store::Cluster => Existing::of("leasehold-redis", "conformance", "residue"),
        Store::Redlock => Existing::of("leasehold-tests", "conformance_redlock", "residue"),
        Store::Etcd => Existing::of("leasehold-etcd", "conformance", "residue"),
        Store::ZooKeeper => Existing::of("leasehold-zookeeper", "conformance", "residue"),
        _ => every_store,
    }
}

fn nonsense(store: Store) -> Existing {
    match store {
        Store::File => Existing::of("leasehold", "file_faults", ""),
        Store::Sqlite => Existing::of("leasehold-sqlite", "faults", "files_that_cannot_be_used"),
        Store::Memcached => Existing::sources("leasehold-memcached"),
        Store::Redis | Store::Sentinel | Store::Cluster | Store::Redlock => {
            Existing::sources("leasehold-redis")
        }
        Store::Etcd => Existing::sources("leasehold-etcd"),
        Store::ZooKeeper => Existing::sources("leasehold-zookeeper"),
        Store::Postgres | Store::PostgresAdvisory | Store::PostgresForUpdate => {
            Existing::sources("leasehold-postgres")
        }
        Store::MariaDb | Store::MariaDbGetLock | Store::MariaDbForUpdate => {
            Existing::sources("leasehold-mysql")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_the_engine_are_no_tests_of_stores() {
        for fault in Fault::all() {
            for store in Store::ALL {
                let is_of_engine = existing(store, fault).is_some_and(|test| test.is_of_engine());
                assert_eq!(is_of_engine, [15, 22, 27].contains(&fault.get()), "{store} {fault}");
            }
        }
    }
}
