//! The test programs that contain all mutants of an area.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::areas::{Area, Judge};
use crate::derive::{Derived, Mutant, derive};
use crate::insertions::Changed;
use crate::{copy, sources};

/// All mutants of some files of an area, and the programs that contain them.
#[derive(Debug)]
pub(crate) struct Built {
    /// The first has the number 0.
    pub(crate) mutants: Vec<Mutant>,
    /// The names of those that the compiler refuses.
    pub(crate) refused: BTreeSet<String>,
    pub(crate) programs: Vec<Program>,
}

/// A test program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The folder of its package, in which it runs.
    pub(crate) folder: PathBuf,
    pub(crate) judge: &'static Judge,
}

/// Returns the mutants of the files of an area whose names contain one of these words.
pub(crate) fn mutants(root: &Path, area: &Area, files: &[String]) -> Result<Vec<Mutant>, String> {
    Ok(Sources::read(root, area, files, &BTreeSet::new())?.mutants)
}

/// Builds them in a copy of the workspace below `target`.
pub(crate) fn build(root: &Path, area: &Area, files: &[String], target: &Path) -> Result<Built, String> {
    // Cargo takes the same package of two workspaces for one, so each area has a folder of its own.
    let target = target.join(area.name);
    let workspace = Workspace { copy: target.join("tree"), target: target.join("build") };
    let all = sources::all(root)?;
    let list = target.join("refused");
    let mut refused = BTreeSet::new();
    if let Ok(kept) = std::fs::read_to_string(&list) {
        let kept = kept.lines().map(str::to_owned).collect();
        // Else the compiler decides anew about changed code.
        if copy::has(&workspace.copy, &Sources::read(root, area, files, &kept)?.texts()) {
            refused = kept;
        }
    }
    loop {
        let sources = Sources::read(root, area, files, &refused)?;
        copy::write(root, &workspace.copy, &all, &sources.texts())?;
        let errors = workspace.check(area)?;
        if errors.is_empty() {
            let lines = refused.iter().map(|name| format!("{name}\n"));
            std::fs::write(&list, lines.collect::<String>())
                .map_err(|error| format!("{}: {error}", list.display()))?;
            let programs = workspace.programs(area)?;
            return Ok(Built { mutants: sources.mutants, refused, programs });
        }
        let blamed = sources.blame(&errors)?;
        println!("{}: the compiler refuses {} of {}", area.name, blamed.len(), sources.mutants.len());
        refused.extend(blamed);
    }
}

/// The changed files of an area.
struct Sources {
    mutants: Vec<Mutant>,
    files: BTreeMap<PathBuf, Changed>,
    /// The root of the crate, and what its text ends with.
    root: (PathBuf, String),
}

impl Sources {
    fn read(
        root: &Path,
        area: &Area,
        words: &[String],
        refused: &BTreeSet<String>,
    ) -> Result<Sources, String> {
        let mut files = sources::below(root, &area.root())?;
        files.retain(|file| {
            area.contains(file) && (words.is_empty() || words.iter().any(|word| file.contains(word)))
        });
        let mut sources = Sources {
            mutants: Vec::new(),
            files: BTreeMap::new(),
            root: (area.root().into(), sources::read(root, &area.root())?),
        };
        for file in files {
            let text = sources::read(root, &file)?;
            let Derived { mutants, insertions } = derive(&file, &text, sources.mutants.len(), refused)?;
            sources.mutants.extend(mutants);
            sources.files.insert(file.into(), Changed::new(&text, &insertions));
        }
        Ok(sources)
    }

    /// Returns the texts of all files that differ. The root of the crate gets the module of the switch.
    fn texts(&self) -> BTreeMap<PathBuf, String> {
        let mut texts: BTreeMap<PathBuf, String> =
            self.files.iter().map(|(file, changed)| (file.clone(), changed.text.clone())).collect();
        let (file, text) = &self.root;
        let text = texts.remove(file).unwrap_or_else(|| text.clone());
        let text = format!("{ALLOW}{text}\n#[doc(hidden)]\npub mod leasehold_mutants {{\n{SWITCH}}}\n");
        texts.insert(file.clone(), text);
        texts
    }

    /// Returns the names of the mutants that these errors belong to.
    fn blame(&self, errors: &[Complaint]) -> Result<BTreeSet<String>, String> {
        let mut blamed = BTreeSet::new();
        for error in errors {
            for (file, part) in &error.places {
                let Some(changed) = self.files.get(file) else { continue };
                // The root of the crate begins with what is allowed in it.
                let moved = if *file == self.root.0 { ALLOW.len() } else { 0 };
                let part = part.start.saturating_sub(moved)..part.end.saturating_sub(moved);
                blamed
                    .extend(changed.blame(&part).into_iter().map(|number| self.mutants[number].name.clone()));
            }
        }
        match (blamed.is_empty(), errors.first()) {
            (true, Some(error)) => Err(format!("this error belongs to no mutant:\n{}", error.text)),
            _ => Ok(blamed),
        }
    }
}

