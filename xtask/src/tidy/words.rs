//! Rule `word`: words that no text file of this repository may hold.
//!
//! The patterns are written in two halves, so that this file passes its own rule.

use super::{File, Finding};

const RULE: &str = "word";

struct Ban {
    pattern: &'static str,
    boundary: Boundary,
    advice: &'static str,
}

#[derive(PartialEq, Eq)]
enum Boundary {
    /// A word by itself, not a part of a longer one.
    Word,
    /// A path from the root of a disk, not a part of a longer path.
    Path,
    /// Anywhere.
    None,
}

const UNFINISHED: &str = "Finish it, or leave it out: plans belong in an issue.";
const MACHINE: &str =
    "This path exists on one machine only: write it relative to the repository, or in a temporary folder.";
const REGISTRY: &str =
    "Leave the choice of a registry or mirror to the machine: name the package, not its host.";

const BANS: &[Ban] = &[
    Ban { pattern: concat!("TO", "DO"), boundary: Boundary::Word, advice: UNFINISHED },
    Ban { pattern: concat!("FIX", "ME"), boundary: Boundary::Word, advice: UNFINISHED },
    Ban { pattern: concat!("to", "do!"), boundary: Boundary::Word, advice: UNFINISHED },
    Ban { pattern: concat!("unimple", "mented!"), boundary: Boundary::Word, advice: UNFINISHED },
    Ban { pattern: concat!("/wo", "rk/"), boundary: Boundary::Path, advice: MACHINE },
    Ban { pattern: concat!("/ro", "ot/"), boundary: Boundary::Path, advice: MACHINE },
    Ban { pattern: concat!("index.", "crates.io"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("static.", "crates.io"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("sparse", "+http"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("registry", "+http"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("registry.", "npmjs.org"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("pypi.", "org"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("files.", "pythonhosted.org"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("proxy.", "golang.org"), boundary: Boundary::None, advice: REGISTRY },
    Ban { pattern: concat!("deb.", "debian.org"), boundary: Boundary::None, advice: REGISTRY },
];

/// The form in which cargo itself writes its own registry into `Cargo.lock`, for any mirror that was
/// used.
const LOCKED: &str = concat!("source = \"registry", "+https://github.com/rust-lang/crates.io-index\"");

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let is_lock = file.path.ends_with("Cargo.lock");
        for (index, line) in file.text.lines().enumerate().filter(|(_, line)| !(is_lock && *line == LOCKED)) {
            for ban in BANS.iter().filter(|ban| ban.occurs_in(line)) {
                let advice = format!("`{}`: {}", ban.pattern, ban.advice);
                findings.push(Finding::error(&file.path, index + 1, RULE, advice));
            }
        }
    }
    findings
}

impl Ban {
    fn occurs_in(&self, line: &str) -> bool {
        line.match_indices(self.pattern).any(|(at, found)| {
            let before = line[..at].chars().next_back();
            let after = line[at + found.len()..].chars().next();
            let joins =
                |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
            match self.boundary {
                // A pattern that ends with `!` ends the word by itself.
                Boundary::Word => !joins(before) && (found.ends_with('!') || !joins(after)),
                Boundary::Path => !joins(before) && !before.is_some_and(|letter| ".-})>$~*".contains(letter)),
                Boundary::None => true,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&[file]).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_pattern_is_found_alone_quoted_and_in_a_sentence() {
        for ban in BANS {
            for text in [ban.pattern.to_owned(), format!("a\nsee \"{}\" b\n", ban.pattern)] {
                assert_eq!(lines("docs/a.md", &text), [text.lines().count()], "{text:?}");
            }
        }
    }

    #[test]
    fn longer_words_and_other_cases_are_let_pass() {
        for ban in BANS.iter().filter(|ban| ban.boundary == Boundary::Word) {
            assert_eq!(lines("a.md", &format!("MASTO{}", ban.pattern)), NONE, "{}", ban.pattern);
        }
        assert_eq!(lines("Cargo.toml", "todo = \"warn\"\nunimplemented = \"warn\"\n"), NONE);
    }

    #[test]
    fn paths_inside_a_project_are_let_pass() {
        for ban in BANS.iter().filter(|ban| ban.boundary == Boundary::Path) {
            for text in
                [format!("src{}a", ban.pattern), format!(".{}a", ban.pattern), format!("$d{}a", ban.pattern)]
            {
                assert_eq!(lines("a.md", &text), NONE, "{text:?}");
            }
        }
    }

    #[test]
    fn the_lock_file_may_name_the_registry_by_its_own_name_only() {
        assert_eq!(lines("Cargo.lock", &format!("{LOCKED}\n")), NONE);
        assert_eq!(lines("Cargo.lock", &LOCKED.replace("github.com", "mirror.example")), [1]);
        assert_eq!(lines("docs/a.md", LOCKED), [1]);
        assert_eq!(
            lines("README.md", "https://crates.io/crates/leasehold and https://docs.rs/leasehold\n"),
            NONE
        );
    }
}
