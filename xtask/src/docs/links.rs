//! Links of the Markdown files: each relative link has to lead to a file, and each anchor to a heading.
//!
//! Links to other hosts are not followed. Links to items, in pages that rustdoc shows, are checked by rustdoc.

use std::collections::{BTreeMap, BTreeSet};

use super::PAGES;
use super::markdown::Page;
use crate::tidy::File;

/// Returns a line for each link, mention or page that is wrong. `paths` has all files of the repository.
pub(super) fn check(paths: &[String], files: &[File]) -> Vec<String> {
    let paths: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
    let pages: BTreeMap<&str, Page> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .map(|file| (file.path.as_str(), Page::read(&file.text)))
        .collect();
    let mut findings = Vec::new();
    for (path, page) in &pages {
        for (line, target) in &page.links {
            if let Err(why) = follow(path, target, &paths, &pages) {
                findings.push(format!("{path}:{line}: link: `{target}` {why}"));
            }
        }
    }
    findings.extend(unlisted(&paths, &pages));
    // Reviews and changes of the past name files as they were then.
    let is_current =
        |file: &&File| !file.path.starts_with("docs/reviews/") && !file.path.starts_with("xtask/");
    for file in files.iter().filter(is_current) {
        for (index, line) in file.text.lines().enumerate() {
            for name in mentions(line).filter(|name| !paths.contains(name)) {
                findings.push(format!("{}:{}: mention: `{name}` is not a file.", file.path, index + 1));
            }
        }
    }
    findings
}

fn follow(
    from: &str,
    target: &str,
    paths: &BTreeSet<&str>,
    pages: &BTreeMap<&str, Page>,
) -> Result<(), String> {
    if is_foreign(from, target) {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let Some(path) = resolve(from, file) else {
        return Err("leads out of the repository.".to_owned());
    };
    let folder = format!("{path}/");
    let is_folder = paths.range(folder.as_str()..).next().is_some_and(|next| next.starts_with(&folder));
    if !paths.contains(path.as_str()) && !is_folder {
        return Err(format!("leads to {path}, which is not a file or folder of the repository."));
    }
    match (anchor, pages.get(path.as_str())) {
        (Some(anchor), Some(page)) if !page.anchors.contains(anchor) => {
            Err(format!("names a heading that {path} does not have."))
        }
        _ => Ok(()),
    }
}

/// Returns `true` if a target is not a file of this repository: a URL, or an item that rustdoc resolves.
pub(super) fn is_foreign(from: &str, target: &str) -> bool {
    let is_url = ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme));
    let is_rustdoc = from.contains("/src/") && !from.starts_with(PAGES);
    is_url || (is_rustdoc && !target.contains(['/', '.', '#']))
}

/// Returns the path of a target from the root, or nothing if it lies outside.
pub(super) fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            // An empty first part is the root of a disk or of a site.
            "" => return None,
            "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Pages of the book that its table of contents does not have: mdBook would leave them out.
fn unlisted(paths: &BTreeSet<&str>, pages: &BTreeMap<&str, Page>) -> Vec<String> {
    let summary = format!("{PAGES}/SUMMARY.md");
    let listed: BTreeSet<String> = pages
        .get(summary.as_str())
        .into_iter()
        .flat_map(|page| page.links.iter().filter_map(|(_, target)| resolve(&summary, target)))
        .collect();
    let is_page = |path: &&&str| path.starts_with(PAGES) && path.ends_with(".md") && **path != summary;
    let missing = paths.iter().filter(is_page).filter(|path| !listed.contains(**path));
    missing.map(|path| format!("{path}:1: summary: the page is not listed in {summary}.")).collect()
}

