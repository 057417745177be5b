//! The needs of the tests beside a Rust toolchain, and how to meet them on Debian.
//!
//! Ground rules: nothing is asked of the person, no service is started, stopped or left behind changed,
//! and a machine on which nothing may be installed is not an error: its tests skip, unless
//! `LEASEHOLD_REQUIRE` says otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One program that tests run.
struct Tool {
    /// Its name, or the path of a file that another program runs.
    program: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// The tests that cannot run without it: names of backends, as in `LEASEHOLD_REQUIRE`, or of
    /// chores.
    needed_by: &'static [&'static str],
}

/// A new backend adds the programs of its server here.
const TOOLS: &[Tool] = &[
    Tool { program: "git", package: "git", needed_by: &["tidy"] },
    Tool { program: "etcd", package: "etcd-server", needed_by: &["etcd"] },
    Tool { program: "etcdctl", package: "etcd-client", needed_by: &["etcd"] },
    Tool { program: "memcached", package: "memcached", needed_by: &["memcached"] },
    Tool { program: "redis-server", package: "redis-server", needed_by: &["redis"] },
    Tool { program: "redis-cli", package: "redis-tools", needed_by: &["redis"] },
    Tool { program: "mariadbd", package: "mariadb-server", needed_by: &["mariadb"] },
    Tool { program: "mariadb", package: "mariadb-client", needed_by: &["mariadb"] },
    Tool { program: "/usr/lib/galera/libgalera_smm.so", package: "galera-4", needed_by: &["galera"] },
    Tool { program: "psql", package: "postgresql", needed_by: &["postgres"] },
    Tool { program: "pgbouncer", package: "pgbouncer", needed_by: &["pgbouncer"] },
    Tool { program: "java", package: "default-jre-headless", needed_by: &["zookeeper"] },
    Tool { program: "javac", package: "default-jdk-headless", needed_by: &["curator"] },
    Tool {
        program: "/usr/share/java/curator-recipes.jar",
        package: "libcurator-recipes-java",
        needed_by: &["curator"],
    },
    Tool { program: "/usr/share/java/slf4j-nop.jar", package: "libslf4j-java", needed_by: &["curator"] },
    Tool {
        program: "pip3",
        package: "python3-pip",
        needed_by: &["kazoo", "kubernetes", "redis-peers", "tooz"],
    },
    Tool { program: "nutcracker", package: "nutcracker", needed_by: &["nutcracker"] },
    Tool { program: "chromium", package: "chromium", needed_by: &["chromium"] },
    Tool { program: "chromedriver", package: "chromium-driver", needed_by: &["chromium"] },
    Tool { program: "node", package: "nodejs", needed_by: &["redis-peers"] },
    Tool { program: "npm", package: "npm", needed_by: &["redis-peers"] },
    Tool { program: "ip", package: "iproute2", needed_by: &["partitions"] },
    Tool { program: "nft", package: "nftables", needed_by: &["partitions"] },
    Tool { program: "systemd-analyze", package: "systemd", needed_by: &["systemd"] },
    Tool { program: "dpkg-shlibdeps", package: "dpkg-dev", needed_by: &["debian"] },
    Tool { program: "/usr/share/java/zookeeper.jar", package: "zookeeper", needed_by: &["zookeeper"] },
];

/// Installs what is missing where that is allowed. Fails only when something that `LEASEHOLD_REQUIRE`
/// names stays missing.
pub(crate) fn ensure() -> Result<(), String> {
    let missing = missing_tools();
    if missing.is_empty() {
        println!("All {} programs are here: {}.", TOOLS.len(), list(TOOLS.iter().map(|tool| tool.program)));
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    println!("Missing: {}.", list(missing.iter().map(|tool| tool.program)));
    if let Err(why) = install(&packages) {
        println!("Not installed: {why} By hand: apt-get install {}", packages.join(" "));
    }
    let missing = missing_tools();
    if missing.is_empty() {
        return Ok(());
    }
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    verdict(&missing, &required)
}

/// Finds a program, in the path or in the folders for administrators, which a user's path often lacks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(program)).find(|file| executable(file))
}

fn executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn is_here(tool: &Tool) -> bool {
    if Path::new(tool.program).is_absolute() {
        return Path::new(tool.program).is_file();
    }
    find(tool.program).is_some()
}

fn missing_tools() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| !is_here(tool)).collect()
}

