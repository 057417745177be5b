//! The examples for other languages, run as a reader would: one that finishes, and one that loses its lock.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold::Client;

use crate::support::child::ServerProcess;
use crate::support::until;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(name)
}

/// Runs an example twice, with the arguments of a short work and of a long one.
async fn run(program: &str, file: &str, short: &[&str], long: &[&str]) {
    if Command::new(program).arg("--version").output().is_err() {
        return leasehold_testkit::require::skip(program, "it is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let server = ServerProcess::start(&store, folder.path());
    let client = Client::open(&store).await.unwrap();
    let start = |args: &[&str]| {
        let mut command = Command::new(program);
        command.arg(example(file)).arg("example").args(args);
        command.env("LEASEHOLD_HTTP", format!("http://{}", server.address));
        command.env("LEASEHOLD_TOKEN", &server.token).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
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
