//! The list of all locks: its order, its filter, its cursor, and how it is drawn.

use std::collections::HashSet;
use std::sync::Arc;

use leasehold::Resource;
use leasehold_monitor::text::visible;
use leasehold_monitor::{Filter, LockRow, Overview, Sort, SortKey};
use ratatui::style::Style;

use crate::cells::{claimant, counted, grouped, short, since};
use crate::frame::{Canvas, Move, Scroll};

/// The list, and what it shows.
#[derive(Debug)]
pub(crate) struct List {
    overview: Arc<Overview>,
    /// The positions of the rows that are shown, in their order.
    order: Vec<usize>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    scroll: Scroll,
    /// The number of rows that fit on the screen.
    shown: usize,
    /// The locks that are part of a deadlock.
    deadlocked: HashSet<Resource>,
    /// The number of rows that were looked at.
    looked: usize,
}

/// The widths of the columns on a screen.
struct Columns {
    name: usize,
    waited: bool,
    holder: usize,
}

impl Columns {
    /// Divides the screen: the numbers have fixed widths, and names and holders share the rest.
    fn of(width: usize) -> Columns {
        let waited = width >= WIDE;
        let fixed = MARK + HELD + LEFT + QUEUE + 4 + if waited { HELD + 1 } else { 0 };
        let rest = width.saturating_sub(fixed);
        let name = rest * 9 / 20;
        Columns { name, waited, holder: rest - name }
    }
}

impl Default for List {
    /// Creates an empty list, in which the longest queues come first.
    fn default() -> List {
        List {
            overview: Arc::default(),
            order: Vec::new(),
            sort: Sort::by(SortKey::Queue),
            filter: String::new(),
            scroll: Scroll::default(),
            shown: 0,
            deadlocked: HashSet::new(),
            looked: 0,
        }
    }
}

impl List {
    /// Shows another picture. The cursor stays on its lock, if the lock is still listed.
    pub(crate) fn show(&mut self, overview: Arc<Overview>) {
        let selected = self.selected().map(|row| row.name.clone());
        let waits = overview.deadlocks.found().iter().flat_map(|deadlock| &deadlock.waits);
        self.deadlocked = waits.flat_map(|wait| wait.holds.iter().chain([&wait.resource]).cloned()).collect();
        self.looked = overview.locks.iter().filter(|row| row.detail.is_some()).count();
        self.overview = overview;
        self.arrange();
        let is_selected = |at: &usize| Some(&self.overview.locks[*at].name) == selected.as_ref();
        if let Some(at) = self.order.iter().position(is_selected) {
            self.scroll.at = at;
        }
    }

    pub(crate) fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Returns the row under the cursor.
    pub(crate) fn selected(&self) -> Option<&LockRow> {
        self.order.get(self.scroll.at).map(|at| &self.overview.locks[*at])
    }

    /// Returns the names of the rows on the screen.
    pub(crate) fn on_screen(&self) -> Vec<Resource> {
        let rows = self.order.iter().skip(self.scroll.first).take(self.shown.max(1));
        rows.map(|at| self.overview.locks[*at].name.clone()).collect()
    }

    pub(crate) fn go(&mut self, how: Move) {
        self.scroll.go(how, self.order.len(), self.shown);
        self.scroll.settle(self.order.len(), self.shown);
    }

