//! The faults and options of a Redis server, seen by clients.
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_testkit::{Appendonly, Data, RedisServer, Reply, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn bytes(text: &str) -> Reply {
    Reply::Bytes(text.as_bytes().to_vec())
}

/// Returns a client on the server's port, not the kit's own connection.
async fn client(server: &RedisServer) -> TcpStream {
    TcpStream::connect(server.addr()).await.unwrap()
}

/// Sends an inline command and reads what comes within the time.
async fn ask(client: &mut TcpStream, line: &str, within: Duration) -> Option<String> {
    client.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
    read(client, within).await
}

async fn read(client: &mut TcpStream, within: Duration) -> Option<String> {
    let mut buffer = [0; 256];
    let length = tokio::time::timeout(within, client.read(&mut buffer)).await.ok()?.unwrap();
    Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
}

const SOON: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(200);

/// Runs the server's own client, which shares no code with the kit.
fn redis_cli(args: &[&str]) -> String {
    let output = Command::new("redis-cli").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
async fn a_stopped_server_is_silent_and_answers_after() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let mut client = client(&server).await;
    server.stop().unwrap();
    assert_eq!(ask(&mut client, "PING", SILENCE).await, None);
    server.resume().unwrap();
    assert_eq!(read(&mut client, SOON).await.as_deref(), Some("+PONG\r\n"));
}

#[tokio::test]
async fn command_to_a_stopped_server_times_out() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    server.stop().unwrap();
    let error = server.command(&["PING"]).await.unwrap_err();
    assert_eq!(error.to_string(), "redis did not answer within 5s; is it stopped?");
    server.resume().unwrap();
    // The late answer to the PING before must not be taken for this one.
    assert_eq!(server.command(&["ECHO", "mine"]).await.unwrap(), bytes("mine"));
}

#[tokio::test]
async fn killed_server_refuses_and_restarts_on_its_port() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let mut old = client(&server).await;
    let pid = server.pid().unwrap();
    server.kill().unwrap();
    assert!(matches!(old.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    assert!(TcpStream::connect(server.addr()).await.is_err());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(ask(&mut client(&server).await, "PING", SOON).await.as_deref(), Some("+PONG\r\n"));
}

#[tokio::test]
async fn restart_keeps_or_loses_the_data() {
    for appendonly in [Appendonly::None, Appendonly::Everysec, Appendonly::Always] {
        let builder = RedisServer::builder().persistence(appendonly);
        let Some(server) = builder.start_or_skip().await else { return };
        let run = server.info_field("run_id").await.unwrap();
        server.command(&["SET", "kept", "1"]).await.unwrap();
        server.stop().unwrap();
        server.restart(Data::Keep).await.unwrap();
        assert_ne!(server.info_field("run_id").await.unwrap(), run);
        assert_eq!(server.command(&["GET", "kept"]).await.unwrap(), bytes("1"), "{appendonly:?}");
        server.restart(Data::Lose).await.unwrap();
        assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), Reply::Int(0), "{appendonly:?}");
    }
}

#[tokio::test]
async fn kill_keeps_only_what_persistence_wrote() {
    for (appendonly, left) in [(Appendonly::None, 0), (Appendonly::Always, 2)] {
        let builder = RedisServer::builder().persistence(appendonly);
        let Some(server) = builder.start_or_skip().await else { return };
        server.command(&["SET", "first", "1"]).await.unwrap();
        server.restart(Data::Keep).await.unwrap();
        server.command(&["SET", "second", "1"]).await.unwrap();
        server.kill().unwrap();
        server.restart(Data::Keep).await.unwrap();
        assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), Reply::Int(left), "{appendonly:?}");
    }
}

#[tokio::test]
async fn flushall_removes_keys_of_all_databases() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    server.command(&["SET", "a", "1"]).await.unwrap();
    server.command(&["SELECT", "3"]).await.unwrap();
    server.command(&["SET", "b", "1"]).await.unwrap();
    server.flushall().await.unwrap();
    assert_eq!(server.info_field("db0").await.unwrap(), None);
    assert_eq!(server.info_field("db3").await.unwrap(), None);
}

#[tokio::test]
async fn counts_are_of_clients_alone() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let fresh = server.counts().await.unwrap();
    assert_eq!((fresh.total(), fresh.connections, fresh.accepted), (0, 0, 0), "{fresh:?}");
    let mut one = client(&server).await;
    let mut two = client(&server).await;
    ask(&mut one, "PING", SOON).await.unwrap();
    ask(&mut two, "CONFIG GET save", SOON).await.unwrap();
    ask(&mut two, "EVAL \"return redis.call('incr','n')\" 0", SOON).await.unwrap();
    server.command(&["CONFIG", "GET", "port"]).await.unwrap();
    server.command(&["INCR", "n"]).await.unwrap();
    let counts = server.counts().await.unwrap();
    let commands: Vec<(&str, u64)> =
        counts.commands.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
    assert_eq!(commands, [("config|get", 1), ("eval", 1), ("incr", 1), ("ping", 1)]);
    assert_eq!((counts.connections, counts.accepted), (2, 2));
    ask(&mut one, "PING", SOON).await.unwrap();
    let since = server.counts().await.unwrap().since(&counts);
    assert_eq!((since.total(), since.of("ping"), since.accepted), (1, 1, 0));
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(server.counts().await.unwrap().total(), 0);
}

