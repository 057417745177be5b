//! The wait-for graph as text: each circle of waits as a circle, and the longest queues below.

use leasehold::{Deadlock, DeadlockedWait, Resource};
use leasehold_monitor::text::visible;
use leasehold_monitor::{DeadlockReport, LockRow, Overview};
use ratatui::style::Style;

use crate::cells::{claimant, clock, counted, noted};
use crate::frame::{Canvas, Move, Scroll};

/// The view of all deadlocks.
#[derive(Debug)]
pub(crate) struct GraphView {
    scroll: Scroll,
    shown: usize,
}

/// A line of the view, and the lock that it is about.
struct Line {
    text: String,
    is_alarming: bool,
    is_heading: bool,
    lock: Option<Resource>,
}

impl Line {
    fn plain(text: impl Into<String>) -> Line {
        Line { text: text.into(), is_alarming: false, is_heading: false, lock: None }
    }

    fn heading(text: impl Into<String>) -> Line {
        Line { is_heading: true, ..Line::plain(text) }
    }

    fn about(self, lock: &Resource) -> Line {
        Line { lock: Some(lock.clone()), ..self }
    }

    fn alarming(self) -> Line {
        Line { is_alarming: true, ..self }
    }
}

impl Default for GraphView {
    /// Opens the view, with the cursor below the first heading.
    fn default() -> GraphView {
        GraphView { scroll: Scroll { at: 1, first: 0 }, shown: 0 }
    }
}

impl GraphView {
    pub(crate) fn go(&mut self, how: Move, overview: &Overview) {
        let length = lines(overview).len();
        self.scroll.go(how, length, self.shown);
        self.scroll.settle(length, self.shown);
    }

    /// Returns the lock of the line under the cursor.
    pub(crate) fn selected(&self, overview: &Overview) -> Option<Resource> {
        lines(overview).into_iter().nth(self.scroll.at)?.lock
    }

    pub(crate) fn draw(&mut self, canvas: &mut Canvas<'_>, overview: &Overview) {
        let lines = lines(overview);
        self.shown = canvas.height();
        self.scroll.settle(lines.len(), self.shown);
        for (at, line) in lines.iter().enumerate().skip(self.scroll.first).take(self.shown) {
            let place = at - self.scroll.first;
            let style = match line {
                Line { is_alarming: true, .. } => canvas.theme.alarming(),
                Line { is_heading: true, .. } => canvas.theme.heading(),
                _ => Style::new(),
            };
            canvas.put(place, 1, usize::MAX, &line.text, style);
            if at == self.scroll.at {
                canvas.put(place, 0, 1, ">", Style::new());
                canvas.paint_line(place, canvas.theme.selected());
            }
        }
    }
}

fn lines(overview: &Overview) -> Vec<Line> {
    let mut lines = Vec::new();
    match &overview.deadlocks {
        DeadlockReport::Found { at_unix_ms, deadlocks } if deadlocks.is_empty() => {
            lines.push(Line::heading(format!("NO DEADLOCK, AS OF {}", clock(*at_unix_ms))));
            lines
                .push(Line::plain("  Waits of `run`, `elect`, detect_deadlocks and announce_wait are seen."));
        }
        DeadlockReport::Found { at_unix_ms, deadlocks } => {
            for deadlock in deadlocks {
                let count = counted(deadlock.waits.len(), "wait");
                let title = format!("DEADLOCK OF {}, AS OF {}", count.to_uppercase(), clock(*at_unix_ms));
                lines.push(Line::heading(title).alarming());
                draw_circle(&mut lines, deadlock);
            }
        }
        DeadlockReport::Unsupported(why) => {
            lines.push(Line::heading("DEADLOCKS CANNOT BE SEEN ON THIS STORE"));
            lines.push(Line::plain(format!("  {}", visible(why))));
        }
        _ => lines.push(Line::heading("DEADLOCKS ARE NOT KNOWN YET")),
    }
    lines.push(Line::plain(""));
    draw_queues(&mut lines, overview);
    lines
}

/// Draws a circle: each owner, the lock that it waits for, and the next owner, which holds that.
fn draw_circle(lines: &mut Vec<Line>, deadlock: &Deadlock) {
    let waits = in_circle(&deadlock.waits);
    let last = waits.len().saturating_sub(1);
    for (at, wait) in waits.iter().enumerate() {
        let corner = if at == 0 { "+->" } else { "|  " };
        let side = if at == last { "+--" } else { "|  " };
        let holder = waits.iter().position(|other| other.holds.contains(&wait.resource));
        let behind = match holder {
            Some(next) if next == at + 1 => "is held by".to_owned(),
            Some(0) => "is held by the first".to_owned(),
            Some(other) => format!("is held by {}", noted(&waits[other].note, &waits[other].id.tag())),
            None => "is held".to_owned(),
        };
        let holds: Vec<String> = wait.holds.iter().map(|held| visible(held.as_str())).collect();
        let owner = noted(&wait.note, &wait.id.tag());
        let own = wait.holds.first().unwrap_or(&wait.resource);
        lines.push(Line::plain(format!("  {corner} {owner} holds {}", holds.join(", "))).about(own));
        let resource = visible(wait.resource.as_str());
        let text = format!("  {side} and waits for {resource} ({}), which {behind}", wait.share);
        lines.push(Line::plain(text).about(&wait.resource));
    }
    lines.push(Line::plain("  End one of the owners, or press r or b on one of these locks."));
}

/// Returns the waits such that each waits for a lock that the next one holds, as far as that goes.
fn in_circle(waits: &[DeadlockedWait]) -> Vec<&DeadlockedWait> {
    let mut left: Vec<&DeadlockedWait> = waits.iter().collect();
    let mut ordered: Vec<&DeadlockedWait> = Vec::new();
    while !left.is_empty() {
        let next = ordered
            .last()
            .and_then(|before| left.iter().position(|wait| wait.holds.contains(&before.resource)))
            .unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

/// Draws the longest queues, as far as they are known.
fn draw_queues(lines: &mut Vec<Line>, overview: &Overview) {
    let mut queues: Vec<&LockRow> = overview.locks.iter().filter(|row| row.waiting > 0).collect();
    queues.sort_by_key(|row| std::cmp::Reverse(row.waiting));
    lines.push(Line::heading(format!("LOCKS WITH A QUEUE: {}", queues.len())));
    for row in queues.into_iter().take(QUEUES) {
        let holder = row.known_holders().first().map(claimant).unwrap_or_default();
        let text = format!("  {} <- held by {holder}", visible(row.name.as_str()));
        lines.push(Line::plain(text).about(&row.name));
        for (at, waiter) in row.known_waiting().iter().enumerate().take(WAITERS) {
            let text = format!("     {} {} waits ({})", at + 1, claimant(waiter), waiter.share);
            lines.push(Line::plain(text).about(&row.name));
        }
        let shown = row.known_waiting().len().min(WAITERS);
        let more = usize::try_from(row.waiting).unwrap_or(usize::MAX).saturating_sub(shown);
        if more > 0 {
            lines.push(Line::plain(format!("       and {more} more")).about(&row.name));
        }
    }
}

/// The most queues that are shown.
const QUEUES: usize = 20;
/// The most waiters that are shown of each.
const WAITERS: usize = 5;
