//! Writing into the cells of a screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::cells::{clip, columns};
use crate::theme::Theme;

/// A part of the screen, with its colours and the moment that it shows.
pub(crate) struct Canvas<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) area: Rect,
    pub(crate) theme: Theme,
    /// The present, in milliseconds of the Unix epoch.
    pub(crate) now: u64,
}

impl Canvas<'_> {
    pub(crate) fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    pub(crate) fn height(&self) -> usize {
        usize::from(self.area.height)
    }

    /// Returns the part of it that begins at this line and has so many.
    pub(crate) fn lines(&mut self, first: usize, count: usize) -> Canvas<'_> {
        let below = self.height().saturating_sub(first);
        let (first, count) = (cut(first.min(self.height())), cut(count.min(below)));
        let area = Rect { y: self.area.y + first, height: count, ..self.area };
        Canvas { buffer: self.buffer, area, theme: self.theme, now: self.now }
    }

    /// Writes a text at this column of a line, cut to so many columns; returns the column behind it.
    pub(crate) fn put(
        &mut self,
        line: usize,
        column: usize,
        width: usize,
        text: &str,
        style: Style,
    ) -> usize {
        let width = width.min(self.width().saturating_sub(column));
        if line >= self.height() || width == 0 {
            return column;
        }
        let text = clip(text, width);
        let (x, y) = (self.area.x + cut(column), self.area.y + cut(line));
        self.buffer.set_stringn(x, y, &text, width, style);
        column + columns(&text)
    }

    /// Writes a text at the right end of a field.
    pub(crate) fn put_right(&mut self, line: usize, column: usize, width: usize, text: &str, style: Style) {
        let text = clip(text, width);
        let indent = width.saturating_sub(columns(&text));
        self.put(line, column + indent, width - indent, &text, style);
    }

    /// Writes a line as wide as the canvas.
    pub(crate) fn put_line(&mut self, line: usize, text: &str, style: Style) {
        self.put(line, 0, self.width(), text, style);
    }

    /// Gives all cells of a line this style, on top of their own.
    pub(crate) fn paint_line(&mut self, line: usize, style: Style) {
        if line < self.height() {
            let area = Rect { y: self.area.y + cut(line), height: 1, ..self.area };
            self.buffer.set_style(area, style);
        }
    }

    /// Empties all cells.
    pub(crate) fn clear(&mut self) {
        for position in self.area.positions() {
            if let Some(cell) = self.buffer.cell_mut(position) {
                cell.reset();
            }
        }
    }

    /// Writes keys and what they do: `q quit  ? help`. Those that do not fit are left out.
    pub(crate) fn put_keys(&mut self, line: usize, keys: &[(&str, &str)]) {
        let (key_style, quiet) = (self.theme.key(), Style::new());
        let mut column = 1;
        for (key, action) in keys {
            if column + columns(key) + 1 + columns(action) > self.width() {
                return;
            }
            column = self.put(line, column, usize::MAX, key, key_style);
            column = self.put(line, column + 1, usize::MAX, action, quiet) + 2;
        }
    }
}

/// The lines of a list that are on the screen, and the one under the cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scroll {
    /// The position under the cursor.
    pub(crate) at: usize,
    /// The position of the first line on the screen.
    pub(crate) first: usize,
}

/// A movement of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

impl Scroll {
    /// Moves the cursor in a list of this length, of which so many lines are on the screen.
    pub(crate) fn go(&mut self, how: Move, length: usize, shown: usize) {
        let last = length.saturating_sub(1);
        let page = shown.saturating_sub(1).max(1);
        self.at = match how {
            Move::Up => self.at.saturating_sub(1),
            Move::Down => self.at + 1,
            Move::PageUp => self.at.saturating_sub(page),
            Move::PageDown => self.at + page,
            Move::Home => 0,
            Move::End => last,
        };
        self.at = self.at.min(last);
    }

    /// Moves the lines such that the cursor is on the screen, and no line is left free without need.
    pub(crate) fn settle(&mut self, length: usize, shown: usize) {
        self.at = self.at.min(length.saturating_sub(1));
        let lowest = (self.at + 1).saturating_sub(shown.max(1));
        let highest = self.at.min(length.saturating_sub(shown));
        self.first = self.first.clamp(lowest, highest);
    }
}

fn cut(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_stays_in_the_list_and_on_the_screen() {
        let mut scroll = Scroll::default();
        let mut go = |how, length| {
            scroll.go(how, length, 10);
            scroll.settle(length, 10);
            (scroll.at, scroll.first)
        };
        assert_eq!(go(Move::Up, 100), (0, 0));
        assert_eq!(go(Move::PageDown, 100), (9, 0));
        assert_eq!(go(Move::Down, 100), (10, 1));
        assert_eq!(go(Move::End, 100), (99, 90));
        assert_eq!(go(Move::Down, 100), (99, 90));
        assert_eq!(go(Move::PageUp, 100), (90, 90));
        // The list became shorter.
        assert_eq!(go(Move::Up, 5), (4, 0));
        assert_eq!(go(Move::Home, 5), (0, 0));
        assert_eq!(go(Move::Down, 0), (0, 0));
    }
}
