//! Rule `length`: a file or function that outgrew one reading is split.

use super::Finding;
use super::source::Source;

const RULE: &str = "length";

/// Lines of a file at which to stop and think, and at which to stop. Tests and documentation do not
/// count: neither may become shorter for the sake of this rule.
const FILE: Limit = Limit { warn: 400, refuse: 500 };

/// Lines of a function, from `fn` to its last brace.
const FUNCTION: Limit = Limit { warn: 60, refuse: 80 };

/// A test may be long, but not endless.
const TEST: Limit = Limit { warn: 80, refuse: usize::MAX };

struct Limit {
    warn: usize,
    refuse: usize,
}

impl Limit {
    fn finding(&self, path: &str, line: usize, lines: usize, what: &str, advice: &str) -> Option<Finding> {
        if lines > self.refuse {
            let text = format!("{what} has {lines} lines, more than {}: {advice}", self.refuse);
            return Some(Finding::error(path, line, RULE, text));
        }
        let text = || format!("{what} has {lines} lines, more than {}: stop and think; {advice}", self.warn);
        (lines > self.warn).then(|| Finding::warning(path, line, RULE, text()))
    }
}

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let advice = "move one of its nouns into a file of its own.";
        findings.extend(FILE.finding(&source.path, 1, code_lines(source), "The file", advice));
        for function in source.functions() {
            let (first, last) = (*function.lines.start(), *function.lines.end());
            let limit = if source.is_test(first) { TEST } else { FUNCTION };
            let what = format!("The function `{}`", function.name);
            let advice = "give its steps names of their own.";
            findings.extend(limit.finding(&source.path, first, last + 1 - first, &what, advice));
        }
    }
    findings
}

fn code_lines(source: &Source) -> usize {
    let is_doc = |line: &str| line.trim_start().starts_with("///") || line.trim_start().starts_with("//!");
    source
        .text
        .lines()
        .enumerate()
        .filter(|(index, line)| !is_doc(line) && !source.is_test(index + 1))
        .count()
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::super::{Finding, Weight};
    use super::*;

    fn weights(path: &str, text: &str) -> Vec<Weight> {
        check(&[sample(path, text)]).iter().map(|finding| finding.weight).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_is_warned_of_and_then_refused() {
        assert_eq!(weights("src/a.rs", &function(60)), []);
        assert_eq!(weights("src/a.rs", &function(61)), [Weight::Warning]);
        assert_eq!(weights("src/a.rs", &function(80)), [Weight::Warning]);
        assert_eq!(weights("src/a.rs", &function(81)), [Weight::Error]);
    }

    #[test]
    fn a_test_function_is_only_warned_of() {
        assert_eq!(weights("src/a.rs", &format!("#[test]\n{}", function(80))), []);
        assert_eq!(weights("src/a.rs", &format!("#[test]\n{}", function(200))), [Weight::Warning]);
        assert_eq!(weights("tests/a.rs", &function(200)), [Weight::Warning]);
    }

    #[test]
    fn the_finding_names_the_function_and_its_line() {
        let found = check(&[sample("src/a.rs", &format!("\n{}", function(81)))]);
        let Finding { line, advice, .. } = &found[0];
        assert!(*line == 2 && advice.contains("`long` has 81 lines"), "{advice}");
    }

    #[test]
    fn a_file_is_warned_of_and_then_refused() {
        assert_eq!(weights("src/a.rs", &"use a;\n".repeat(400)), []);
        assert_eq!(weights("src/a.rs", &"use a;\n".repeat(401)), [Weight::Warning]);
        assert_eq!(weights("src/a.rs", &"use a;\n".repeat(500)), [Weight::Warning]);
        assert_eq!(weights("src/a.rs", &"use a;\n".repeat(501)), [Weight::Error]);
    }

    #[test]
    fn tests_and_documentation_do_not_lengthen_a_file() {
        let documented = format!("//! The job.\n{}use a;\n", "/// A line.\n".repeat(600));
        assert_eq!(weights("src/a.rs", &format!("{documented}struct A;\n")), []);
        let tested = format!("use a;\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    use a;\n".repeat(600));
        assert_eq!(weights("src/a.rs", &tested), []);
        assert_eq!(weights("tests/a.rs", &"use a;\n".repeat(600)), []);
    }
}
