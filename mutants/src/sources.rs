//! The files of a crate that are compiled without its tests.

use std::path::{Path, PathBuf};

use crate::derive::is_for_tests;

/// Returns the files that a file and its modules consist of, from the root of the workspace, except those for tests.
pub(crate) fn below(root: &Path, file: &str) -> Result<Vec<String>, String> {
    let mut found = vec![file.to_owned()];
    let text = read(root, file)?;
    let syntax = syn::parse_file(&text).map_err(|error| format!("{file}: {error}"))?;
    let path = Path::new(file);
    let folder = path.parent().unwrap_or(path);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder =
        if ["lib", "main", "mod"].contains(&&*stem) { folder.to_owned() } else { folder.join(&*stem) };
    for item in syntax.items {
        let syn::Item::Mod(module) = item else { continue };
        if module.content.is_some() || is_for_tests(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
        let inner = candidates.iter().find(|inner| root.join(inner).is_file());
        let inner = inner.ok_or_else(|| format!("{file}: the module {name} has no file"))?;
        found.extend(below(root, &inner.display().to_string())?);
    }
    Ok(found)
}

/// Reads a file of the workspace.
pub(crate) fn read(root: &Path, file: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Returns the files of the workspace that belong into a copy: what git knows or would add.
pub(crate) fn all(root: &Path) -> Result<Vec<PathBuf>, String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = std::process::Command::new("git").args(list).current_dir(root).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    // A file that was removed is still known.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|file| root.join(file).is_file()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_for_tests_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "src/lib.rs",
            "mod a; pub mod b; #[cfg(test)] mod c; mod inline {} #[cfg(leasehold_sim)] mod d;",
        );
        write("src/a.rs", "mod x; #[cfg(all(test, unix))] mod y;");
        write("src/a/x.rs", "");
        write("src/b/mod.rs", "#[cfg(unix)] mod z;");
        write("src/b/z.rs", "");
        let found = below(folder.path(), "src/lib.rs").unwrap();
        assert_eq!(found, ["src/lib.rs", "src/a.rs", "src/a/x.rs", "src/b/mod.rs", "src/b/z.rs"]);
        write("src/b/mod.rs", "mod missing;");
        assert!(below(folder.path(), "src/lib.rs").unwrap_err().contains("missing"));
    }
}
