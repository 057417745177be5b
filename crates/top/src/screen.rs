//! The whole screen: the title, the state of the store, the view, and the keys.

use leasehold::ErrorKind;
use leasehold_monitor::text::{duration, visible};
use leasehold_monitor::{Outage, Overview};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::app::{App, View};
use crate::cells::{clock, columns, counted, grouped, since, wrap};
use crate::dialog::Sight;
use crate::frame::Canvas;
use crate::help;
use crate::theme::Theme;

/// The smallest screen.
pub(crate) const SMALLEST: (u16, u16) = (80, 24);

/// Draws everything. `now` is the present, in milliseconds of the Unix epoch.
pub(crate) fn draw(app: &mut App, buffer: &mut Buffer, theme: Theme, now: u64) {
    let area = buffer.area;
    if let Some(dialog) = &mut app.dialog {
        dialog.sight = match dialog.sight {
            _ if is_too_small(area) => Sight::Hidden,
            Sight::Hidden => Sight::Drawn,
            sight => sight,
        };
    }
    let now = app.paused_unix_ms.unwrap_or(now);
    let mut canvas = Canvas { buffer, area, theme, now };
    if is_too_small(area) {
        return draw_too_small(&mut canvas);
    }
    let height = canvas.height();
    let mut body = canvas.lines(2, height - 3);
    match app.views.last_mut() {
        None => app.list.draw(&mut body),
        Some(View::Detail(detail)) => detail.draw(&mut body),
        Some(View::Graph(graph)) => graph.draw(&mut body, app.list.overview()),
        Some(View::Help) => help::draw(&mut body, app.list.overview(), app.facts.kind),
    }
    // The view knows now which of its lines fit.
    draw_title(&mut canvas, app);
    draw_status(&mut canvas, app);
    draw_footer(&mut canvas.lines(height - 1, 1), app, now);
    if let Some(dialog) = &app.dialog {
        let needed = dialog.height().min(height - 3);
        let mut below = canvas.lines(height - needed, needed);
        below.clear();
        dialog.draw(&mut below);
    }
}

fn is_too_small(area: Rect) -> bool {
    area.width < SMALLEST.0 || area.height < SMALLEST.1
}

fn draw_too_small(canvas: &mut Canvas<'_>) {
    let (width, height) = (canvas.width(), canvas.height());
    let text = format!(
        "This terminal has {width} columns and {height} lines; leasehold top needs {} and {}: enlarge it, or quit \
         with q and use `leasehold ls`.",
        SMALLEST.0, SMALLEST.1
    );
    for (at, line) in wrap(&text, width.max(1)).iter().enumerate() {
        canvas.put_line(at, line, Style::new());
    }
}

/// Draws the store at the left, and what it has at the right.
fn draw_title(canvas: &mut Canvas<'_>, app: &App) {
    let style = canvas.theme.title();
    let counts = counts(app.list.overview());
    let room = canvas.width().saturating_sub(columns(&counts) + 3);
    let prefix = match app.facts.prefix.as_str() {
        "" => String::new(),
        prefix => format!(" {}*", visible(prefix)),
    };
    let name = if canvas.width() >= SPACIOUS { "leasehold top" } else { "top" };
    canvas.put(0, 1, room, &format!("{name}  {}{prefix}", visible(&app.facts.store)), Style::new());
    let width = canvas.width();
    canvas.put_right(0, room + 1, width - room - 2, &counts, Style::new());
    canvas.paint_line(0, style);
}

fn counts(overview: &Overview) -> String {
    let queues = overview.locks.iter().filter(|row| row.waiting > 0).count();
    let locks = match overview.truncated {
        true => format!("first {}", counted(overview.locks.len(), "lock")),
        false => counted(overview.locks.len(), "lock"),
    };
    let deadlocks = match overview.deadlocks.found().len() {
        0 => String::new(),
        count => format!(", {}", counted(count, "deadlock").to_uppercase()),
    };
    format!("{locks}, {} with a queue{deadlocks}", grouped(queues))
}

