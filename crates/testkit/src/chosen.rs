//! The version of a server that a test starts: the one that is installed, unless a variable names another.
//!
//! A variable of each server names a version of the cache that `cargo xtask servers` fills, a folder that has
//! the programs by their usual names, or one program. What was chosen and is not there fails a test: it is
//! never a reason to skip it, nor to test the installed version instead.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::require;

/// The variables, by server. The names are a part of what `CONTRIBUTING.md` promises.
pub(crate) const ETCD: &str = "LEASEHOLD_ETCD_SERVER";
pub(crate) const MARIADB: &str = "LEASEHOLD_MARIADB_SERVER";
pub(crate) const MEMCACHED: &str = "LEASEHOLD_MEMCACHED_SERVER";
pub(crate) const POSTGRES: &str = "LEASEHOLD_POSTGRES_SERVER";
pub(crate) const REDIS: &str = "LEASEHOLD_REDIS_SERVER";
pub(crate) const ZOOKEEPER: &str = "LEASEHOLD_ZOOKEEPER_SERVER";

/// Returns the program that `variable` chooses, or the installed one.
///
/// # Errors
/// [`Error::is_missing`] when none was chosen and none is installed. Other errors when what was chosen does
/// not have this program.
pub(crate) fn program(variable: &str, name: &str, package: &str) -> Result<PathBuf, Error> {
    match place(variable)? {
        None => require::program(name, package),
        Some(place) if place.is_dir() => {
            let program = place.join(name);
            let here = require::program(&program.display().to_string(), package);
            here.map_err(|_| {
                let text = format!("{variable} names {}, which has no program {name}", place.display());
                Error::failed(text)
            })
        }
        Some(place) => Ok(place),
    }
}

/// Returns the folder of the programs of a version in the cache, where it is there.
pub(crate) fn cached(version: &str) -> Option<PathBuf> {
    resolve(Path::new(version), &std::env::current_exe().unwrap_or_default())
}

/// Returns a program beside the chosen server, or the installed one where the choice does not bring it: the
/// clients of one version mostly speak to the servers of another.
pub(crate) fn helper(variable: &str, name: &str, package: &str) -> Result<PathBuf, Error> {
    let beside = place(variable)?.filter(|place| place.is_dir()).map(|place| place.join(name));
    match beside.filter(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => require::program(name, package),
    }
}

/// Returns the folder or program that a variable names, `None` where it is unset or empty.
pub(crate) fn place(variable: &str) -> Result<Option<PathBuf>, Error> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    let Some(value) = value.map(PathBuf::from) else { return Ok(None) };
    let own = std::env::current_exe().unwrap_or_default();
    resolve(&value, &own).map(Some).ok_or_else(|| {
        let value = value.display();
        Error::failed(format!(
            "{variable}={value} is not there: name a folder, a program, or a version that \
             `cargo xtask servers {value}` has fetched"
        ))
    })
}

/// Returns the place that a value means. One without a slash is a version in the cache, which lies in the
/// folder that cargo builds in, some levels above the test's own program.
fn resolve(value: &Path, own: &Path) -> Option<PathBuf> {
    if value.components().count() > 1 {
        return value.exists().then(|| value.to_path_buf());
    }
    let caches = own.ancestors().map(|folder| folder.join(CACHE).join(value).join(PROGRAMS));
    caches.into_iter().find(|folder| folder.is_dir())
}

/// The folder of the cache, below the folder that cargo builds in; `xtask/src/servers` fills it.
const CACHE: &str = "servers";
/// The folder of a version's programs.
const PROGRAMS: &str = "bin";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    #[test]
    fn a_word_is_a_version_of_the_cache_and_a_path_is_itself() {
        let directory = Directory::create("chosen").unwrap();
        let programs = directory.path().join("servers/redis-0.1/bin");
        std::fs::create_dir_all(&programs).unwrap();
        let own = directory.path().join("debug/deps/test");
        assert_eq!(resolve(Path::new("redis-0.1"), &own), Some(programs.clone()));
        assert_eq!(resolve(Path::new("redis-0.2"), &own), None);
        assert_eq!(resolve(&programs, &own), Some(programs.clone()));
        assert_eq!(resolve(&programs.join("none"), &own), None);
    }
}
