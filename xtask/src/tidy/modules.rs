//! Rule `module-edge`: which module of `crates/leasehold` may use which.
//!
//! Modules are those directly below `lib.rs`; what is inside one of them is its own matter. An edge is
//! any path that begins with `crate::`, or with enough `super::` to leave the module.

use std::collections::HashMap;

use super::Finding;
use super::source::{Kind, Source};

const RULE: &str = "module-edge";

/// The folder that this rule is about.
const FOLDER: &str = "crates/leasehold/src/";

/// Each module with those that it may use beside itself and the leaves. A new module gets a row here.
const MODULES: &[(&str, &[&str])] = &[
    ("client", &["lock", "coord", "engine", "open"]),
    // From a URL to a backend: it has to name every backend and layer, and is the only one that does.
    ("open", &["layer", "local"]),
    // Looks at a store through a client of it.
    ("diagnose", &["client", "lock"]),
    // The part of the engine that a simulation sees.
    ("probe", &["client", "engine", "lock"]),
    // The same API for callers without a runtime: a shell around the client.
    ("blocking", &["client", "lock", "coord", "engine"]),
    ("lock", &["engine"]),
    ("coord", &["lock", "engine"]),
    ("engine", &[]),
    ("layer", &[]),
    ("local", &[]),
    // The checks of fences know nothing of the code that hands them out.
    ("fenced", &[]),
];

/// Modules of values only: all may use them, and they use only each other.
const LEAVES: &[&str] =
    &["alarm", "clock", "error", "mutant", "panics", "per_process", "random", "watch", "events"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let exports = sources.iter().find(|source| source.path == format!("{FOLDER}lib.rs")).map(exports);
    let exports = exports.unwrap_or_default();
    let mut findings = Vec::new();
    for source in sources {
        // The crate's root names all modules: that is what it is for.
        let Some(path) = source.path.strip_prefix(FOLDER).filter(|path| *path != "lib.rs") else { continue };
        let module = module_of(path);
        if !is_known(module[0]) {
            let advice = format!(
                "Give the module `{}` a row in MODULES or LEAVES of xtask/src/tidy/modules.rs.",
                module[0]
            );
            findings.push(Finding::error(&source.path, 1, RULE, advice));
            continue;
        }
        for (line, leaf) in
            paths_into_root(source, &module).into_iter().filter(|(line, _)| !source.is_test(*line))
        {
            if let Some(advice) = refuse(module[0], &leaf, &exports) {
                findings.push(Finding::error(&source.path, line, RULE, advice));
            }
        }
    }
    findings.dedup();
    findings
}

/// Returns the segments of the module that a file below `src` is.
pub(super) fn module_of(path: &str) -> Vec<&str> {
    path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect()
}

fn is_known(module: &str) -> bool {
    LEAVES.contains(&module) || MODULES.iter().any(|(name, _)| *name == module)
}

/// Returns what to do about a use of `crate::to` in the module `from`, or nothing when it is allowed.
fn refuse(from: &str, to: &str, exports: &HashMap<String, String>) -> Option<String> {
    if to == "*" {
        return Some("A glob import of the crate's root hides which module is used: name it.".to_owned());
    }
    let target = if is_known(to) { to } else { exports.get(to).map_or(to, String::as_str) };
    if target == "leasehold_core" || target == from || LEAVES.contains(&target) {
        return None;
    }
    if !is_known(target) {
        return Some(format!("`crate::{to}` does not show its module: write the path through the module."));
    }
    let allowed = MODULES.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, allowed)| allowed);
    if allowed.contains(&target) {
        return None;
    }
    let list =
        if allowed.is_empty() { "leasehold-core and the leaves only".to_owned() } else { allowed.join(", ") };
    Some(format!(
        "`{from}` may not use `{target}` (it may use {list}): turn the edge round, or move the code down."
    ))
}

/// Finds all uses of a name directly below the crate's root: line and name.
pub(super) fn paths_into_root(source: &Source, module: &[&str]) -> Vec<(usize, String)> {
    let paths = paths_into_crate(source, module).into_iter();
    paths.filter_map(|(line, path)| Some((line, path.into_iter().next()?))).collect()
}

