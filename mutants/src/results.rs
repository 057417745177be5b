//! The outcomes of an area, in a file and for a person, and the committed list of survivors with their reasons.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::derive::Mutant;
use crate::judge::Outcome;

/// The list of survivors with their reasons.
const EXPLAINED: &str = "docs/mutants.txt";

/// The outcomes of the mutants of an area.
pub(crate) struct Results {
    /// A line for each: the outcome, the name of the mutant, and the test that killed it, with tabs between.
    file: PathBuf,
    /// By name, the outcome and the rest of the line.
    outcomes: Mutex<BTreeMap<String, (String, String)>>,
}

impl Results {
    /// Keeps what was killed or hung in the run before, or nothing.
    pub(crate) fn new(file: PathBuf, keeps_killed: bool) -> Results {
        let text =
            if keeps_killed { std::fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
        let lines = text.lines().filter_map(|line| {
            let mut words = line.splitn(3, '\t').map(str::to_owned);
            Some((words.next()?, words.next()?, words.next().unwrap_or_default()))
        });
        let seen = lines.filter(|(outcome, ..)| [KILLED, HUNG].contains(&&**outcome));
        let outcomes = seen.map(|(outcome, name, by)| (name, (outcome, by))).collect();
        Results { file, outcomes: Mutex::new(outcomes) }
    }

    /// Returns `true` if a mutant of this name was killed or hung.
    pub(crate) fn is_seen(&self, name: &str) -> bool {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Notes the outcome of a mutant, and shows it.
    pub(crate) fn note(&self, mutant: &Mutant, outcome: &Outcome) {
        let (outcome, by) = match outcome {
            Outcome::Killed(by) => (KILLED, by.clone()),
            Outcome::Hung => (HUNG, String::new()),
            Outcome::Survived { tried, reached_by } => (SURVIVED, format!("{tried} of {reached_by} tests")),
            Outcome::Unreached => (UNREACHED, String::new()),
        };
        println!("{outcome}\t{}\t(line {})\t{by}", mutant.name, mutant.line);
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.insert(mutant.name.clone(), (outcome.to_owned(), by));
        let lines = outcomes.iter().map(|(name, (outcome, by))| format!("{outcome}\t{name}\t{by}\n"));
        // A run that is ended can be continued. Without the file it begins anew.
        let _ = std::fs::write(&self.file, lines.collect::<String>());
    }

    /// Prints the numbers, and returns the names of those that no test sees and nobody has explained.
    pub(crate) fn close(self, area: &str, refused: usize, root: &Path) -> Result<Vec<String>, String> {
        let explained = explained(root)?;
        let outcomes = self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let count = |wanted| outcomes.values().filter(|(outcome, _)| outcome == wanted).count();
        let unseen = outcomes.iter().filter(|(_, (outcome, _))| ![KILLED, HUNG].contains(&&**outcome));
        let (known, open): (Vec<_>, Vec<_>) =
            unseen.map(|(name, _)| name.clone()).partition(|name| explained.contains_key(name));
        println!(
            "{area}: {} tried, {} killed, {} hung, {} survived, {} reached by no test; {} of these are explained; \
             {refused} were refused by the compiler",
            outcomes.len(),
            count(KILLED),
            count(HUNG),
            count(SURVIVED),
            count(UNREACHED),
            known.len()
        );
        Ok(open)
    }
}

/// Fails if there are mutants that no test sees and the list does not explain.
pub(crate) fn judge(root: &Path, open: &[String]) -> Result<(), String> {
    // A list with a mistake fails, too.
    explained(root)?;
    if open.is_empty() {
        return Ok(());
    }
    Err(format!(
        "No test sees these changes. Write one, or explain them in {EXPLAINED}:\n{}",
        open.join("\n")
    ))
}

/// Reads the survivors that the committed list explains, with their reasons.
fn explained(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = crate::sources::read(root, EXPLAINED)?;
    parse(&text).map_err(|line| format!("{EXPLAINED}: {line}: it has no reason"))
}

/// Parses a list: a line for each survivor, after its reason in lines that begin with `#`. An empty line ends a reason.
/// The error is the first line without one.
fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let (mut found, mut reason) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        match line.strip_prefix('#') {
            None if line.is_empty() => reason.clear(),
            Some(text) => reason += text,
            None if reason.is_empty() => return Err(line.to_owned()),
            None => {
                found.insert(line.to_owned(), reason.clone());
            }
        }
    }
    Ok(found)
}

const KILLED: &str = "killed";
const HUNG: &str = "hung";
const SURVIVED: &str = "survived";
const UNREACHED: &str = "unreached";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::areas::AREAS;

    #[test]
    fn a_survivor_has_a_reason() {
        let found = parse("# one\n# line\na.rs: x\n\n# two\nb.rs: y\nb.rs: z\n").unwrap();
        assert_eq!(found["a.rs: x"], " one line");
        assert_eq!((&*found["b.rs: y"], &*found["b.rs: z"]), (" two", " two"));
        assert_eq!(parse("a.rs: x\n").unwrap_err(), "a.rs: x");
        assert_eq!(parse("# one\na.rs: x\n\nb.rs: y\n").unwrap_err(), "b.rs: y");
    }

    #[test]
    fn every_explained_mutant_exists() {
        let root = crate::root();
        let all: Vec<String> = AREAS
            .iter()
            .flat_map(|area| crate::build::mutants(&root, area, &[]).unwrap())
            .map(|mutant| mutant.name)
            .collect();
        let explained = explained(&root).unwrap();
        let stale: Vec<_> = explained.keys().filter(|name| !all.contains(name)).collect();
        assert!(stale.is_empty(), "{EXPLAINED} has mutants that do not exist any more: {stale:#?}");
    }

    #[test]
    fn a_run_continues_without_what_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("area.txt");
        let note = |results: &Results, name: &str, outcome: Outcome| {
            results.note(&Mutant { name: name.to_owned(), line: 1 }, &outcome);
        };
        let results = Results::new(file.clone(), true);
        note(&results, "a.rs: x", Outcome::Killed("test".to_owned()));
        note(&results, "a.rs: y", Outcome::Hung);
        note(&results, "a.rs: z", Outcome::Survived { tried: 1, reached_by: 2 });
        note(&results, "a.rs: w", Outcome::Unreached);
        assert_eq!(results.close("area", 0, &crate::root()).unwrap(), ["a.rs: w", "a.rs: z"]);
        let results = Results::new(file.clone(), true);
        assert!(results.is_seen("a.rs: x") && results.is_seen("a.rs: y"));
        assert!(!results.is_seen("a.rs: z") && !results.is_seen("a.rs: w"));
        assert!(!Results::new(file, false).is_seen("a.rs: x"));
    }
}
