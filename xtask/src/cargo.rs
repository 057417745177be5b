//! Cargo, as a person would start it.

use std::process::Command;

/// Returns the command `cargo` without arguments.
///
/// `cargo run`, which started this program, describes this package in the environment. Build scripts of
/// other packages watch some of these variables, and would run again on every change between here and a
/// plain cargo; much is compiled anew then.
pub(crate) fn command() -> Command {
    let mut command = Command::new(program());
    without_description(&mut command);
    command
}

/// Returns the cargo that started this program.
pub(crate) fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Takes the description of this package from the environment of a command, except what it is given.
pub(crate) fn without_description(command: &mut Command) {
    let is_given: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let describes = text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if describes && !is_given.contains(&name) {
            command.env_remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_package_is_not_described_to_cargo() {
        // `cargo test`, which started this test, describes it too.
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let command = command();
        let removed = |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        assert!(removed("CARGO_PKG_NAME") && removed("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("true");
        command.env("CARGO_MANIFEST_DIR", "/here");
        without_description(&mut command);
        assert!(command.get_envs().any(|(key, value)| key == "CARGO_MANIFEST_DIR" && value.is_some()));
    }
}
