//! A copy of the workspace, in which files are changed.
//!
//! It stays where it is: what the compiler made of files that did not change since is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Makes the folder `to` a copy of these files, some of them with another text.
pub(crate) fn write(
    from: &Path,
    to: &Path,
    files: &[PathBuf],
    changed: &BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    for file in files {
        let source = from.join(file);
        let bytes = match changed.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => std::fs::read(&source).map_err(|error| format!("{}: {error}", source.display()))?,
        };
        let target = to.join(file);
        let broken = |error: std::io::Error| format!("{}: {error}", target.display());
        if std::fs::read(&target).is_ok_and(|present| present == bytes) {
            continue;
        }
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder).map_err(broken)?;
        }
        std::fs::write(&target, bytes).map_err(broken)?;
        // Some files are programs.
        let rights = std::fs::metadata(&source).map_err(broken)?.permissions();
        std::fs::set_permissions(&target, rights).map_err(broken)?;
    }
    remove_others(to, to, &files.iter().map(PathBuf::as_path).collect())
}

/// Returns `true` if a copy has these texts already.
pub(crate) fn has(copy: &Path, changed: &BTreeMap<PathBuf, String>) -> bool {
    changed
        .iter()
        .all(|(file, text)| std::fs::read_to_string(copy.join(file)).is_ok_and(|present| present == *text))
}

/// Removes the files of a copy that do not belong to it any more: cargo finds programs by their files.
fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<&Path>) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        if path.is_dir() {
            remove_others(copy, &path, files)?;
        } else if !path.strip_prefix(copy).is_ok_and(|file| files.contains(file)) {
            std::fs::remove_file(&path).map_err(broken)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written_and_what_is_gone_removed() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("a")).unwrap();
        std::fs::write(from.path().join("a/x.rs"), "x").unwrap();
        std::fs::write(from.path().join("y.rs"), "y").unwrap();
        let files = ["a/x.rs", "y.rs"].map(PathBuf::from);
        let changed = BTreeMap::from([(PathBuf::from("y.rs"), "changed".to_owned())]);
        write(from.path(), to.path(), &files, &changed).unwrap();
        let read = |file: &str| std::fs::read_to_string(to.path().join(file)).unwrap();
        assert_eq!((&*read("a/x.rs"), &*read("y.rs")), ("x", "changed"));
        assert!(has(to.path(), &changed));
        assert!(!has(to.path(), &BTreeMap::from([(PathBuf::from("y.rs"), "y".to_owned())])));
        assert_eq!(std::fs::read_to_string(from.path().join("y.rs")).unwrap(), "y");

        let time = || std::fs::metadata(to.path().join("y.rs")).unwrap().modified().unwrap();
        let before = time();
        write(from.path(), to.path(), &files[1..], &changed).unwrap();
        assert_eq!(time(), before);
        assert!(!to.path().join("a/x.rs").exists());
    }
}
