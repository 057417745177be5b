//! Rule `call`: calls that are wrong in this project, each with what to use in its place.

use super::edges::Member;
use super::source::{Kind, Source};
use super::{Exception, Finding};

const RULE: &str = "call";

/// The places where a banned call is right. `xtask` measures its steps with `Instant`, and needs no
/// entry: it is outside the scope.
pub(super) const ALLOWED: &[Exception] = &[
    Exception {
        path: "crates/leasehold/src/clock.rs",
        rule: RULE,
        why: "it compares the time of a runtime, which a test may have paused, with the machine's",
    },
    Exception {
        path: "crates/leasehold/src/engine/renew/agenda.rs",
        rule: RULE,
        why: "it compares the clock of its timing wheel with the client's, which alone decides",
    },
    Exception {
        path: "backends/etcd/src/net/outage.rs",
        rule: RULE,
        why: "it spaces out requests in the time of the runtime, and counts no lease",
    },
    Exception {
        path: "backends/postgres/src/backend/session/advisory/table_gate.rs",
        rule: RULE,
        why: "it leaves a table that was found locked alone for a second, and counts no lease",
    },
    Exception {
        path: "crates/cli/src/system/kill_tree.rs",
        rule: RULE,
        why: "the warden is a process of its own without a runtime, and waits for the deaths of others",
    },
    Exception {
        path: "crates/testkit/src/process.rs",
        rule: RULE,
        why: "ending a server blocks its test by contract, and has to work in `Drop`",
    },
    Exception {
        path: "crates/leasehold/src/local/memory.rs",
        rule: RULE,
        why: "an observer is shown since when a claim holds; nothing is decided by it",
    },
    Exception {
        path: "crates/leasehold/src/local/file/ledger_file.rs",
        rule: RULE,
        why: "an observer is shown since when a claim holds; nothing is decided by it",
    },
    Exception {
        path: "crates/leasehold/src/local/file/reserve.rs",
        rule: RULE,
        why: "the fences of a new resource begin at the wall clock; no lease is measured by it",
    },
    Exception {
        path: "crates/leasehold/src/local/file/resource_dir.rs",
        rule: RULE,
        why: "it runs on blocking threads only, and a wait in the kernel could not be ended with patience",
    },
    Exception {
        path: "crates/leasehold/src/fenced/file.rs",
        rule: RULE,
        why: "its calls block by contract, as all calls on files do, and a wait in the kernel would have no limit",
    },
    Exception {
        path: "crates/leasehold/src/layer/quorum/timer.rs",
        rule: RULE,
        why: "it decides when to continue without the rest, or to retry; whether a lock is held is not decided by it",
    },
    Exception {
        path: "backends/redis/src/net/timer.rs",
        rule: RULE,
        why: "it says when to look or to dial again; whether a lock is held is not decided by it",
    },
    Exception {
        path: "crates/backend/src/cell/laws.rs",
        rule: RULE,
        why: "it is compiled for tests only, and a test fails by panicking",
    },
    Exception {
        path: "backends/sqlite/src/net/worker.rs",
        rule: RULE,
        why: "it is a thread of its own that may block, and says how long to try; whether a lock is held is not decided by it",
    },
    Exception {
        path: "backends/redis/src/backend/diagnose.rs",
        rule: RULE,
        why: "it is the wall clocks themselves that are compared, for a person to see; nothing is decided by it",
    },
];

/// A banned call, as the tokens that spell it.
struct Ban {
    tokens: &'static [&'static str],
    scope: Scope,
    advice: &'static str,
}

enum Scope {
    /// Code whose sense of time decides whether a lock is held.
    Leases,
    /// Code that runs on a shared executor: crates that depend on tokio.
    Async,
    /// Code that has connections and files, which a fork of the process shares.
    Stores,
    /// All code that is not a test.
    Code,
}

const BANS: &[Ban] = &[
    Ban {
        tokens: &["Instant", ":", ":", "now"],
        scope: Scope::Leases,
        advice: "This clock stands still while the machine is suspended: take `now` as a value, or read the client's \
                 clock (`Moment`).",
    },
    Ban {
        tokens: &["SystemTime", ":", ":", "now"],
        scope: Scope::Leases,
        advice: "Wall-clock time jumps: take `now` as a value, or read the client's clock (`Moment`).",
    },
    Ban {
        tokens: &["thread", ":", ":", "sleep"],
        scope: Scope::Async,
        advice: "This stops every task of the thread: await `tokio::time::sleep`.",
    },
    Ban {
        tokens: &["tokio", ":", ":", "spawn"],
        scope: Scope::Stores,
        advice: "In a fork of the process this task would go on with the connections of the parent: use \
                 `leasehold_machine::spawn`.",
    },
    Ban {
        tokens: &[".", "unwrap", "(", ")"],
        scope: Scope::Code,
        advice: "Pass the error on with `?`, or make the impossible case impossible by type.",
    },
];

/// Commands that end processes by name, and so also those of other users. Banned in tests too, in code
/// and scripts.
const BY_NAME: &[&str] = &[concat!("pk", "ill"), concat!("kill", "all")];

pub(super) fn check(sources: &[Source], members: &[Member], allowed: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for ban in BANS.iter().filter(|ban| ban.scope.holds(&source.path, members)) {
            findings.extend(calls(source, ban));
        }
        findings.extend(by_name(source));
    }
    Exception::apply(findings, allowed, "ALLOWED in xtask/src/tidy/calls.rs")
}

