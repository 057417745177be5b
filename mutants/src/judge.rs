//! The tests that reach each mutant, and whether one of them fails with it.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::build::{Built, Program};
use crate::run::{self, End};

/// The outcome of one mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This test fails, twice.
    Killed(String),
    /// Tests do not end.
    Hung,
    /// So many of the tests that reach it passed, those first that take the least time.
    Survived { tried: usize, reached_by: usize },
    /// No test reaches it.
    Unreached,
}

/// A test, and its time without a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    program: usize,
    name: String,
    time: Duration,
}

/// A test that ran by itself and without a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    test: Test,
    passed: bool,
    /// The numbers of the mutants that it reaches.
    reached: Vec<usize>,
}

impl Run {
    /// Writes it as a line: its program, name, time and end, and what it reaches, with tabs between.
    fn line(&self) -> String {
        let Test { program, name, time } = &self.test;
        let reached: Vec<_> = self.reached.iter().map(ToString::to_string).collect();
        format!("{program}\t{name}\t{}\t{}\t{}", time.as_micros(), self.passed, reached.join(" "))
    }

    fn read(line: &str) -> Option<Run> {
        let mut words = line.split('\t');
        let program = words.next()?.parse().ok()?;
        let name = words.next()?.to_owned();
        let time = Duration::from_micros(words.next()?.parse().ok()?);
        let passed = words.next()?.parse().ok()?;
        let reached: Result<_, _> = words.next()?.split_whitespace().map(str::parse).collect();
        Some(Run { test: Test { program, name, time }, passed, reached: reached.ok()? })
    }
}

/// The tests of some programs, by what they reach.
pub(crate) struct Judges<'a> {
    programs: &'a [Program],
    /// The tests that reach each mutant, the fastest first.
    reaching: BTreeMap<usize, Vec<Test>>,
    /// Tests that fail without any mutant, which judge none.
    failing: Vec<String>,
    /// For what tests leave behind when they are ended.
    temporary: PathBuf,
}

impl<'a> Judges<'a> {
    /// Runs each test once, by itself and without a mutant. A file keeps what was found until a program is built anew.
    pub(crate) fn find(built: &'a Built, file: &Path, temporary: &Path) -> Result<Judges<'a>, String> {
        let mut runs = kept(file, &built.programs).unwrap_or_default();
        if runs.is_empty() {
            runs = run_all(&built.programs, temporary)?;
            let lines = runs.iter().map(|run| run.line() + "\n");
            std::fs::write(file, lines.collect::<String>())
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let mut reaching: BTreeMap<usize, Vec<Test>> = BTreeMap::new();
        let mut failing = Vec::new();
        for run in runs {
            if !run.passed {
                failing.push(run.test.name);
                continue;
            }
            run.reached.iter().for_each(|number| reaching.entry(*number).or_default().push(run.test.clone()));
        }
        reaching.values_mut().for_each(|tests| tests.sort_by_key(|test| test.time));
        Ok(Judges { programs: &built.programs, reaching, failing, temporary: temporary.to_owned() })
    }

    /// Fails if a test failed without any mutant.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.failing.is_empty() {
            return Ok(());
        }
        let names = self.failing.join("\n");
        Err(format!("These tests fail without any change, and judge none: mend that first.\n{names}"))
    }

    /// Tries these mutants until the time is over, and passes each outcome on. The tests of one of them are those that
    /// take no longer than `budget` without it.
    pub(crate) fn try_all(
        &self,
        mutants: &[usize],
        budget: Duration,
        until: Option<Instant>,
        note: impl Fn(usize, Outcome) + Sync,
    ) -> Result<(), String> {
        on_all_cores(mutants.iter().copied(), |number| {
            if until.is_none_or(|until| Instant::now() < until) {
                note(number, self.judge(number, budget)?);
            }
            Ok(())
        })?;
        Ok(())
    }

