//! Rule `wrapper`: a backend around a backend writes every method of the seam.
//!
//! A method with a default would hide what the inner backend does, and nothing but behaviour would show that. Clippy
//! knows the methods of a trait, so the rule only asks for clippy's own: the step `clippy` does the rest.

use super::Finding;
use super::source::Source;

const RULE: &str = "wrapper";

/// The folder of the backends around others, some of which reach their members by way of another file.
const LAYERS: &str = "crates/leasehold/src/layer/";
/// The traits of the seam.
const SEAM: &[&str] = &["Backend", "AtOnce", "DirectRequests", "Registers"];
const ATTRIBUTE: &str = "#[deny(clippy::missing_trait_methods)]";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().filter(|source| is_wrapper(source)).flat_map(findings).collect()
}

/// Checks whether what the file implements may be around another backend. Tests wrap one to change it.
fn is_wrapper(source: &Source) -> bool {
    let is_shipped = source.path.contains("/src/") && !source.path.starts_with("sim/");
    source.path.starts_with(LAYERS) || (is_shipped && source.text.contains("<dyn Backend>"))
}

fn findings(source: &Source) -> Vec<Finding> {
    let mut attributes = Vec::new();
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        if is_of_the_seam(line) && !attributes.contains(&ATTRIBUTE) {
            findings.push(finding(&source.path, number + 1));
        }
        attributes.clear();
    }
    findings
}

fn is_of_the_seam(line: &str) -> bool {
    line.starts_with("impl") && SEAM.iter().any(|one| line.contains(&format!(" {one} for ")))
}

fn finding(path: &str, line: usize) -> Finding {
    let advice = format!("Put `{ATTRIBUTE}` here: a default would hide what the inner backend does.");
    Finding::error(path, line, RULE, advice)
}

#[cfg(test)]
mod tests {
    use super::super::source::sample;
    use super::*;

    const WRAPPER: &str = "//! Job.\nstruct W(Arc<dyn Backend>);\n#[async_trait]\nimpl Backend for W {\n}\n";

    #[test]
    fn wrapper_without_the_attribute_is_found() {
        for path in ["crates/leasehold/src/layer/w.rs", "backends/x/src/w.rs"] {
            assert_eq!(check(&[sample(path, WRAPPER)]), vec![finding(path, 4)]);
        }
        let member = "//! Job.\nimpl Registers for Quorum {\n}\n";
        let path = "crates/leasehold/src/layer/quorum.rs";
        assert_eq!(check(&[sample(path, member)]), vec![finding(path, 2)]);
    }

    #[test]
    fn wrapper_with_the_attribute_passes() {
        let text = WRAPPER.replace("#[async_trait]", &format!("{ATTRIBUTE}\n#[async_trait]"));
        assert_eq!(check(&[sample("crates/leasehold/src/layer/w.rs", &text)]), vec![]);
    }

    #[test]
    fn backend_that_wraps_none_and_test_may_keep_defaults() {
        let alone = "//! Job.\nimpl Backend for Redis {\n}\n";
        assert_eq!(check(&[sample("backends/redis/src/backend.rs", alone)]), vec![]);
        assert_eq!(check(&[sample("backends/redis/tests/w.rs", WRAPPER)]), vec![]);
    }
}
