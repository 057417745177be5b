//! Sockets: Unix sockets, several addresses, and connections that misbehave.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use leasehold_serve::{Config, Listen, ServeError, Server};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Served, id, until};

#[tokio::test(flavor = "multi_thread")]
async fn unix_socket_is_private_and_serves_the_same_locks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let served = Served::with(|config| config.listen.push(Listen::Unix(path.clone()))).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let one = id();
    let put = served.request("PUT", &format!("/v1/holds/{one}")).body(&json!({ "name": "a" }));
    put.socket(path.clone()).host("localhost").send().await.ok();
    served.renew(&one).await.ok();
    let plain = served.plain("DELETE", &format!("/v1/holds/{one}")).socket(path.clone()).host("localhost");
    plain.send().await.is_problem(401, "token_required");
    let named = served.plain("GET", "/v1/locks").socket(path.clone()).host("evil.example");
    named.send().await.is_problem(421, "host_refused");
    served.release(&one).await.ok();
    served.stop.send_modify(|count| *count += 1);
    served.ended.await.unwrap();
    assert!(!path.exists());
}

/// Binds a server to this socket, with a token in the same folder.
async fn bind(path: &Path) -> Result<Server, ServeError> {
    let mut config = Config::default();
    config.listen = vec![Listen::Unix(path.to_owned())];
    config.token_file = Some(path.with_file_name("token"));
    Server::bind(leasehold::Client::open("mem:").await.unwrap(), config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_of_a_server_that_lives_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    // What a killed server leaves is replaced.
    drop(UnixListener::bind(&path).unwrap());
    let first = bind(&path).await.unwrap();
    assert!(bind(&path).await.unwrap_err().to_string().contains("another server"));
    drop(first);
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(bind(&file).await.unwrap_err().to_string().contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn socket_of_a_server_that_is_too_busy_to_accept_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let busy = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&busy, 0).unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::net::UnixStream::connect(&path).await {
        queued.push(stream);
    }
    assert!(bind(&path).await.unwrap_err().to_string().contains("whether another server listens"));
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_ends_leaves_the_socket_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, others) = (folder.path().join("http.sock"), folder.path().join("others.sock"));
    let first = bind(&path).await.unwrap();
    let _other = UnixListener::bind(&others).unwrap();
    std::fs::rename(&others, &path).unwrap();
    drop(first);
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_that_start_together_the_first_keeps_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    // What a killed server leaves.
    drop(UnixListener::bind(&path).unwrap());
    let turn = std::fs::File::open(folder.path()).unwrap();
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let starting = tokio::spawn({
        let path = path.clone();
        async move { bind(&path).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!starting.is_finished(), "the other one has found the stale file, and is about to remove it");
    std::fs::remove_file(&path).unwrap();
    let _first = UnixListener::bind(&path).unwrap();
    drop(turn);
    assert!(starting.await.unwrap().unwrap_err().to_string().contains("another server listens"));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_starts_in_a_folder_that_another_program_keeps_locked() {
    let folder = tempfile::tempdir().unwrap();
    let kept = std::fs::File::open(folder.path()).unwrap();
    rustix::fs::flock(&kept, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bind(&folder.path().join("http.sock")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_sends_its_head_slowly_or_nothing_is_cut_off() {
    let served = Served::start().await;
    let mut silent = served.plain("GET", "/").connect().await;
    let mut slow = served.plain("GET", "/").connect().await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), slow.read_to_end(&mut answer));
    let _ = read.await.expect("the server ends the connection");
    let read = tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut answer));
    let _ = read.await.expect("the server ends the connection that sends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn second_request_on_one_connection_is_served() {
    let served = Served::start().await;
    let mut connection = served.plain("GET", "/").connect().await;
    for _ in 0..3 {
        connection.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let mut read = String::new();
        until("the answer", async || {
            let count = connection.read(&mut answer).await.unwrap();
            read.push_str(std::str::from_utf8(&answer[..count]).unwrap());
            read.ends_with("ok\n")
        })
        .await;
        assert!(read.starts_with("HTTP/1.1 200"), "{read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_sent_ahead_are_served_one_after_the_other() {
    let served = Served::start().await;
    let mut connection = served.plain("GET", "/").connect().await;
    let health = |close| format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{close}\r\n");
    // More than is read ahead, and in parts that end within a head.
    let sent = [health("").repeat(1000), health("connection: close\r\n")].concat();
    let (mut reader, mut writer) = tokio::io::split(&mut connection);
    let mut answers = String::new();
    let (read, ()) = tokio::join!(reader.read_to_string(&mut answers), async {
        for part in sent.as_bytes().chunks(1001) {
            writer.write_all(part).await.unwrap();
        }
    });
    read.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1001, "{answers}");
}
