//! Folders are layers: which folder of a crate may use which.
//!
//! One table for all folders but the root of `leasehold`, whose arrows are in `modules.rs`. A module uses its
//! own folder and those before it in its row. Circles inside a folder are refused by `circles.rs`.

use super::Finding;
use super::modules::{module_of, paths_into_crate};
use super::source::Source;

const RULE: &str = "layer";

/// The modules of each of these folders, the lowest first.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "backends/redis/src",
        &["config", "protocol", "net", "topology", "wait", "backend", "compat", "redlock", "fuzz"],
    ),
    ("backends/etcd/src", &["protocol", "config", "net", "state", "client", "backend", "fuzz"]),
    ("backends/zookeeper/src", &["protocol", "config", "net", "state", "client", "backend", "fuzz"]),
    ("backends/postgres/src", &["config", "error", "net", "sql", "wait", "backend", "compat", "fuzz"]),
    ("backends/mysql/src", &["config", "error", "net", "sql", "backend", "compat", "fuzz"]),
    ("backends/sqlite/src", &["config", "error", "sql", "net", "backend", "fuzz"]),
    ("backends/memcached/src", &["protocol", "config", "net", "backend", "compat", "fuzz"]),
    (
        "crates/backend/src",
        &[
            "random",
            "pollers",
            "keyed_mutex",
            "changes",
            "connecting",
            "connection",
            "url",
            "diagnose",
            "cell",
            "sql",
            "session",
            "fuzz",
        ],
    ),
    (
        "crates/backend/src/connection",
        &["duplex", "question", "wire", "shared", "stream_guard", "driver", "sent"],
    ),
    ("crates/backend/src/cell", &["wait", "diagnose", "list", "cells", "laws", "compat", "state", "backend"]),
    ("crates/cli/src", &["system", "exit", "output", "request", "process", "commands", "fuzz"]),
    (
        "crates/history/src",
        &["event", "history", "verdict", "view", "report", "linear", "check", "export", "timeline", "fuzz"],
    ),
    (
        "crates/torture/src",
        &[
            "error", "clock", "plan", "recorder", "register", "wire", "worker", "rig", "nemesis", "torture",
            "report", "run",
        ],
    ),
    (
        "crates/monitor/src",
        &[
            "text", "cost", "actions", "shapes", "row", "view", "history", "graph", "overview", "options",
            "shared", "refresh", "follow", "monitor",
        ],
    ),
    (
        "crates/top/src",
        &[
            "cells", "theme", "frame", "list", "detail", "graph", "help", "dialog", "app", "screen",
            "terminal", "run",
        ],
    ),
    (
        "crates/serve/src",
        &[
            "config", "problem", "body", "token", "watchers", "lately", "holds", "state", "probes", "guard",
            "api", "console", "listen",
        ],
    ),
    (
        "crates/serve/src/console",
        &[
            "words",
            "paths",
            "visit",
            "assets",
            "plots",
            "attention",
            "advice",
            "timeline",
            "graph",
            "follows",
            "watcher",
            "layout",
            "parts",
            "refusal",
            "doctor",
            "aside",
            "overview",
            "locks",
            "lock",
            "waits",
            "actions",
            "login",
            "events",
        ],
    ),
    (
        "campaign/src",
        &[
            "store",
            "fault",
            "chance",
            "expected",
            "machine",
            "plot",
            "seen",
            "json_lines",
            "results",
            "judge",
            "world",
            "inject",
            "cell",
            "endure",
            "page",
            "broken",
            "arguments",
        ],
    ),
    (
        "crates/leasehold/src/engine",
        &[
            "retry",
            "timer",
            "lifecycle",
            "deadline",
            "backend_call",
            "inspect",
            "lease",
            "registers",
            "renew",
            "release",
            "hold",
            "acquire",
            "deadlock",
        ],
    ),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for (folder, layers) in LAYERS {
            findings.extend(check_one(source, folder, layers));
        }
    }
    findings.dedup();
    findings
}

/// Checks one file against the layers of one folder.
fn check_one(source: &Source, folder: &str, layers: &[&str]) -> Vec<Finding> {
    let Some(path) = source.path.strip_prefix(folder).and_then(|path| path.strip_prefix('/')) else {
        return Vec::new();
    };
    // The folder's root names all its layers: that is what it is for.
    if matches!(path, "lib.rs" | "main.rs" | "mod.rs") {
        return Vec::new();
    }
    let Some((_, inside)) = folder.split_once("/src") else { return Vec::new() };
    let above: Vec<&str> = inside.split('/').filter(|segment| !segment.is_empty()).collect();
    let module = [above.clone(), module_of(path)].concat();
    let own = module[above.len()];
    let Some(rank) = layers.iter().position(|layer| *layer == own) else {
        let advice = format!(
            "`{own}` is no layer of {folder}: move the file into one, or give it a row in LAYERS of \
             xtask/src/tidy/layers.rs."
        );
        return vec![Finding::error(&source.path, 1, RULE, advice)];
    };
    let mut findings = Vec::new();
    for (line, path) in paths_into_crate(source, &module) {
        let is_inside = path.len() > above.len() && path[..above.len()] == above[..];
        let other = is_inside.then(|| layers.iter().position(|layer| *layer == path[above.len()])).flatten();
        if other.is_some_and(|other| other > rank) && !source.is_test(line) {
            let advice = format!(
                "`{own}` may not use `{}`, a layer above it: turn the edge round, or move the code down.",
                path[above.len()]
            );
            findings.push(Finding::error(&source.path, line, RULE, advice));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let sources = [sample(path, text)];
        check(&sources).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn architecture_page_has_the_same_layers() {
        let page = include_str!("../../../ARCHITECTURE.md");
        for (folder, layers) in LAYERS {
            // The page leaves out the folder `src` of a whole crate.
            let folder = folder.strip_suffix("/src").unwrap_or(folder);
            let row = format!("| `{folder}` | {} |", layers.join(", "));
            assert!(page.contains(&row), "missing in ARCHITECTURE.md: {row}");
        }
    }

    #[test]
    fn a_layer_uses_those_below_it_and_none_above() {
        let text = "use crate::config::RedisConfig;\nuse crate::topology::server_info::ServerInfo;\n";
        assert_eq!(lines("backends/redis/src/backend/renew.rs", text), NONE);
        assert_eq!(lines("backends/redis/src/net/login.rs", text), [2]);
        assert_eq!(lines("backends/redis/src/protocol.rs", "use super::wait::polling;\n"), [1]);
        let tests = "pub struct Key;\n#[cfg(test)]\nmod tests { use crate::backend::RedisBackend; }\n";
        assert_eq!(lines("backends/redis/src/protocol/keys.rs", tests), NONE);
    }

    #[test]
    fn a_folder_below_the_root_has_layers_of_its_own() {
        let text = "use crate::engine::acquire::queue::Lines;\nuse super::super::lease::Lease;\n";
        assert_eq!(lines("crates/leasehold/src/engine/release/job.rs", text), [1]);
        assert_eq!(lines("crates/leasehold/src/engine/acquire/span.rs", text), NONE);
        assert_eq!(lines("crates/leasehold/src/engine/release.rs", "use super::deadlock::graph;\n"), [1]);
    }

    #[test]
    fn a_file_outside_the_layers_is_refused() {
        assert_eq!(lines("backends/redis/src/helpers.rs", "pub fn help() {}\n"), [1]);
        assert_eq!(lines("backends/redis/src/lib.rs", "mod helpers;\n"), NONE);
        // A crate without a row has no layers.
        assert_eq!(lines("crates/machine/src/helpers.rs", "use crate::boot;\n"), NONE);
    }
}
