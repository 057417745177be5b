//! The book: the pages as mdBook can show them, and mdBook itself.
//!
//! The pages of a backend are the front pages of its rustdoc, which mdBook cannot show as they are: they
//! are included here, with their headings one level lower and without links to items. A link to a file that
//! is not a page of the book leads to the repository where `Cargo.toml` names it, and is text otherwise.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::PAGES;
use super::links::{is_foreign, resolve};
use super::markdown::{Fence, heading, include, links};
use crate::servers;

/// Writes the pages into the target folder and builds the book of them, if `mdbook` is installed.
pub(super) fn build(root: &Path, target: &Path) -> Result<(), String> {
    let Some(mdbook) = servers::find("mdbook") else {
        println!(
            "docs: mdbook is not installed, so the book is not built: `cargo install --locked mdbook` brings it."
        );
        return Ok(());
    };
    let (source, book) = (target.join("book-source"), target.join("book"));
    prepare(root, &source).map_err(|error| format!("the pages of the book cannot be written: {error}"))?;
    let mut command = Command::new(mdbook);
    command.arg("build").arg(&source).arg("--dest-dir").arg(&book);
    let status = command.status().map_err(|error| format!("mdbook could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("mdbook failed: {status}"));
    }
    println!("docs: the book is in {}", book.display());
    Ok(())
}

/// Writes `book.toml` and all pages into an empty folder.
fn prepare(root: &Path, source: &Path) -> std::io::Result<()> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    fs::create_dir_all(source)?;
    fs::copy(root.join("docs/book/book.toml"), source.join("book.toml"))?;
    let repository = repository(&fs::read_to_string(root.join("Cargo.toml"))?);
    copy(root, PAGES, &source.join("src"), repository.as_deref())
}

fn copy(root: &Path, from: &str, to: &Path, repository: Option<&str>) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(root.join(from))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{from}/{name}");
        if entry.file_type()?.is_dir() {
            copy(root, &path, &to.join(name), repository)?;
        } else if path.ends_with(".md") {
            let read = |path: &str| fs::read_to_string(root.join(path));
            fs::write(to.join(name), page(&path, &read(&path)?, repository, read)?)?;
        } else {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

/// Returns a page with its includes in place, and without links that mdBook cannot follow.
fn page(
    path: &str,
    text: &str,
    repository: Option<&str>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> std::io::Result<String> {
    let mut page = String::new();
    for line in text.lines() {
        match include(line).and_then(|target| resolve(path, target)) {
            Some(other) => page += &without_links(&other, &front_page(&read(&other)?), repository),
            None => {
                page += line;
                page += "\n";
            }
        }
    }
    Ok(without_links(path, &page, repository))
}

/// Returns the front page of a crate in plain Markdown: rustdoc's code is Rust unless it says otherwise, and
/// hides the lines that begin with `# `.
fn front_page(text: &str) -> String {
    let mut page = String::new();
    let mut fence = Fence::default();
    let (mut was_code, mut is_rust) = (false, false);
    for line in text.lines() {
        let is_code = fence.covers(line);
        if is_code && !was_code {
            let word = line.trim_start().trim_start_matches('`');
            is_rust = matches!(word, "" | "rust" | "no_run" | "ignore" | "compile_fail" | "should_panic");
            page += if is_rust { "```rust,ignore" } else { line };
            page += "\n";
        } else if !is_code && heading(line).is_some() {
            page += &format!("#{line}\n");
        } else if !is_code {
            page += &without_items(line);
            page += "\n";
        } else if !(is_rust && (line == "#" || line.starts_with("# "))) {
            page += line;
            page += "\n";
        }
        // The line that closes a block is covered by it, and the next one is not.
        was_code = is_code && !fence.is_closed();
    }
    page
}

/// Returns the line without the brackets of `[`item`]`, which rustdoc makes a link.
fn without_items(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, item)) = rest.split_once("[`") {
        let Some((name, after)) = item.split_once("`]") else { break };
        let is_link = after.starts_with(['(', '[', ':']);
        text += &if is_link { format!("{before}[`{name}`]") } else { format!("{before}`{name}`") };
        rest = after;
    }
    text + rest
}

