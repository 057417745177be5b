//! A reader of Markdown: fenced blocks, headings with their anchors, and links.
//!
//! It knows as much of Markdown as this repository writes: fenced blocks, code spans within a line, headings
//! with `#`, inline links, definitions of links, and the includes of mdBook.

use std::collections::BTreeSet;
use std::ops::Range;

/// The parts of a Markdown file that links are about.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) anchors: BTreeSet<String>,
    /// The targets, with their lines.
    pub(super) links: Vec<(usize, String)>,
}

impl Page {
    pub(super) fn read(text: &str) -> Page {
        let mut page = Page::default();
        let mut fence = Fence::default();
        for (index, line) in text.lines().enumerate() {
            if fence.covers(line) {
                continue;
            }
            if let Some(heading) = heading(line) {
                page.add_anchor(&slug(heading));
            }
            let found = links(line).into_iter().map(|link| line[link.target].to_owned());
            let found = found.chain(definition(line).or(include(line)).map(str::to_owned));
            page.links.extend(found.map(|target| (index + 1, target)));
        }
        page
    }

    /// Adds the anchor of a heading. A second heading of the same text gets a number, as on GitHub and in
    /// mdBook.
    fn add_anchor(&mut self, slug: &str) {
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let mut names = std::iter::once(slug.to_owned()).chain(numbered);
        let free = names.find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }
}

/// A reader of lines that knows which of them are in a fenced block.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// The marks that opened the block.
    open: Option<String>,
}

impl Fence {
    /// Takes the next line, and returns `true` if it belongs to a block, as its text or as its fence.
    pub(super) fn covers(&mut self, line: &str) -> bool {
        let line = line.trim_start_matches([' ', '>']);
        let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'));
        let marks: String = line.chars().take_while(|letter| Some(*letter) == mark).collect();
        match &self.open {
            Some(open) => {
                if marks.starts_with(open.as_str()) && line.trim_end() == marks {
                    self.open = None;
                }
                true
            }
            // A span of code may be written with as many backticks, but then it ends in its line.
            None if marks.len() >= 3 && !line[marks.len()..].contains('`') => {
                self.open = Some(marks);
                true
            }
            None => false,
        }
    }

    /// Returns `true` if no block is open after the last line.
    pub(super) fn is_closed(&self) -> bool {
        self.open.is_none()
    }
}

/// An inline link, as ranges of bytes of its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// From the bracket that opens it to the one that closes it.
    pub(super) whole: Range<usize>,
    pub(super) text: Range<usize>,
    pub(super) target: Range<usize>,
}

/// Returns the inline links of a line, from left to right.
pub(super) fn links(line: &str) -> Vec<Link> {
    let blank = without_code(line);
    let mut links = Vec::new();
    for (at, _) in blank.match_indices("](") {
        let begin = at + 2;
        let Some(length) = blank[begin..].find([')', ' ']) else { continue };
        let Some(close) = blank[begin..].find(')') else { continue };
        let mut depth = 1_usize;
        let open = blank[..at].char_indices().rev().find(|(_, letter)| {
            match letter {
                ']' => depth += 1,
                '[' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some((open, _)) = open else { continue };
        links.push(Link {
            whole: open..begin + close + 1,
            text: open + 1..at,
            target: begin..begin + length,
        });
    }
    links
}

/// Returns the line with the text of code spans replaced by as many bytes of spaces.
fn without_code(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        let marks = &rest[at..at + rest[at..].chars().take_while(|letter| *letter == '`').count()];
        let inside = &rest[at + marks.len()..];
        let Some(length) = inside.find(marks) else { break };
        text += &rest[..at];
        text += &" ".repeat(length + 2 * marks.len());
        rest = &inside[length + marks.len()..];
    }
    text + rest
}

/// Returns the target of `[label]: target`.
fn definition(line: &str) -> Option<&str> {
    let (label, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    (!label.contains(['[', ']'])).then(|| target.split_whitespace().next())?
}

/// Returns the file that mdBook includes at this line.
pub(super) fn include(line: &str) -> Option<&str> {
    line.trim().strip_prefix("{{#include ")?.strip_suffix("}}").map(str::trim)
}

/// Returns the text of a heading.
pub(super) fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| text.trim())
}

/// Returns the anchor that GitHub and mdBook give to a heading.
fn slug(heading: &str) -> String {
    let mut text = heading.to_owned();
    for link in links(heading).into_iter().rev() {
        text.replace_range(link.whole, &heading[link.text]);
    }
    let kept = text.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || matches!(letter, '-' | '_') => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        for (heading, anchor) in [
            ("A waiter's place", "a-waiters-place"),
            ("SQLite: `sqlite:/a/file.db` (feature `sqlite`)", "sqlite-sqliteafiledb-feature-sqlite"),
            ("[A link](b.md) and `lock_all`", "a-link-and-lock_all"),
            ("Optimistic or pessimistic?", "optimistic-or-pessimistic"),
        ] {
            assert_eq!(slug(heading), anchor);
        }
    }
}
