//! Mutants that no test sees: the committed lists with their reasons, and the options by which a part is tried.

use std::collections::BTreeMap;
use std::path::Path;

/// The part of all mutants that is tried, and the time for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Which of how many parts is tried.
    pub(crate) part: Option<(usize, usize)>,
    /// The time in minutes.
    pub(crate) minutes: Option<u64>,
}

impl Bounds {
    /// Reads the value of the option `word` from the words after it. Returns `false` if it is another option.
    pub(crate) fn read<'a>(
        &mut self,
        word: &str,
        mut words: impl Iterator<Item = &'a &'a str>,
    ) -> Result<bool, String> {
        match word {
            "--minutes" => {
                let minutes = words.next().and_then(|minutes| read_minutes(minutes));
                self.minutes = Some(minutes.ok_or("--minutes wants a number from 1 to 10000.")?);
            }
            "--part" => {
                let part = words.next().and_then(|part| read_part(part));
                self.part = Some(part.ok_or("--part wants a part of all, such as 2/5.")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses a number of minutes, up to a week.
fn read_minutes(text: &str) -> Option<u64> {
    text.parse().ok().filter(|minutes| (1..=10_000).contains(minutes))
}

/// Parses a part of a whole, such as the second of five.
fn read_part(text: &str) -> Option<(usize, usize)> {
    let (number, count) = text.split_once('/')?;
    let part = (number.parse().ok()?, count.parse().ok()?);
    (part.0 >= 1 && part.0 <= part.1).then_some(part)
}

/// Reads the survivors that a committed list explains, with their reasons.
pub(crate) fn explained(root: &Path, file: &str) -> Result<BTreeMap<String, String>, String> {
    let text = std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
    parse(&text).map_err(|line| format!("{file}: {line}: it has no reason"))
}

/// Parses a list: a line for each survivor, after its reason in lines that begin with `#`. An empty line ends a reason.
/// The error is the first line without one.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let (mut found, mut reason) = (BTreeMap::new(), String::new());
    let mut was_reason = false;
    for line in text.lines() {
        match line.strip_prefix('#') {
            // What follows has a reason of its own.
            None if line.is_empty() => reason.clear(),
            Some(text) if was_reason => reason += text,
            Some(text) => text.trim().clone_into(&mut reason),
            None if reason.is_empty() => return Err(line.to_owned()),
            None => {
                found.insert(line.to_owned(), reason.clone());
            }
        }
        was_reason = line.starts_with('#');
    }
    Ok(found)
}

/// Fails if there are survivors that the list does not explain.
pub(crate) fn judge(open: &[String], file: &str) -> Result<(), String> {
    if open.is_empty() {
        return Ok(());
    }
    Err(format!("No test sees these changes. Write one, or explain them in {file}:\n{}", open.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_and_other_options_left() {
        let read = |words: &[&str]| {
            let mut bounds = Bounds::default();
            bounds.read(words[0], words[1..].iter()).map(|known| (known, bounds))
        };
        let part = Bounds { part: Some((2, 5)), minutes: None };
        assert_eq!(read(&["--part", "2/5"]), Ok((true, part)));
        assert_eq!(read(&["--minutes", "7"]), Ok((true, Bounds { part: None, minutes: Some(7) })));
        assert_eq!(read(&["--list"]), Ok((false, Bounds::default())));
        for wrong in
            [&["--part", "0/3"][..], &["--part", "4/3"], &["--part"], &["--minutes", "0"], &["--minutes"]]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_survivor_has_a_reason() {
        let found = parse("# one\n# line\na.rs: x\n\n# two\nb.rs: y\nb.rs: z\n").unwrap();
        assert_eq!(found["a.rs: x"], "one line");
        assert_eq!((&*found["b.rs: y"], &*found["b.rs: z"]), ("two", "two"));
        assert_eq!(parse("a.rs: x\n").unwrap_err(), "a.rs: x");
        assert_eq!(parse("# one\na.rs: x\n\nb.rs: y\n").unwrap_err(), "b.rs: y");
    }
}
