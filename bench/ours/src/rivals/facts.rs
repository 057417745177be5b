//! The machine, and the versions of what runs on it.

use std::process::Command;

use super::results::{Machine, Results};

/// Writes down where and when this run is.
pub(super) fn note(results: &mut Results, quick: bool) {
    results.machine = Machine {
        date: output("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default(),
        processor: field("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: memory_gib(),
        system: system(),
        load_before: load(),
        load_after: load(),
    };
    for (name, program, arguments) in VERSIONS {
        if let Some(version) = output(program, arguments) {
            results.versions.insert((*name).to_owned(), version);
        }
    }
    results.versions.insert("SQLite".to_owned(), rusqlite::version().to_owned());
    // A jar without a version in its name is a link to one that has it.
    if let Ok(jar) = std::fs::read_link("/usr/share/java/zookeeper.jar") {
        let name = jar.file_stem().unwrap_or_default().to_string_lossy().replace('-', " ");
        results.versions.insert("ZooKeeper".to_owned(), name);
    }
    if let Some(commit) = output("git", &["rev-parse", "--short=10", "HEAD"]) {
        let changed = output("git", &CHANGES).is_some();
        let changed = if changed { ", with changes that are not in it" } else { "" };
        results.versions.insert("leasehold".to_owned(), format!("commit {commit}{changed}"));
    }
    eprintln!("load {:.1} before, {} rounds", load(), if quick { "short" } else { "long" });
}

/// Asks for changes of the code, and not of the page.
const CHANGES: [&str; 7] =
    ["status", "--porcelain", "--untracked-files=no", "--", "crates", "backends", "bench"];

/// Programs that print their version, and how.
const VERSIONS: &[(&str, &str, &[&str])] = &[
    ("Redis", "redis-server", &["--version"]),
    ("PostgreSQL", "postgres", &["--version"]),
    ("MariaDB", "mariadbd", &["--version"]),
    ("memcached", "memcached", &["--version"]),
    ("etcd", "etcd", &["--version"]),
    ("etcdctl", "etcdctl", &["version"]),
    ("flock", "flock", &["--version"]),
    ("Rust", "rustc", &["--version"]),
    ("Python", "python3", &["--version"]),
    ("Node.js", "node", &["--version"]),
    ("Java", "java", &["--version"]),
];

/// Returns the mean load of the last minute.
pub(super) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Returns the first line that a program prints; nothing if it cannot be run, or prints nothing.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let program = leasehold_testkit::require::program(program, "").ok()?;
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let value =
        text.lines().filter_map(|line| line.split_once([':', '='])).find(|(key, _)| key.trim() == name);
    value.map_or_else(String::new, |(_, value)| value.trim().trim_matches('"').to_owned())
}

fn memory_gib() -> f64 {
    let kib = field("/proc/meminfo", "MemTotal");
    let kib: f64 = kib.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or(f64::NAN);
    (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0
}

fn system() -> String {
    let kernel = output("uname", &["-sr"]).unwrap_or_default();
    format!("{}, {kernel}", field("/etc/os-release", "PRETTY_NAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_described() {
        let mut results = Results::default();
        note(&mut results, true);
        assert!(results.machine.cores > 0 && results.machine.load_before.is_finite());
        assert!(!results.machine.system.is_empty() && results.versions.contains_key("SQLite"));
    }
}
