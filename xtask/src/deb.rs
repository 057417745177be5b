//! `cargo xtask deb`: a Debian package of the command, with its man pages, completions and services.
//!
//! Ground rules: man pages and completions come from the program that is packed, so they cannot describe another
//! one. `dpkg-deb` writes the package and `dpkg-shlibdeps` finds the libraries; no rules of Debian's builders are
//! needed for one program. Two runs on one commit and one program give the same bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{cargo, servers};

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The program to pack. It is built in release if none is given.
    program: Option<PathBuf>,
    /// The folder of the package; `target/debian` if none is given.
    folder: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments of the chore.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let place = match *name {
                "--program" => &mut options.program,
                "--out" => &mut options.folder,
                other => return Err(format!("`{other}` is not an option of this chore.")),
            };
            let value = rest.next().ok_or_else(|| format!("{name} wants a path."))?;
            *place = Some(PathBuf::from(value));
        }
        Ok(options)
    }
}

/// Builds the command unless a program is given, and packs it.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    for (program, package) in TOOLS {
        if servers::find(program).is_none() {
            return Err(format!("{program} is not installed: apt-get install {package}"));
        }
    }
    let program = match &options.program {
        Some(program) => program.clone(),
        None => built(root)?,
    };
    let program = fs::canonicalize(&program).map_err(failed(&program))?;
    let folder = options.folder.clone().unwrap_or_else(|| crate::target(root).join("debian"));
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let work = tempfile::tempdir().map_err(|error| format!("a temporary folder cannot be made: {error}"))?;
    let package = Package { root, program: &program, tree: work.path().join("leasehold") };
    let file = package.write(work.path(), &folder)?;
    println!("deb: {}", file.display());
    Ok(())
}

/// The programs that this chore runs, and Debian's packages of them.
const TOOLS: &[(&str, &str)] = &[
    ("dpkg", "dpkg"),
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
];

/// Builds the command in release, and returns its path.
fn built(root: &Path) -> Result<PathBuf, String> {
    let mut cargo = cargo::command();
    cargo.current_dir(root).args(["build", "--release", "--locked", "--package", "leasehold-cli"]);
    let status = cargo.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("the command `leasehold` could not be built: {status}"));
    }
    Ok(crate::target(root).join("release/leasehold"))
}

/// One package in the making.
struct Package<'a> {
    root: &'a Path,
    program: &'a Path,
    /// The folder that becomes the root of the machine.
    tree: PathBuf,
}

impl Package<'_> {
    /// Fills the tree and writes the package into `folder`.
    fn write(&self, work: &Path, folder: &Path) -> Result<PathBuf, String> {
        let version = version(&self.read("Cargo.toml")?)?;
        let time = self.time()?;
        self.program_and_words()?;
        self.documents(&version, time)?;
        for (source, target, mode) in FILES {
            self.file(target, self.read(source)?.as_bytes(), *mode)?;
        }
        for empty in FOLDERS {
            self.folder(empty)?;
        }
        let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
        let control = self.control(&version, architecture.trim(), &self.depends(work)?)?;
        self.file("DEBIAN/control", control.as_bytes(), 0o644)?;
        let file = folder.join(format!("leasehold_{version}_{}.deb", architecture.trim()));
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "--build"]).arg(&self.tree).arg(&file);
        // The times in the package are cut to this one.
        build.env("SOURCE_DATE_EPOCH", time.to_string());
        output(&mut build)?;
        Ok(file)
    }

    /// The command, its man pages and its completions.
    fn program_and_words(&self) -> Result<(), String> {
        let stripped = self.place("usr/bin/leasehold")?;
        output(Command::new("strip").arg("-o").arg(&stripped).arg(self.program))?;
        set_mode(&stripped, 0o755)?;
        let manual = self.folder("usr/share/man/man1")?;
        output(Command::new(self.program).args(["man", "--dir"]).arg(&manual))?;
        self.file(
            "usr/share/man/man1/leasehold-once.1",
            self.read("packaging/cron/leasehold-once.1")?.as_bytes(),
            0o644,
        )?;
        for entry in fs::read_dir(&manual).map_err(failed(&manual))? {
            let page = entry.map_err(failed(&manual))?.path();
            set_mode(&page, 0o644)?;
            output(Command::new("gzip").arg("-9n").arg(&page))?;
        }
        for (shell, target) in COMPLETIONS {
            let script = output(Command::new(self.program).args(["completions", shell]))?;
            self.file(target, script.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// The licences and the two changelogs that Debian's policy asks for.
    fn documents(&self, version: &str, time: u64) -> Result<(), String> {
        let mut copyright = self.read("packaging/debian/copyright")?;
        for line in self.read("LICENSE-MIT")?.lines() {
            // A line with a point is an empty one.
            copyright += &if line.trim().is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
        }
        self.file("usr/share/doc/leasehold/copyright", copyright.as_bytes(), 0o644)?;
        let date = output(Command::new("date").args(["-u", "-R", "-d", &format!("@{time}")]))?;
        let entry = format!(
            "leasehold ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {}  {}\n",
            maintainer(),
            date.trim()
        );
        for (name, text) in [("changelog", self.read("CHANGELOG.md")?), ("changelog.Debian", entry)] {
            let path = format!("usr/share/doc/leasehold/{name}");
            self.file(&path, text.as_bytes(), 0o644)?;
            output(Command::new("gzip").arg("-9n").arg(self.tree.join(path)))?;
        }
        Ok(())
    }

    fn control(&self, version: &str, architecture: &str, depends: &str) -> Result<String, String> {
        let size = size(&self.tree)?.div_ceil(1024);
        let fixed = self.read("packaging/debian/control")?;
        Ok(format!(
            "Package: leasehold\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {}\n\
             Installed-Size: {size}\nDepends: {depends}\n{fixed}",
            maintainer()
        ))
    }

    /// Returns the packages of the libraries that the program is linked with.
    fn depends(&self, work: &Path) -> Result<String, String> {
        // The tool reads the name of the package from the folder that it runs in.
        let source = work.join("source/debian");
        fs::create_dir_all(&source).map_err(failed(&source))?;
        fs::write(source.join("control"), "Source: leasehold\n\nPackage: leasehold\nArchitecture: any\n")
            .map_err(failed(&source))?;
        let mut find = Command::new("dpkg-shlibdeps");
        find.current_dir(work.join("source")).arg("-O").arg("-e").arg(self.program);
        let found = output(&mut find)?;
        let line = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
        line.map(str::to_owned).ok_or_else(|| "dpkg-shlibdeps found no libraries of the program.".to_owned())
    }

    /// Returns the time of the package: that of `SOURCE_DATE_EPOCH`, or of the commit.
    fn time(&self) -> Result<u64, String> {
        let text = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => output(Command::new("git").current_dir(self.root).args(["log", "-1", "--format=%ct"]))?,
        };
        text.trim().parse().map_err(|error| format!("the time of the package is not a number: {error}"))
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(failed(&path))
    }

    fn file(&self, target: &str, content: &[u8], mode: u32) -> Result<(), String> {
        let path = self.place(target)?;
        fs::write(&path, content).map_err(failed(&path))?;
        set_mode(&path, mode)
    }

    /// Returns the path of a file in the tree, whose folder exists.
    fn place(&self, target: &str) -> Result<PathBuf, String> {
        let (folder, name) = target.rsplit_once('/').unwrap_or(("", target));
        Ok(self.folder(folder)?.join(name))
    }

    /// Makes a folder of the tree, with the mode that a package has under any umask.
    fn folder(&self, target: &str) -> Result<PathBuf, String> {
        let mut path = self.tree.clone();
        for part in std::iter::once("").chain(target.split('/')) {
            path.push(part);
            fs::create_dir_all(&path).map_err(failed(&path))?;
            set_mode(&path, 0o755)?;
        }
        Ok(path)
    }
}

const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/leasehold"),
    ("zsh", "usr/share/zsh/vendor-completions/_leasehold"),
    ("fish", "usr/share/fish/vendor_completions.d/leasehold.fish"),
];