/// Finds all paths that begin with `crate::`, or with enough `super::` to leave the module: line, and
/// segments from the crate's root on.
pub(super) fn paths_into_crate(source: &Source, module: &[&str]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    // Names of modules written out inside this file, with the token at which each ends.
    let mut inline: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < source.tokens.len() {
        inline.retain(|end| *end > at);
        if source.reads(at, &["mod"]) && source.reads(at + 2, &["{"]) {
            inline.push(source.closing(at + 2));
        }
        let ups = (0..).take_while(|up| source.reads(at + 3 * up, &["super", ":", ":"])).count();
        let start = if source.reads(at, &["crate", ":", ":"]) {
            Some((at + 3, 0))
        } else if ups > inline.len() {
            Some((at + 3 * ups, (module.len() + inline.len()).saturating_sub(ups)))
        } else {
            None
        };
        match start {
            Some((start, kept)) => {
                for name in use_tree(source, start) {
                    let above = module[..kept].iter().map(|segment| (*segment).to_owned());
                    found.push((source.tokens[name.token].line, above.chain(name.path).collect()));
                }
                at = start;
            }
            // A chain of `super` is one path; its tail is not another.
            None => at += (3 * ups).max(1),
        }
    }
    found
}

/// A name that a path or a use tree brings: its segments, and what it is called in the end.
struct Name {
    path: Vec<String>,
    last: String,
    token: usize,
}

/// Reads the path or the braces of paths that begin at the token `at`.
fn use_tree(source: &Source, at: usize) -> Vec<Name> {
    let Some(token) = source.tokens.get(at) else { return Vec::new() };
    if token.text == "{" {
        let close = source.closing(at);
        let mut names = Vec::new();
        let mut next = at + 1;
        while next < close {
            names.extend(use_tree(source, next));
            let comma =
                |at: &usize| source.tokens[*at].text == "," && source.tokens[*at].depth == token.depth + 1;
            next = (next..close).find(comma).unwrap_or(close) + 1;
        }
        return names;
    }
    if token.kind == Kind::Literal || !(token.kind == Kind::Word || token.text == "*") {
        return Vec::new();
    }
    let first = || token.text.clone();
    if source.reads(at + 1, &[":", ":"]) && source.tokens.get(at + 3).is_some_and(|next| next.text != "<") {
        let deeper = use_tree(source, at + 3);
        if !deeper.is_empty() {
            let below = |name: Name| Name { path: [vec![first()], name.path].concat(), token: at, ..name };
            return deeper.into_iter().map(below).collect();
        }
    }
    let last = if source.reads(at + 1, &["as"]) { source.tokens[at + 2].text.clone() } else { first() };
    vec![Name { path: vec![first()], last, token: at }]
}

