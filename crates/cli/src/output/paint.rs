//! Colours, for output that a person sees.

use std::io::IsTerminal;

/// The choice of coloured or plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Coloured,
}

impl Paint {
    /// Chooses colours where stdout is a terminal that knows colours and `NO_COLOR` is not set.
    pub(crate) fn of_stdout() -> Paint {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match std::io::stdout().is_terminal() && !set("NO_COLOR") && !is_dumb {
            true => Paint::Coloured,
            false => Paint::Plain,
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with(text, "1")
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with(text, "32")
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with(text, "33")
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with(text, "31")
    }

    fn with(self, text: &str, code: &str) -> String {
        match self {
            Paint::Plain => text.to_owned(),
            Paint::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}
