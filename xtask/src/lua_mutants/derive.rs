//! Small changes of a Lua text.
//!
//! A change never touches a comment or the inside of a string, and leaves a text that Lua can read: a script that
//! is refused at once is killed by every test, and says nothing of any.

use std::path::Path;

/// One change of one line of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The file, below the folder of scripts.
    pub(crate) file: String,
    /// The line as it is, without its indentation.
    line: String,
    /// The line as it becomes, without its indentation.
    becomes: String,
    /// Which of several equal lines of the file it is.
    occurrence: usize,
    text: String,
    changed: String,
}

impl Mutant {
    /// Returns no change at all.
    pub(crate) fn unchanged() -> Mutant {
        let empty = String::new;
        Mutant {
            file: empty(),
            line: empty(),
            becomes: empty(),
            occurrence: 1,
            text: empty(),
            changed: empty(),
        }
    }

    /// Returns an error in place of the whole file.
    pub(crate) fn broken(&self) -> Mutant {
        Mutant { changed: "error('a mutant')\n".to_owned(), ..self.clone() }
    }

    /// Returns a name that stays the same while the line does.
    pub(crate) fn name(&self) -> String {
        let which = if self.occurrence > 1 { format!(" #{}", self.occurrence) } else { String::new() };
        format!("{}{which}: {} => {}", self.file, self.line, self.becomes)
    }

    /// Writes the change as the test programs read it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let text = if self.text.is_empty() {
            String::new()
        } else {
            format!("{}\n----\n{}", self.text, self.changed)
        };
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Returns all changes of a file.
pub(crate) fn mutants(file: &str, text: &str) -> Vec<Mutant> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let occurrence = lines[..=number].iter().filter(|other| other.trim() == line.trim()).count();
        for becomes in changes(line) {
            let mut changed: Vec<&str> = lines.clone();
            changed[number] = &becomes;
            let end = if text.ends_with('\n') { "\n" } else { "" };
            found.push(Mutant {
                file: file.to_owned(),
                line: line.trim().to_owned(),
                becomes: becomes.trim().to_owned(),
                occurrence,
                text: text.to_owned(),
                changed: changed.join("\n") + end,
            });
        }
    }
    found
}

fn changes(line: &str) -> Vec<String> {
    let trimmed = line.trim_start();
    if trimmed.is_empty() || trimmed.starts_with("--") {
        return Vec::new();
    }
    let code = code_of(line);
    let mut found = Vec::new();
    for (from, to) in SWAPS {
        for (at, _) in line.match_indices(from) {
            if code[at..at + from.len()].iter().all(|is_code| *is_code) {
                found.push(format!("{}{to}{}", &line[..at], &line[at + from.len()..]));
            }
        }
    }
    let indent = &line[..line.len() - trimmed.len()];
    for opening in ["if ", "elseif "] {
        let then = line.match_indices(" then").find(|(at, _)| code[*at]);
        if let (true, Some((at, _))) = (trimmed.starts_with(opening), then) {
            found.push(format!("{indent}{opening}true{}", &line[at..]));
            found.push(format!("{indent}{opening}false{}", &line[at..]));
        }
    }
    if is_call(trimmed) {
        found.push(format!("{indent}do end"));
    }
    found
}

/// Returns for each byte of a line whether it is code: neither in a string nor in a comment.
fn code_of(line: &str) -> Vec<bool> {
    let bytes = line.as_bytes();
    let mut code = vec![true; bytes.len()];
    let mut quote = None;
    let mut at = 0;
    while at < bytes.len() {
        match quote {
            Some(end) => {
                code[at] = false;
                if bytes[at] == b'\\' && at + 1 < bytes.len() {
                    code[at + 1] = false;
                    at += 1;
                } else if bytes[at] == end {
                    quote = None;
                }
            }
            None if bytes[at..].starts_with(b"--") => {
                code[at..].fill(false);
                return code;
            }
            None if bytes[at] == b'\'' || bytes[at] == b'"' => {
                code[at] = false;
                quote = Some(bytes[at]);
            }
            None => {}
        }
        at += 1;
    }
    code
}

/// Returns `true` for a line that is nothing but one call, so that it can be left out.
fn is_call(trimmed: &str) -> bool {
    let name = trimmed.split('(').next().unwrap_or_default();
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    let opened = trimmed.bytes().filter(|byte| *byte == b'(').count();
    let closed = trimmed.bytes().filter(|byte| *byte == b')').count();
    is_name && trimmed.ends_with(')') && opened == closed
}

const SWAPS: &[(&str, &str)] = &[
    (" == ", " ~= "),
    (" ~= ", " == "),
    (" <= ", " < "),
    (" < ", " <= "),
    (" < ", " >= "),
    (" >= ", " > "),
    (" > ", " >= "),
    (" > ", " <= "),
    (" and ", " or "),
    (" or ", " and "),
    ("not ", ""),
    (" + ", " - "),
    (" - ", " + "),
    ("return 0", "return 1"),
    ("return 1", "return 0"),
    ("return true", "return false"),
    ("return false", "return true"),
    ("KEYS[1]", "KEYS[2]"),
    ("KEYS[2]", "KEYS[1]"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vec<String> {
        changes(line)
    }

    #[test]
    fn comparisons_conditions_and_calls_are_changed() {
        assert_eq!(of("  if a <= b then"), ["  if a < b then", "  if true then", "  if false then"]);
        assert_eq!(of("redis.call('DEL', KEYS[1])"), ["redis.call('DEL', KEYS[2])", "do end"]);
        assert_eq!(
            of("if not x then return 0 end"),
            [
                "if x then return 0 end",
                "if not x then return 1 end",
                "if true then return 0 end",
                "if false then return 0 end"
            ]
        );
        assert_eq!(of("elseif a then"), ["elseif true then", "elseif false then"]);
        assert_eq!(of("local a = b"), Vec::<String>::new());
    }

    #[test]
    fn strings_and_comments_stay() {
        assert_eq!(of("-- a == b"), Vec::<String>::new());
        assert_eq!(of("f = 'a == b' -- c == d"), Vec::<String>::new());
        assert_eq!(of("f = 'it\\'s == b' .. \"x > y\""), Vec::<String>::new());
    }

    #[test]
    fn equal_lines_have_names_of_their_own() {
        let names: Vec<String> = mutants("a.lua", "f(1)\nf(1)\n").iter().map(Mutant::name).collect();
        assert_eq!(names, ["a.lua: f(1) => do end", "a.lua #2: f(1) => do end"]);
    }
}
