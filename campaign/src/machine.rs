//! The machine that a run was made on, in words that name no path and no host.

use std::process::Command;
use std::time::SystemTime;

/// The machine and the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores and system.
    pub name: String,
    /// The day, as `2026-01-31`, in UTC.
    pub date: String,
    /// The code of leasehold: the last commit that changed it, or the version and the day where there is none.
    pub code: String,
}

impl Machine {
    /// Returns this machine, today.
    pub fn here() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let system = system.map_or("an unknown system".to_owned(), |name| name.trim_matches('"').to_owned());
        let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let date: String = today.chars().take(10).collect();
        let code = commit().unwrap_or_else(|| format!("{} of {date}", env!("CARGO_PKG_VERSION")));
        Machine { name: format!("{cores} cores, {system}"), date, code }
    }
}

/// Returns the last commit that changed the code of the repository around; `+` follows if it was changed since.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).args(["--", ":/"]).args(NOT_CODE).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["log", "-1", "--format=%h", "--abbrev=12"]).filter(|commit| !commit.is_empty())?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(format!("{commit}{}", if changes.is_empty() { "" } else { "+" }))
}

/// The pathspecs that leave out all files but code.
const NOT_CODE: [&str; 2] = [":/!docs", ":/!*.md"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_names_no_path() {
        let machine = Machine::here();
        assert_eq!(machine.date.len(), 10);
        assert!(machine.code.len() >= 12, "{machine:?}");
        assert!(!machine.name.contains("/tmp") && machine.name.contains("cores"), "{machine:?}");
    }
}
