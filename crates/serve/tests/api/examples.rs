//! The examples for other languages, run as a reader would: one that finishes, and one that loses its lock.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::child::ServerProcess;
use crate::support::until;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(name)
}

/// A server over files, for holders that are programs.
struct Place {
    folder: tempfile::TempDir,
    server: ServerProcess,
    client: Client,
}

impl Place {
    /// Starts it; `None` where this program is not installed.
    async fn for_or_skip(program: &str) -> Option<Place> {
        if Command::new(program).arg("--version").output().is_err() {
            leasehold_testkit::require::skip(program, "it is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let store = format!("file://{}", folder.path().join("store").display());
        let server = ServerProcess::start(&store, folder.path());
        let client = Client::open(&store).await.unwrap();
        Some(Place { folder, server, client })
    }

    /// Returns the command that runs an example as a holder of `example`, with these arguments for its work.
    fn holder(&self, program: &str, file: &str, work: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg(example(file)).arg("example").args(work).current_dir(self.folder.path());
        command.env("LEASEHOLD_HTTP", format!("http://{}", self.server.address));
        command.env("LEASEHOLD_TOKEN", &self.server.token).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// Runs an example twice, with the arguments of a short work and of a long one.
async fn run(program: &str, file: &str, short: &[&str], long: &[&str]) {
    let Some(place) = Place::for_or_skip(program).await else { return };
    let client = &place.client;
    let start = |work: &[&str]| place.holder(program, file, work).spawn().unwrap();
    let mut child = start(short);
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    assert!(lines[0].starts_with("granted ") && lines.last().unwrap() == "released", "{lines:?}");
    until("the release", async || client.inspect("example").await.unwrap().holders.is_empty()).await;

    let mut child = start(long);
    until("the grant", async || client.inspect("example").await.unwrap().holders.len() == 1).await;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("granted "));
    let holder = client.inspect("example").await.unwrap().holders.remove(0);
    client.break_claim("example", &holder).await.unwrap();
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(76), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("lost: ")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python() {
    run("python3", "holder.py", &["3"], &["100000"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node() {
    run("node", "holder.mjs", &["3"], &["100000"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java() {
    run("java", "Holder.java", &["3"], &["100000"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shell() {
    if Command::new("curl").arg("--version").output().is_err() {
        return leasehold_testkit::require::skip("curl", "it is not installed");
    }
    run("sh", "holder.sh", &["true"], &["sleep", "1000"]).await;
}

/// A shell waits for its lock for longer than the ten seconds of silence after which curl gives up.
#[tokio::test(flavor = "multi_thread")]
async fn shell_waits_for_its_lock() {
    let Some(place) = Place::for_or_skip("curl").await else { return };
    let held = place.client.mutex("example").lock().await.unwrap();
    let mut child = place.holder("sh", "holder.sh", &["true"]).spawn().unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    held.release().await.unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    assert!(lines[0].starts_with("granted "), "{lines:?}");
}

/// Writes a `curl` that does this first; the PATH with it.
fn path_of_curl(folder: &Path, first: &str) -> String {
    let programs = folder.join("bin");
    std::fs::create_dir(&programs).unwrap();
    let path = std::env::var("PATH").unwrap();
    let text = format!("#!/bin/sh\n{first}\nPATH='{path}' exec curl \"$@\"\n");
    leasehold_testkit::write_executable(&programs.join("curl"), text).unwrap();
    format!("{}:{path}", programs.display())
}

/// A holder in a shell whose program writes `ended` as its last act, a second after it was asked to end.
struct Shell {
    place: Place,
    child: std::process::Child,
}

impl Shell {
    /// Starts it, with these programs in the place of the usual ones, and waits for the grant.
    async fn start(work: &str, curl: Option<&str>) -> Option<Shell> {
        let place = Place::for_or_skip("curl").await?;
        let mut command = place.holder("sh", "holder.sh", &["sh", "-c", work]);
        if let Some(text) = curl {
            command.env("PATH", path_of_curl(place.folder.path(), text));
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("granted "));
        std::thread::spawn(move || lines.for_each(drop));
        Some(Shell { place, child })
    }

    fn has(&self, file: &str) -> bool {
        self.place.folder.path().join(file).exists()
    }
}

/// A program that takes a second to end.
const WORK: &str = "trap 'sleep 1; touch ended; exit' TERM; touch begun; \
                    i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done";

/// The program of a holder that is ended is stopped, and has ended before another client is granted the lock.
#[tokio::test(flavor = "multi_thread")]
async fn ended_shell_stops_its_program_before_the_lock_is_free() {
    for signal in [Signal::TERM, Signal::KILL] {
        let Some(mut shell) = Shell::start(WORK, None).await else { return };
        until("the program", async || shell.has("begun")).await;
        kill_process(Pid::from_child(&shell.child), signal).unwrap();
        let _next = shell.place.client.mutex("example").lock().await.unwrap();
        assert!(shell.has("ended"), "{signal:?}: the lock was free before the program had ended");
        let code = shell.child.wait().unwrap().code();
        assert_eq!(code, (signal == Signal::TERM).then_some(143));
    }
}

/// A program that has ended holds the lock for no longer than its ttl if no request to release is answered.
#[tokio::test(flavor = "multi_thread")]
async fn shell_whose_release_fails_leaves_the_lock() {
    let curl = "case \" $* \" in *' DELETE '*) touch tried; exit 7 ;; esac";
    let Some(mut shell) = Shell::start("sleep 1; exit 3", Some(curl)).await else { return };
    let _next = shell.place.client.mutex("example").lock().await.unwrap();
    assert!(shell.has("tried"));
    assert_eq!(shell.child.wait().unwrap().code(), Some(3));
}

/// A holder whose curl gives up keeps the lock until its program has ended.
#[tokio::test(flavor = "multi_thread")]
async fn shell_whose_stream_ends_stops_its_program_in_time() {
    let curl = "case \" $* \" in *' PUT '*) echo $$ > stream ;; esac";
    let Some(mut shell) = Shell::start(WORK, Some(curl)).await else { return };
    until("the program", async || shell.has("begun")).await;
    let stream = std::fs::read_to_string(shell.place.folder.path().join("stream")).unwrap();
    kill_process(Pid::from_raw(stream.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let _next = shell.place.client.mutex("example").lock().await.unwrap();
    assert!(shell.has("ended"), "the lock was free before the program had ended");
    assert_eq!(shell.child.wait().unwrap().code(), Some(76));
}

/// A holder that is ended while it waits leaves nothing in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn shell_that_is_ended_in_its_wait_gives_up_its_place() {
    let Some(place) = Place::for_or_skip("curl").await else { return };
    let (client, folder) = (&place.client, place.folder.path());
    let held = client.mutex("example").lock().await.unwrap();
    let mut command = place.holder("sh", "holder.sh", &["true"]);
    command.env("PATH", path_of_curl(folder, "case \" $* \" in *' DELETE '*) touch released ;; esac"));
    let mut child = command.spawn().unwrap();
    until("the wait", async || client.inspect("example").await.unwrap().waiting.len() == 1).await;
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(folder.join("released").exists(), "the place is left to its ttl");
    until("the end of the wait", async || client.inspect("example").await.unwrap().waiting.is_empty()).await;
    held.release().await.unwrap();
}
