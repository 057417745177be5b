//! `cargo xtask lua-mutants`: whether the tests see a change of the scripts of the Redis backend.
//!
//! Each mutant is one small change of one script: a comparison, a condition, a number, a key, a statement that is
//! left out. The test programs are built once, with a feature by which they send the changed script, and run
//! against a real server until one of them fails: then the mutant is killed. A mutant that survives is a
//! change that no test sees. It fails the chore, unless the committed list explains it.

mod derive;
mod judges;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::survivors::{self, Bounds};
use derive::{Mutant, mutants};
use judges::{Judges, Outcome};

/// The arguments of the chore.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// The beginning of the names of files, or of their paths below all scripts, for a part of them.
    file: Option<String>,
    /// The number of mutants that are tried, spread over all; all without it.
    limit: Option<usize>,
    /// The part that is tried, and the time after which no further mutant is.
    bounds: Bounds,
    list: bool,
}

impl Request {
    /// Parses the words after `lua-mutants`.
    pub(crate) fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => request.list = true,
                "--quick" => request.limit = Some(QUICK),
                "--limit" => {
                    let count = words.next().and_then(|count| count.parse().ok());
                    request.limit = Some(count.ok_or("--limit wants a number.")?);
                }
                bound if request.bounds.read(bound, &mut words)? => {}
                "--file" => {
                    request.file = Some((*words.next().ok_or("--file wants the name of a script.")?).into());
                }
                other => return Err(format!("`{other}` is not an option of this chore.")),
            }
        }
        Ok(request)
    }

    /// Returns the mutants that it asks for.
    fn choose<'a>(&self, all: &'a [Mutant]) -> Vec<&'a Mutant> {
        let (number, count) = self.bounds.part.unwrap_or((1, 1));
        let part: Vec<&Mutant> = all.iter().skip(number - 1).step_by(count).collect();
        spread(&part, self.limit.unwrap_or(part.len()))
    }
}

/// Derives the mutants and tries them.
pub(crate) fn run(root: &Path, request: &Request) -> Result<(), String> {
    let all = of_files(root, request.file.as_deref())?;
    let chosen = request.choose(&all);
    if request.list {
        chosen.iter().for_each(|mutant| println!("{}", mutant.name()));
        println!("{} of {} mutants", chosen.len(), all.len());
        return Ok(());
    }
    let begin = Instant::now();
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let change = folder.path().join("mutant.lua");
    Mutant::unchanged().write(&change)?;
    let mut files: Vec<&str> = chosen.iter().map(|mutant| mutant.file.as_str()).collect();
    files.dedup();
    let judges = Judges::build(root, folder.path(), &files, &change)?;
    let mut tally = Tally { explained: survivors::explained(root, EXPLAINED)?, ..Tally::default() };
    let limit = request.bounds.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let mut court = None;
    let mut file = "";
    for (number, mutant) in chosen.iter().enumerate() {
        if limit.is_some_and(|limit| begin.elapsed() > limit) {
            println!("The time is over: {} mutants were not tried.", chosen.len() - number);
            break;
        }
        if file != mutant.file {
            file = &mutant.file;
            mutant.broken().write(&change)?;
            court = Some(judges.of_script(file, &change)?);
        }
        let Some(court) = &court else { continue };
        mutant.write(&change)?;
        let started = Instant::now();
        let shown = tally.count(mutant, court.judge(&change)?);
        let took = started.elapsed().as_secs_f64();
        println!("{}/{} {}: {shown} after {took:.1} s", number + 1, chosen.len(), mutant.name());
    }
    tally.close()
}

/// The outcomes so far.
#[derive(Default)]
struct Tally {
    explained: BTreeMap<String, String>,
    /// The number of mutants that each program has killed.
    killed: BTreeMap<String, usize>,
    known: usize,
    survivors: Vec<String>,
}

