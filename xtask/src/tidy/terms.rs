//! A term of the glossary names one type.
//!
//! A reader who has met a `Claim` or a `Lease` knows every one of that name. So a type whose name is a term of
//! `docs/book/src/glossary.md` is defined once in the published crates; another type gets a longer name.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Kind, Source};
use super::{File, Finding};

const RULE: &str = "term";

/// The page that lists the terms.
const GLOSSARY: &str = "docs/book/src/glossary.md";

/// Terms that several types have as their name, and the reason.
const SHARED: &[(&str, &str)] = &[("Dialect", "each backend has the dialects of its own server")];

/// The folder whose types are the blocking forms of others, with their names.
const TWINS: &str = "crates/leasehold/src/blocking/";

/// Returns the terms of the glossary among these files.
pub(super) fn listed(files: &[File]) -> BTreeSet<String> {
    let glossary = files.iter().find(|file| file.path == GLOSSARY);
    glossary.map(|file| terms(&file.text)).unwrap_or_default()
}

/// Returns the terms that a page lists, in the form of type names.
fn terms(glossary: &str) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    for row in glossary.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some((term, rest)) = row.split_once(" |") else { continue };
        terms.insert(term.split([' ', '-']).map(capitalised).collect());
        let names = rest.split('`').skip(1).step_by(2);
        terms.extend(names.filter(|name| is_type_name(name)).map(str::to_owned));
    }
    terms
}

pub(super) fn check(terms: &BTreeSet<String>, sources: &[Source]) -> Vec<Finding> {
    let mut defined: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_published(&source.path)) {
        for (name, line) in definitions(source).filter(|(name, _)| terms.contains(*name)) {
            defined.entry(name).or_default().push((&source.path, line));
        }
    }
    let mut findings = Vec::new();
    for (name, places) in &defined {
        let why = SHARED.iter().find(|(shared, _)| shared == name).map(|(_, why)| *why);
        match (why, places.as_slice()) {
            (None, [_, _, ..]) => findings.extend(places.iter().map(|(path, line)| {
                let advice = format!(
                    "`{name}` is a term of {GLOSSARY}, and {} types have that name: keep it for the one that the \
                     term means, and give the others longer names.",
                    places.len()
                );
                Finding::error(path, *line, RULE, advice)
            })),
            (Some(why), [(path, line)]) => {
                let advice = format!("`{name}` is defined once ({why}): remove it from SHARED.");
                findings.push(Finding::error(path, *line, RULE, advice));
            }
            _ => {}
        }
    }
    findings
}

/// Returns the names of the types and traits that a file defines outside tests, with their lines.
fn definitions(source: &Source) -> impl Iterator<Item = (&str, usize)> {
    let defines =
        |at: &usize| ["struct", "enum", "trait", "union"].iter().any(|word| source.reads(*at, &[word]));
    (0..source.tokens.len()).filter(defines).filter_map(|at| {
        let name = source.tokens.get(at + 1).filter(|token| token.kind == Kind::Word)?;
        (!source.is_test(name.line)).then_some((name.text.as_str(), name.line))
    })
}

fn is_published(path: &str) -> bool {
    let is_of_crate = path.starts_with("crates/") || path.starts_with("backends/");
    is_of_crate && path.contains("/src/") && !path.starts_with(TWINS)
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn is_type_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    const PAGE: &str = "# Glossary\n\n| word | meaning | also known as |\n|---|---|---|\n\
                        | claim | a request | lock token |\n\
                        | loss signal | how a loss comes | `LossSignal`, `Lost::at` |\n\
                        | event subscriber | an object | `EventSubscriber` |\n";

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| sample(path, text)).collect();
        check(&terms(PAGE), &sources).into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn terms_are_the_words_and_the_names_of_the_glossary() {
        let terms = terms(PAGE);
        for name in ["Claim", "LossSignal", "EventSubscriber"] {
            assert!(terms.contains(name), "{name}");
        }
        assert!(!terms.contains("LostAt") && !terms.contains("A"));
    }

    #[test]
    fn second_type_of_a_term_is_found_at_both_places() {
        let one = ("crates/core/src/claim.rs", "pub struct Claim;\n");
        let other = ("backends/a/src/net.rs", "struct Link;\nenum Claim {}\n");
        assert_eq!(found(&[one]), []);
        let places =
            vec![("crates/core/src/claim.rs".to_owned(), 1), ("backends/a/src/net.rs".to_owned(), 2)];
        assert_eq!(found(&[one, other]), places);
    }

    #[test]
    fn blocking_forms_and_tests_may_repeat_a_term() {
        let one = ("crates/core/src/claim.rs", "pub struct Claim;\n");
        let twin = ("crates/leasehold/src/blocking/claim.rs", "pub struct Claim;\n");
        let test = ("backends/a/src/net.rs", "#[cfg(test)]\nmod tests {\n    struct Claim;\n}\n");
        let of_tests = ("crates/core/tests/claim.rs", "struct Claim;\n");
        assert_eq!(found(&[one, twin, test, of_tests]), []);
    }

    #[test]
    fn shared_term_that_is_defined_once_is_found() {
        let terms = BTreeSet::from(["Dialect".to_owned()]);
        let source = sample("backends/a/src/config.rs", "enum Dialect {}\n");
        let advice = check(&terms, &[source]).remove(0).advice;
        assert!(advice.contains("SHARED"), "{advice}");
    }
}
