//! The page of server versions, and the README's lines of them, printed from the results of the matrix.

use std::fs;
use std::path::Path;

use super::results::Results;

/// The page.
const PAGE: &str = "docs/book/src/versions.md";
const README: &str = "README.md";
/// The lines of the README between which its requirements are.
const BEGIN: &str = "<!-- Printed by `cargo xtask docs` from docs/versions.json: begin. -->\n";
const END: &str = "<!-- End. -->\n";

/// Returns both files with their new contents.
pub(crate) fn pages(root: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let results = Results::read(root)?;
    let readme = fs::read_to_string(root.join(README)).map_err(|error| format!("{README}: {error}"))?;
    Ok(vec![(PAGE, results.page()), (README, renewed(&readme, &results.requirements())?)])
}

/// Writes both.
pub(super) fn write(root: &Path) -> Result<(), String> {
    for (path, new) in pages(root)? {
        fs::write(root.join(path), new).map_err(|error| format!("{path}: cannot be written: {error}"))?;
    }
    Ok(())
}

/// Puts new lines between the marks.
fn renewed(readme: &str, lines: &str) -> Result<String, String> {
    let marks = || format!("{README}: has no lines `{}` and `{}`", BEGIN.trim(), END.trim());
    let (before, rest) = readme.split_once(BEGIN).ok_or_else(marks)?;
    let (_, after) = rest.split_once(END).ok_or_else(marks)?;
    Ok(format!("{before}{BEGIN}{lines}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_between_the_marks_are_renewed() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(renewed(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(renewed("a\n", "new\n").unwrap_err().contains("has no lines"));
    }
}
