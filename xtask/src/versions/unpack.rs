//! Packages, unpacked, and their programs, made ready to run on this machine.
//!
//! A program of a newer release wants a newer C library than the machine has. Its packages bring that, with
//! its loader: a script of the program's name starts the program by it. The script lies where the program lay,
//! so that programs that start each other find the scripts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Libraries, Programs};

/// Unpacks the files of packages into the folder [`ROOT`] of a version.
pub(super) fn unpack(files: &[PathBuf], home: &Path) -> Result<(), String> {
    let root = home.join(ROOT);
    fs::create_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = match name.rsplit_once('.').map(|(_, end)| end) {
            Some("deb") => {
                let mut command = Command::new("dpkg-deb");
                command.arg("-x").arg(file).arg(&root);
                command
            }
            Some("tgz") => {
                let mut command = Command::new("tar");
                command.arg("-xzf").arg(file).arg("-C").arg(&root);
                command
            }
            Some("whl") => {
                // Every machine with pip has this; not every one has `unzip`.
                let mut command = Command::new("python3");
                command.args(["-m", "zipfile", "-e"]).arg(file).arg(&root);
                command
            }
            _ => return Err(format!("{name}: not a package that can be unpacked")),
        };
        let output = command.output().map_err(|error| format!("{name}: cannot be unpacked: {error}"))?;
        if !output.status.success() {
            return Err(format!("{name}: cannot be unpacked: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(())
}

/// Puts the programs into the folder [`PROGRAMS`] of a version.
pub(super) fn link(home: &Path, programs: Programs, libraries: Libraries) -> Result<(), String> {
    let (root, folder) = (home.join(ROOT), home.join(PROGRAMS));
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    if libraries == Libraries::Whole {
        for program in binaries(&root)? {
            wrap(&program, &program.with_extension(BINARY), &root)?;
        }
    }
    if let Libraries::Folder(place) = libraries {
        shorten(&root.join(place))?;
    }
    for (name, path) in programs {
        let (found, link) = (root.join(path), folder.join(name));
        if !found.is_file() {
            return Err(format!("the packages have no {path}"));
        }
        if !path.ends_with(".jar") {
            fs::set_permissions(&found, fs::Permissions::from_mode(0o755)).map_err(failed(&found))?;
        }
        let mut path = PathBuf::from(path);
        if libraries == Libraries::Whole && !path.ends_with(name) {
            // The program does what the name says by which it was started.
            let script = found.with_file_name(name);
            wrap(&script, &found.with_extension(BINARY), &root)?;
            path.set_file_name(name);
        }
        match libraries {
            Libraries::Folder(place) => {
                let text = format!(
                    "#!/bin/sh\nhome=${{0%/*}}/..\n\
                     export LD_LIBRARY_PATH=\"$home/{ROOT}/{place}\"\nexec \"$home/{ROOT}/{}\" \"$@\"\n",
                    path.display()
                );
                write_script(&link, &text)?;
            }
            _ => symlink(Path::new("..").join(ROOT).join(&path), &link).map_err(failed(&link))?,
        }
    }
    Ok(())
}

/// Puts a script in the place of a program, which keeps another name.
fn wrap(script: &Path, binary: &Path, root: &Path) -> Result<(), String> {
    if !binary.exists() {
        fs::rename(script, binary).map_err(|error| format!("{}: {error}", script.display()))?;
    }
    let below = script.strip_prefix(root).map_err(|error| error.to_string())?;
    let up = "/..".repeat(below.components().count() - 1);
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let text = format!(
        "#!/bin/sh\nself=$(readlink -f -- \"$0\")\nroot=${{self%/*}}{up}\nlibraries=$root/{LIBRARIES}\n\
         export MY_BASEDIR_VERSION=\"$root/usr\"\n\
         exec \"$libraries/{LOADER}\" --argv0 \"$self\" --library-path \"$libraries\" \
         \"${{self%/*}}/{name}\" \"$@\"\n"
    );
    write_script(script, &text)
}

fn write_script(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::write(path, text).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)
}

/// Returns the programs below a folder: not libraries, not scripts, not links.
fn binaries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let facts = path.symlink_metadata().map_err(|error| format!("{}: {error}", path.display()))?;
        if facts.is_dir() {
            found.extend(binaries(&path)?);
        } else if facts.is_file() && facts.permissions().mode() & 0o111 != 0 && is_binary(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_binary(path: &Path) -> bool {
    use std::io::Read;
    let is_library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    !is_library && read.is_ok() && magic == *b"\x7fELF"
}

/// Links libraries by the shorter names that programs look for: `libicuuc.so.60` to `libicuuc.so.60.2`.
fn shorten(folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let Some((stem, numbers)) = name.split_once(".so.") else { continue };
        let mut short = numbers;
        while let Some((shorter, _)) = short.rsplit_once('.') {
            short = shorter;
            let link = folder.join(format!("{stem}.so.{short}"));
            if link.symlink_metadata().is_err() {
                symlink(&name, &link).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// The folder of the unpacked packages.
const ROOT: &str = "root";
/// The folder of the programs.
pub(super) const PROGRAMS: &str = "bin";
/// The ending of a program's name behind its script.
const BINARY: &str = "elf";
/// Debian's folder of libraries, and the loader in it.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_started_by_the_loader_of_its_packages() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join(ROOT);
        let (tools, libraries) = (root.join("usr/bin"), root.join(LIBRARIES));
        fs::create_dir_all(&tools).unwrap();
        fs::create_dir_all(&libraries).unwrap();
        // A loader that says what it was asked to start.
        write_script(&libraries.join(LOADER), "#!/bin/sh\necho \"$2\"; echo \"$5\"; echo \"$6\"\n").unwrap();
        fs::write(tools.join("check"), b"\x7fELF").unwrap();
        fs::set_permissions(tools.join("check"), fs::Permissions::from_mode(0o755)).unwrap();
        link(home.path(), &[("server", "usr/bin/check")], Libraries::Whole).unwrap();
        // What a child of another test has open for writing cannot be started, so a copy by another process is.
        let copy = home.path().join("copy");
        fs::create_dir(&copy).unwrap();
        let copied = Command::new("cp").arg("-a").args([&home.path().join(PROGRAMS), &root, &copy]).status();
        assert!(copied.unwrap().success());
        let output = Command::new(copy.join(PROGRAMS).join("server")).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("root/usr/bin/server"), "{text}");
        assert!(lines[1].ends_with("check.elf") && lines[2] == "--version", "{text}");
    }

    #[test]
    fn libraries_are_found_by_their_short_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libx.so.60.2"), "x").unwrap();
        shorten(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("libx.so.60")).unwrap(), "x");
        assert!(!folder.path().join("libx.so").exists());
    }
}
