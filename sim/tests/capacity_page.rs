//! The tables of the page `capacity.md` are those of the model.
//!
//! `UPDATE=1 cargo test -p leasehold-sim --test capacity_page -- --include-ignored --test-threads 1` writes them.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_sim::capacity::tables;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/capacity.md")
}

/// Returns the text of a page before a table, the table, and the text after it.
fn parts<'a>(page: &'a str, name: &str) -> (&'a str, &'a str, &'a str) {
    let (begin, end) =
        (format!("<!-- capacity {name}: begin -->\n"), format!("<!-- capacity {name}: end -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("the page has no table {name}"));
    let (table, _) = rest.split_once(&end).unwrap_or_else(|| panic!("the table {name} has no end"));
    let at = before.len() + begin.len();
    (&page[..at], table, &page[at + table.len()..])
}

/// Compares a table of the page with that of the model, or writes it.
fn check(name: &str, table: &str) {
    let page_text =
        fs::read_to_string(page()).unwrap_or_else(|error| panic!("the page cannot be read: {error}"));
    let (before, kept, after) = parts(&page_text, name);
    let wanted = format!("\n{table}\n");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(page(), format!("{before}{wanted}{after}"))
            .unwrap_or_else(|error| panic!("the page cannot be written: {error}"));
        return;
    }
    assert!(
        kept == wanted,
        "the table `{name}` of capacity.md is not that of the model: run `UPDATE=1 cargo test -p leasehold-sim \
         --test capacity_page -- --include-ignored --test-threads 1`\n{wanted}"
    );
}

#[test]
fn capacity_page_has_the_tables_of_the_formulas() {
    for (name, table) in tables::formulas() {
        check(name, &table);
    }
}

#[test]
#[ignore = "simulates 10,000 processes and a million locks on every store"]
fn capacity_page_has_the_table_of_the_simulation() {
    let (name, table) = tables::simulated();
    check(name, &table);
}

#[test]
fn capacity_page_with_another_number_is_found_out() {
    let text = "a\n<!-- capacity x: begin -->\n\n| 1 |\n\n<!-- capacity x: end -->\nb";
    let (before, table, after) = parts(text, "x");
    assert_eq!((before.len() + table.len() + after.len(), table), (text.len(), "\n| 1 |\n\n"));
}
