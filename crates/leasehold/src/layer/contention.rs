//! Statistics of the most contended locks, in bounded memory.
//!
//! Ground rules: pure, no clock. The weight of a lock is the time that was spent waiting for it. If there
//! are more locks than rows, the lightest gives its row and its weight to the newcomer (*space saving*,
//! Metwally et al.): no weight is reported too low, and each row says by how much it may be too high.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::Resource;

/// A row of [`Metrics::contended`](super::Metrics::contended).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contended {
    /// The lock.
    pub resource: Resource,
    /// The number of requests since it has a row.
    pub asked: u64,
    /// The time that all requests together waited for it, at most.
    pub waited: Duration,
    /// The amount by which `waited` may be too high.
    pub error: Duration,
}

/// The rows.
#[derive(Debug)]
pub(super) struct Table {
    rows: HashMap<Resource, Row>,
    most: usize,
    /// The number of locks that are reported by name; never reduced, because collectors of metrics
    /// never forget a name.
    named: usize,
    names: usize,
}

#[derive(Debug)]
struct Row {
    asked: u64,
    waited: Duration,
    error: Duration,
    is_named: bool,
}

impl Table {
    /// Creates a table that reports up to `names` locks by name, and tracks four times as many.
    pub(super) fn new(names: usize) -> Table {
        Table { rows: HashMap::new(), most: names.saturating_mul(4), named: 0, names }
    }

    /// Counts a wait. Returns `true` if the lock is one of those that are reported by name.
    pub(super) fn count(&mut self, resource: &Resource, waited: Duration) -> bool {
        if self.most == 0 {
            return false;
        }
        if !self.rows.contains_key(resource) {
            let inherited = if self.rows.len() < self.most { Duration::ZERO } else { self.evict_lightest() };
            let row = Row { asked: 0, waited: inherited, error: inherited, is_named: false };
            self.rows.insert(resource.clone(), row);
        }
        let Some(row) = self.rows.get_mut(resource) else { return false };
        row.asked += 1;
        row.waited = row.waited.saturating_add(waited);
        if !row.is_named && self.named < self.names && row.waited - row.error >= WORTH_A_NAME {
            row.is_named = true;
            self.named += 1;
        }
        row.is_named
    }

    /// Removes the lightest row that has no name, and returns its weight.
    fn evict_lightest(&mut self) -> Duration {
        let unnamed = self.rows.iter().filter(|(_, row)| !row.is_named);
        let lightest = unnamed.min_by_key(|(_, row)| row.waited).map(|(resource, _)| resource.clone());
        // A quarter of the rows has names, so there always is one.
        lightest.and_then(|resource| self.rows.remove(&resource)).map_or(Duration::ZERO, |row| row.waited)
    }

    /// Returns all rows, the heaviest first.
    pub(super) fn heaviest(&self) -> Vec<Contended> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .map(|(resource, row)| Contended {
                resource: resource.clone(),
                asked: row.asked,
                waited: row.waited,
                error: row.error,
            })
            .collect();
        rows.sort_by(|a, b| b.waited.cmp(&a.waited).then_with(|| a.resource.cmp(&b.resource)));
        rows
    }
}

/// The wait of all requests together from which a lock is reported by name.
const WORTH_A_NAME: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(number: usize) -> Resource {
        Resource::new(&format!("r{number}")).unwrap()
    }

    #[test]
    fn a_heavy_lock_is_found_among_many_and_only_so_many_get_names() {
        let mut table = Table::new(2);
        let mut named = Vec::new();
        for round in 0..1_000 {
            // Each of the light ones comes once.
            table.count(&resource(10 + round), Duration::from_millis(1));
            for heavy in 0..4 {
                if table.count(&resource(heavy), Duration::from_millis(10 - heavy as u64)) {
                    named.push(heavy);
                }
            }
            assert!(table.rows.len() <= 8);
        }
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), 2, "{named:?}");
        let heaviest = table.heaviest();
        let top: Vec<_> = heaviest.iter().take(4).map(|row| row.resource.as_str().to_owned()).collect();
        assert_eq!(top, ["r0", "r1", "r2", "r3"]);
        for (heavy, row) in heaviest.iter().take(4).enumerate() {
            let truth = Duration::from_millis(10 - heavy as u64) * 1_000;
            assert!(row.waited >= truth && row.waited - row.error <= truth, "{row:?}");
        }
    }

    #[test]
    fn without_names_nothing_is_followed() {
        let mut table = Table::new(0);
        assert!(!table.count(&resource(1), Duration::from_secs(9)));
        assert!(table.heaviest().is_empty());
    }
}
