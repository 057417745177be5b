//! The options of the URL of a store, as the library reads them.

use std::path::Path;

use url::form_urlencoded;

/// Returns `true` if a URL has this option. The library reads encoded names, too.
pub(crate) fn has_option(url: &str, option: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == option)
}

/// Returns the URL with this folder in front of the files that its options name by relative paths.
pub(crate) fn with_files_in(url: &str, folder: &Path) -> String {
    let Some((address, query)) = url.split_once('?') else { return url.to_owned() };
    let in_folder = |option| file_in(option, folder).unwrap_or_else(|| str::to_owned(option));
    let options: Vec<String> = query.split('&').map(in_folder).collect();
    format!("{address}?{}", options.join("&"))
}

/// Returns the option with the folder in front of its file; `None` if it names no file by a relative path.
fn file_in(option: &str, folder: &Path) -> Option<String> {
    // It may be the rest of a password, which is recognized by this character as long as it is not encoded. The library
    // refuses the other one.
    if option.contains(['@', '#']) {
        return None;
    }
    let (name, path) = form_urlencoded::parse(option.as_bytes()).next()?;
    if !FILES.contains(&&*name) || path.is_empty() || Path::new(&*path).is_absolute() {
        return None;
    }
    Some(format!("{name}={}", encoded(folder.join(&*path).to_str()?)))
}

/// Writes a path as the value of an option of a URL.
pub(crate) fn encoded(path: &str) -> String {
    form_urlencoded::byte_serialize(path.as_bytes())
        .collect::<String>()
        .replace("%2F", "/")
        .replace('+', "%20")
}

/// The options whose values are paths of files.
const FILES: [&str; 5] = ["password-file", "sentinel-password-file", "ca", "cert", "key"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_is_found_by_its_whole_name() {
        assert!(has_option("redis://h?db=1&password-file=/x", "password-file"));
        assert!(has_option("redis://h?p%61ssword-file=/x", "password-file"));
        assert!(!has_option("redis://h/a?sentinel-password-file=/x", "password-file"));
        assert!(!has_option("redis://h/password-file=/x", "password-file"));
    }

    #[test]
    fn files_with_relative_paths_are_those_of_the_folder() {
        let from = |url: &str| with_files_in(url, Path::new("/a b/c"));
        assert_eq!(from("redis://h?password-file=x&db=1"), "redis://h?password-file=/a%20b/c/x&db=1");
        assert_eq!(from("rediss://h?ca=../x%26y&k%65y=k"), "rediss://h?ca=/a%20b/c/../x%26y&key=/a%20b/c/k");
        for same in [
            "file:",
            "redis://h",
            "redis://h?",
            "redis://h?db=1&password-file=/x",
            "redis://h?ca=%2Fx",
            "redis://h?ca=&cert",
            "redis://h?prefix=ca",
            "redis://me:hun?ca=ter2@h",
            "redis://h?ca=a#b",
        ] {
            assert_eq!(from(same), same);
        }
    }

    #[test]
    fn each_option_of_a_file_is_known() {
        let page = leasehold::url_options();
        let mut name = "";
        let mut found = std::collections::BTreeSet::new();
        for line in page.lines() {
            if let Some(option) = line.strip_prefix("- **`").and_then(|rest| rest.split('`').next()) {
                name = option;
            }
            if line.contains("Value: the path of a file") {
                found.insert(name);
            }
        }
        assert_eq!(found, FILES.into_iter().collect());
    }
}
