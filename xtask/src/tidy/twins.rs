//! Each call that waits has a twin for threads that block.
//!
//! The list of twins is the macro call in `blocking/mirrors.rs` of `crates/leasehold`. A public `async fn` of
//! a type there has a line in that list, or a row in `ALLOWED`.

use std::collections::BTreeSet;

use super::Finding;
use super::source::{Kind, Source};

const RULE: &str = "twin";

/// The list of twins.
const LIST: &str = "crates/leasehold/src/blocking/mirrors.rs";

/// The files and folders whose types have twins.
const MIRRORED: &[&str] = &[
    "crates/leasehold/src/client.rs",
    "crates/leasehold/src/diagnose.rs",
    "crates/leasehold/src/watch.rs",
    "crates/leasehold/src/lock/",
    "crates/leasehold/src/coord/",
];

/// A method without a line in the list, and the reason.
struct Allowed {
    kind: &'static str,
    call: &'static str,
    why: &'static str,
}

const fn allowed(kind: &'static str, call: &'static str, why: &'static str) -> Allowed {
    Allowed { kind, call, why }
}

const FUTURE: &str = "a thread has no future to drop at the loss: it calls `check`, or sets `on_lost`";
const UPGRADE: &str = "`Client::call` runs an upgradable reader";

const ALLOWED: &[Allowed] = &[
    allowed("Client", "open", "it makes the client: by hand in client.rs"),
    allowed("Client", "list", "it takes an optional reference: by hand in client.rs"),
    allowed("ClientBuilder", "open", "`Client::open_with` takes the builder"),
    allowed("Guard", "run", FUTURE),
    allowed("Guard", "changed", "a thread looks at `state` between the steps of its work"),
    allowed("Guard", "revoked", "it needs a limit: `revoked_within`, by hand in guard.rs"),
    allowed("MultiGuard", "run", FUTURE),
    allowed("Leadership", "run", FUTURE),
    allowed("Observer", "next", "it borrows the observer: `next_leader`, by hand in observer.rs"),
    allowed("Versioned", "update", "it calls code of the user: by hand in primitives.rs"),
    allowed("SingleFlight", "get_or_load", "it calls code of the user: by hand in primitives.rs"),
    allowed("RwLock", "upgradable_read", UPGRADE),
    allowed("RwLock", "try_upgradable_read", UPGRADE),
    allowed("RwLock", "try_upgradable_read_for", UPGRADE),
    allowed("Upgradable", "upgrade", UPGRADE),
    allowed("Upgradable", "try_upgrade", UPGRADE),
    allowed("Upgradable", "try_upgrade_for", UPGRADE),
    allowed("Upgradable", "downgrade", UPGRADE),
    allowed("Upgradable", "lost", UPGRADE),
    allowed("Upgradable", "run", UPGRADE),
    allowed("Upgradable", "release", UPGRADE),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    check_but(sources, ALLOWED)
}

fn check_but(sources: &[Source], allowed: &[Allowed]) -> Vec<Finding> {
    // A test of another rule has other files.
    let Some(list) = sources.iter().find(|source| source.path == LIST) else { return Vec::new() };
    let twins = listed(list);
    let mut findings = Vec::new();
    let mut needed = BTreeSet::new();
    for source in sources.iter().filter(|source| MIRRORED.iter().any(|path| source.path.starts_with(path))) {
        for (kind, call, line) in waiting_calls(source) {
            if twins.contains(&(kind.clone(), call.clone())) {
                continue;
            }
            if allowed.iter().any(|one| one.kind == kind && one.call == call) {
                needed.insert((kind, call));
                continue;
            }
            let advice = format!(
                "`{kind}::{call}` has no twin for threads that block: give it a line in {LIST}, or a row with the \
                 reason in ALLOWED of xtask/src/tidy/twins.rs."
            );
            findings.push(Finding::error(&source.path, line, RULE, advice));
        }
    }
    for Allowed { kind, call, why } in allowed {
        if !needed.contains(&((*kind).to_owned(), (*call).to_owned())) {
            let advice = format!(
                "ALLOWED of xtask/src/tidy/twins.rs excepts `{kind}::{call}` ({why}), which needs it no more: \
                 remove the entry."
            );
            findings.push(Finding::error(LIST, 1, RULE, advice));
        }
    }
    findings
}

/// Returns the types and methods of the list.
fn listed(list: &Source) -> BTreeSet<(String, String)> {
    let mut twins = BTreeSet::new();
    let mut kind = None;
    for at in 0..list.tokens.len() {
        let token = &list.tokens[at];
        if token.depth == 1 && list.reads(at, &["as"]) {
            kind = list.tokens.get(at + 1).map(|name| name.text.clone());
        }
        let begins = token.depth == 2 && token.kind == Kind::Word && at > 0;
        let Some(kind) = kind.as_ref().filter(|_| begins && is_between_lines(list, at)) else { continue };
        // `within lost_within = lost()` is the twin of `lost`.
        let method = if list.reads(at + 2, &["="]) { at + 3 } else { at + 1 };
        if let Some(method) = list.tokens.get(method) {
            twins.insert((kind.clone(), method.text.clone()));
        }
    }
    twins
}

