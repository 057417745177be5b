//! The order and the choice of rows, as values.

use std::cmp::Ordering;
use std::fmt;

use crate::row::LockRow;

/// The property by which rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SortKey {
    /// The name of the lock.
    #[default]
    Name,
    /// The time for which the oldest of the holders has held the lock.
    Held,
    /// The time after which the lease ends unless it is renewed.
    Left,
    /// The number of waiters.
    Queue,
    /// The time for which the oldest of the waiters has waited.
    Waited,
}

impl SortKey {
    /// All of them, in the order of the columns.
    pub const ALL: [SortKey; 5] =
        [SortKey::Name, SortKey::Held, SortKey::Left, SortKey::Queue, SortKey::Waited];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            SortKey::Name => "name",
            SortKey::Held => "held",
            SortKey::Left => "left",
            SortKey::Queue => "queue",
            SortKey::Waited => "waited",
        }
    }

    /// Returns the property of this word.
    pub fn named(word: &str) -> Option<SortKey> {
        SortKey::ALL.into_iter().find(|key| key.as_str() == word)
    }
}

impl fmt::Display for SortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An order of rows.
///
/// Rows of which the property is not known come last in both directions. Rows that are equal in it are in the
/// order of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// The property.
    pub key: SortKey,
    /// `true` if the order is turned round.
    pub reversed: bool,
}

impl Sort {
    /// Creates the order in which the property is most useful: names from A to Z, the shortest time left first,
    /// and otherwise the greatest number first.
    pub fn by(key: SortKey) -> Sort {
        Sort { key, reversed: false }
    }

    fn compare(self, one: &LockRow, other: &LockRow) -> Ordering {
        let turned = |order: Ordering| if self.reversed { order.reverse() } else { order };
        let by_name = || one.name.cmp(&other.name);
        let order = match self.key {
            SortKey::Name => return turned(by_name()),
            // An earlier start is a longer time.
            SortKey::Held => known_first(one.since_unix_ms(), other.since_unix_ms(), turned),
            // The looks are of different times.
            SortKey::Left => known_first(one.ends(), other.ends(), turned),
            SortKey::Queue => turned(other.waiting.cmp(&one.waiting)),
            SortKey::Waited => {
                known_first(one.waiting_since_unix_ms(), other.waiting_since_unix_ms(), turned)
            }
        };
        order.then_with(by_name)
    }
}

fn known_first<T: Ord>(
    one: Option<T>,
    other: Option<T>,
    turned: impl FnOnce(Ordering) -> Ordering,
) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => turned(one.cmp(&other)),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// A choice of rows: those that contain each of some words, in any case, in the name or in a note.
///
/// Notes are searched as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    words: Vec<String>,
}

impl Filter {
    /// Creates the choice of rows that contain each word of this text.
    pub fn new(text: &str) -> Filter {
        Filter { words: text.split_whitespace().map(str::to_lowercase).collect() }
    }

    /// Returns `true` if every row is chosen.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns `true` if the row is chosen.
    pub fn chooses(&self, row: &LockRow) -> bool {
        let contains = |text: &str, word: &str| text.to_lowercase().contains(word);
        self.words.iter().all(|word| {
            let mut claims = row.known_holders().iter().chain(row.known_waiting());
            contains(row.name.as_str(), word) || claims.any(|claim| contains(claim.note.as_str(), word))
        })
    }

    /// Returns the positions of the chosen rows, in the order of `sort`.
    pub fn arrange(&self, rows: &[LockRow], sort: Sort) -> Vec<usize> {
        let mut chosen: Vec<usize> =
            (0..rows.len()).filter(|at| self.is_empty() || self.chooses(&rows[*at])).collect();
        chosen.sort_by(|one, other| sort.compare(&rows[*one], &rows[*other]));
        chosen
    }
}
