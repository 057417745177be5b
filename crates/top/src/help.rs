//! The keys, the columns, and what the view costs this store.

use leasehold_monitor::text::duration;
use leasehold_monitor::{Overview, cost};
use ratatui::style::Style;

use crate::cells::counted;
use crate::frame::Canvas;

/// Draws the help.
pub(crate) fn draw(canvas: &mut Canvas<'_>, overview: &Overview, store: &str) {
    let (heading, key, plain) = (canvas.theme.heading(), canvas.theme.key(), Style::new());
    let half = canvas.width() / 2;
    canvas.put(0, 1, half, "KEYS", heading);
    for (at, (name, action)) in KEYS.iter().enumerate() {
        let (line, column) = (at % ROWS + 1, at / ROWS * half + 1);
        canvas.put(line, column, 12, name, key);
        canvas.put(line, column + 13, half - 14, action, plain);
    }
    let mut line = ROWS + 2;
    canvas.put(line, 1, half, "COLUMNS", heading);
    for text in COLUMNS {
        line += 1;
        canvas.put(line, 1, usize::MAX, text, plain);
    }
    line += 2;
    canvas.put(line, 1, half, "WHAT THIS COSTS THE STORE", heading);
    for text in cost_of(overview, store) {
        line += 1;
        canvas.put(line, 1, usize::MAX, &text, plain);
    }
}

fn cost_of(overview: &Overview, store: &str) -> [String; 4] {
    let spent = &overview.cost;
    let (took, pause) = (spent.listing.as_millis(), duration(spent.pause));
    [
        format!("One refresh; the last took {took} ms, and the next follows {pause} later:"),
        format!("- {}", cost::of_listing(store)),
        format!("- {} at single locks", counted(spent.looks, "look")),
        "A paused view asks only for an open lock.".to_owned(),
    ]
}

/// The lines of keys, in two columns.
const ROWS: usize = 9;

const KEYS: &[(&str, &str)] = &[
    ("Up Down", "the line above, below"),
    ("PgUp PgDn", "a page back, forth"),
    ("Home End", "the first, the last"),
    ("Enter", "show the lock"),
    ("Esc", "go back"),
    ("/", "filter by words"),
    ("s S", "sort by another column"),
    ("v", "reverse the order"),
    ("w", "deadlocks and queues"),
    ("p", "pause, and continue"),
    ("u", "update now"),
    ("r", "revoke: ask the holders"),
    ("b", "break: take it from them"),
    ("? F1", "this help"),
    ("Ctrl-L", "draw the screen anew"),
    ("Ctrl-Z", "stop; fg continues"),
    ("q Ctrl-C", "quit"),
];

const COLUMNS: &[&str] = &[
    "HELD    since its grant         LEFT   until its lease ends unless renewed",
    "QUEUE   claims that wait        WAITED the oldest of them, on a wide screen",
    "!       part of a deadlock      ...    not looked at yet    -  not known",
];