impl Tally {
    /// Counts the outcome of one mutant, and returns it for a person.
    fn count(&mut self, mutant: &Mutant, outcome: Outcome) -> String {
        let once = match outcome {
            Outcome::Killed(by) => {
                let shown = format!("killed by {}", by.name());
                *self.killed.entry(by.program).or_default() += 1;
                return shown;
            }
            Outcome::Survived(once) => once,
        };
        let mut shown = if self.explained.contains_key(&mutant.name()) {
            self.known += 1;
            "survived, as explained".to_owned()
        } else {
            self.survivors.push(mutant.name());
            "SURVIVED".to_owned()
        };
        for killer in once {
            shown += &format!(" (failed once: {})", killer.name());
        }
        shown
    }

    fn close(self) -> Result<(), String> {
        let killed: usize = self.killed.values().sum();
        println!(
            "{killed} killed, {} survived and are explained, {} survived",
            self.known,
            self.survivors.len()
        );
        for (program, count) in &self.killed {
            println!("  {count} killed by {program}");
        }
        survivors::judge(&self.survivors, EXPLAINED)
    }
}

fn of_files(root: &Path, only: Option<&str>) -> Result<Vec<Mutant>, String> {
    let mut paths = Vec::new();
    scripts(&root.join(SCRIPTS), &mut paths)?;
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let below = path.strip_prefix(root.join(SCRIPTS)).unwrap_or(&path).display().to_string();
        if only.is_some_and(|only| !name.starts_with(only) && !below.starts_with(only)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        all.extend(mutants(&below, &text));
    }
    if all.is_empty() { Err("no script has this name.".to_owned()) } else { Ok(all) }
}

fn scripts(folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            scripts(&path, into)?;
        } else if path.extension().is_some_and(|end| end == "lua") {
            into.push(path);
        }
    }
    Ok(())
}

/// Returns so many of them, at equal distances.
fn spread<'a>(all: &[&'a Mutant], count: usize) -> Vec<&'a Mutant> {
    let count = count.min(all.len());
    (0..count).map(|number| all[number * all.len() / count]).collect()
}

/// The folder with all scripts.
const SCRIPTS: &str = "backends/redis/src";
/// The list of survivors with their reasons.
const EXPLAINED: &str = "backends/redis/lua-mutants.txt";
const QUICK: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(Request::parse(&[]), Ok(Request::default()));
        let words = ["--file", "renew", "--limit", "3", "--list", "--part", "2/5", "--minutes", "7"];
        let request = Request::parse(&words).unwrap();
        let (file, limit) = (Some("renew".to_owned()), Some(3));
        let expected =
            Request { file, limit, bounds: Bounds { part: Some((2, 5)), minutes: Some(7) }, list: true };
        assert_eq!(request, expected);
        for wrong in
            [&["--limit", "x"][..], &["--all"], &["--part", "0/3"], &["--part", "4/3"], &["--minutes"]]
        {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_limit_spreads_over_all_and_parts_make_up_the_whole() {
        let all = of_files(&crate::root(), None).unwrap();
        assert!(all.len() > 300, "{}", all.len());
        let chosen = |words: &[&str]| Request::parse(words).unwrap().choose(&all);
        let some = chosen(&["--limit", "10"]);
        assert_eq!(some.len(), 10);
        let files: std::collections::BTreeSet<_> = some.iter().map(|mutant| &mutant.file).collect();
        assert!(files.len() > 4, "{files:?}");
        assert_eq!(chosen(&["--limit", "100000"]).len(), all.len());
        let parts = ["1/3", "2/3", "3/3"].map(|part| chosen(&["--part", part]).len());
        assert_eq!(parts.iter().sum::<usize>(), all.len());
    }

    #[test]
    fn every_explained_mutant_exists() {
        let all: Vec<String> = of_files(&crate::root(), None).unwrap().iter().map(Mutant::name).collect();
        for name in survivors::explained(&crate::root(), EXPLAINED).unwrap().into_keys() {
            assert!(all.contains(&name), "{EXPLAINED}: {name}: no such mutant any more");
        }
    }
}
