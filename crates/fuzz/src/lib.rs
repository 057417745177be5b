#![forbid(unsafe_code)]
//! A driver of fuzz targets on stable Rust, which keeps each input that failed.
//!
//! A target is a function of bytes that a parser has to survive: it panics where a property is broken, and
//! returns what kind of input it saw. Inputs are valid ones that the target names, changed in a few places:
//! bits, ranges, lines, numbers, words of the protocol, parts of other inputs. An input of a kind that was not
//! seen before joins those that are changed, so that the search continues from it.
//!
//! As an ordinary test a target tries the kept inputs, then a fixed number of others from a fixed seed, so that
//! it passes or fails the same everywhere. With [`SECONDS`] set it searches for so long from a seed of the
//! clock, or from that of [`SEED`]. An input that fails is made smaller, and written into the corpus of its
//! target, which is committed: from then on every run tries it. The seed and all bytes of the input are printed
//! as well, for a machine whose files are gone after the run.
//!
//! ```
//! use leasehold_fuzz::Target;
//!
//! Target::new("digits", "/nowhere").seed("1 2 3").words(&["-", "٣"]).run(|input| {
//!     let Ok(text) = std::str::from_utf8(input) else { return "not text" };
//!     let read: Option<Vec<u8>> = text.split(' ').map(|word| word.parse().ok()).collect();
//!     if read.is_some() { "digits" } else { "refused" }
//! });
//! ```

mod changes;
mod corpus;
mod memory;
mod random;
mod url;

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use changes::changed;
use corpus::Corpus;
use random::Random;
pub use url::kind_of_url;

/// The variable that lets targets search for so many seconds.
pub const SECONDS: &str = "LEASEHOLD_FUZZ_SECONDS";
/// The variable with the seed of a search that is to be repeated. The inputs are the same, as many as the time
/// allows.
pub const SEED: &str = "LEASEHOLD_FUZZ_SEED";

/// A parser under test, with the valid inputs that the search begins at.
#[derive(Debug)]
pub struct Target {
    name: &'static str,
    corpus: Corpus,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    cases: u64,
    /// The most memory that was in use so far.
    peak: Cell<u64>,
}

impl Target {
    /// A target with this name. Its corpus lies in the folder `fuzz` of the crate in `folder`, which is
    /// `env!("CARGO_MANIFEST_DIR")`.
    pub fn new(name: &'static str, folder: &str) -> Target {
        let corpus = Corpus::new(PathBuf::from(folder).join("fuzz").join(name));
        Target { name, corpus, seeds: Vec::new(), words: Vec::new(), cases: CASES, peak: Cell::new(0) }
    }

    /// Adds a valid input.
    #[must_use]
    pub fn seed(mut self, input: impl Into<Vec<u8>>) -> Target {
        self.seeds.push(input.into());
        self
    }

    /// Adds valid inputs.
    #[must_use]
    pub fn seeds<I: Into<Vec<u8>>>(mut self, inputs: impl IntoIterator<Item = I>) -> Target {
        self.seeds.extend(inputs.into_iter().map(Into::into));
        self
    }

    /// Adds words of the protocol, which are put into inputs.
    #[must_use]
    pub fn words(mut self, words: &[&str]) -> Target {
        self.words.extend(words.iter().map(|word| word.as_bytes().to_vec()));
        self
    }

    /// Sets the number of cases of an ordinary test, where one case takes long.
    #[must_use]
    pub fn cases(mut self, cases: u64) -> Target {
        self.cases = cases;
        self
    }

    /// Tries the kept inputs and others. `check` panics where a property is broken, and returns the kind of
    /// input that it saw.
    ///
    /// # Panics
    /// If `check` does, with the input; and if one input makes the process use [`MEMORY`] more bytes.
    pub fn run<K: Into<String>>(self, check: impl Fn(&[u8]) -> K) {
        let check = |input: &[u8]| check(input).into();
        let seconds = variable(SECONDS).map(Duration::from_secs);
        let seed = variable(SEED).or(seconds.map(|_| random::of_the_clock())).unwrap_or(FIXED_SEED);
        let mut pool = self.seeds.clone();
        pool.extend(self.corpus.inputs());
        pool.push(Vec::new());
        let mut kinds = HashSet::new();
        self.peak.set(memory::peak());
        for input in &pool {
            kinds.insert(self.try_one(&check, input, "a seed or a kept one"));
        }
        let origin = format!("{SEED}={seed}");
        let mut random = Random::new(seed);
        let begin = Instant::now();
        let mut tried = 0_u64;
        let continues = |tried: u64| match seconds {
            None => tried < self.cases,
            Some(limit) => begin.elapsed() < limit,
        };
        while continues(tried) {
            tried += 1;
            let input = changed(&mut random, &pool, &self.words);
            if kinds.insert(self.try_one(&check, &input, &origin)) && pool.len() < MOST_INPUTS {
                pool.push(input);
            }
        }
        if seconds.is_some() {
            println!("{}: {tried} inputs of {} kinds from seed {seed}, none failed", self.name, kinds.len());
        }
    }

