//! TLS to the servers: which servers are trusted, which clients are admitted, and that the session
//! behaves as it does without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{claim, eventually, hold, locks, no_patience, release, renew};
use leasehold::State;
use leasehold::backend::{Backend, FailureKind, Release, Renewal, Share, Step};
use leasehold_testkit::{Certificates, Proxy, Way, ZooKeeperEnsemble};
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};
use tokio::io::AsyncReadExt;

fn url(login: &str, addr: SocketAddr, certificates: &Certificates) -> String {
    let client = certificates.client();
    let (ca, cert, key) =
        (certificates.ca_path().display(), client.certificate.display(), client.key.display());
    format!("zks://{login}{addr}?session=20s&timeout=20s&ca={ca}&cert={cert}&key={key}")
}

async fn connect(url: &str) -> Result<ZooKeeperBackend, leasehold::backend::Failure> {
    ZooKeeperBackend::connect(ZooKeeperConfig::parse(url)?).await
}

/// With a login, so that the password crosses inside TLS.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_through_tls() {
    let Some(servers) = ZooKeeperEnsemble::start_tls_or_skip(1).await else { return };
    let certificates = servers.certificates().unwrap();
    let url = url("ann:secret@", servers.secure_addr(0), certificates);
    let lasting = url.replace("session=20s", "session=60s");
    let (ours, theirs) = (connect(&url).await.unwrap(), connect(&lasting).await.unwrap());
    let (held, other) = (claim("job", Share::MUTEX), claim("job", Share::MUTEX));
    hold(&ours, &held).await;
    assert!(matches!(theirs.contend(&other, &no_patience()).await.unwrap(), Step::Busy(_)));
    assert!(matches!(renew(&ours, &held).await, Renewal::Alive));
    assert!(matches!(release(&ours, &held).await, Release::Freed));
    hold(&theirs, &other).await;
    // A client that ends says so, through the tunnel that it leaves behind.
    let ended_at = Instant::now();
    drop(theirs);
    eventually(async || matches!(ours.contend(&held, &no_patience()).await.unwrap(), Step::Granted(_))).await;
    assert!(
        ended_at.elapsed() < Duration::from_secs(30),
        "its session ended by its timeout, after {:?}",
        ended_at.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unverified_peer_is_refused_on_either_side() {
    let Some(servers) = ZooKeeperEnsemble::start_tls_or_skip(1).await else { return };
    let certificates = servers.certificates().unwrap();
    let (ca, addr) = (certificates.ca_path().display(), servers.secure_addr(0));
    let anonymous = format!("zks://{addr}?timeout=6s&ca={ca}");
    let distrustful = format!("zks://{addr}?timeout=6s");
    let plain = url("", servers.addr(0), certificates).replace("timeout=20s", "timeout=6s");
    // At the same time, because some are refused when their timeout is over.
    let (anonymous, distrustful, plain) =
        tokio::join!(connect(&anonymous), connect(&distrustful), connect(&plain));
    // The server asks for a certificate, and there is none.
    let failure = anonymous.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    // The server's is of an authority that is not trusted.
    let failure = distrustful.unwrap_err();
    let told = failure.detail().contains("certificate") || failure.detail().contains("no TLS authorities");
    assert!(told, "{failure}");
    // That server does not speak TLS.
    let failure = plain.unwrap_err();
    assert!(failure.detail().contains("TLS"), "{failure}");
    // And a missing file is reported before anything is sent.
    let failure = connect(&format!("zks://{addr}?ca=/no/such/file")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid, "{failure}");
    assert!(failure.detail().contains("ca="), "{failure}");
}

/// Broken and hung connections are seen through the tunnel as they are without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_its_tls_connection_and_ends_in_time() {
    let Some(servers) = ZooKeeperEnsemble::start_tls_or_skip(1).await else { return };
    let certificates = servers.certificates().unwrap();
    let proxy = Proxy::start(servers.secure_addr(0)).await.unwrap();
    // Long enough for a busy machine to connect anew within it, twice.
    let session = Duration::from_secs(20);
    let broken = locks(&url("", proxy.addr(), certificates)).await;
    let other = locks(&url("", servers.secure_addr(0), certificates)).await;
    let guard = Arc::new(broken.mutex("job").lock().await.unwrap());
    for _ in 0..2 {
        proxy.cut().unwrap();
        assert_eq!(guard.changed(State::Valid).await, State::Suspect);
        proxy.heal().unwrap();
        assert_eq!(guard.changed(State::Suspect).await, State::Valid);
    }
    let (mutex, before) = (other.mutex("job"), guard.clone());
    let successor = tokio::spawn(async move {
        let next = mutex.lock().await.unwrap();
        (next, before.state())
    });
    tokio::time::sleep(session / 4).await;
    proxy.blackhole(Way::Both);
    guard.lost().await;
    let (_next, seen) = successor.await.unwrap();
    assert!(matches!(seen, State::Lost(_)), "granted while the one that is cut off is {seen:?}");
    proxy.heal().unwrap();
    broken
        .mutex("another")
        .try_lock_for(Duration::from_secs(120))
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// The tunnel carries this process only: it shows this process's certificate.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_gets_nothing_through_the_tunnel() {
    let Some(servers) = ZooKeeperEnsemble::start_tls_or_skip(1).await else { return };
    let proxy = Proxy::start(servers.secure_addr(0)).await.unwrap();
    let before = listening_ports();
    let _ours = connect(&url("", proxy.addr(), servers.certificates().unwrap())).await.unwrap();
    let carried = proxy.accepted();
    // Every loopback port on which this process listens since, the tunnel's port among them.
    let listening_ports: Vec<u16> =
        listening_ports().into_iter().filter(|port| !before.contains(port)).collect();
    let mut refused = 0;
    for port in listening_ports {
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf srvr >&3; cat <&3");
        let mut theirs = tokio::process::Command::new("bash")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let read = theirs.stdout.as_mut().unwrap().read_to_end(&mut said);
        // Doors of other tests that run in this process are not tunnels, and may hang.
        refused += usize::from(tokio::time::timeout(Duration::from_secs(3), read).await.is_ok());
        assert!(said.is_empty(), "{said:?}");
    }
    assert!(refused > 0, "it is not refused");
    assert_eq!(proxy.accepted(), carried, "nothing was carried on");
}

/// The loopback ports on which this process listens.
fn listening_ports() -> Vec<u16> {
    let open: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let listens = *columns.get(3)? == "0A" && open.contains(&format!("socket:[{}]", columns.get(9)?));
        listens.then(|| u16::from_str_radix(columns[1].rsplit_once(':').unwrap().1, 16).unwrap())
    };
    table.lines().filter_map(port).collect()
}
