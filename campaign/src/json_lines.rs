//! Files of JSON Lines that only grow.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Outcome;

/// Adds one line to a file.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn append<T: Serialize>(file: &Path, line: &T) -> Outcome {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut output = std::fs::File::options().create(true).append(true).open(file)?;
    // One write, so that lines of two campaigns do not mix.
    output.write_all(format!("{}\n", serde_json::to_string(line)?).as_bytes())?;
    Ok(())
}

/// Reads a file; nothing if it does not exist.
///
/// # Errors
/// If a line is none of `T`, with its number.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Outcome<Vec<T>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{} cannot be read: {error}", file.display()).into()),
    };
    parse(&text)
}

/// Reads the lines of a text.
///
/// # Errors
/// If a line is none of `T`, with its number.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Outcome<Vec<T>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let one = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("line {} of the results: {error}", number + 1))
    };
    Ok(lines.map(one).collect::<Result<_, _>>()?)
}
