//! The configuration file: stores by their names.
//!
//! Ground rules: it is read only if a store is named that is not a URL, so that a lock in files costs no look
//! for it. Its text may hold a password: no error repeats a line of it. A file that another user may have
//! written is refused, because it decides where locks are.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::{Exit, Problem};
use crate::output::redact::redacted_url;
use crate::output::stderr::complain;
use crate::output::text::visible;
use crate::request::url_option::{encoded, has_option};

/// A store of the configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedStore {
    pub(crate) url: String,
    /// The file that has named it.
    pub(crate) file: PathBuf,
}

/// The content of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    #[serde(default)]
    stores: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    url: String,
    password_file: Option<String>,
}

/// Returns `true` if the text is the name of a store, and not a URL.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.bytes().all(is_plain)
}

/// Finds the store with this name in the files of this process's environment.
///
/// # Errors
/// Usage, if no file names it, or a file cannot be understood; refused, for a file that others may change.
pub(crate) fn find(name: &str) -> Result<NamedStore, Problem> {
    find_in(name, &files(|variable| std::env::var_os(variable).filter(|value| !value.is_empty())))
}

/// A place where the file may be.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    /// `true` if it is an error that the file is missing.
    is_required: bool,
}

/// Returns the files to look at; the first one that names the store decides.
fn files(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<Place> {
    if let Some(path) = variable(CONFIG_VARIABLE) {
        return vec![Place { path: path.into(), is_required: true }];
    }
    // The specification of these folders asks to ignore a relative path.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let folders = of_user.into_iter().chain([PathBuf::from("/etc")]);
    folders.map(|folder| Place { path: folder.join("leasehold/config.toml"), is_required: false }).collect()
}

fn find_in(name: &str, places: &[Place]) -> Result<NamedStore, Problem> {
    let mut known = Vec::new();
    for place in places {
        let Some(mut file) = read(place)? else { continue };
        if let Some(entry) = file.stores.remove(name) {
            return Ok(NamedStore { url: entry.url(name, &place.path)?, file: place.path.clone() });
        }
        known.extend(file.stores.into_keys());
    }
    Err(unknown(name, &known, places))
}

#[cfg(test)]
impl ConfigFile {
    /// Returns the names of all stores, and their URLs.
    pub(crate) fn urls(self, file: &Path) -> Vec<(String, Result<String, Problem>)> {
        let url = |(name, entry): (String, Entry)| {
            let url = entry.url(&name, file);
            (name, url)
        };
        self.stores.into_iter().map(url).collect()
    }
}

impl Entry {
    fn url(self, name: &str, file: &Path) -> Result<String, Problem> {
        let invalid = |text: &str| {
            let text = format!("{}: the store {}: {text}", shown(file), visible(name));
            Err(Problem::new(Exit::Usage, text))
        };
        if !self.url.contains(':') {
            return invalid("its url is not a URL, such as redis://host or file:///a/directory");
        }
        let Some(path) = self.password_file else { return Ok(self.url) };
        if has_option(&self.url, "password-file") || redacted_url(&self.url) != self.url {
            return invalid("it has a password-file, and a password in its url: keep one of them");
        }
        // A path of its own is relative to the file, because a process may be started anywhere.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let path = file.parent().unwrap_or(Path::new("/")).join(path);
        let Some(path) = path.to_str() else { return invalid("its password-file is not UTF-8 text") };
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Ok(format!("{}{separator}password-file={}", self.url, encoded(path)))
    }
}

fn read(place: &Place) -> Result<Option<ConfigFile>, Problem> {
    let shown = shown(&place.path);
    let mut file = match File::open(&place.path) {
        Ok(file) => file,
        // The home of a user of the system may be /dev/null.
        Err(error)
            if !place.is_required
                && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => {
            let named =
                if place.is_required { format!(", named by {CONFIG_VARIABLE}") } else { String::new() };
            return Err(Problem::new(Exit::Usage, format!("cannot read {shown}{named}: {error}")));
        }
    };
    // What is judged is the file that is read: the path may lead to another one a moment later.
    let unreadable = |error| Problem::new(Exit::Usage, format!("cannot read {shown}: {error}"));
    let found = file.metadata().map_err(unreadable)?;
    if let Some(complaint) = distrust(&found) {
        return Err(Problem::new(Exit::Refused, format!("{shown} is not used: {complaint}")));
    }
    let mut bytes = Vec::new();
    (&mut file).take(LONGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST {
        let text = format!("{shown} is longer than {LONGEST} bytes, so it is not a file of stores");
        return Err(Problem::new(Exit::Usage, text));
    }
    let file = read_text(&bytes, &place.path)?;
    let has_password = file.stores.values().any(|entry| redacted_url(&entry.url) != entry.url);
    if has_password && found.mode() & OTHERS != 0 {
        complain(&format!(
            "{shown} has a password and can be read by other users: chmod 600 it, or use password-file"
        ));
    }
    Ok(Some(file))
}

/// Reads the text of the file at `path`.
///
/// # Errors
/// Usage, with the line.
pub(crate) fn read_text(bytes: &[u8], path: &Path) -> Result<ConfigFile, Problem> {
    let wrong = |before: &[u8], what: &str| {
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Problem::new(Exit::Usage, format!("{}, line {line}: {}", shown(path), visible(what)))
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| wrong(&bytes[..error.valid_up_to()], "this is not UTF-8 text"))?;
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or(0, |span| span.start);
        wrong(&bytes[..before], &without_values(error.message()))
    })
}

