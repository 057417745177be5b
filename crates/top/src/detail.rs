//! One lock: its holders, its queue, and who held it before.

use std::sync::Arc;

use leasehold::{ClaimInfo, Resource, Snapshot};
use leasehold_monitor::text::{timestamp, visible};
use leasehold_monitor::{FollowedLock, Holding, LockDetail};
use ratatui::style::Style;

use crate::cells::{claimant, clock, counted, noted, short, since, wrap};
use crate::frame::{Canvas, Move, Scroll};

/// The view of one lock.
#[derive(Debug)]
pub(crate) struct Detail {
    pub(crate) name: Resource,
    lock: Option<Arc<FollowedLock>>,
    /// Its state as the list had seen it.
    known: Option<LockDetail>,
    scroll: Scroll,
    shown: usize,
}

/// A line of the list.
enum Line<'a> {
    Heading(String),
    Holder(&'a ClaimInfo),
    Waiter(usize, &'a ClaimInfo),
    Past(&'a Holding),
    Text(&'static str),
}

impl Detail {
    /// Opens the view, with what is known of the lock already.
    pub(crate) fn of(name: Resource, known: Option<LockDetail>) -> Detail {
        Detail { name, lock: None, known, scroll: Scroll { at: 1, first: 0 }, shown: 0 }
    }

    /// Shows what was seen of the lock. What was seen of another one is ignored. The cursor stays on its claim.
    pub(crate) fn show(&mut self, lock: Arc<FollowedLock>) {
        if lock.name != self.name {
            return;
        }
        let selected = self.selected().map(|info| info.id);
        self.lock = Some(lock);
        let is_selected = |line: &Line<'_>| line.claim().is_some_and(|info| Some(info.id) == selected);
        if let Some(at) = self.lines().iter().position(is_selected) {
            self.scroll.at = at;
        }
    }

    pub(crate) fn lock(&self) -> Option<&FollowedLock> {
        self.lock.as_deref()
    }

    /// Returns the claim under the cursor, if it holds or waits.
    pub(crate) fn selected(&self) -> Option<ClaimInfo> {
        self.lines().get(self.scroll.at)?.claim().cloned()
    }

    pub(crate) fn go(&mut self, how: Move) {
        let length = self.lines().len();
        self.scroll.go(how, length, self.shown);
        self.scroll.settle(length, self.shown);
    }

    fn lines(&self) -> Vec<Line<'_>> {
        let Some((snapshot, _)) = self.seen() else { return Vec::new() };
        let mut lines = vec![Line::Heading(counted(snapshot.holders.len(), "holder").to_uppercase())];
        lines.extend(snapshot.holders.iter().map(Line::Holder));
        if snapshot.holders.is_empty() {
            lines.push(Line::Text("The lock is free."));
        }
        lines.push(Line::Heading(format!("QUEUE OF {}", snapshot.waiting.len())));
        lines.extend(snapshot.waiting.iter().enumerate().map(|(at, info)| Line::Waiter(at + 1, info)));
        if snapshot.waiting.is_empty() {
            lines.push(Line::Text("No claim waits."));
        }
        lines.push(Line::Heading("HELD BEFORE, SINCE THIS VIEW WAS OPENED".to_owned()));
        let before = lines.len();
        let past = self.lock.iter().flat_map(|lock| lock.history.holdings().rev());
        lines.extend(past.filter(|past| past.ending.is_some()).map(Line::Past));
        if lines.len() == before {
            lines.push(Line::Text("No hold has ended meanwhile."));
        }
        lines
    }

    pub(crate) fn draw(&mut self, canvas: &mut Canvas<'_>) {
        let note = canvas.height().saturating_sub(NOTE);
        self.draw_state(&mut canvas.lines(0, STATE));
        self.shown = note.saturating_sub(STATE);
        let length = self.lines().len();
        self.scroll.settle(length, self.shown);
        let (scroll, shown) = (self.scroll, self.shown);
        let lines = self.lines();
        let mut list = canvas.lines(STATE, shown);
        for (at, line) in lines.iter().enumerate().skip(scroll.first).take(shown) {
            let place = at - scroll.first;
            line.draw(&mut list, place);
            if at == scroll.at {
                list.put(place, 0, 1, ">", Style::new());
                let selected = list.theme.selected();
                list.paint_line(place, selected);
            }
        }
        let mut below = canvas.lines(note, NOTE);
        for (at, text) in
            lines.get(scroll.at).map(|line| line.whole(&below)).unwrap_or_default().iter().enumerate()
        {
            let quiet = below.theme.quiet();
            below.put_line(at + 1, text, quiet);
        }
    }

    /// Draws the name and the state of the lock.
    fn draw_state(&self, canvas: &mut Canvas<'_>) {
        let heading = canvas.theme.heading();
        let end = canvas.put(0, 1, usize::MAX, &visible(self.name.as_str()), heading);
        let Some((snapshot, at)) = self.seen() else {
            canvas.put(1, 1, usize::MAX, "Asking the store ...", Style::new());
            return;
        };
        let state = match snapshot.holders.len() {
            0 => "free".to_owned(),
            1 => "held".to_owned(),
            count => format!("held by {count}"),
        };
        canvas.put(0, end, usize::MAX, &format!(": {state}"), Style::new());
        let fence = snapshot.fence.map(|fence| format!("last fence {fence}, ")).unwrap_or_default();
        canvas.put(1, 1, usize::MAX, &format!("{fence}as of {}", clock(at)), Style::new());
    }

    /// Returns `true` if the lock was looked at.
    pub(crate) fn is_known(&self) -> bool {
        self.seen().is_some()
    }

    /// Returns the time of the last look.
    pub(crate) fn at_unix_ms(&self) -> Option<u64> {
        self.seen().map(|(_, at)| at)
    }

    /// Returns what was seen of the lock last, and when.
    fn seen(&self) -> Option<(&Snapshot, u64)> {
        let followed = || {
            let lock = self.lock.as_deref()?;
            Some((lock.snapshot.as_deref()?, lock.at_unix_ms?))
        };
        followed().or_else(|| self.known.as_ref().map(|known| (&*known.snapshot, known.at_unix_ms)))
    }
}

impl Line<'_> {
    /// Returns the claim, if it holds or waits.
    fn claim(&self) -> Option<&ClaimInfo> {
        match self {
            Line::Holder(info) | Line::Waiter(_, info) => Some(info),
            Line::Heading(_) | Line::Past(_) | Line::Text(_) => None,
        }
    }

    fn draw(&self, canvas: &mut Canvas<'_>, line: usize) {
        let (plain, heading, quiet) = (Style::new(), canvas.theme.heading(), canvas.theme.quiet());
        match self {
            Line::Heading(text) => _ = canvas.put(line, 1, usize::MAX, text, heading),
            Line::Text(text) => _ = canvas.put(line, 3, usize::MAX, text, quiet),
            Line::Holder(info) => {
                let fence = info.fence.map(|fence| format!("fence {fence}")).unwrap_or_default();
                let left = info.remaining.map(|left| format!("{} left", short(left))).unwrap_or_default();
                draw_claim(canvas, line, "holds", info, &[(&left, LEFT), (&fence, FENCE)]);
            }
            Line::Waiter(place, info) => draw_claim(canvas, line, &place.to_string(), info, &[]),
            Line::Past(past) => {
                let gone = past.ending.map_or(0, |ending| ending.gone_unix_ms);
                let column = canvas.put(line, 3, usize::MAX, &format!("until {}", clock(gone)), plain);
                let length = since(past.since_unix_ms.unwrap_or(past.seen_unix_ms), gone);
                let column = canvas.put(line, column + 1, usize::MAX, &format!("for {length}"), plain);
                let fence = past.fence.map(|fence| format!("fence {fence}")).unwrap_or_default();
                let column = canvas.put(line, column + 2, FENCE, &fence, plain);
                canvas.put(line, column + 2, usize::MAX, &noted(past.note.as_str(), &past.tag), plain);
            }
        }
    }

    /// Returns all that is known of the claim, in a few lines.
    fn whole(&self, canvas: &Canvas<'_>) -> Vec<String> {
        let (since_unix_ms, tag, note) = match self {
            Line::Holder(info) | Line::Waiter(_, info) => {
                (info.since_unix_ms, info.id.tag(), visible(info.note.as_str()))
            }
            Line::Past(past) => (past.since_unix_ms, past.tag.clone(), visible(past.note.as_str())),
            Line::Heading(_) | Line::Text(_) => return Vec::new(),
        };
        let since = since_unix_ms.map(|at| format!("since {}, ", timestamp(at))).unwrap_or_default();
        let mut lines = vec![format!(" {since}tag {tag}")];
        let width = canvas.width().saturating_sub(2);
        lines.extend(wrap(&note, width.max(1)).into_iter().map(|line| format!(" {line}")));
        lines
    }
}

/// Draws a claim: its role, how long it has had it, its share, some more, and its note.
fn draw_claim(canvas: &mut Canvas<'_>, line: usize, role: &str, info: &ClaimInfo, more: &[(&str, usize)]) {
    let plain = Style::new();
    canvas.put_right(line, 1, ROLE, role, plain);
    let length = info.since_unix_ms.map(|at| since(at, canvas.now)).unwrap_or_default();
    canvas.put_right(line, ROLE + 2, AGE, &length, plain);
    canvas.put(line, ROLE + AGE + 3, SHARE, &info.share.to_string(), plain);
    let mut column = ROLE + AGE + SHARE + 4;
    for (text, width) in more.iter().filter(|(text, _)| !text.is_empty()) {
        canvas.put(line, column, *width, text, plain);
        column += width + 1;
    }
    canvas.put(line, column, usize::MAX, &claimant(info), plain);
}

/// The lines of the name and the state, with a free one.
const STATE: usize = 3;
/// The lines below, which show the whole note.
const NOTE: usize = 5;
const ROLE: usize = 5;
const AGE: usize = 7;
const SHARE: usize = 6;
const LEFT: usize = 12;
const FENCE: usize = 27;