/// Returns `true` for the first word of a line of the list.
fn is_between_lines(list: &Source, at: usize) -> bool {
    let before = &list.tokens[at - 1];
    (before.text == ";" && before.depth == 2) || (before.text == "{" && before.depth == 1)
}

/// Returns the type, the name and the line of each public `async fn` of a file.
fn waiting_calls(source: &Source) -> Vec<(String, String, usize)> {
    let mut calls = Vec::new();
    for at in (0..source.tokens.len()).filter(|at| source.reads(*at, &["impl"])) {
        let token = &source.tokens[at];
        if token.depth != 0 || source.is_test(token.line) {
            continue;
        }
        let Some(open) = (at..source.tokens.len())
            .find(|open| source.tokens[*open].depth == 0 && source.tokens[*open].text == "{")
        else {
            continue;
        };
        if (at..open).any(|word| source.reads(word, &["for"])) {
            continue;
        }
        let kind = kind_of(source, at + 1, open);
        for call in open..source.closing(open) {
            if source.tokens[call].depth == 1 && source.reads(call, &["pub", "async", "fn"]) {
                let name = &source.tokens[call + 3];
                calls.push((kind.clone(), name.text.clone(), name.line));
            }
        }
    }
    calls
}

/// Returns the type of an `impl`, by the name under which users know it.
fn kind_of(source: &Source, from: usize, open: usize) -> String {
    // The parameters of the `impl` itself come first.
    let mut at = from;
    if source.reads(at, &["<"]) {
        at = (at..open).find(|end| source.reads(*end, &[">"])).map_or(open, |end| end + 1);
    }
    let aliases = [("Exclusive", "Mutex"), ("Shared", "RwLock"), ("Counted", "Semaphore")];
    let alias = aliases.iter().find(|(marker, _)| source.reads(at, &["Lock", "<", marker, ">"]));
    alias.map_or_else(|| source.tokens[at].text.clone(), |(_, alias)| (*alias).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    const LISTED: &str = "mirror! {\n    Mutex as Mutex {\n        call lock() -> Guard;\n    }\n    \
                          BlockingGuard<crate::Guard> as Guard {\n        within lost_within = lost() -> \
                          LossCause;\n        end wait(condition: &Condition) -> Guard;\n    }\n    \
                          Lock<K> as Lock for K {\n        call inspect() -> Snapshot;\n    }\n}\n";

    fn found(path: &str, text: &str, allowed: &[Allowed]) -> Vec<(usize, String)> {
        let sources = [sample(LIST, LISTED), sample(path, text)];
        check_but(&sources, allowed).into_iter().map(|finding| (finding.line, finding.advice)).collect()
    }

    #[test]
    fn a_call_that_waits_needs_a_line() {
        let text = "impl Lock<Exclusive> {\n    pub async fn lock(&self) {}\n    pub async fn try_lock(&self) {}\n    \
                    pub fn name(&self) {}\n    async fn inner(&self) {}\n}\n";
        let found = found("crates/leasehold/src/lock/mutex.rs", text, &[]);
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [3]);
        assert!(found[0].1.contains("`Mutex::try_lock`"), "{}", found[0].1);
    }

    #[test]
    fn a_line_counts_for_its_own_type_and_method() {
        let guard = "impl Guard {\n    pub async fn lost(&self) {}\n    pub async fn wait(self) {}\n    \
                     pub async fn lost_within(&self) {}\n}\n";
        assert_eq!(found("crates/leasehold/src/lock/guard.rs", guard, &[]).len(), 1);
        let lock = "impl<K> Lock<K> {\n    pub async fn inspect(&self) {}\n}\n";
        assert_eq!(found("crates/leasehold/src/lock/mod.rs", lock, &[]), []);
        let other = "impl Latch {\n    pub async fn lock(&self) {}\n}\n";
        assert_eq!(found("crates/leasehold/src/coord/latch.rs", other, &[]).len(), 1);
        assert_eq!(found("crates/leasehold/src/engine/mod.rs", other, &[]), []);
    }

    #[test]
    fn exception_is_accepted_and_must_be_needed() {
        let excepted = [allowed("Guard", "run", "a future")];
        let text = "impl Guard {\n    pub async fn run(&self) {}\n}\n";
        assert_eq!(found("crates/leasehold/src/lock/run.rs", text, &excepted), []);
        let stale = found("crates/leasehold/src/lock/run.rs", "impl Guard {}\n", &excepted);
        assert!(stale.len() == 1 && stale[0].1.contains("`Guard::run`"), "{stale:?}");
    }
}
