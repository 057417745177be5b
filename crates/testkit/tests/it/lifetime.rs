//! Remains of a server when its test ends badly, and what a skipped test leaves to be counted.
//!
//! The bad ends happen in a process of their own: this test binary, started again to play one role.
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::{PostgresServer, RedisServer};

/// Set in a process that plays a role; the roles do nothing elsewhere.
const ROLE: &str = "LEASEHOLD_TESTKIT_ROLE";

fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("lifetime::{name}"), "--exact", "--ignored", "--nocapture"]).env(ROLE, name);
    command
        .env_remove("LEASEHOLD_REQUIRE")
        .env_remove("LEASEHOLD_SKIP_LOG")
        .env_remove("LEASEHOLD_KEEP_DIRS");
    command
}

fn plays(name: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|role| role == name)
}

/// Returns the words after `marker` in the output of a role.
fn marked<'a>(output: &'a str, marker: &str) -> Option<&'a str> {
    output.lines().find_map(|line| line.split_once(marker)).map(|(_, rest)| rest.trim())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the processes, zombies aside, that work in `directory` or below, as paths in `/proc`. Redis
/// replaces its command line, but not this.
fn processes_in(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let here =
        move |process: &PathBuf| process.join("cwd").read_link().is_ok_and(|cwd| cwd.starts_with(directory));
    std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(here)
}

fn works_in(directory: &Path) -> bool {
    processes_in(directory).next().is_some()
}

fn wait_until(mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !seen() {
        assert!(Instant::now() < deadline, "not seen within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the role however its test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
#[ignore = "a role, played in a process of its own"]
async fn hold_servers() {
    if !plays("hold_servers") {
        return;
    }
    let running = RedisServer::start().await.unwrap();
    let stopped = RedisServer::start().await.unwrap();
    stopped.stop().unwrap();
    println!("told {} {}", directory(&running).display(), directory(&stopped).display());
    std::thread::sleep(Duration::from_secs(600));
}

fn directory(server: &RedisServer) -> PathBuf {
    server.log_path().parent().unwrap().to_path_buf()
}

#[tokio::test]
async fn no_server_outlives_a_killed_test() {
    let Some(_installed) = RedisServer::start_or_skip().await else { return };
    let mut child = Killed(role("hold_servers").stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|line| line.contains("told ")).unwrap();
    let directories: Vec<PathBuf> = marked(&line, "told ").unwrap().split(' ').map(PathBuf::from).collect();
    assert_eq!(directories.len(), 2);
    for directory in &directories {
        let pid = pid_in(directory);
        assert!(Path::new(&format!("/proc/{pid}")).exists());
    }
    let pids: Vec<u32> = directories.iter().map(|directory| pid_in(directory)).collect();
    drop(child);
    wait_until(|| pids.iter().all(|pid| !alive(*pid)));
    for directory in directories {
        assert!(!works_in(&directory));
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Returns the server's process id, from its own log.
fn pid_in(directory: &Path) -> u32 {
    let log = std::fs::read_to_string(directory.join("server.log")).unwrap();
    log.split_once("pid=").unwrap().1.split_once(',').unwrap().0.parse().unwrap()
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains("(redis-server)") && !stat.contains(") Z ")
}

/// Killed at any moment of its start, a test leaves no server either.
#[tokio::test]
async fn no_server_outlives_a_test_killed_while_it_starts_one() {
    let Some(_installed) = RedisServer::start_or_skip().await else { return };
    let temp = tempfile::tempdir().unwrap();
    for delay in 0..30 {
        let mut child = role("hold_servers");
        child.env("TMPDIR", temp.path()).stdout(Stdio::null());
        let child = Killed(child.spawn().unwrap());
        std::thread::sleep(Duration::from_millis(delay));
        drop(child);
    }
    // Servers, and shells on their way to become one, work in its temporary directory.
    wait_until(|| !works_in(temp.path()));
}

/// A killed server cannot remove shared memory that has a name outside of its directory.
#[tokio::test]
async fn postgresql_keeps_its_shared_memory_in_its_directory() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let directory = server.log_path().parent().unwrap().to_path_buf();
    let process = processes_in(&directory).next().unwrap();
    let maps = std::fs::read_to_string(process.join("maps")).unwrap();
    assert!(maps.contains("pg_dynshmem"), "{maps}");
    assert!(!maps.contains("/dev/shm/PostgreSQL"), "{maps}");
}

#[tokio::test]
#[ignore = "a role, played in a process of its own"]
async fn panic_with_a_server() {
    if !plays("panic_with_a_server") {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    println!("told {}", directory(&server).display());
    panic!("as asked");
}

#[tokio::test]
async fn a_panic_keeps_the_directory_and_shows_the_log() {
    let Some(_installed) = RedisServer::start_or_skip().await else { return };
    let output = role("panic_with_a_server").output().unwrap();
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    let directory = marked(&text, "told ").unwrap();
    assert_eq!(marked(&text, "server directory kept: "), Some(directory), "{text}");
    assert!(text.contains("Ready to accept connections"), "{text}");
    let log = std::fs::read_to_string(Path::new(directory).join("server.log")).unwrap();
    assert!(log.contains("Ready to accept connections"));
    assert!(!works_in(Path::new(directory)));
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn an_end_without_panic_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let directory = directory(&server);
    let pid = server.pid().unwrap();
    assert!(directory.is_dir() && alive(pid));
    server.stop().unwrap();
    drop(server);
    assert!(!alive(pid));
    assert!(!directory.exists());
}

#[tokio::test]
#[ignore = "a role, played in a process of its own"]
async fn skip_for_want_of_a_server() {
    if !plays("skip_for_want_of_a_server") {
        return;
    }
    let builder = RedisServer::builder().program("no-such-redis");
    assert!(builder.start_or_skip().await.is_none());
}

const SKIPPED: &str = "LEASEHOLD-SKIPPED lifetime::skip_for_want_of_a_server no-such-redis is not installed \
    (apt-get install no-such-redis)\n";

#[test]
fn a_skip_is_seen_though_output_is_captured_and_is_counted() {
    let temp = tempfile::tempdir().unwrap();
    let log = temp.path().join("skipped");
    for _ in 0..2 {
        // Without --nocapture: libtest hides what a passing test prints.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["lifetime::skip_for_want_of_a_server", "--exact", "--ignored"]);
        command
            .env(ROLE, "skip_for_want_of_a_server")
            .env("LEASEHOLD_SKIP_LOG", &log)
            .env("LEASEHOLD_REQUIRE", "etcd");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(SKIPPED), "{}", text(&output));
    }
    assert_eq!(std::fs::read_to_string(log).unwrap(), SKIPPED.repeat(2));
}

#[test]
fn a_required_server_is_not_skipped() {
    for required in ["all", "etcd,redis"] {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("skipped");
        let mut command = role("skip_for_want_of_a_server");
        let output =
            command.env("LEASEHOLD_REQUIRE", required).env("LEASEHOLD_SKIP_LOG", &log).output().unwrap();
        assert!(!output.status.success());
        let output = text(&output);
        assert!(output.contains(&format!("LEASEHOLD_REQUIRE={required} forbids to skip")), "{output}");
        assert!(!log.exists());
    }
}

#[test]
fn an_unwritable_skip_log_fails() {
    let output =
        role("skip_for_want_of_a_server").env("LEASEHOLD_SKIP_LOG", "/nonexistent/log").output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("cannot append to LEASEHOLD_SKIP_LOG=/nonexistent/log"));
}