    /// Tries one input, and returns its kind. One that fails is made smaller, kept, and named.
    fn try_one(&self, check: &impl Fn(&[u8]) -> String, input: &[u8], origin: &str) -> String {
        let Ok(kind) = outcome(check, input) else {
            let small = smaller(check, input);
            let place = self.corpus.keep(&small);
            let bytes = small.escape_ascii();
            panic!("{}: an input fails ({origin}), which {place}: \"{bytes}\"", self.name);
        };
        let peak = memory::peak();
        let used = peak.saturating_sub(self.peak.replace(peak));
        if used > MEMORY {
            let place = self.corpus.keep(input);
            panic!(
                "{}: an input of {} bytes ({origin}) takes {used} bytes of memory, and {place}",
                self.name,
                input.len()
            );
        }
        kind
    }
}

/// Returns the number in a variable of the environment.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn outcome(check: &impl Fn(&[u8]) -> String, input: &[u8]) -> Result<String, ()> {
    catch_unwind(AssertUnwindSafe(|| check(input))).map_err(drop)
}

/// Returns a part of an input that still fails: ranges are taken out for as long as one can be.
fn smaller(check: &impl Fn(&[u8]) -> String, input: &[u8]) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut length = best.len().next_power_of_two() / 2;
    let mut left = SHRINK_STEPS;
    while length > 0 && left > 0 {
        let mut at = 0;
        while at < best.len() && left > 0 {
            left -= 1;
            let end = (at + length).min(best.len());
            let less = [&best[..at], &best[end..]].concat();
            if outcome(check, &less).is_err() { best = less } else { at = end }
        }
        length /= 2;
    }
    best
}

/// The bytes of memory that one input may make a process use. Other tests of the process use some meanwhile.
pub const MEMORY: u64 = 512 << 20;
/// The cases of an ordinary test: a second or less for a parser of lines.
const CASES: u64 = 20_000;
const FIXED_SEED: u64 = 0x1ea5_e401;
/// The inputs that are changed.
const MOST_INPUTS: usize = 1_000;
const SHRINK_STEPS: u32 = 2_000;

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// A parser with a defect that takes two steps to reach.
    fn broken(input: &[u8]) -> &'static str {
        match input {
            [b'a', b'b', b'c', ..] => panic!("defect"),
            [b'a', b'b', ..] => "ab",
            [b'a', ..] => "a",
            _ => "other",
        }
    }

    /// Memory is counted for the process, so these tests run one after the other.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        // Some of what these tests run panics.
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_defect_behind_two_kinds_is_found_made_small_and_kept() {
        let _alone = alone();
        let folder = std::env::temp_dir().join(format!("leasehold-fuzz-{}", std::process::id()));
        let search = || {
            let target = Target::new("broken", folder.to_str().unwrap()).seed("xxxxxxxx");
            catch_unwind(|| target.words(&["a", "b", "c"]).cases(500_000).run(broken))
        };
        let text = *search().unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("\"abc\"") && text.contains("LEASEHOLD_FUZZ_SEED="), "{text}");
        let kept: Vec<_> = std::fs::read_dir(folder.join("fuzz/broken")).unwrap().collect();
        assert_eq!(kept.len(), 1);
        // From then on it is the first thing that is tried.
        let target = Target::new("broken", folder.to_str().unwrap()).cases(0);
        assert!(catch_unwind(|| target.run(broken)).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn equal_runs_try_equal_inputs() {
        let _alone = alone();
        let tried = || {
            let seen = Mutex::new(Vec::new());
            Target::new("same", "/nowhere").seed("one two\nthree").cases(50).run(|input| {
                seen.lock().unwrap().push(input.to_vec());
                "same"
            });
            seen.into_inner().unwrap()
        };
        assert_eq!(tried(), tried());
    }

    #[test]
    fn an_input_that_takes_much_memory_fails() {
        let _alone = alone();
        let target = Target::new("memory", "/nowhere").cases(0);
        let hungry = || target.run(|_| format!("{}", vec![1_u8; (MEMORY as usize) + (64 << 20)].len()));
        let text = *catch_unwind(AssertUnwindSafe(hungry)).unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("of memory"), "{text}");
    }
}