/// Returns the message of an error without what it repeats of the file, which may be a password. That it expects
/// something is about names and forms that are ours.
fn without_values(message: &str) -> String {
    if message.starts_with("missing field ") {
        return message.to_owned();
    }
    let (what, expected) = message.split_at(message.rfind(", expected ").unwrap_or(message.len()));
    match what.find(['"', '`', '\'']) {
        Some(quoted) => format!("{}{expected}", what[..quoted].trim_end()),
        None => message.to_owned(),
    }
}

/// Returns the reason why a file with these properties is not used, if there is one.
fn distrust(found: &Metadata) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Some(format!(
            "it belongs to the user {}, who could send the locks anywhere; chown it",
            found.uid()
        ));
    }
    (found.mode() & WRITABLE_BY_OTHERS != 0).then(|| "other users may write to it; chmod go-w it".to_owned())
}

fn unknown(name: &str, known: &[String], places: &[Place]) -> Problem {
    let name = visible(name);
    let looked: Vec<_> = places.iter().map(|place| shown(&place.path)).collect();
    let mut text = format!("\"{name}\" is not a URL, such as redis://host, and ");
    text += &match known {
        [] => format!("no configuration file names stores; looked for {}", looked.join(" and ")),
        _ => format!("no store of {} has this name", looked.join(" or ")),
    };
    let scores = known.iter().map(|other| (strsim::damerau_levenshtein(&name, other), other));
    let meant = scores.filter(|(distance, other)| *distance <= 1 + other.len() / 4).min();
    if let Some((_, meant)) = meant {
        text += &format!("; did you mean {}?", visible(meant));
    }
    if !known.is_empty() {
        let known: Vec<_> = known.iter().map(|name| visible(name)).collect();
        text += &format!("; known are {}", known.join(", "));
    }
    Problem::new(Exit::Usage, text)
}

fn shown(path: &Path) -> String {
    visible(&path.to_string_lossy())
}

/// The variable that names the only file to read.
const CONFIG_VARIABLE: &str = "LEASEHOLD_CONFIG";
/// The longest file, in bytes: ten thousand stores.
const LONGEST: u64 = 1 << 20;
const OTHERS: u32 = 0o004;
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_names_the_only_file() {
        let paths = |set: &[(&str, &str)]| -> Vec<String> {
            let variable =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            files(variable).iter().map(|place| place.path.display().to_string()).collect()
        };
        let etc = "/etc/leasehold/config.toml".to_owned();
        assert_eq!(paths(&[("LEASEHOLD_CONFIG", "a.toml"), ("HOME", "/h")]), ["a.toml"]);
        assert_eq!(paths(&[("HOME", "/h")]), ["/h/.config/leasehold/config.toml".to_owned(), etc.clone()]);
        let xdg = paths(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(xdg, ["/x/leasehold/config.toml".to_owned(), etc.clone()]);
        assert_eq!(paths(&[("XDG_CONFIG_HOME", "x"), ("HOME", "h")]), [etc]);
    }

    #[test]
    fn password_file_is_relative_and_excludes_a_password() {
        let url = |url: &str, password_file: &str| {
            let entry = Entry { url: url.to_owned(), password_file: Some(password_file.to_owned()) };
            entry.url("prod", Path::new("/etc/leasehold/config.toml")).map_err(|problem| problem.exit)
        };
        assert_eq!(url("redis://h", "a b"), Ok("redis://h?password-file=/etc/leasehold/a%20b".to_owned()));
        assert_eq!(url("redis://h?db=1", "/x"), Ok("redis://h?db=1&password-file=/x".to_owned()));
        let sentinels = "redis+sentinel://h/a?sentinel-password-file=/y";
        assert_eq!(url(sentinels, "/x"), Ok(format!("{sentinels}&password-file=/x")));
        assert_eq!(url("redis://:x@h", "/x"), Err(Exit::Usage));
        assert_eq!(url("redis://h?db=1&password-file=/y", "/x"), Err(Exit::Usage));
        assert_eq!(url("prod", "/x"), Err(Exit::Usage));
    }

    #[test]
    fn name_is_no_url() {
        for name in ["prod", "eu-west_1", "a.b"] {
            assert!(is_name(name), "{name}");
        }
        for other in ["", "file:", "redis://h", "127.0.0.1:6379", "a/b", "a b"] {
            assert!(!is_name(other), "{other}");
        }
    }
}
