//! The modules of one folder do not import each other in a circle.
//!
//! A reader who knows that the arrows go one way can read a crate from its leaves up. A module that needs
//! something of a module above it gets it as an argument, or the thing moves to a file of its own. A module
//! and the modules below it may know each other.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::modules::{module_of, paths_into_crate};
use super::source::Source;

const RULE: &str = "circle";

/// The imports among the modules of one folder: for each module those that it uses, each with a line where it does.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<String, (&'a str, usize)>>;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut folders: BTreeMap<String, Uses<'_>> = BTreeMap::new();
    for source in sources {
        let Some((root, path)) = source.path.split_once("/src/") else { continue };
        if matches!(path, "lib.rs" | "main.rs") {
            continue;
        }
        let module = module_of(path);
        let paths = paths_into_crate(source, &module);
        for depth in 0..module.len() {
            let folder = format!("{root}/src/{}", module[..depth].join("/"));
            let uses = folders.entry(folder).or_default().entry(module[depth]).or_default();
            for (line, path) in &paths {
                let is_below = path.len() > depth && path[..depth] == module[..depth];
                if is_below && path[depth] != module[depth] && !source.is_test(*line) {
                    uses.entry(path[depth].clone()).or_insert((&source.path, *line));
                }
            }
        }
    }
    folders.values().flat_map(circles).collect()
}

/// Returns a finding for each import that is part of a circle.
fn circles(uses: &Uses<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (from, names) in uses {
        for (to, (path, line)) in names {
            if reaches(uses, to, from) {
                let advice = format!(
                    "`{from}` uses `{to}`, which uses `{from}`, itself or through others: turn one edge round, or \
                     move what both need into a file of its own."
                );
                findings.push(Finding::error(path, *line, RULE, advice));
            }
        }
    }
    findings
}

/// Returns `true` if `to` is used by `from`, or by a module that it uses.
fn reaches(uses: &Uses<'_>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            next.extend(uses.get(module).into_iter().flat_map(|names| names.keys().map(String::as_str)));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    fn lines(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| sample(&format!("backends/a/src/{path}"), text)).collect();
        check(&sources).into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn a_circle_is_found_at_each_of_its_imports() {
        let found = lines(&[
            ("net.rs", "use std::io;\nuse crate::config::{Url, parse};\n"),
            ("config.rs", "use crate::{error, keys::Key};\n"),
            ("keys/mod.rs", "pub mod one;\n"),
            ("keys/one.rs", "fn f() { crate::net::dial() }\n"),
            ("error.rs", "pub enum Error {}\n"),
        ]);
        let at = |path: &str, line| (format!("backends/a/src/{path}"), line);
        assert_eq!(found, [at("config.rs", 1), at("keys/one.rs", 1), at("net.rs", 2)]);
    }

    #[test]
    fn a_circle_inside_a_folder_is_found() {
        let found = lines(&[
            ("net.rs", "mod dial; mod pool;\n"),
            ("net/dial.rs", "use super::pool::Pool;\n"),
            ("net/pool.rs", "use crate::net::dial::dial;\n"),
            ("net/pool/slot.rs", "use super::super::tls::Tls;\n"),
        ]);
        let at = |path: &str, line| (format!("backends/a/src/{path}"), line);
        assert_eq!(found, [at("net/dial.rs", 1), at("net/pool.rs", 1)]);
    }

    #[test]
    fn arrows_one_way_are_not_a_circle() {
        let tests = "pub struct Key;\n#[cfg(test)]\nmod tests { use crate::net::dial; }\n";
        let files = [
            ("lib.rs", "mod net; mod config; mod keys; use net::dial;\n"),
            ("net.rs", "use crate::config::Url;\nuse crate::keys::Key;\n"),
            ("config.rs", "use crate::keys::Key;\n"),
            ("keys.rs", tests),
            // A module and those below it may know each other.
            ("net/tls.rs", "use crate::net::Stream;\nuse super::dial;\n"),
        ];
        assert_eq!(lines(&files), []);
        let elsewhere = sample("backends/b/src/keys.rs", "use crate::net::dial;\n");
        assert!(check(&[elsewhere]).is_empty());
    }
}
