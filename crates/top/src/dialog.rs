//! The question before a lock is revoked or broken. It names what will happen.

use leasehold::{ClaimInfo, Resource};
use leasehold_monitor::actions::CONSEQUENCES_OF_REVOKE;
use leasehold_monitor::text::visible;
use ratatui::style::Style;

use crate::cells::{claimant, counted, since};
use crate::frame::Canvas;

/// An action on a lock, if the person agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Its holders are asked to release it.
    Revoke,
    /// Its claims are ended by force.
    Break,
}

/// A question.
#[derive(Clone, Debug)]
pub(crate) struct Dialog {
    pub(crate) action: Action,
    pub(crate) name: Resource,
    /// The claims that are asked or ended.
    pub(crate) claims: Vec<ClaimInfo>,
    /// `true` if these are not holders, but wait.
    pub(crate) waits: bool,
    /// The reason of a revocation, as it is typed.
    pub(crate) reason: String,
    /// The consequences of a break on this store.
    pub(crate) consequences: &'static str,
    pub(crate) sight: Sight,
}

/// The way of a question to the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Hidden,
    /// It is part of a frame, which may not be on the screen yet.
    Drawn,
    /// It is on the screen, so a key answers it.
    Shown,
}

impl Dialog {
    /// Draws the question over what is below it.
    pub(crate) fn draw(&self, canvas: &mut Canvas<'_>) {
        let title = canvas.theme.alarming();
        let width = canvas.width();
        canvas.put_line(0, &"-".repeat(width), canvas.theme.quiet());
        let name = visible(self.name.as_str());
        let count = self.claims.len();
        let question = match self.action {
            Action::Revoke => format!("Ask {} of {name} to release it?", self.parties(count)),
            Action::Break if self.waits => {
                format!("Take {} out of the queue of {name}?", self.parties(count))
            }
            Action::Break => format!("Break {name}: end {} by force?", self.parties(count)),
        };
        canvas.put(1, 1, usize::MAX, &question, title);
        let room = canvas.height().saturating_sub(self.height() - count).max(1);
        let shown = if count > room { room.saturating_sub(1) } else { count };
        let mut line = 2;
        for info in &self.claims[..shown] {
            let age = info.since_unix_ms.map(|at| format!("{} ", since(at, canvas.now))).unwrap_or_default();
            let fence = info.fence.map(|fence| format!("fence {fence} ")).unwrap_or_default();
            let role = if self.waits { "waits" } else { "holds" };
            let text = format!("  {role} {age}{fence}{}", claimant(info));
            canvas.put(line, 1, usize::MAX, &text, Style::new());
            line += 1;
        }
        if shown < count {
            canvas.put(line, 1, usize::MAX, &format!("  and {} more", count - shown), Style::new());
            line += 1;
        }
        for text in self.consequences().lines() {
            canvas.put(line, 1, usize::MAX, text, Style::new());
            line += 1;
        }
        if self.action == Action::Revoke {
            let end = canvas.put(line, 1, usize::MAX, "Reason: ", canvas.theme.heading());
            let end = canvas.put(line, end, usize::MAX, &visible(&self.reason), Style::new());
            canvas.put(line, end, 1, "_", Style::new());
            line += 1;
        }
        canvas.put_keys(line, self.keys());
    }

    fn parties(&self, count: usize) -> String {
        match self.action {
            Action::Revoke => format!("the {}", counted(count, "holder")),
            Action::Break => counted(count, "claim"),
        }
    }

    fn consequences(&self) -> &'static str {
        match self.action {
            Action::Revoke => CONSEQUENCES_OF_REVOKE,
            Action::Break if self.waits => CONSEQUENCES_FOR_A_WAITER,
            Action::Break => self.consequences,
        }
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        match self.action {
            Action::Revoke => &[("Enter", "ask them"), ("Esc", "cancel")],
            Action::Break => &[("y", "break it"), ("n Esc", "cancel")],
        }
    }

    /// Returns the lines that the question needs.
    pub(crate) fn height(&self) -> usize {
        // A rule, the question and the keys.
        let fixed = if self.action == Action::Revoke { 4 } else { 3 };
        fixed + self.consequences().lines().count() + self.claims.len()
    }
}

const CONSEQUENCES_FOR_A_WAITER: &str = "\
The claim loses its place. A client that still waits can queue again, at the
end. The holder is not touched.";