/// Returns the pages of `docs` that a line names from the root, as comments do.
fn mentions(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '/' | '.' | '-' | '_');
    line.match_indices("docs/").filter_map(move |(at, _)| {
        // The target of a link is checked as one.
        if line[..at].ends_with(is_part) || line[..at].ends_with("](") {
            return None;
        }
        let end = line[at..].find(|letter| !is_part(letter)).map_or(line.len(), |length| at + length);
        let name = line[at..end].trim_end_matches('.');
        name.ends_with(".md").then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        check(&paths, &files.iter().map(file).collect::<Vec<_>>())
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn a_link_to_a_missing_file_is_found() {
        let text = "See [here](docs/a.md),\n[there](docs/b.md) and [the code](src).\n";
        let found = checked(&[("README.md", text), ("docs/a.md", ""), ("src/lib.rs", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("README.md:2: link: `docs/b.md` leads to docs/b.md"), "{found:?}");
        let out = checked(&[("docs/a.md", "[x](../../a.md) [y](/a.md) [z](../docs/a.md)\n")]);
        assert_eq!(out.len(), 2, "{out:?}");
        assert!(out.iter().all(|one| one.contains("out of the repository")), "{out:?}");
    }

    #[test]
    fn a_link_to_a_missing_heading_is_found() {
        let page = "# Top\n## By store: `redis://`\n## Twice\n## Twice\n```sh\n# Not a heading\n```\n";
        let links = "[a](b.md#by-store-redis) [b](b.md#twice-1) [c](#own)\n# Own\n";
        assert_eq!(checked(&[("a.md", links), ("b.md", page)]), NONE);
        let dead = "[a](b.md#twice-2) [b](b.md#not-a-heading)\n[c](#nowhere)\n";
        let found = checked(&[("a.md", dead), ("b.md", page)]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("`b.md#twice-2` names a heading that b.md does not have"), "{found:?}");
        assert!(found[2].starts_with("a.md:2: link: `#nowhere`"), "{found:?}");
    }

    #[test]
    fn link_that_is_not_to_a_file_is_skipped() {
        let text = "`[a](b)` [web](https://example.org/x#y) [mail](mailto:a@b)\n~~~\n[a](b)\n~~~\n";
        assert_eq!(checked(&[("a.md", text)]), NONE);
        // Rustdoc resolves these, and mdBook or GitHub would not.
        let items = "[`Profile`](leasehold_core::Profile) [config](EtcdConfig)\n";
        assert_eq!(checked(&[("backends/etcd/src/docs.md", items)]), NONE);
        let items = "[config](EtcdConfig) [`Profile`](leasehold_core::Profile)\n";
        assert_eq!(checked(&[("README.md", items)]).len(), 2);
        // A span of code in three backticks opens no block.
        assert_eq!(checked(&[("a.md", "```[a](b)``` is code\n[a](b)\n")]).len(), 1);
    }

    #[test]
    fn code_in_the_text_of_a_link_does_not_hide_it() {
        assert_eq!(checked(&[("a.md", "[`x` and [y]](b.md)\n")]).len(), 1);
        assert_eq!(checked(&[("a.md", "[x]: b.md\n")]).len(), 1);
        assert_eq!(checked(&[("docs/book/src/SUMMARY.md", "{{#include ../../x.md}}\n")]).len(), 1);
    }

    #[test]
    fn a_page_that_the_book_does_not_list_is_found() {
        let summary = ("docs/book/src/SUMMARY.md", "- [A](a.md)\n");
        let found = checked(&[summary, ("docs/book/src/a.md", ""), ("docs/book/src/b.md", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/book/src/b.md:1: summary"), "{found:?}");
    }

    #[test]
    fn a_comment_that_names_a_missing_page_is_found() {
        let found =
            checked(&[("src/lib.rs", "//! See `docs/a.md`.\n//! See docs/b.md.\n"), ("docs/a.md", "")]);
        assert_eq!(found, ["src/lib.rs:2: mention: `docs/b.md` is not a file."]);
        assert_eq!(checked(&[("src/lib.rs", "// crates/docs/a.md and docs/api/x.txt\n")]), NONE);
    }
}
