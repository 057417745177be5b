//! Pages that are made from the code, and tables that have to agree with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The page that is what `leasehold man --markdown` prints.
const REFERENCE: &str = "docs/book/src/command-line.md";
/// The page of the URLs of all stores.
const OPTIONS: &str = "docs/book/src/url-options.md";
/// The stores, with the file that has their section of that page for their own documentation.
const STORES: &[(&str, &str)] = &[
    ("Files", "crates/leasehold/src/local/file/options.md"),
    ("Redis", "backends/redis/src/options.md"),
    ("Redlock", "backends/redis/src/redlock/options.md"),
    ("etcd", "backends/etcd/src/options.md"),
    ("ZooKeeper", "backends/zookeeper/src/options.md"),
    ("PostgreSQL", "backends/postgres/src/options.md"),
    ("MySQL and MariaDB", "backends/mysql/src/options.md"),
    ("memcached", "backends/memcached/src/options.md"),
    ("SQLite", "backends/sqlite/src/options.md"),
];
/// The page with the table of metrics, and the file that names them.
const METRICS: (&str, &str) = ("docs/book/src/observability.md", "crates/leasehold/src/layer/metrics.rs");

/// Returns a line for each page that differs from the code.
pub(super) fn check(root: &Path, program: &Path) -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for (path, new) in pages(root, program)? {
        let kept = fs::read_to_string(root.join(path)).unwrap_or_default();
        findings.extend(stale(path, &kept, &new));
    }
    let (page, code) = (read(root, METRICS.0)?, read(root, METRICS.1)?);
    findings.extend(unlike(&page, &code));
    Ok(findings)
}

/// Writes the pages anew.
pub(super) fn write(root: &Path, program: &Path) -> Result<(), String> {
    for (path, new) in pages(root, program)? {
        fs::write(root.join(path), new).map_err(|error| format!("{path}: cannot be written: {error}"))?;
    }
    Ok(())
}

/// Returns the generated pages, with their paths.
fn pages(root: &Path, program: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let reference = output(Command::new(program).args(["man", "--markdown"]))?;
    let urls = output(Command::new(program).args(["man", "--urls"]))?;
    let mut pages = sections(&urls)?;
    pages.extend(crate::matrix::pages::pages(root)?);
    pages.extend([(REFERENCE, reference), (OPTIONS, format!("{OPTIONS_HEAD}{urls}"))]);
    Ok(pages)
}

/// Returns the section of each store, with the file that it belongs into.
fn sections(urls: &str) -> Result<Vec<(&'static str, String)>, String> {
    let sections: Vec<(&str, &str)> =
        urls.split("\n## ").filter_map(|section| section.split_once("\n\n")).collect();
    let section = |&(store, path): &(&str, &'static str)| {
        let found = sections.iter().find(|(title, _)| *title == store);
        let (_, text) = found.ok_or_else(|| format!("{path}: `leasehold man --urls` has no {store}."))?;
        Ok((path, format!("{}\n", text.trim_end())))
    };
    match sections.iter().find(|(title, _)| STORES.iter().all(|(store, _)| store != title)) {
        Some((title, _)) => Err(format!("{title} needs a row in STORES of xtask/src/docs/generated.rs.")),
        None => STORES.iter().map(section).collect(),
    }
}

/// Writes the man pages into a folder.
pub(super) fn man_pages(program: &Path, folder: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    output(command.arg("man").arg("--dir").arg(folder))?;
    println!("docs: the man pages are in {}", folder.display());
    Ok(())
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("leasehold could not be started: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("leasehold man failed: {}\n{}", output.status, errors.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("leasehold man: {error}"))
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: cannot be read: {error}"))
}

/// Compares the page that is kept with a new one, and names the first line that differs.
fn stale(path: &str, kept: &str, new: &str) -> Option<String> {
    if kept == new {
        return None;
    }
    let same = kept.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    let line = new.lines().nth(same).unwrap_or("the end of the page").trim();
    Some(format!(
        "{path}:{}: stale: what the page is made of has changed, first at `{line}`: run `cargo xtask docs`.",
        same + 1
    ))
}

/// Compares the metrics in the table with those in the code.
fn unlike(page: &str, code: &str) -> Vec<String> {
    let names = |text: &str, before: &str, after: char| -> BTreeSet<String> {
        let name = |line: &str| {
            let (_, rest) = line.split_once(before)?;
            Some(format!("leasehold_{}", rest.split_once(after)?.0))
        };
        text.lines().filter_map(name).collect()
    };
    let (listed, named) = (names(page, "| `leasehold_", '`'), names(code, "\"leasehold_", '"'));
    let missing = named.difference(&listed).map(|name| format!("{name} is missing in the table"));
    let extra = listed.difference(&named).map(|name| format!("{name} is not a metric of {}", METRICS.1));
    missing.chain(extra).map(|why| format!("{}:1: metrics: {why}.", METRICS.0)).collect()
}

const OPTIONS_HEAD: &str = "\
<!-- Written by `cargo xtask docs` from the declarations of the options. Do not edit. -->

# URL options

The first option follows `?` in the URL of the store, and each further one follows `&`.
An option that a store does not have, or that would do nothing, is an error that says what to write.
So is one that is written twice.
Options that mean the same have the same name for all stores, with two exceptions.
The Unix socket of PostgreSQL is `host`, as in its own URLs, and that of MySQL is `socket`.
With a dialect of Redis the beginning of a key is `key-prefix`, because `prefix` is that of the native keys.

`mem:` and `mem:name`, in the memory of one process, have no options.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_page_is_named_with_its_first_difference() {
        assert_eq!(stale("a.md", "a\nb\n", "a\nb\n"), None);
        let found = stale("a.md", "a\nb\nc\n", "a\nB\nc\n").unwrap();
        assert!(found.starts_with("a.md:2: stale") && found.contains("`B`"), "{found}");
        assert!(stale("a.md", "", "a\n").unwrap().contains("cargo xtask docs"));
        assert!(stale("a.md", "a\nb\n", "a\n").is_some());
    }

    #[test]
    fn each_store_has_its_section_in_a_file_of_its_own() {
        let urls: String =
            STORES.iter().map(|(store, path)| format!("\n## {store}\n\n| {path} |\n")).collect();
        let found = sections(&urls).unwrap();
        assert_eq!(found.len(), STORES.len());
        assert!(found.iter().all(|(path, text)| *text == format!("| {path} |\n")), "{found:?}");
        assert!(sections(&format!("{urls}\n## New\n\n|x|\n")).unwrap_err().contains("New needs a row"));
        assert!(sections("\n## Redis\n\n|x|\n").unwrap_err().contains("has no Files"));
    }

    #[test]
    fn a_metric_without_a_row_and_a_row_without_a_metric_are_found() {
        let code = "const A: &str = \"leasehold_a\";\nconst B: &str = \"leasehold_b_total\";\n";
        assert_eq!(
            unlike("| `leasehold_a` | x |\n| `leasehold_b_total` | y |\n", code),
            Vec::<String>::new()
        );
        let found = unlike("| `leasehold_a` | x |\n| `leasehold_c` | y |\n", code);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("leasehold_b_total is missing"), "{found:?}");
        assert!(found[1].contains("leasehold_c is not"), "{found:?}");
    }

    #[test]
    fn the_metrics_of_the_library_are_those_of_the_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (page, code) = (read(root, METRICS.0).unwrap(), read(root, METRICS.1).unwrap());
        assert!(code.contains("\"leasehold_"), "the names have moved");
        assert_eq!(unlike(&page, &code), Vec::<String>::new());
    }
}