/// Returns what the crate's root re-exports: each name with the module or crate that it comes from.
fn exports(root: &Source) -> HashMap<String, String> {
    let uses = (0..root.tokens.len()).filter(|at| root.reads(*at, &["use"]) && root.tokens[*at].depth == 0);
    let names = uses.flat_map(|at| {
        use_tree(root, if root.reads(at + 1, &["crate", ":", ":"]) { at + 4 } else { at + 1 })
    });
    names.map(|name| (name.last, name.path.into_iter().next().unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::{mark_test_modules, sample};
    use super::*;

    const NONE: [usize; 0] = [];

    const ROOT: &str = "pub mod client;\npub use client::Client;\npub use engine::{Held, keeper::Keeper as Watchdog};\npub use crate::lock::{Mutex};\npub use leasehold_core::Fence;\npub use error::Error;\n";

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut sources = vec![sample("crates/leasehold/src/lib.rs", ROOT)];
        sources.push(sample(&format!("crates/leasehold/src/{path}"), text));
        mark_test_modules(&mut sources);
        check(&sources).into_iter().map(|finding| (finding.line, finding.advice)).collect()
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        found(path, text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn the_arrows_of_the_design_are_let_pass_and_no_others() {
        let all: Vec<&str> = MODULES.iter().map(|(name, _)| *name).chain(LEAVES.iter().copied()).collect();
        let arrows = [
            ("client", "lock"),
            ("client", "coord"),
            ("client", "engine"),
            ("client", "open"),
            ("open", "layer"),
            ("open", "local"),
            ("diagnose", "client"),
            ("diagnose", "lock"),
            ("probe", "client"),
            ("probe", "engine"),
            ("probe", "lock"),
            ("blocking", "client"),
            ("blocking", "lock"),
            ("blocking", "coord"),
            ("blocking", "engine"),
            ("lock", "engine"),
            ("coord", "lock"),
            ("coord", "engine"),
        ];
        for from in &all {
            for to in &all {
                let passes =
                    lines(&format!("{from}/part.rs"), &format!("use crate::{to}::Noun;\n")).is_empty();
                let expected = from == to || LEAVES.contains(to) || arrows.contains(&(*from, *to));
                assert_eq!(passes, expected, "{from} → {to}");
            }
        }
    }

    #[test]
    fn all_ways_to_write_a_path_are_seen() {
        for text in [
            "use crate::client::Client;\n",
            "use crate::{error::Error, client::{self, Client}};\n",
            "use crate::{\n    error::Error, client as c};\n",
            "fn f(client: &crate::client::Client) {}\n",
            "fn f() { crate::client::open::<u8>(1); }\n",
            "fn f() { select! { x = crate::client::open() => {} } }\n",
            "macro_rules! m { () => { $crate::client::open() } }\n",
            "use super::client::Client;\n",
            "use crate::Client;\n",
            "mod inner { use super::super::client::Client; }\n",
        ] {
            assert_eq!(lines("engine.rs", text).len(), 1, "{text:?}");
        }
        assert_eq!(lines("engine/renew/renewer.rs", "use super::super::super::client::Client;\n"), [1]);
        assert_eq!(lines("engine/mod.rs", "use super::client::Client;\n"), [1]);
    }

    #[test]
    fn paths_that_stay_inside_are_let_pass() {
        for text in [
            "use crate::engine::keeper::Keeper;\n",
            "use crate::{Error, Fence, Held, Watchdog};\n",
            "use super::client::Client;\n",
            "use self::client::Client;\n",
            "pub(crate) fn f() {}\npub(in crate::engine) fn g() {}\n",
            "mod inner { use super::client; mod deeper { use super::super::client; } }\n",
            "use redis::client::Client;\n",
            "// crate::client\nfn f() { g(\"crate::client\"); }\n",
            "#[cfg(test)]\nmod tests { use crate::client::Client; }\n",
        ] {
            assert_eq!(found("engine/keeper.rs", text), vec![], "{text:?}");
        }
    }

    #[test]
    fn names_that_hide_their_module_are_found() {
        assert!(found("engine.rs", "use crate::*;\n")[0].1.contains("glob"));
        assert!(found("engine.rs", "use super::*;\n")[0].1.contains("glob"));
        assert!(found("engine.rs", "use crate::VERSION;\n")[0].1.contains("crate::VERSION"));
    }

    #[test]
    fn a_re_export_counts_as_the_module_behind_it() {
        assert_eq!(lines("engine.rs", "use crate::Mutex;\n"), [1]);
        assert_eq!(lines("client.rs", "use crate::Mutex;\n"), NONE);
    }

    #[test]
    fn an_unknown_module_needs_a_row_and_other_crates_do_not() {
        assert!(found("novel.rs", "fn f() {}\n")[0].1.contains("`novel`"));
        let other = sample("crates/cli/src/novel.rs", "use crate::anything::*;\n");
        assert_eq!(check(&[other]), vec![]);
    }

    #[test]
    fn the_finding_is_on_the_line_of_the_name() {
        assert_eq!(lines("engine.rs", "use crate::{\n    error::Error,\n    lock::Mutex,\n};\n"), [3]);
    }
}
