//! A Rust file as the rules see it: its tokens with their lines, its functions, and which lines are tests.
//!
//! The tokens come from the lexer that procedural macros use. So a word in a string or a comment is
//! never taken for code, and code inside a macro call is seen too. Types and names are not resolved:
//! `use std::time::Instant as Clock` hides from a rule about `Instant::now`, and a reviewer has to see
//! it.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;

/// A lexed Rust file.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    tests: Vec<RangeInclusive<usize>>,
    all_test: bool,
}

pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) text: String,
    pub(super) line: usize,
    /// The number of brackets that are open around it; an opening and its closing bracket have the same
    /// depth.
    pub(super) depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A keyword or a name.
    Word,
    /// One character of punctuation, or a bracket.
    Mark,
    /// A string, character or number.
    Literal,
}

/// A function with a body.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) lines: RangeInclusive<usize>,
}

impl Source {
    pub(super) fn parse(path: String, text: String) -> Result<Self, Finding> {
        let stream: TokenStream = match text.parse() {
            Ok(stream) => stream,
            Err(error) => {
                let advice =
                    format!("This file is not Rust ({error}); let the compiler explain, and mend it.");
                return Err(Finding::error(&path, 1, "syntax", advice));
            }
        };
        let mut tokens = Vec::new();
        flatten(stream, 0, &mut tokens);
        let all_test = path.split('/').rev().skip(1).any(|folder| TEST_FOLDERS.contains(&folder));
        let mut source = Self { path, text, tokens, tests: Vec::new(), all_test };
        source.tests =
            source.test_items().map(|(from, to)| source.tokens[from].line..=source.tokens[to].line).collect();
        Ok(source)
    }

    /// Returns `true` if a line belongs to tests: it is in a test's folder, in a test function, or
    /// below `#[cfg(test)]`.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.all_test || self.tests.iter().any(|lines| lines.contains(&line))
    }

    /// Returns `true` if the tokens from `at` on are exactly these words and marks.
    pub(super) fn reads(&self, at: usize, texts: &[&str]) -> bool {
        let tokens = self.tokens.get(at..at + texts.len()).unwrap_or_default();
        tokens.len() == texts.len()
            && tokens
                .iter()
                .zip(texts)
                .all(|(token, text)| token.kind != Kind::Literal && token.text == *text)
    }

    /// Returns the index of the bracket that closes the one at `open`.
    pub(super) fn closing(&self, open: usize) -> usize {
        let depth = self.tokens[open].depth;
        let after = &self.tokens[open + 1..];
        open + 1
            + after.iter().position(|token| token.depth == depth).unwrap_or(after.len().saturating_sub(1))
    }

    /// Returns all functions with a body, also nested ones and those inside a macro call.
    pub(super) fn functions(&self) -> Vec<Function> {
        let names = (0..self.tokens.len().saturating_sub(1))
            .filter(|at| self.reads(*at, &["fn"]) && self.tokens[at + 1].kind == Kind::Word);
        names
            .filter_map(|at| {
                let end = self.item_end(at);
                (self.tokens[end].text == "}").then(|| Function {
                    name: self.tokens[at + 1].text.clone(),
                    lines: self.tokens[at].line..=self.tokens[end].line,
                })
            })
            .collect()
    }

    /// Names of modules that are declared as tests here and live in a file of their own.
    fn test_modules(&self) -> Vec<&str> {
        self.test_items()
            .flat_map(|(from, to)| from..=to)
            .filter(|at| self.reads(*at, &["mod"]) && self.reads(at + 2, &[";"]))
            .map(|at| self.tokens[at + 1].text.as_str())
            .collect()
    }

    /// Returns first and last token of each item that only tests compile.
    fn test_items(&self) -> impl Iterator<Item = (usize, usize)> {
        let attributes = (0..self.tokens.len()).filter(|at| self.reads(*at, &["#", "["]));
        attributes
            .filter(|at| self.is_test_attribute(at + 1))
            .map(|at| (at, self.item_end(self.closing(at + 1) + 1)))
    }

    /// Recognises `#[test]`, `#[any::test(…)]`, and `#[cfg(…)]` that asks for `test` and not for its absence.
    fn is_test_attribute(&self, open: usize) -> bool {
        let inside = &self.tokens[open + 1..self.closing(open)];
        let has = |word: &str| inside.iter().any(|token| token.kind == Kind::Word && token.text == word);
        if inside.first().is_some_and(|token| token.text == "cfg") {
            return has("test") && !has("not");
        }
        let path = inside.iter().take_while(|token| token.text != "(" && token.text != "=");
        path.last().is_some_and(|token| token.kind == Kind::Word && token.text == "test")
    }

    /// Returns the last token of the item that begins at `from`: its closing brace, its semicolon, or
    /// the end of what is around it.
    fn item_end(&self, from: usize) -> usize {
        let Some(first) = self.tokens.get(from) else { return self.tokens.len() - 1 };
        let mut at = from;
        while let Some(token) = self.tokens.get(at) {
            if token.depth < first.depth {
                return at - 1;
            }
            match token.text.as_str() {
                ";" if token.depth == first.depth => return at,
                "{" if token.depth == first.depth => return self.closing(at),
                _ => at += 1,
            }
        }
        self.tokens.len() - 1
    }
}

/// Cargo compiles what is in these folders for tests, benchmarks and examples only.
const TEST_FOLDERS: &[&str] = &["tests", "benches", "examples"];

