//! Rule `opening`: a file begins by saying its job.

use super::Finding;
use super::source::Source;

const RULE: &str = "opening";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter(|source| !opens_with_its_job(&source.text))
        .map(|source| finding(&source.path))
        .collect()
}

fn finding(path: &str) -> Finding {
    Finding::error(path, 1, RULE, "Open the file with `//!` lines that say its job and its ground rules.")
}

/// Checks that a file opens with its job. Inner attributes may come before the text; anything else may
/// not.
fn opens_with_its_job(text: &str) -> bool {
    let mut in_attribute = false;
    for line in text.lines().map(str::trim) {
        if let Some(job) = line.strip_prefix("//!") {
            return !job.trim().is_empty();
        }
        if !in_attribute && !line.is_empty() && !line.starts_with("#![") {
            return false;
        }
        in_attribute = if line.starts_with("#![") || in_attribute { !line.ends_with(']') } else { false };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    #[test]
    fn a_file_may_have_attributes_on_either_side_of_its_job() {
        for text in [
            "//! The job.\n#![forbid(unsafe_code)]\n",
            "#![forbid(unsafe_code)]\n\n//! The job.\n",
            "#![allow(\n    dead_code\n)]\n//! The job.\nfn f() {}\n",
        ] {
            assert_eq!(check(&[sample("a.rs", text)]), vec![], "{text:?}");
        }
    }

    #[test]
    fn a_file_without_a_job_is_found() {
        for text in [
            "",
            "fn f() {}\n//! Late.\n",
            "// The job.\n",
            "#![forbid(unsafe_code)]\nfn f() {}\n",
            "//!\nfn f() {}\n",
        ] {
            assert_eq!(check(&[sample("a.rs", text)]), vec![finding("a.rs")], "{text:?}");
        }
    }
}