/// Draws how old the picture is, and how it is ordered; or why it is not newer.
fn draw_status(canvas: &mut Canvas<'_>, app: &App) {
    let (theme, overview) = (canvas.theme, app.list.overview());
    let (outage, seen_unix_ms) = match app.views.last() {
        Some(View::Detail(detail)) => {
            (detail.lock().and_then(|lock| lock.outage.as_ref()), detail.at_unix_ms())
        }
        _ => (overview.outage.as_ref(), overview.at_unix_ms),
    };
    if let Some(outage) = outage {
        let text = outage_text(outage, canvas.now, seen_unix_ms);
        canvas.put_line(1, &text, theme.alarming());
        return;
    }
    let mut column = 1;
    if app.paused_unix_ms.is_some() {
        column = canvas.put(1, column, usize::MAX, "PAUSED", theme.alarming()) + 2;
    }
    if app.facts.read_only {
        column = canvas.put(1, column, usize::MAX, "READ-ONLY", theme.heading()) + 2;
    }
    let age = overview.at_unix_ms.map(|at| format!("as of {}", clock(at))).unwrap_or_default();
    let pause = overview.cost.pause;
    let every = if pause.is_zero() { String::new() } else { format!(", every {}", duration(pause)) };
    let description =
        if app.views.is_empty() { format!("  {}", app.list.description()) } else { String::new() };
    let filter = match app.list.filter.as_str() {
        "" => String::new(),
        words => format!("  filter \"{}\"", visible(words)),
    };
    let (width, mut room) = (canvas.width(), canvas.width());
    if app.views.is_empty() {
        let position = app.list.position();
        room = width.saturating_sub(columns(&position) + 2);
        canvas.put(1, room + 1, usize::MAX, &position, theme.quiet());
    }
    let text = format!("{age}{every}{filter}{description}");
    canvas.put(1, column, room.saturating_sub(column), &text, Style::new());
}

fn outage_text(outage: &Outage, now: u64, seen_unix_ms: Option<u64>) -> String {
    let seen = seen_unix_ms.map(|at| format!(", last seen {}", clock(at))).unwrap_or_default();
    let age = since(outage.since_unix_ms, now);
    let is_silent = matches!(outage.kind, None | Some(ErrorKind::Unavailable | ErrorKind::OutcomeUnknown));
    let what = if is_silent { "NO ANSWER" } else { "FAILS" };
    format!(" {what} for {age}{seen}: {}", visible(&outage.text))
}

/// Draws what was typed, a message, or the keys.
fn draw_footer(canvas: &mut Canvas<'_>, app: &App, now: u64) {
    let theme = canvas.theme;
    if app.is_typing {
        let column = canvas.put(0, 1, usize::MAX, "Filter: ", theme.heading());
        let column = canvas.put(0, column, usize::MAX, &visible(&app.list.filter), Style::new());
        canvas.put(0, column, 1, "_", Style::new());
        return canvas.put_right(0, 40, canvas.width() - 41, "Enter keeps it, Esc clears it", theme.quiet());
    }
    let is_new =
        |at_unix_ms: u64| now.saturating_sub(at_unix_ms) < MESSAGE_MS || app.paused_unix_ms.is_some();
    if let Some(message) = app.message.as_ref().filter(|message| is_new(message.at_unix_ms)) {
        let style = if message.is_bad { theme.alarming() } else { theme.good() };
        return canvas.put_line(0, &format!(" {}", message.text), style);
    }
    let keys: &[(&str, &str)] = match app.views.last() {
        None => LIST_KEYS,
        Some(View::Detail(_)) => DETAIL_KEYS,
        Some(View::Graph(_)) => GRAPH_KEYS,
        Some(View::Help) => HELP_KEYS,
    };
    canvas.put_keys(0, keys);
}

const LIST_KEYS: &[(&str, &str)] = &[
    ("?", "help"),
    ("Enter", "show"),
    ("/", "filter"),
    ("s", "sort"),
    ("r", "revoke"),
    ("b", "break"),
    ("w", "waits"),
    ("q", "quit"),
    ("p", "pause"),
];
const DETAIL_KEYS: &[(&str, &str)] = &[
    ("Esc", "back"),
    ("r", "revoke"),
    ("b", "break the claim"),
    ("p", "pause"),
    ("?", "help"),
    ("q", "quit"),
];
const GRAPH_KEYS: &[(&str, &str)] = &[
    ("Esc", "back"),
    ("Enter", "show the lock"),
    ("r", "revoke"),
    ("b", "break"),
    ("?", "help"),
    ("q", "quit"),
];
const HELP_KEYS: &[(&str, &str)] = &[("Esc", "back"), ("q", "quit")];
/// The time for which a message stays.
const MESSAGE_MS: u64 = 10_000;
/// The width from which on the title is written out.
const SPACIOUS: usize = 100;
