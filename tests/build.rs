//! Collects the Rust snippets of the book, so that `tests/book` compiles each of them as it is printed.

use std::path::Path;
use std::{env, fs};

fn main() {
    let manifest = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let pages = Path::new(&manifest).join("../docs/book/src");
    println!("cargo::rerun-if-changed={}", pages.display());
    let (mut code, mut count) = (String::new(), 0);
    for folder in [pages.clone(), pages.join("migration")] {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(path).unwrap_or_default();
            let page = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            for (number, snippet) in snippets(&text).into_iter().enumerate() {
                code += &module(&format!("{page}_{number}"), &snippet);
                count += 1;
            }
        }
    }
    code += &format!("const COUNT: usize = {count};\n");
    let out = env::var("OUT_DIR").unwrap_or_default();
    if let Err(cause) = fs::write(Path::new(&out).join("book.rs"), code) {
        println!("cargo::error=the snippets of the book cannot be written: {cause}");
    }
}

/// Returns a module with a snippet in the middle of an asynchronous function.
///
/// This is text and not a macro of the test: names that a macro brings are not visible to what it is given.
fn module(name: &str, snippet: &str) -> String {
    let lines = [
        &format!("mod {name} {{"),
        "use crate::surroundings::*;",
        "async fn snippet(given: Given) -> Result<(), Failure> {",
        "let Given { locks, guard, old, new, parts, database, mut connection, url, text } = given;",
        snippet,
        "Ok(())",
        "}",
        "}",
    ];
    lines.map(|line| format!("{line}\n")).concat()
}

/// Returns the blocks of a page that are marked as Rust.
fn snippets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.trim_start()) {
            (None, "```rust") => open = Some(String::new()),
            (Some(_), "```") => found.extend(open.take()),
            (Some(snippet), _) => {
                snippet.push_str(line);
                snippet.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}