    /// Sorts by another property, with the cursor on the first row.
    pub(crate) fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.arrange();
        self.go(Move::Home);
    }

    /// Sorts by the next property, or by the one before.
    pub(crate) fn sort_next(&mut self, backwards: bool) {
        let all = SortKey::ALL;
        let at = all.iter().position(|key| *key == self.sort.key).unwrap_or(0);
        let step = if backwards { all.len() - 1 } else { 1 };
        self.sort_by(Sort::by(all[(at + step) % all.len()]));
    }

    /// Shows only rows with these words.
    pub(crate) fn filter_by(&mut self, text: String) {
        self.filter = text;
        self.arrange();
        self.go(Move::Home);
    }

    /// Moves the cursor to this lock, if it is listed.
    pub(crate) fn select(&mut self, name: &Resource) {
        if let Some(at) = self.order.iter().position(|at| self.overview.locks[*at].name == *name) {
            self.scroll.at = at;
            self.scroll.settle(self.order.len(), self.shown);
        }
    }

    fn arrange(&mut self) {
        self.order = Filter::new(&self.filter).arrange(&self.overview.locks, self.sort);
        self.scroll.settle(self.order.len(), self.shown);
    }

    /// Says how the list is ordered and what of it is shown.
    pub(crate) fn description(&self) -> String {
        let direction = if self.sort.reversed { ", reversed" } else { "" };
        let mut text = format!("sorted by {}{direction}", self.sort.key);
        let is_partial = self.sort.key != SortKey::Name && self.sort.key != SortKey::Queue;
        if is_partial && self.looked < self.overview.locks.len() {
            let (looked, all) = (grouped(self.looked), grouped(self.overview.locks.len()));
            text = format!("{text} ({looked}/{all} seen)");
        }
        text
    }

    /// Says which rows are on the screen.
    pub(crate) fn position(&self) -> String {
        let (first, count) = (self.scroll.first, self.order.len());
        let last = (first + self.shown).min(count);
        let of = match self.filter.is_empty() {
            true => String::new(),
            false => format!(" found in {}", grouped(self.overview.locks.len())),
        };
        let range =
            if count == 0 { "0".to_owned() } else { format!("{}-{}", grouped(first + 1), grouped(last)) };
        format!("{range} of {}{of}", grouped(count))
    }

    /// Draws the names of the columns, and the rows below.
    pub(crate) fn draw(&mut self, canvas: &mut Canvas<'_>) {
        self.shown = canvas.height().saturating_sub(1);
        self.scroll.settle(self.order.len(), self.shown);
        let columns = Columns::of(canvas.width());
        self.draw_heading(canvas, &columns);
        if self.order.is_empty() {
            canvas.put(2, MARK, canvas.width(), &self.nothing(), Style::new());
            return;
        }
        let rows = self.order.iter().enumerate().skip(self.scroll.first).take(self.shown);
        for (line, (place, at)) in rows.enumerate() {
            let row = &self.overview.locks[*at];
            self.draw_row(canvas, line + 1, &columns, row);
            if place == self.scroll.at {
                canvas.put(line + 1, 0, 1, ">", Style::new());
                canvas.paint_line(line + 1, canvas.theme.selected());
            }
        }
    }

    /// Says why no row is shown.
    fn nothing(&self) -> String {
        match (self.overview.at_unix_ms, self.overview.locks.len()) {
            (None, _) => "Asking the store ...".to_owned(),
            (Some(_), 0) => "No lock is held or waited for.".to_owned(),
            (Some(_), count) => {
                let filter = visible(&self.filter);
                format!("None of {} matches \"{filter}\". Esc shows all again.", counted(count, "lock"))
            }
        }
    }

    fn draw_heading(&self, canvas: &mut Canvas<'_>, columns: &Columns) {
        let style = canvas.theme.heading();
        let arrow = if self.sort.reversed { "^" } else { "v" };
        let named = |key: SortKey, text: &str| match key == self.sort.key {
            true => format!("{text}{arrow}"),
            false => text.to_owned(),
        };
        let mut column = MARK;
        canvas.put(0, column, columns.name, &named(SortKey::Name, "LOCK"), style);
        column += columns.name + 1;
        canvas.put_right(0, column, HELD, &named(SortKey::Held, "HELD"), style);
        column += HELD + 1;
        canvas.put_right(0, column, LEFT, &named(SortKey::Left, "LEFT"), style);
        column += LEFT + 1;
        canvas.put_right(0, column, QUEUE, &named(SortKey::Queue, "QUEUE"), style);
        column += QUEUE + 1;
        if columns.waited {
            canvas.put_right(0, column, HELD, &named(SortKey::Waited, "WAITED"), style);
            column += HELD + 1;
        }
        canvas.put(0, column, columns.holder, "HOLDER", style);
    }

    fn draw_row(&self, canvas: &mut Canvas<'_>, line: usize, columns: &Columns, row: &LockRow) {
        let theme = canvas.theme;
        let is_deadlocked = self.deadlocked.contains(&row.name);
        let name_style = if is_deadlocked { theme.alarming() } else { Style::new() };
        if is_deadlocked {
            canvas.put(line, 1, 1, "!", theme.alarming());
        }
        let age = |since_unix_ms: Option<u64>| since_unix_ms.map(|at| since(at, canvas.now));
        let or_unknown = |text: Option<String>| match (text, &row.detail) {
            (Some(text), _) => text,
            (None, Some(_)) => "-".to_owned(),
            (None, None) => "...".to_owned(),
        };
        let held = or_unknown(age(row.since_unix_ms()));
        let left = or_unknown(row.remaining_at(canvas.now).map(short));
        let waited = or_unknown(age(row.waiting_since_unix_ms()));
        let mut column = MARK;
        canvas.put(line, column, columns.name, &visible(row.name.as_str()), name_style);
        column += columns.name + 1;
        canvas.put_right(line, column, HELD, &held, Style::new());
        column += HELD + 1;
        canvas.put_right(line, column, LEFT, &left, Style::new());
        column += LEFT + 1;
        let waiting = usize::try_from(row.waiting).unwrap_or(usize::MAX);
        let queue_style = if waiting > 0 { theme.notable() } else { Style::new() };
        canvas.put_right(line, column, QUEUE, &grouped(waiting), queue_style);
        column += QUEUE + 1;
        if columns.waited {
            canvas.put_right(line, column, HELD, &waited, Style::new());
            column += HELD + 1;
        }
        canvas.put(line, column, columns.holder, &holder(row), Style::new());
    }
}

/// Returns the holder of a lock, and the number of others.
fn holder(row: &LockRow) -> String {
    let others = row.holders.saturating_sub(1);
    let more = if others > 0 { format!("(+{others}) ") } else { String::new() };
    match row.known_holders().first() {
        Some(first) => format!("{more}{}", claimant(first)),
        None if row.holders == 0 => "nobody".to_owned(),
        None => counted(usize::try_from(row.holders).unwrap_or(usize::MAX), "holder"),
    }
}

/// The columns of the cursor and of the mark of a deadlock.
const MARK: usize = 2;
const HELD: usize = 7;
const LEFT: usize = 7;
const QUEUE: usize = 6;
/// The width from which on the time of waiters is shown.
const WIDE: usize = 100;
