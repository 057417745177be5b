//! A holder's own transactions, guarded by the condition that its grant came with: by another client,
//! and past a pause.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::common::*;
use leasehold::{Client, ErrorKind};
use leasehold_core::{Grant, Release, Share};
use leasehold_etcd::EtcdProof;
use leasehold_testkit::{EtcdCluster, require};
use rustix::process::{Pid, Signal, kill_process};

/// Renewed by a process that a busy machine may not run for some seconds.
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(60);
/// Says to the test program that it is the holder, and which server it is to use.
const HOLDER: &str = "LEASEHOLD_TEST_HOLDER";

/// Puts the value under the key `ledger` if the grant is still the one that holds. Answers whether it was.
fn write(endpoint: &str, proof: &EtcdProof, value: &str) -> bool {
    let program = require::program("etcdctl", "etcd-client").unwrap();
    let key = std::str::from_utf8(proof.key()).unwrap();
    let transaction =
        format!("create(\"{key}\") = \"{}\"\n\nput ledger {value}\n\n\n", proof.create_revision());
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoint}")).arg("txn");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(transaction.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    match text.lines().next() {
        Some("SUCCESS") => true,
        Some("FAILURE") => false,
        _ => panic!("etcdctl: {text}"),
    }
}

fn proof(grant: &Grant) -> &EtcdProof {
    grant.proof.get().unwrap()
}

/// Plays the holder if this test program was started as one: holds the lock, and writes what its parent
/// requests.
#[tokio::test(flavor = "multi_thread")]
async fn holder() {
    let Ok(endpoint) = std::env::var(HOLDER) else { return };
    let backend = connect(&format!("etcd://{endpoint}")).await;
    let claim = claim_of("ledger", Share::MUTEX, SHORT);
    let grant = try_take(&backend, &claim).await.unwrap();
    let _renewed = Holder::start(&backend, &claim, grant.clone());
    // The harness leaves an unfinished line behind.
    println!("\nholder: holds");
    for order in std::io::stdin().lines() {
        let done = tokio::task::block_in_place(|| write(&endpoint, proof(&grant), &order.unwrap()));
        println!("holder: {}", if done { "written" } else { "refused" });
    }
}

/// Another process that holds.
struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(endpoint: &str) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["own_transaction::holder", "--exact", "--nocapture"]).env(HOLDER, endpoint);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut other = Other { child, stdin, stdout: BufReader::new(stdout) };
        assert_eq!(other.answer(), "holds");
        other
    }

    fn write(&mut self, value: &str) -> String {
        writeln!(self.stdin, "{value}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the holder ended");
            if let Some(answer) = line.trim_end().strip_prefix("holder: ") {
                return answer.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holders_own_transaction_is_refused() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let endpoint = server.addr(0).to_string();
    let at = endpoint.clone();
    let mut other = tokio::task::spawn_blocking(move || Other::start(&at)).await.unwrap();
    assert_eq!(other.write("one"), "written");
    leasehold_testkit::stop(&other.child).unwrap();
    let backend = connect(&server.url()).await;
    let ours = mutex("ledger");
    let grant = take(&backend, &ours, LONG).await.expect("the lock of a paused process did not end");
    assert!(write(&endpoint, proof(&grant), "two"));
    other.signal(Signal::CONT);
    // It has not looked whether it still holds, and need not.
    assert_eq!(other.write("three"), "refused");
    assert_eq!(server.etcdctl(&["get", "ledger", "--print-value-only"]).unwrap().trim(), "two");
    assert!(matches!(release(&backend, &ours).await, Release::Freed));
    assert!(!write(&endpoint, proof(&grant), "four"), "a released lock still lets its holder write");
}

/// A guard whose proof was taken keeps its claim: the next task of the process is granted another one,
/// so that a late transaction of the first is refused; and no other process takes the claim over.
#[tokio::test(flavor = "multi_thread")]
async fn a_condition_of_one_task_does_not_hold_for_the_next() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let endpoint = server.addr(0).to_string();
    let tuning = leasehold::Tuning::default().local_handoff_limit(1_000).local_handoff_time(100 * LONG);
    let locks = Client::builder().tuning(tuning).over(connect(&server.url()).await).unwrap();
    let mutex = locks.mutex("ledger");
    let first = mutex.lock().await.unwrap();
    let of_first = first.proof().get::<EtcdProof>().unwrap().clone();
    let mut next = Box::pin(mutex.lock());
    assert!(futures_util::poll!(&mut next).is_pending(), "it waits in the line of this process");
    drop(first);
    let second = next.await.unwrap();
    assert!(write_by(&endpoint, second.proof().get().unwrap(), "second").await);
    assert!(
        !write_by(&endpoint, &of_first, "late").await,
        "a late transaction of the first holder took effect"
    );
    assert_eq!(server.etcdctl(&["get", "ledger", "--print-value-only"]).unwrap().trim(), "second");

    let refused = second.transfer().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("proof"), "{refused}");

    // Without a proof there is nothing to be late with: it is handed over as ever.
    let first = mutex.lock().await.unwrap();
    let mut next = Box::pin(mutex.lock());
    assert!(futures_util::poll!(&mut next).is_pending());
    drop(first);
    let second = next.await.unwrap();
    assert_eq!(second.fence().unwrap().sub, 1);
    let third = mutex.accept_transfer(&second.transfer().await.unwrap()).await.unwrap();
    assert!(write_by(&endpoint, third.proof().get().unwrap(), "third").await);
    third.release().await.unwrap();
}

async fn write_by(endpoint: &str, proof: &EtcdProof, value: &'static str) -> bool {
    let (endpoint, proof) = (endpoint.to_owned(), proof.clone());
    tokio::task::spawn_blocking(move || write(&endpoint, &proof, value)).await.unwrap()
}
