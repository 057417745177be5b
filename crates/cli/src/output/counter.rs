//! The line that a person sees while a command goes through many names.
//!
//! Ground rules: it is for a terminal, and only if nothing else is written there meanwhile.

use std::io::IsTerminal;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};

use crate::output::stderr::Stderr;
use crate::output::text::duration;

/// The line, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Counter {
    /// `None` without a terminal.
    stderr: Option<Stderr>,
    began: Moment,
    shown: Option<Moment>,
}

impl Counter {
    /// Prepares a line for a command whose output goes to stdout meanwhile, or only at its end.
    pub(crate) fn start(output: Output) -> Counter {
        let is_free = output == Output::AtTheEnd || !std::io::stdout().is_terminal();
        let is_seen = is_free && std::io::stderr().is_terminal();
        let stderr = if is_seen { Stderr::start().ok() } else { None };
        Counter { stderr, began: SystemClock.now(), shown: None }
    }

    /// Shows the text, with the time since the start; not before some time is over, and not too often.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        let (Some(stderr), now) = (&self.stderr, SystemClock.now()) else { return };
        let since = self.shown.unwrap_or(self.began);
        if now.since(since) >= PAUSE {
            self.shown = Some(now);
            stderr.show(format!("leasehold: {}, for {}", text(), duration(now.since(self.began))));
        }
    }

    /// Waits until it is time for the next line.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    /// Removes the line, and waits until it is gone.
    pub(crate) async fn end(self) {
        if let (Some(stderr), Some(_)) = (self.stderr, self.shown) {
            stderr.clear();
            stderr.flush().await;
        }
    }
}

/// When a command writes to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Meanwhile,
    AtTheEnd,
}

const PAUSE: Duration = Duration::from_millis(500);
