//! Insertions into a text, and which mutants an error of the compiler belongs to.

use std::ops::Range;

/// The text that chooses between mutants, and where their own code is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Branch {
    text: String,
    own: Vec<(usize, Range<usize>)>,
}

impl Branch {
    pub(crate) fn begin(text: &str) -> Branch {
        Branch { text: text.to_owned(), own: Vec::new() }
    }

    /// Adds the code of a mutant, with what stands before and behind it.
    pub(crate) fn push(&mut self, mutant: usize, before: &str, code: &str, behind: &str) {
        self.text += before;
        let begin = self.text.len();
        self.text += code;
        self.own.push((mutant, begin..self.text.len()));
        self.text += behind;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    pub(crate) fn end(mut self, text: &str) -> Branch {
        self.text += text;
        self
    }
}

/// Text that is inserted at one place. Those of one file are in the order of the text; what is inserted first at a
/// place stands first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Insertion {
    at: usize,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Begins to enclose a part of the text.
    Open(Branch),
    /// Ends the part that was begun last.
    Close(&'static str),
    /// Encloses nothing.
    Point(Branch),
}

impl Insertion {
    pub(crate) fn open(at: usize, branch: Branch) -> Insertion {
        Insertion { at, kind: Kind::Open(branch) }
    }

    pub(crate) fn close(at: usize, text: &'static str) -> Insertion {
        Insertion { at, kind: Kind::Close(text) }
    }

    pub(crate) fn point(at: usize, branch: Branch) -> Insertion {
        Insertion { at, kind: Kind::Point(branch) }
    }
}

/// A text with all insertions.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) text: String,
    /// The code of single mutants.
    own: Vec<(Range<usize>, usize)>,
    /// The parts that are enclosed for some mutants.
    enclosed: Vec<(Range<usize>, Vec<usize>)>,
}

impl Changed {
    /// Inserts them into a text.
    pub(crate) fn new(text: &str, insertions: &[Insertion]) -> Changed {
        let mut changed = Changed::default();
        let (mut done, mut open) = (0, Vec::new());
        for Insertion { at, kind } in insertions {
            changed.text += &text[done..*at];
            done = *at;
            match kind {
                Kind::Open(branch) => open.push((changed.text.len(), changed.insert(branch))),
                Kind::Point(branch) => {
                    let begin = changed.text.len();
                    let mutants = changed.insert(branch);
                    changed.enclosed.push((begin..changed.text.len(), mutants));
                }
                Kind::Close(text) => {
                    changed.text += text;
                    if let Some((begin, mutants)) = open.pop() {
                        changed.enclosed.push((begin..changed.text.len(), mutants));
                    }
                }
            }
        }
        changed.text += &text[done..];
        changed
    }

    fn insert(&mut self, branch: &Branch) -> Vec<usize> {
        let begin = self.text.len();
        self.text += &branch.text;
        let moved = |own: &Range<usize>| begin + own.start..begin + own.end;
        self.own.extend(branch.own.iter().map(|(mutant, own)| (moved(own), *mutant)));
        branch.own.iter().map(|(mutant, _)| *mutant).collect()
    }

    /// Returns the mutants that the compiler refuses with an error there: the one whose code it is in; or else those
    /// that are enclosed by it; or else those that enclose it most closely; or else those of the last part before it,
    /// since a statement that is left out may have ended a borrow.
    pub(crate) fn blame(&self, error: &Range<usize>) -> Vec<usize> {
        let is_in =
            |inner: &Range<usize>, outer: &Range<usize>| outer.start <= inner.start && inner.end <= outer.end;
        if let Some((_, mutant)) = self.own.iter().find(|(own, _)| !own.is_empty() && is_in(error, own)) {
            return vec![*mutant];
        }
        let inside: Vec<usize> = self
            .enclosed
            .iter()
            .filter(|(part, _)| is_in(part, error))
            .flat_map(|(_, mutants)| mutants.clone())
            .collect();
        if !inside.is_empty() {
            return inside;
        }
        let around = self.enclosed.iter().filter(|(part, _)| is_in(error, part));
        let before = self.enclosed.iter().filter(|(part, _)| part.end <= error.start);
        let blamed =
            around.min_by_key(|(part, _)| part.len()).or_else(|| before.max_by_key(|(part, _)| part.end));
        blamed.map(|(_, mutants)| mutants.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed() -> Changed {
        let branch = |mutant, before: &str, code: &str, behind: &str| {
            let mut branch = Branch::begin("(");
            branch.push(mutant, before, code, behind);
            branch
        };
        let insertions = [
            Insertion::open(0, branch(1, "1? ", "x", " : ")),
            Insertion::open(0, branch(2, "2? ", "y", " : ")),
            Insertion::close(1, ")"),
            Insertion::close(5, ")"),
            Insertion::point(6, branch(3, "3?", "", ")")),
        ];
        Changed::new("a + b;", &insertions)
    }

    #[test]
    fn what_is_inserted_at_one_place_keeps_its_order() {
        assert_eq!(changed().text, "(1? x : (2? y : a) + b);(3?)");
    }

    #[test]
    fn an_error_belongs_to_the_code_that_it_is_in() {
        let changed = changed();
        let blame = |part: &str| {
            let begin = changed.text.find(part).unwrap();
            changed.blame(&(begin..begin + part.len()))
        };
        assert_eq!(blame("x"), [1]);
        assert_eq!(blame("y"), [2]);
        // What they have in common.
        assert_eq!(blame("a"), [2]);
        assert_eq!(blame("b"), [1]);
        assert_eq!(blame("(2? y : a) + b"), [2]);
        assert_eq!(blame("3"), [3]);
        // Behind both, and before the last one.
        assert_eq!(blame(";"), [1]);
        assert_eq!(Changed::new("a", &[]).blame(&(0..1)), [0; 0]);
    }
}