#[tokio::test]
async fn passwords_and_users_are_required() {
    let builder = RedisServer::builder().password("a b\"c@d").acl_user("app", "s p\\", "~lh:* +get +ping");
    let Some(server) = builder.start_or_skip().await else { return };
    let refused = ask(&mut client(&server).await, "PING", SOON).await.unwrap();
    assert!(refused.starts_with("-NOAUTH"), "{refused}");
    assert_eq!(server.url(), format!("redis://default:a%20b%22c%40d@127.0.0.1:{}", server.port()));
    assert_eq!(redis_cli(&["--no-auth-warning", "-u", &server.url(), "PING"]), "PONG");
    let port = server.port().to_string();
    let app = ["-p", &port, "--no-auth-warning", "--user", "app", "--pass", "s p\\"];
    assert_eq!(redis_cli(&[&app[..], &["GET", "lh:x"]].concat()), "");
    assert!(redis_cli(&[&app[..], &["GET", "other"]].concat()).contains("NOPERM"));
    assert_eq!(server.command(&["PING"]).await.unwrap(), bytes("PONG"));
}

#[tokio::test]
async fn the_unix_socket_answers() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let path = server.unix_url().strip_prefix("redis+unix://").unwrap().to_owned();
    assert_eq!(redis_cli(&["-s", &path, "PING"]), "PONG");
}

#[tokio::test]
async fn tls_proves_the_server_and_if_asked_the_client() {
    for tls in [Tls::Server, Tls::Mutual] {
        let Some(server) = RedisServer::builder().tls(tls).start_or_skip().await else { return };
        let (addr, certificates) = (server.tls_addr().unwrap(), server.certificates().unwrap());
        assert_eq!(server.tls_url().unwrap(), format!("rediss://{addr}"));
        let (port, ca) = (addr.port().to_string(), server.ca_path().unwrap().to_str().unwrap());
        let connection = ["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", ca];
        let client = certificates.client();
        let identity =
            ["--cert", client.certificate.to_str().unwrap(), "--key", client.key.to_str().unwrap(), "PING"];
        assert_eq!(redis_cli(&[&connection[..], &identity].concat()), "PONG");
        let answer = redis_cli(&[&connection[..], &["PING"]].concat());
        assert_eq!(answer == "PONG", tls == Tls::Server, "{answer}");
        server.restart(Data::Keep).await.unwrap();
        assert_eq!(redis_cli(&[&connection[..], &identity].concat()), "PONG");
    }
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let Some(one) = RedisServer::builder().tls(Tls::Server).start_or_skip().await else { return };
    let Some(two) = RedisServer::builder().tls(Tls::Server).start_or_skip().await else { return };
    let (port, ca) = (one.tls_addr().unwrap().port().to_string(), two.ca_path().unwrap().to_str().unwrap());
    let answer = redis_cli(&["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", ca, "PING"]);
    assert!(answer.contains("certificate verify failed"), "{answer}");
}

#[tokio::test]
async fn arguments_override_the_configuration() {
    let builder = RedisServer::builder().arg("--maxmemory").arg("16mb");
    let Some(server) = builder.start_or_skip().await else { return };
    assert_eq!(server.info_field("maxmemory").await.unwrap().as_deref(), Some("16777216"));
}

#[tokio::test]
async fn a_bad_argument_fails_the_start_with_the_log() {
    let Some(_server) = RedisServer::start_or_skip().await else { return };
    let error = RedisServer::builder().arg("--no-such-option").arg("1").start().await.unwrap_err();
    assert!(!error.is_missing());
    let text = error.to_string();
    assert!(text.starts_with("redis ended at its start, exit status: 1"), "{text}");
    assert!(text.contains("no-such-option"), "{text}");
}

#[tokio::test]
async fn taken_port_is_reported() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    // The argument makes every attempt collide; without it, each attempt has a port of its own.
    let port = server.port().to_string();
    let error = RedisServer::builder().arg("--port").arg(port).start().await.unwrap_err();
    assert!(error.to_string().contains("Address already in use"), "{error}");
}

#[tokio::test]
async fn missing_program_is_reported_as_missing() {
    let error = RedisServer::builder().program("no-such-redis").start().await.unwrap_err();
    assert!(error.is_missing());
}

#[tokio::test]
async fn valkey_serves_as_well() {
    let Some(server) = RedisServer::builder().program("valkey-server").start_or_skip().await else { return };
    assert_eq!(ask(&mut client(&server).await, "PING", SOON).await.as_deref(), Some("+PONG\r\n"));
    server.restart(Data::Keep).await.unwrap();
}

#[tokio::test]
async fn a_start_is_fast_enough_for_a_server_a_test() {
    let Some(_first) = RedisServer::start_or_skip().await else { return };
    let begun = Instant::now();
    let servers = [RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap()];
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_ne!(servers[0].port(), servers[1].port());
}
