//! Words are spelled correctly, and as British English spells them.
//!
//! The program `typos` finds the others; `_typos.toml` lists the names that it does not know.

use serde_json::Value;

use super::Finding;

/// The program, which may be missing.
pub(super) const PROGRAM: &str = "typos";
/// It prints an object for each finding, and ends with 2 if there is one.
pub(super) const ARGUMENTS: [&str; 2] = ["--format", "json"];

/// Reads what the program has printed.
pub(super) fn findings(printed: &str) -> Result<Vec<Finding>, String> {
    printed.lines().filter_map(|line| finding(line).transpose()).collect()
}

fn finding(line: &str) -> Result<Option<Finding>, String> {
    let not_understood = || format!("{PROGRAM} printed what is not understood: {line}");
    let found: Value = serde_json::from_str(line).map_err(|_| not_understood())?;
    let text = |name: &str| found[name].as_str().ok_or_else(not_understood);
    match text("type")? {
        "typo" => {}
        // Files that are not text.
        "binary_file" => return Ok(None),
        _ => return Err(not_understood()),
    }
    let corrections: Vec<&str> =
        found["corrections"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let path = text("path")?.trim_start_matches("./");
    // A name of a file has no line.
    let line = found["line_num"].as_u64().and_then(|line| usize::try_from(line).ok()).unwrap_or(1);
    let advice = format!(
        "`{}` should be {}; a name that is right goes into _typos.toml.",
        text("typo")?,
        corrections.join(" or ")
    );
    Ok(Some(Finding::error(path, line, "spelling", advice)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_read() {
        let printed = r#"{"type":"binary_file","path":"./a.der"}
{"type":"typo","path":"./docs/a.md","line_num":7,"byte_offset":3,"typo":"chekc","corrections":["check","cheek"]}
{"type":"typo","path":"./chekc.md","byte_offset":0,"typo":"chekc","corrections":["check"]}
"#;
        let found: Vec<String> = findings(printed).unwrap().iter().map(ToString::to_string).collect();
        let expected = [
            "docs/a.md:7: spelling: `chekc` should be check or cheek; a name that is right goes into _typos.toml.",
            "chekc.md:1: spelling: `chekc` should be check; a name that is right goes into _typos.toml.",
        ];
        assert_eq!(found, expected);
        assert_eq!(findings("").unwrap(), vec![]);
    }

    #[test]
    fn output_of_another_form_is_an_error() {
        for printed in ["no json", "{}", r#"{"type":"new"}"#, r#"{"type":"typo","path":"a"}"#] {
            assert!(findings(printed).is_err(), "{printed}");
        }
    }
}
