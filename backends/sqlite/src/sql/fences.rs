//! The fences that this machine may give out without a write to the disk.
//!
//! A change of a lock is not synced to the disk, so a loss of power can take the last changes back, and with
//! them the fences of the grants. The table `meta` therefore keeps two bounds, which are synced: all fences
//! that were ever granted are at most `high`, and from now on all are at least `low`. After a start of the
//! machine `low` begins above the earlier `high`. So a fence is never given out again, and `high` is moved
//! once in some half an hour instead of at each grant.

use rusqlite::Connection;

/// The bounds of the fences of one database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fences {
    /// The least fence of the next grant.
    low: i64,
    /// The bound of all grants until it is moved.
    high: i64,
    /// The greatest fence that this process has granted.
    latest: i64,
    /// The microseconds by which the clock at which the fences of new names begin is ahead of that of rows.
    wall_ahead: i64,
}

impl Fences {
    /// Returns bounds for rows whose every change is synced: none.
    pub(crate) fn unlimited(wall_ahead: i64) -> Fences {
        Fences { low: 0, high: i64::MAX, latest: 0, wall_ahead }
    }

    /// Reads the bounds.
    pub(crate) fn read(connection: &Connection, table: &str, wall_ahead: i64) -> rusqlite::Result<Fences> {
        let bounds = format!("SELECT low, high FROM {table}_meta");
        connection.query_row(&bounds, [], |row| {
            Ok(Fences { low: row.get(0)?, high: row.get(1)?, latest: row.get(0)?, wall_ahead })
        })
    }

    /// Returns the bounds for a machine that was started again, or whose rows no bound covers yet; `seen` is
    /// the greatest fence in the rows.
    pub(crate) fn after_start(before: Option<Fences>, seen: i64, now: i64, wall_ahead: i64) -> Fences {
        let low = before.map_or(0, |before| before.high).max(seen).saturating_add(1);
        let mut fences = Fences { low, high: low, latest: low, wall_ahead };
        fences.high = fences.first(now).saturating_add(RESERVE);
        fences
    }

    /// Returns the least fence of a grant.
    pub(crate) fn low(self) -> i64 {
        self.low
    }

    /// Returns the first fence of a new name.
    pub(crate) fn first(self, now: i64) -> i64 {
        now.saturating_add(self.wall_ahead).max(self.low)
    }

    /// Returns the bound that no grant passes.
    pub(crate) fn high(self) -> i64 {
        self.high
    }

    /// Records a fence that was granted.
    pub(crate) fn granted(&mut self, seq: i64) {
        self.latest = self.latest.max(seq);
    }

    /// Returns `true` if the upper bound has to be moved before the next grant.
    pub(crate) fn needs_reserve(self, now: i64) -> bool {
        self.next(now).saturating_add(MARGIN) > self.high
    }

    fn next(self, now: i64) -> i64 {
        self.latest.max(self.first(now))
    }

    /// Moves the upper bound where a grant could come near it. `durable` is a connection whose commits are
    /// synced.
    ///
    /// Each process stays [`MARGIN`] below the bound that it knows. A row that another process has changed can
    /// be ahead of this by the grants since then, and never by the millions that the margin has room for.
    pub(crate) fn reserve(&mut self, durable: &Connection, table: &str, now: i64) -> rusqlite::Result<()> {
        if !self.needs_reserve(now) {
            return Ok(());
        }
        let next = self.next(now);
        let moving = format!("UPDATE {table}_meta SET high = max(high, ?1) RETURNING high");
        let mut moving = durable.prepare_cached(&moving)?;
        let mut rows = moving.query([next.saturating_add(RESERVE)])?;
        let high = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.get(0)?;
        // The row comes before the commit, which only the step behind it carries out.
        rows.next()?;
        self.high = high;
        Ok(())
    }
}

/// The distance by which a bound is moved: an hour of the clock at which the fences of new names begin, in microseconds.
const RESERVE: i64 = 3_600_000_000;
/// The distance from the bound that each grant keeps.
const MARGIN: i64 = RESERVE / 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_moved_before_a_grant_comes_near_it() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE x_meta (low, high); INSERT INTO x_meta VALUES (1, 1)")
            .unwrap();
        let stored = || Fences::read(&connection, "x", 0).unwrap().high();
        let mut fences = Fences::after_start(None, 0, 4_000, 1_000);
        assert_eq!((fences.low(), fences.high()), (1, 5_000 + RESERVE));
        fences.reserve(&connection, "x", 4_000 + MARGIN).unwrap();
        assert_eq!(stored(), 1, "half of the reserve is left");
        fences.reserve(&connection, "x", 4_001 + MARGIN).unwrap();
        assert_eq!((stored(), fences.high()), (5_001 + MARGIN + RESERVE, 5_001 + MARGIN + RESERVE));
        // The fences of a row are ahead of the clock.
        fences.granted(fences.high() - MARGIN + 1);
        let before = fences.high();
        fences.reserve(&connection, "x", 0).unwrap();
        assert!(fences.high() > before && stored() == fences.high());
        // Another process has moved it further.
        connection.execute("UPDATE x_meta SET high = ?1", [i64::MAX]).unwrap();
        fences.granted(fences.high());
        fences.reserve(&connection, "x", 0).unwrap();
        assert_eq!(fences.high(), i64::MAX);
    }

    #[test]
    fn fences_after_a_start_are_above_all_before() {
        let before = Fences::after_start(None, 700, 500, 0);
        assert_eq!((before.low(), before.high()), (701, 701 + RESERVE));
        let after = Fences::after_start(Some(before), 900, 0, 0);
        assert_eq!(after.low(), before.high() + 1);
        assert!(after.high() > after.low());
    }
}