/// Files of the repository, where they go, and their modes.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/systemd/leasehold-run@.service", "usr/lib/systemd/system/leasehold-run@.service", 0o644),
    ("packaging/systemd/leasehold-run@.timer", "usr/lib/systemd/system/leasehold-run@.timer", 0o644),
    ("packaging/systemd/leasehold-elect@.service", "usr/lib/systemd/system/leasehold-elect@.service", 0o644),
    ("packaging/systemd/leasehold-serve.service", "usr/lib/systemd/system/leasehold-serve.service", 0o644),
    ("packaging/systemd/environment", "usr/share/doc/leasehold/examples/environment", 0o644),
    ("packaging/cron/leasehold-once", "usr/bin/leasehold-once", 0o755),
    ("packaging/cron/leasehold-nightly", "usr/share/doc/leasehold/examples/cron.d", 0o644),
];

/// The folders of a machine's own jobs and services.
const FOLDERS: &[&str] = &["etc/leasehold/jobs", "etc/leasehold/services"];

/// Returns the version of the package, with Debian's own number behind that of the workspace.
fn version(manifest: &str) -> Result<String, String> {
    let (_, package) = manifest.split_once("[workspace.package]").unwrap_or_default();
    let value = package.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    // Before a pre-release comes its version: 1.0.0~rc.1 sorts before 1.0.0.
    value
        .map(|value| format!("{}-1", value.replacen('-', "~", 1)))
        .ok_or_else(|| "Cargo.toml: the version of the workspace is missing.".to_owned())
}

/// Returns who answers for the package, by the variables of Debian's own tools.
fn maintainer() -> String {
    let name = std::env::var("DEBFULLNAME").unwrap_or_else(|_| "The leasehold authors".to_owned());
    let address = std::env::var("DEBEMAIL").unwrap_or_else(|_| "leasehold@example.org".to_owned());
    format!("{name} <{address}>")
}

/// Returns the bytes of all files below a folder.
fn size(folder: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        bytes += if path.is_dir() { size(&path)? } else { fs::metadata(&path).map_err(failed(&path))?.len() };
    }
    Ok(bytes)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// Runs a program to its end, and returns what it printed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} could not be started: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed: {}\n{}", output.status, errors.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_paths() {
        let parsed = Options::parse(&["--program", "a", "--out", "b"]);
        assert_eq!(parsed, Ok(Options { program: Some("a".into()), folder: Some("b".into()) }));
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        assert!(Options::parse(&["--out"]).is_err_and(|text| text.contains("--out")));
        assert!(Options::parse(&["--fast"]).is_err_and(|text| text.contains("--fast")));
    }

    #[test]
    fn pre_release_sorts_before_its_release() {
        let version = |text: &str| version(&format!("[workspace.package]\nversion = \"{text}\"\n"));
        assert_eq!(version("0.1.0").as_deref(), Ok("0.1.0-1"));
        assert_eq!(version("1.0.0-rc.1").as_deref(), Ok("1.0.0~rc.1-1"));
        assert!(super::version("[workspace]\n").is_err());
    }

    #[test]
    fn every_file_of_the_package_exists() {
        for (source, ..) in FILES {
            assert!(crate::root().join(source).is_file(), "{source}");
        }
    }
}