fn without_links(path: &str, text: &str, repository: Option<&str>) -> String {
    let mut page = String::new();
    let mut fence = Fence::default();
    for line in text.lines() {
        let mut line = line.to_owned();
        if !fence.covers(&line) {
            for link in links(&line).into_iter().rev() {
                let target = line[link.target.clone()].to_owned();
                if let Some(other) = outside(path, &target, repository) {
                    let text = line[link.text].to_owned();
                    let link_to = |url| format!("[{text}]({url})");
                    let shown = other.map_or(text.clone(), link_to);
                    line.replace_range(link.whole, &shown);
                }
            }
        }
        page += &line;
        page += "\n";
    }
    page
}

/// Returns what replaces a target outside of the book: a URL, or nothing to link to. `None` is for a target
/// that stays.
fn outside(path: &str, target: &str, repository: Option<&str>) -> Option<Option<String>> {
    if is_foreign(path, target) {
        let is_item = target.contains("::") || !target.contains(':');
        return is_item.then_some(None);
    }
    let file = target.split('#').next().unwrap_or_default();
    let other = resolve(path, file)?;
    if other.starts_with(PAGES) || file.is_empty() {
        return None;
    }
    Some(repository.map(|repository| format!("{repository}/blob/HEAD/{other}")))
}

/// Returns the address of the repository that the manifest names.
fn repository(manifest: &str) -> Option<String> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("repository = "))?;
    Some(value.trim().trim_matches('"').trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "docs/book/src/stores/etcd.md";

    fn shown(text: &str, repository: Option<&str>) -> String {
        let read = |path: &str| {
            assert_eq!(path, "backends/etcd/src/docs.md");
            Ok("```no_run\n# hidden\nshown();\n```\n# Promises\n[`Profile`](core::Profile), [`Item`] and [x](#promises)\n"
                .to_owned())
        };
        page(PAGE, text, repository, read).unwrap()
    }

    #[test]
    fn a_front_page_is_included_as_plain_markdown() {
        let text = "# etcd\n{{#include ../../../../backends/etcd/src/docs.md}}\n";
        let expected =
            "# etcd\n```rust,ignore\nshown();\n```\n## Promises\n`Profile`, `Item` and [x](#promises)\n";
        assert_eq!(shown(text, None), expected);
    }

    #[test]
    fn a_link_out_of_the_book_becomes_text_or_a_url() {
        let text = "[a](../safety.md#x), [`b`](../../../adr/1.md) and [c](https://example.org)\n";
        assert_eq!(shown(text, None), "[a](../safety.md#x), `b` and [c](https://example.org)\n");
        let linked =
            "[a](../safety.md#x), [`b`](https://h/r/blob/HEAD/docs/adr/1.md) and [c](https://example.org)\n";
        assert_eq!(shown(text, Some("https://h/r")), linked);
        assert_eq!(
            shown("```text\n[b](../../../adr/1.md)\n```\n", None),
            "```text\n[b](../../../adr/1.md)\n```\n"
        );
    }

    #[test]
    fn the_repository_is_that_of_the_manifest() {
        assert_eq!(
            repository("[workspace.package]\nrepository = \"https://h/r/\"\n").as_deref(),
            Some("https://h/r")
        );
        assert_eq!(repository("[workspace.package]\n"), None);
    }

    #[test]
    fn the_pages_of_the_book_can_be_prepared() {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        prepare(root, &folder.path().join("source")).unwrap();
        let summary = fs::read_to_string(folder.path().join("source/src/SUMMARY.md")).unwrap();
        assert!(summary.contains("(choosing.md)"), "{summary}");
        let etcd = fs::read_to_string(folder.path().join("source/src/stores/etcd.md")).unwrap();
        assert!(etcd.contains("## Promises") && !etcd.contains("{{#include"), "{etcd}");
    }
}