    fn judge(&self, number: usize, budget: Duration) -> Result<Outcome, String> {
        let reaching = self.reaching.get(&number).map_or(&[][..], Vec::as_slice);
        if reaching.is_empty() {
            return Ok(Outcome::Unreached);
        }
        let tests = within(reaching, budget);
        let (mut rest, mut size) = (tests, FIRST);
        while !rest.is_empty() {
            let (portion, behind) = rest.split_at(size.min(rest.len()));
            (rest, size) = (behind, 2 * size);
            for program in 0..self.programs.len() {
                let portion: Vec<&Test> = portion.iter().filter(|test| test.program == program).collect();
                if let Some(outcome) = self.portion(number, portion)? {
                    return Ok(outcome);
                }
            }
        }
        Ok(Outcome::Survived { tried: tests.len(), reached_by: reaching.len() })
    }

    /// Runs some tests of one program. One that fails has to fail once more by itself: a machine that is busy fails a
    /// test, too.
    fn portion(&self, number: usize, mut tests: Vec<&Test>) -> Result<Option<Outcome>, String> {
        while let Some(first) = tests.first() {
            let program = &self.programs[first.program];
            let names: Vec<&str> = tests.iter().map(|test| &*test.name).collect();
            let limit = SHORTEST + SLOWER * tests.iter().map(|test| test.time).sum::<Duration>();
            let failed = match run::mutant(program, &names, number, limit, &self.temporary)? {
                End::Passed => return Ok(None),
                End::Hung => return Ok(Some(Outcome::Hung)),
                End::Failed(None) if names.len() == 1 => names[0].to_owned(),
                // The program ended: one of the tests ends it again.
                End::Failed(None) => {
                    for test in tests {
                        if let Some(outcome) = self.portion(number, vec![test])? {
                            return Ok(Some(outcome));
                        }
                    }
                    return Ok(None);
                }
                End::Failed(Some(test)) => test,
            };
            match run::mutant(program, &[&failed], number, limit, &self.temporary)? {
                End::Passed => tests.retain(|test| test.name != failed),
                End::Hung => return Ok(Some(Outcome::Hung)),
                End::Failed(_) => return Ok(Some(Outcome::Killed(failed))),
            }
        }
        Ok(None)
    }
}

/// Runs each test of some programs once, by itself and without a mutant.
fn run_all(programs: &[Program], temporary: &Path) -> Result<Vec<Run>, String> {
    let mut all = Vec::new();
    for (program, one) in programs.iter().enumerate() {
        all.extend(run::tests(one)?.into_iter().map(|name| Test { program, name, time: Duration::ZERO }));
    }
    on_all_cores(all.into_iter().enumerate(), |(number, mut test)| {
        let file = temporary.join(format!("reached-{number}"));
        let begin = Instant::now();
        let end = run::unchanged(&programs[test.program], &test.name, &file, LONGEST, temporary)?;
        test.time = begin.elapsed();
        let numbers = std::fs::read_to_string(&file).unwrap_or_default();
        let reached = numbers.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(Run { test, passed: end == End::Passed, reached })
    })
}

/// Reads the runs that a file keeps, if it is younger than each of the programs.
fn kept(file: &Path, programs: &[Program]) -> Option<Vec<Run>> {
    let time = |path: &Path| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    let written = time(file)?;
    let is_older = |program: &Program| time(&program.path).is_some_and(|built| built < written);
    programs.iter().all(is_older).then_some(())?;
    std::fs::read_to_string(file).ok()?.lines().map(Run::read).collect()
}

/// Returns the first tests that together take no longer than `budget`, and at least one.
fn within(tests: &[Test], budget: Duration) -> &[Test] {
    let mut total = Duration::ZERO;
    let count = tests.iter().take_while(|test| {
        total += test.time;
        total <= budget
    });
    &tests[..count.count().max(1).min(tests.len())]
}

