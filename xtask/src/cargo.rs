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
        if describes_a_package(&name.to_string_lossy()) && !is_given.contains(&name) {
            command.env_remove(&name);
        }
    }
}

fn describes_a_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_package_is_not_described_to_cargo() {
        assert!(describes_a_package("CARGO_PKG_NAME") && describes_a_package("CARGO_MANIFEST_DIR"));
        assert!(!describes_a_package("CARGO_TARGET_DIR") && !describes_a_package("PATH"));
        // Those who start this test describe it, or have taken that away themselves.
        let own = std::env::vars_os().filter(|(name, _)| describes_a_package(&name.to_string_lossy()));
        let command = command();
        for (name, _) in own {
            assert!(command.get_envs().any(|(key, value)| key == name && value.is_none()), "{name:?}");
        }
        let mut command = Command::new("true");
        command.env("CARGO_MANIFEST_DIR", "/here");
        without_description(&mut command);
        assert!(command.get_envs().any(|(key, value)| key == "CARGO_MANIFEST_DIR" && value.is_some()));
    }
}
