//! The version of a Redis program, where the kit must use other means with an older one.

use std::path::Path;
use std::process::Command;

use crate::error::{Error, cannot};

/// The first two numbers of a version; Valkey continued with 7.2.
pub(super) type Version = (u32, u32);

/// The first version in which the port of the cluster bus can be chosen, that takes ranges of slots, and whose
/// Sentinel has periods that can be set.
pub(super) const BUS_PORT: Version = (7, 0);

/// Asks a program which version it is.
pub(super) fn version(program: &Path) -> Result<Version, Error> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(cannot("start", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse(&text).ok_or_else(|| Error::failed(format!("{} says no version: {text}", program.display())))
}

/// Parses `Redis server v=7.0.15 sha=…`.
fn parse(text: &str) -> Option<Version> {
    let mut numbers = text.split_once("v=")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_redis_and_valkey_are_read() {
        assert_eq!(parse("Redis server v=6.2.14 sha=00000000:0 malloc=jemalloc-5.1.0"), Some((6, 2)));
        assert_eq!(parse("Valkey server v=9.1.2 sha=00000000:0"), Some((9, 1)));
        assert_eq!(parse("Redis server"), None);
    }
}
