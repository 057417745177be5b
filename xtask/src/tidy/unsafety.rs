//! Rule `unsafe`: the word is allowed only in files that are listed here with their reason.

use super::source::Source;
use super::{Exception, Finding};

const RULE: &str = "unsafe";

/// The files where `unsafe` is right. Each of these files has tests that run the code in question.
pub(super) const ALLOWED: &[Exception] = &[
    Exception {
        path: "crates/cli/src/system/fork.rs",
        rule: RULE,
        why: "the warden of a `run` is a fork: to start the program again takes a quarter of a short run",
    },
    Exception {
        path: "crates/machine/src/forks.rs",
        rule: RULE,
        why: "a handler that counts forks: without it, a fork would copy descriptors that stay open unnoticed",
    },
    Exception {
        path: "crates/machine/src/process_id.rs",
        rule: RULE,
        why: "memory that a fork gets cleared: each check for a fork would be a system call without it",
    },
];

pub(super) fn check(sources: &[Source], allowed: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for at in (0..source.tokens.len()).filter(|at| source.reads(*at, &["unsafe"])) {
            let advice =
                "Do without, or list the file with its reason in xtask/src/tidy/unsafety.rs and test it.";
            findings.push(Finding::error(&source.path, source.tokens[at].line, RULE, advice));
        }
    }
    Exception::apply(findings, allowed, "ALLOWED in xtask/src/tidy/unsafety.rs")
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    #[test]
    fn blocks_functions_impls_and_attributes_are_found() {
        let text = "fn f() {\n    unsafe { g() }\n}\nunsafe fn h() {}\nunsafe impl Send for A {}\n#[unsafe(no_mangle)]\nfn i() {}\n";
        let lines: Vec<usize> =
            check(&[sample("a.rs", text)], &[]).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 4, 5, 6]);
    }

    #[test]
    fn word_in_lints_strings_comments_and_other_names_is_accepted() {
        let text = "#![forbid(unsafe_code)]\n// unsafe\nfn f() { g(\"unsafe\"); unsafely(); }\n";
        assert_eq!(check(&[sample("a.rs", text)], &[]), vec![]);
    }

    #[test]
    fn a_listed_file_is_let_pass() {
        let allowed = [Exception { path: "a.rs", rule: RULE, why: "a system call" }];
        assert_eq!(check(&[sample("a.rs", "fn f() { unsafe { g() } }")], &allowed), vec![]);
    }
}