impl Scope {
    fn holds(&self, path: &str, members: &[Member]) -> bool {
        let below = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        match self {
            Self::Leases => ["crates/core", "crates/leasehold", "backends"].into_iter().any(below),
            Self::Async => members.iter().any(|member| member.uses_tokio && below(&member.folder)),
            Self::Stores => {
                let folders = [
                    "backends",
                    "crates/backend",
                    "crates/leasehold/src/layer",
                    "crates/leasehold/src/local",
                ];
                folders.into_iter().any(below)
            }
            Self::Code => true,
        }
    }
}

fn calls(source: &Source, ban: &Ban) -> Vec<Finding> {
    let line = |at: usize| source.tokens[at].line;
    (0..source.tokens.len())
        .filter(|at| source.reads(*at, ban.tokens) && !source.is_test(line(*at)))
        .map(|at| {
            Finding::error(&source.path, line(at), RULE, format!("`{}`: {}", ban.tokens.concat(), ban.advice))
        })
        .collect()
}

fn by_name(source: &Source) -> Vec<Finding> {
    let names = |token: &super::source::Token| {
        let words = token.text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.into_iter().any(|word| BY_NAME.contains(&word))
    };
    // The lexer turns a documentation comment into `doc = "…"`; a text that warns of these commands is
    // welcome.
    let is_doc = |at: usize| at >= 2 && source.reads(at - 2, &["doc", "="]);
    source
        .tokens
        .iter()
        .enumerate()
        .filter(|(at, token)| token.kind != Kind::Mark && names(token) && !is_doc(*at))
        .map(|(_, token)| {
            let advice =
                format!("{} ends strangers' processes: keep the child, and end it by its id.", token.text);
            Finding::error(&source.path, token.line, RULE, advice)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    const NONE: [usize; 0] = [];

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let members = [
            Member::sample("leasehold", "crates/leasehold", true),
            Member::sample("leasehold-testkit", "crates/testkit", false),
        ];
        check(&[sample(path, text)], &members, &[]).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn clocks_are_banned_where_leases_are_counted() {
        let text = "fn f() {\n    Instant::now();\n    std::time::SystemTime::now();\n    map(std::time::Instant::now);\n}\n";
        for path in ["crates/core/src/a.rs", "crates/leasehold/src/a.rs", "backends/redis/src/a.rs"] {
            assert_eq!(lines(path, text), [2, 4, 3], "{path}");
        }
        for path in
            ["xtask/src/a.rs", "crates/cli/src/a.rs", "crates/core/tests/a.rs", "crates/core2/src/a.rs"]
        {
            assert_eq!(lines(path, text), NONE, "{path}");
        }
    }

    #[test]
    fn other_uses_of_the_types_are_let_pass() {
        let text = "use std::time::Instant;\nfn f(at: Instant) { at.elapsed(); clock.now(); log(\"Instant::now\"); }\n";
        assert_eq!(lines("crates/core/src/a.rs", text), NONE);
    }

    #[test]
    fn tasks_of_stores_end_with_their_process() {
        let text = "fn f() {\n    tokio::spawn(work);\n    leasehold_machine::spawn(work);\n    tokio::task::spawn_blocking(work);\n}\n";
        for path in
            ["backends/redis/src/a.rs", "crates/backend/src/session/a.rs", "crates/leasehold/src/local/a.rs"]
        {
            assert_eq!(lines(path, text), [2], "{path}");
        }
        assert_eq!(lines("crates/leasehold/src/engine/a.rs", text), NONE);
    }

    #[test]
    fn a_thread_sleeps_only_outside_async_crates_and_in_tests() {
        let text = "fn f() { std::thread::sleep(d); }\n";
        assert_eq!(lines("crates/leasehold/src/a.rs", text), [1]);
        assert_eq!(lines("crates/testkit/src/a.rs", text), NONE);
        assert_eq!(lines("crates/leasehold/src/a.rs", "fn f() { tokio::time::sleep(d); }\n"), NONE);
        assert_eq!(
            lines("crates/leasehold/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")),
            NONE
        );
    }

    #[test]
    fn unwrap_is_banned_outside_tests() {
        assert_eq!(lines("xtask/src/a.rs", "fn f() {\n    g()\n        .unwrap();\n}\n"), [3]);
        assert_eq!(
            lines("xtask/src/a.rs", "/// `a.unwrap()`\nfn f() { g().unwrap_or(1); h(\".unwrap()\"); }\n"),
            NONE
        );
        assert_eq!(lines("xtask/src/a.rs", "#[test]\nfn f() { g().unwrap(); }\n"), NONE);
        assert_eq!(lines("crates/cli/tests/a.rs", "fn f() { g().unwrap(); }\n"), NONE);
    }

    #[test]
    fn processes_are_not_ended_by_name_even_in_tests() {
        let call = format!("fn f() {{\n    run(\"{} -f redis\");\n}}\n", BY_NAME[0]);
        assert_eq!(lines("crates/cli/tests/a.rs", &call), [2]);
        assert_eq!(lines("xtask/src/a.rs", &format!("fn f() {{ {}(); }}\n", BY_NAME[1])), [1]);
        let warning = format!("/// Never use {}.\nfn f() {{}} // not {}\n", BY_NAME[0], BY_NAME[1]);
        assert_eq!(lines("xtask/src/a.rs", &warning), NONE);
        assert_eq!(lines("xtask/src/a.rs", "fn f() { run(\"skillall\"); child.kill(); }\n"), NONE);
    }

    #[test]
    fn a_listed_file_is_let_pass_and_a_needless_entry_is_not() {
        let allowed = [Exception { path: "crates/core/src/a.rs", rule: RULE, why: "the clock" }];
        let source = |text| [sample("crates/core/src/a.rs", text)];
        assert_eq!(check(&source("fn f() { Instant::now(); }"), &[], &allowed), vec![]);
        assert_eq!(check(&source("fn f() {}"), &[], &allowed).len(), 1);
    }
}
