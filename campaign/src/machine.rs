//! The machine that a run was made on, in words that name no path and no host.

use std::time::SystemTime;

/// The machine and the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores and system.
    pub name: String,
    /// The day, as `2026-01-31`, in UTC.
    pub date: String,
}

impl Machine {
    /// Returns this machine, today.
    pub fn here() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let system = system.map_or("an unknown system".to_owned(), |name| name.trim_matches('"').to_owned());
        let today = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Machine { name: format!("{cores} cores, {system}"), date: today.chars().take(10).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_names_no_path() {
        let machine = Machine::here();
        assert_eq!(machine.date.len(), 10);
        assert!(!machine.name.contains("/tmp") && machine.name.contains("cores"), "{machine:?}");
    }
}
