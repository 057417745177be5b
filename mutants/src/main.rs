//! `mutants`: whether the tests see small changes of the code that decides about grants.
//!
//! All changes of an area are built into its test programs, in a copy of the workspace; at run time one of them is
//! on. So a mutant needs no build, only the tests that reach it. `cargo xtask mutants` starts this program.
#![forbid(unsafe_code)]

mod areas;
mod build;
mod copy;
mod derive;
mod insertions;
mod judge;
mod results;
mod run;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use areas::{AREAS, Area};
use judge::Judges;
use results::Results;

const USAGE: &str = "\
Usage: cargo xtask mutants [AREA ...] [options]

Areas: core, engine, cell, sessions, quorum; all without one.

  --list         shows the changes
  --file WORD    those of files whose paths contain the word; may be repeated
  --part K/N     the part K of N of each area
  --limit N      so many of each area, at equal distances
  --minutes M    no further change once the time is over, for each area
  --seconds S    for each change those tests that together take so long without it, the fastest first; 60 without it
  --continue     without those that were killed or hung before
";

/// The request of the command line.
#[derive(Debug, Default)]
struct Request {
    areas: Vec<&'static Area>,
    files: Vec<String>,
    part: Option<(usize, usize)>,
    limit: Option<usize>,
    minutes: Option<u64>,
    seconds: Option<u64>,
    keeps_killed: bool,
    list: bool,
}

impl Request {
    fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().copied().ok_or_else(|| format!("{word} wants a value."));
            match *word {
                "--list" => request.list = true,
                "--continue" => request.keeps_killed = true,
                "--file" => request.files.push(value()?.to_owned()),
                "--part" => {
                    request.part = Some(part(value()?).ok_or("--part wants a part of all, such as 2/5.")?);
                }
                "--limit" => request.limit = Some(value()?.parse().map_err(|_| "--limit wants a number.")?),
                "--minutes" => {
                    request.minutes = Some(value()?.parse().map_err(|_| "--minutes wants a number.")?);
                }
                "--seconds" => {
                    request.seconds = Some(value()?.parse().map_err(|_| "--seconds wants a number.")?);
                }
                option if option.starts_with('-') => return Err(format!("`{option}` is not an option.")),
                name => request.areas.push(areas::named(name)?),
            }
        }
        if request.areas.is_empty() {
            request.areas.extend(AREAS);
        }
        Ok(request)
    }

    /// Returns which of so many mutants are tried.
    fn choose(&self, count: usize) -> Vec<usize> {
        let (number, parts) = self.part.unwrap_or((1, 1));
        let part: Vec<usize> = (0..count).skip(number - 1).step_by(parts).collect();
        let limit = self.limit.unwrap_or(part.len()).min(part.len());
        (0..limit).map(|number| part[number * part.len() / limit]).collect()
    }
}

/// Parses a part of a whole, such as the second of five.
fn part(text: &str) -> Option<(usize, usize)> {
    let (number, count) = text.split_once('/')?;
    let part = (number.parse().ok()?, count.parse().ok()?);
    (part.0 >= 1 && part.0 <= part.1).then_some(part)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words.iter().any(|word| ["help", "--help", "-h"].contains(word)) {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let request = match Request::parse(&words) {
        Ok(request) => request,
        Err(complaint) => {
            eprintln!("{complaint}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut open = Vec::new();
    for area in &request.areas {
        match work(&root(), area, &request) {
            Ok(survivors) => open.extend(survivors),
            Err(complaint) => {
                eprintln!("{}: {complaint}", area.name);
                return ExitCode::FAILURE;
            }
        }
    }
    match results::judge(&root(), &open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::FAILURE
        }
    }
}

/// Tries the mutants of an area, and returns those that no test sees.
fn work(root: &Path, area: &'static Area, request: &Request) -> Result<Vec<String>, String> {
    if request.list {
        let mutants = build::mutants(root, area, &request.files)?;
        let chosen = request.choose(mutants.len());
        chosen.iter().for_each(|number| println!("{}", mutants[*number].name));
        println!("{} of {} mutants of {}", chosen.len(), mutants.len(), area.name);
        return Ok(Vec::new());
    }
    let target = target(root).join("mutants");
    let begin = Instant::now();
    let built = build::build(root, area, &request.files, &target)?;
    println!(
        "{}: {} mutants, built in {:.0} s",
        area.name,
        built.mutants.len(),
        begin.elapsed().as_secs_f64()
    );
    let results = Results::new(target.join(area.name).join("results"), request.keeps_killed);
    let mut chosen = request.choose(built.mutants.len());
    chosen.retain(|number| !results.is_seen(&built.mutants[*number].name));
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let begin = Instant::now();
    let judges = Judges::find(&built, &target.join(area.name).join("reached"), temporary.path())?;
    println!("{}: what the tests reach was found in {:.0} s", area.name, begin.elapsed().as_secs_f64());
    let until = request.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let budget = Duration::from_secs(request.seconds.unwrap_or(60));
    judges
        .try_all(&chosen, budget, until, |number, outcome| results.note(&built.mutants[number], &outcome))?;
    let open = results.close(area.name, built.refused.len(), root)?;
    judges.check()?;
    Ok(open)
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = PathBuf::from(folder);
    folder.parent().map_or_else(|| folder.clone(), PathBuf::from)
}

/// Returns the folder that cargo builds in.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let all = Request::parse(&[]).unwrap();
        assert_eq!(all.areas.len(), AREAS.len());
        assert_eq!(all.choose(3), [0, 1, 2]);
        let words = [
            "core",
            "--part",
            "2/5",
            "--minutes",
            "7",
            "--seconds",
            "9",
            "--file",
            "ledger",
            "--continue",
            "--list",
        ];
        let request = Request::parse(&words).unwrap();
        assert_eq!((request.part, request.minutes, request.seconds), (Some((2, 5)), Some(7), Some(9)));
        assert_eq!((request.areas[0].name, &*request.files), ("core", &["ledger".to_owned()][..]));
        assert!(request.keeps_killed && request.list);
        for wrong in [&["all"][..], &["--all"], &["--part", "0/3"], &["--part", "4/3"], &["--limit"]] {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parts_make_up_the_whole_and_a_limit_spreads_over_it() {
        let chosen = |words: &[&str]| Request::parse(words).unwrap().choose(10);
        assert_eq!(chosen(&["--limit", "3"]), [0, 3, 6]);
        assert_eq!(chosen(&["--limit", "90"]).len(), 10);
        assert_eq!(chosen(&["--part", "2/4"]), [1, 5, 9]);
        assert_eq!(chosen(&["--part", "2/4", "--limit", "0"]), [0; 0]);
        let mut all =
            [chosen(&["--part", "1/3"]), chosen(&["--part", "2/3"]), chosen(&["--part", "3/3"])].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }
}