/// Marks files as tests whose `mod` line in another file is below `#[cfg(test)]`.
pub(super) fn mark_test_modules(sources: &mut [Source]) {
    let mut marked: HashSet<String> = HashSet::new();
    for source in sources.iter() {
        let folder = module_folder(&source.path);
        for name in source.test_modules() {
            marked.insert(format!("{folder}{name}.rs"));
            marked.insert(format!("{folder}{name}/mod.rs"));
        }
    }
    for source in sources.iter_mut() {
        source.all_test |= marked.contains(&source.path);
    }
}

/// Returns the folder, with its slash, in which the modules live that a file declares.
fn module_folder(path: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    match file.trim_end_matches(".rs") {
        "lib" | "main" | "mod" => folder,
        stem => format!("{folder}{stem}/"),
    }
}

fn flatten(stream: TokenStream, depth: usize, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |kind, text, line| tokens.push(Token { kind, text, line, depth });
        match tree {
            TokenTree::Ident(word) => push(Kind::Word, word.to_string(), line),
            TokenTree::Punct(mark) => push(Kind::Mark, mark.as_char().to_string(), line),
            TokenTree::Literal(literal) => push(Kind::Literal, literal.to_string(), line),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(Kind::Mark, open.to_owned(), group.span_open().start().line);
                let end = group.span_close().start().line;
                flatten(group.stream(), depth + 1, tokens);
                tokens.push(Token { kind: Kind::Mark, text: close.to_owned(), line: end, depth });
            }
        }
    }
}

/// Sources for the unit tests of the rules.
#[cfg(test)]
pub(super) fn sample(path: &str, text: &str) -> Source {
    Source::parse(path.to_owned(), text.to_owned()).map_err(|finding| finding.to_string()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn test_lines(source: &Source) -> Vec<usize> {
        (1..=source.text.lines().count()).filter(|line| source.is_test(*line)).collect()
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        let source =
            sample("a.rs", "// unsafe\n/* unsafe */ fn f() { g(\"unsafe\", r#\"unsafe\"#, 'u'); }\n");
        assert!((0..source.tokens.len()).all(|at| !source.reads(at, &["unsafe"])));
    }

    #[test]
    fn tokens_carry_their_line() {
        let source = sample("a.rs", "fn f() {\n    a();\n\n    b!(\n        c\n    );\n}\n");
        let line = |text: &str| source.tokens.iter().find(|token| token.text == text).unwrap().line;
        assert_eq!([line("f"), line("a"), line("b"), line("c"), line("}")], [1, 2, 4, 5, 7]);
    }

    #[test]
    fn functions_run_from_their_keyword_to_their_last_brace() {
        let text = "fn one() {\n}\ntrait T {\n    fn none(&self);\n    fn two<F: Fn(u8)>(f: F) -> [u8; 3]\n    where\n        F: Clone,\n    {\n        select! { _ = async { fn inner() {\n        } } => {} }\n    }\n}\ntype P = fn(u8) -> u8;\n";
        let found: Vec<(String, usize, usize)> = sample("a.rs", text)
            .functions()
            .into_iter()
            .map(|one| (one.name, *one.lines.start(), *one.lines.end()))
            .collect();
        let expected =
            [("one", 1, 2), ("two", 5, 11), ("inner", 9, 10)].map(|(name, a, b)| (name.to_owned(), a, b));
        assert_eq!(found, expected);
    }

    #[test]
    fn test_items_are_known_by_their_attributes() {
        let text = "fn code() {}\n#[test]\nfn a() {\n}\nfn code2() {}\n#[tokio::test(flavor = \"current_thread\")]\n#[ignore]\nasync fn b() {\n}\n#[cfg(test)]\nmod tests {\n    use x;\n}\n#[cfg(all(test, unix))]\nuse y;\nfn code3() {}\n";
        assert_eq!(test_lines(&sample("src/a.rs", text)), [2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn other_attributes_make_no_test() {
        let text = "#[cfg(not(test))]\nfn a() {}\n#[cfg(feature = \"test\")]\nfn b() {}\n#[derive(Debug)]\nstruct C;\n#[doc = \"test\"]\nfn d() {}\n";
        assert_eq!(test_lines(&sample("src/a.rs", text)), NONE);
    }

    #[test]
    fn files_in_test_folders_are_tests_and_names_alone_are_not() {
        assert!(sample("crates/cli/tests/run.rs", "fn a() {}\n").is_test(1));
        assert!(!sample("crates/core/src/tests_of_time.rs", "fn a() {}\n").is_test(1));
        assert!(!sample("crates/core/src/tests.rs", "fn a() {}\n").is_test(1));
    }

    #[test]
    fn a_module_file_declared_for_tests_is_a_test() {
        let mut sources = [
            sample("src/lib.rs", "#[cfg(test)]\nmod checks;\nmod ledger;\n"),
            sample("src/checks.rs", "fn a() {}\n"),
            sample("src/ledger.rs", "#[cfg(test)]\nmod tests;\n"),
            sample("src/ledger/tests.rs", "fn a() {}\n"),
            sample("src/ledger/rule.rs", "fn a() {}\n"),
        ];
        mark_test_modules(&mut sources);
        let marked: Vec<&str> =
            sources.iter().filter(|source| source.all_test).map(|source| source.path.as_str()).collect();
        assert_eq!(marked, ["src/checks.rs", "src/ledger/tests.rs"]);
    }

    #[test]
    fn broken_files_are_a_finding() {
        let finding = Source::parse("a.rs".to_owned(), "fn f( {}".to_owned()).err().unwrap();
        assert_eq!(finding.rule, "syntax");
    }
}
