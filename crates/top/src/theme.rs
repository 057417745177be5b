//! Colours and attributes. Nothing is said by a colour alone.

use ratatui::style::{Color, Modifier, Style};

/// The choice of coloured or plain cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Theme {
    pub(crate) is_coloured: bool,
}

impl Theme {
    fn of(self, colour: Color, plain: Modifier) -> Style {
        if self.is_coloured {
            Style::new().fg(colour).add_modifier(plain)
        } else {
            Style::new().add_modifier(plain)
        }
    }

    /// The first line.
    pub(crate) fn title(self) -> Style {
        match self.is_coloured {
            true => Style::new().fg(Color::Black).bg(Color::Cyan),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }

    /// The names of columns, and headings.
    pub(crate) fn heading(self) -> Style {
        self.of(Color::Cyan, Modifier::BOLD)
    }

    /// A less important text.
    pub(crate) fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The line under the cursor.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Something to look at.
    pub(crate) fn notable(self) -> Style {
        self.of(Color::Yellow, Modifier::empty())
    }

    /// A deadlock, or a failure.
    pub(crate) fn alarming(self) -> Style {
        self.of(Color::Red, Modifier::BOLD)
    }

    /// A success.
    pub(crate) fn good(self) -> Style {
        self.of(Color::Green, Modifier::empty())
    }

    /// A key that can be pressed.
    pub(crate) fn key(self) -> Style {
        self.of(Color::Cyan, Modifier::BOLD)
    }
}