/// Says what will be skipped, or refuses to continue when that was required.
fn verdict(missing: &[&Tool], required: &str) -> Result<(), String> {
    let names: Vec<&str> = required.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_required =
        |tool: &&&Tool| names.contains(&"all") || tool.needed_by.iter().any(|need| names.contains(need));
    let refused = list(missing.iter().filter(is_required).map(|tool| tool.program));
    if !refused.is_empty() {
        return Err(format!(
            "LEASEHOLD_REQUIRE={required} wants {refused}: install that, or unset the variable."
        ));
    }
    for tool in missing {
        println!("Without {}, the tests of {} are skipped.", tool.program, tool.needed_by.join(" and "));
    }
    Ok(())
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// The time that apt waits for another package manager to finish, so that it neither fails at once nor
/// hangs for ever.
const APT_LOCK_WAIT: &str = "DPkg::Lock::Timeout=300";

fn install(packages: &[&str]) -> Result<(), String> {
    if find("apt-get").is_none() {
        return Err("this machine has no apt-get.".to_owned());
    }
    let mut command = match privilege() {
        Privilege::Root => Command::new("sh"),
        Privilege::Sudo => {
            let mut command = Command::new("sudo");
            command.args(["-n", "sh"]);
            command
        }
        Privilege::None => return Err("this user is not root and has no sudo without a password.".to_owned()),
    };
    println!("Installing with apt: {}.", packages.join(" "));
    command.args(["-c", INSTALL, "install", POLICY, APT_LOCK_WAIT]).args(packages).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get ended with {status}.")),
        Err(error) => Err(format!("the installation could not be started: {error}.")),
    }
}

enum Privilege {
    Root,
    Sudo,
    None,
}

fn privilege() -> Privilege {
    let quiet = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
    };
    if quiet("id", &["-u"]).is_some_and(|output| output.stdout.trim_ascii() == b"0") {
        return Privilege::Root;
    }
    // `-n` fails where a password would be asked.
    match quiet("sudo", &["-n", "true"]) {
        Some(output) if output.status.success() => Privilege::Sudo,
        _ => Privilege::None,
    }
}

/// Debian asks this file before a package's script starts a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Arguments: the policy's path, apt's option for its lock, the packages.
///
/// Debian starts a server as a system service when its package is installed, on the port that a user's
/// own server may want. The policy written here forbids that while the installation runs. An existing
/// policy is its owner's decision and stays; ours is removed by the trap, and has no effect once this
/// shell is gone, should even that not happen.
const INSTALL: &str = r#"
set -eu
policy=$1 lock=$2
shift 2
mark='# Written by leasehold for one installation; without effect since that has ended.'
if [ ! -e "$policy" ] || grep -qxF "$mark" "$policy"; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    printf '#!/bin/sh\n%s\n[ -d /proc/%s ] && exit 101\nexit 0\n' "$mark" "$$" >"$policy"
    chmod 755 "$policy"
fi
# Without the last two, the machine's runlevel or an update of a shared library could start or restart a service.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 NEEDRESTART_SUSPEND=1
apt-get -q -o "$lock" update
apt-get -q -y -o "$lock" install --no-install-recommends "$@"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Tool = Tool { program: "redis-server", package: "redis-server", needed_by: &["redis"] };

    #[test]
    fn a_missing_server_is_an_error_only_where_it_is_required() {
        assert_eq!(verdict(&[&SERVER], ""), Ok(()));
        assert_eq!(verdict(&[&SERVER], "etcd, zookeeper"), Ok(()));
        for required in ["all", "redis", "etcd,redis"] {
            let complaint = verdict(&[&SERVER], required).unwrap_err();
            assert!(complaint.contains("redis-server") && complaint.contains(required), "{complaint}");
        }
    }

    #[test]
    fn programs_are_found_only_where_they_can_be_run() {
        assert!(find("sh").is_some_and(|file| file.is_absolute()));
        assert_eq!(find("leasehold-no-such-program"), None);
        assert!(!executable(Path::new("/etc/passwd")), "a file without the bit is not a program");
        assert!(!executable(Path::new("/")), "a folder is not a program");
    }

    #[test]
    fn file_at_a_path_need_not_be_a_program() {
        let here = |program| is_here(&Tool { program, ..SERVER });
        assert!(here("/etc/passwd") && here("sh"));
        assert!(!here("/etc/leasehold-no-such-file") && !here("leasehold-no-such-program"));
    }

    #[test]
    fn every_row_of_the_table_is_whole() {
        for tool in TOOLS {
            assert!(!tool.program.is_empty() && !tool.package.is_empty() && !tool.needed_by.is_empty());
        }
    }

    #[test]
    fn the_shell_accepts_the_script() {
        let status = Command::new("sh").args(["-n", "-c", INSTALL]).status().unwrap();
        assert!(status.success());
    }
}