/// Does something with each of these, several at a time, and returns the results in any order. Ends with the first
/// error.
fn on_all_cores<T: Send, R: Send>(
    all: impl Iterator<Item = T>,
    work: impl Fn(T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let todo = Mutex::new(all.collect::<VecDeque<_>>());
    let done = Mutex::new(Ok(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(next) = next else { return };
                    let result = work(next);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&mut *done, result) {
                        (Ok(done), Ok(result)) => done.push(result),
                        (done @ Ok(_), Err(error)) => *done = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The longest that a test may take without a mutant.
const LONGEST: Duration = Duration::from_secs(300);
/// The number of tests that run first. Most mutants die soon, so the fastest tests run before the others, and each
/// portion is twice as large as the one before.
const FIRST: usize = 8;
/// The shortest time after which a run counts as hanging.
const SHORTEST: Duration = Duration::from_secs(10);
/// A run that takes so many times what its tests take one after the other, and [`SHORTEST`], hangs. It runs some of
/// them at a time.
const SLOWER: u32 = 2;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::areas::AREAS;

    fn test(name: &str, seconds: u64) -> Test {
        Test { program: 0, name: name.to_owned(), time: Duration::from_secs(seconds) }
    }

    /// Returns judges whose program is a script, which reads the names of the tests from `$*`.
    fn judge(script: &str, tests: &[&str]) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        // Another process writes it: what a child of another test has open for writing cannot be started.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("sh").args(["-c", write]).arg(&path).arg(script).status().unwrap().success());
        let programs = [Program { path, folder: folder.path().to_owned(), judge: &AREAS[0].judges[0] }];
        let reaching = BTreeMap::from([(7, tests.iter().map(|name| test(name, 0)).collect())]);
        let judges = Judges {
            programs: &programs,
            reaching,
            failing: Vec::new(),
            temporary: folder.path().to_owned(),
        };
        judges.judge(7, Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_test_has_to_fail_twice() {
        let survived = Outcome::Survived { tried: 2, reached_by: 2 };
        assert_eq!(judge("echo 'test a ... ok'", &["a", "b"]), survived);
        let killed = Outcome::Killed("b".to_owned());
        assert_eq!(judge("echo \"test b ... FAILED\"; exit 101", &["a", "b"]), killed);
        let once = "[ \"$*\" = '--exact a b' ] && echo 'test b ... FAILED'; exit 0";
        assert_eq!(judge(once, &["a", "b"]), survived);
        assert_eq!(judge("[ $LEASEHOLD_MUTANT = 7 ]", &["a", "b"]), survived);
        assert_eq!(judge("", &[]), Outcome::Unreached);
    }

    #[test]
    fn of_a_program_that_ends_the_test_is_found() {
        assert_eq!(
            judge("case \"$*\" in *b*) kill -ABRT $$;; esac", &["a", "b"]),
            Outcome::Killed("b".to_owned())
        );
    }

    #[test]
    fn what_was_found_is_kept_until_a_program_is_built_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = (folder.path().join("program"), folder.path().join("reached"));
        let runs = [
            Run { test: test("a::b", 2), passed: true, reached: vec![3, 5] },
            Run { test: test("c", 0), passed: false, reached: Vec::new() },
        ];
        let programs =
            [Program { path: path.clone(), folder: folder.path().to_owned(), judge: &AREAS[0].judges[0] }];
        let at = |path: &Path, seconds| {
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            std::fs::File::options()
                .append(true)
                .create(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        assert_eq!(kept(&file, &programs), None);
        std::fs::write(&file, runs.each_ref().map(Run::line).join("\n")).unwrap();
        at(&path, 1);
        at(&file, 2);
        assert_eq!(kept(&file, &programs).unwrap(), runs);
        at(&path, 3);
        assert_eq!(kept(&file, &programs), None);
    }

    #[test]
    fn the_fastest_tests_are_tried_within_a_budget() {
        let tests = [test("a", 1), test("b", 2), test("c", 4)];
        assert_eq!(within(&tests, Duration::from_secs(3)), &tests[..2]);
        assert_eq!(within(&tests, Duration::from_secs(60)), &tests);
        assert_eq!(within(&tests[2..], Duration::from_secs(3)), &tests[2..]);
    }

    #[test]
    fn an_error_ends_the_work() {
        assert_eq!(on_all_cores(0..9, |number| Ok(number * 2)).map(|all| all.len()), Ok(9));
        let failed = on_all_cores(0..9, |number| if number == 3 { Err("no".to_owned()) } else { Ok(()) });
        assert_eq!(failed, Err("no".to_owned()));
    }
}