/// An error of the compiler.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    text: String,
    /// The bytes of files that it is about.
    places: Vec<(PathBuf, Range<usize>)>,
}

/// A copy of the workspace, and the folder that it is built in.
struct Workspace {
    copy: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Returns what the compiler refuses in the crate of an area.
    fn check(&self, area: &Area) -> Result<Vec<Complaint>, String> {
        let mut command = self.cargo();
        command
            .args(["check", "--package", area.package, "--lib", "--message-format=json"])
            .args(area.features);
        let output = command.stderr(Stdio::piped()).output().map_err(|error| format!("cargo: {error}"))?;
        let errors = complaints(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() && errors.is_empty() {
            return Err(format!("cargo check: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(errors)
    }

    /// Builds the test programs of an area.
    fn programs(&self, area: &Area) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        for judge in area.judges {
            let mut command = self.cargo();
            command.args(["test", "--no-run", "--package", judge.package]).args(judge.programs);
            command.arg("--message-format=json-render-diagnostics");
            let output = command.output().map_err(|error| format!("cargo: {error}"))?;
            if !output.status.success() {
                return Err(format!("the tests of {} could not be built", judge.package));
            }
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
            programs.extend(messages.filter_map(|message: Value| program(&message, judge)));
        }
        Ok(programs)
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.copy).stdin(Stdio::null()).stdout(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            // Those of this package, with which some build scripts would run again.
            if name.to_string_lossy().starts_with("CARGO_PKG_") {
                command.env_remove(name);
            }
        }
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "0");
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
        command
    }
}

/// Parses the errors among the messages of cargo.
fn complaints(messages: &str) -> Vec<Complaint> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors = messages
        .filter(|message| message["reason"] == "compiler-message" && message["message"]["level"] == "error");
    let complaint = |message: Value| {
        // The value is missing where it is used, because it is not set elsewhere.
        let code = message["message"]["code"]["code"].as_str().unwrap_or_default();
        let is_of_moves = ["E0381", "E0382"].contains(&code);
        let spans = message["message"]["spans"].as_array().cloned().unwrap_or_default();
        Complaint {
            text: message["message"]["rendered"].as_str().unwrap_or_default().to_owned(),
            places: spans
                .iter()
                .filter(|span| span["is_primary"] == !is_of_moves)
                .filter_map(place)
                .collect(),
        }
    };
    // The last one only counts the others.
    errors.map(complaint).filter(|error| !error.places.is_empty()).collect()
}

/// Returns the place that a message is about: for one in a macro, where it is called.
fn place(span: &Value) -> Option<(PathBuf, Range<usize>)> {
    let mut span = span;
    while !span["expansion"].is_null() {
        span = &span["expansion"]["span"];
    }
    let number = |name: &str| span[name].as_u64().and_then(|number| usize::try_from(number).ok());
    Some((span["file_name"].as_str()?.into(), number("byte_start")?..number("byte_end")?))
}

/// Returns the test program that a message of cargo is about.
fn program(message: &Value, judge: &'static Judge) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Program { path, folder, judge })
}

/// The text of the module that says which mutant is on.
const SWITCH: &str = include_str!("switch.rs");
/// The lints that a crate with mutants may break: code behind a `return`, an overflow that is visible, parentheses.
const ALLOW: &str = "#![allow(warnings, arithmetic_overflow, unconditional_panic)] ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_a_macro_is_where_the_macro_is_called() {
        let line = r#"{"reason":"compiler-message","message":{"level":"error","rendered":"no","spans":[
            {"is_primary":false,"file_name":"a.rs","byte_start":1,"byte_end":2,"expansion":null},
            {"is_primary":true,"file_name":"std.rs","byte_start":7,"byte_end":8,"expansion":{"span":
                {"file_name":"b.rs","byte_start":3,"byte_end":4,"expansion":null}}}]}}"#;
        let end =
            r#"{"reason":"compiler-message","message":{"level":"error","rendered":"aborting","spans":[]}}"#;
        let found = complaints(&format!("{}\n{end}\nnoise\n", line.replace('\n', "")));
        assert_eq!(found, [Complaint { text: "no".to_owned(), places: vec![("b.rs".into(), 3..4)] }]);
    }

    #[test]
    fn a_value_is_missing_where_it_is_not_set() {
        let line = r#"{"reason":"compiler-message","message":{"level":"error","rendered":"no","code":{"code":"E0382"},
            "spans":[{"is_primary":false,"file_name":"a.rs","byte_start":1,"byte_end":2,"expansion":null},
            {"is_primary":true,"file_name":"a.rs","byte_start":7,"byte_end":8,"expansion":null}]}}"#;
        assert_eq!(complaints(&line.replace('\n', ""))[0].places, [("a.rs".into(), 1..2)]);
    }

    #[test]
    fn the_text_of_the_switch_can_stand_in_a_module() {
        syn::parse_file(&format!("mod inner {{ {SWITCH} }}")).unwrap();
        syn::parse_file(&format!("{ALLOW}//! Documentation\nfn f() {{}}")).unwrap();
    }
}
