//! `leasehold serve` as a service: its reports to the service manager, and its log.

#![cfg(feature = "serve")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::support::pty::Pty;
use crate::support::{BINARY, LIMIT, Redis, Sandbox, Started, eventually};

/// A service manager that reads.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Manager(socket)
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let count = self.0.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// Returns the next message other than a sign of life.
    fn next_change(&self) -> String {
        loop {
            match self.next() {
                text if text == "WATCHDOG=1" => {}
                text => return text,
            }
        }
    }
}

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--token-file", "token"];

/// Starts a server, and returns its address.
fn start(sandbox: &Sandbox, args: &[&str]) -> (Started, String) {
    begun(Started::new(sandbox.leasehold(args)))
}

/// Returns the server with its address, once it listens.
fn begun(server: Started) -> (Started, String) {
    let line = server.complaint_with("listening at ");
    let address = line.split("://").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    (server, address.to_owned())
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn healthz(address: &str) -> String {
    ask(address, "GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n")
}

#[test]
fn service_manager_hears_of_start_life_and_end() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let manager = Manager::at(&path);
    let sandbox = sandbox.with("NOTIFY_SOCKET", path.to_str().unwrap()).with("WATCHDOG_USEC", "200000");
    let (server, address) = start(&sandbox, &SERVE);
    let ready = manager.next_change();
    assert!(ready.starts_with("READY=1\nSTATUS=serves the locks in file:"), "{ready}");
    assert!(healthz(&address).starts_with("HTTP/1.0 200"));
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    server.signal(Signal::TERM);
    let stopping = manager.next_change();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    server.end().expect(0);
}

/// A process that is stopped shows no life, so that the service manager can start another one.
#[test]
fn server_that_hangs_shows_no_life() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let manager = Manager::at(&path);
    let sandbox = sandbox.with("NOTIFY_SOCKET", path.to_str().unwrap()).with("WATCHDOG_USEC", "100000");
    let (server, _) = start(&sandbox, &SERVE);
    manager.next_change();
    assert_eq!(manager.next(), "WATCHDOG=1");
    server.signal(Signal::STOP);
    manager.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut bytes = [0; 64];
    // What was sent before that is still read.
    while manager.0.recv(&mut bytes).is_ok() {}
    server.signal(Signal::CONT);
    manager.0.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(manager.next(), "WATCHDOG=1");
    server.signal(Signal::TERM);
    server.end().expect(0);
}

#[test]
fn signs_of_life_are_for_the_process_that_is_meant() {
    for (pid, time) in [("1", "100000"), ("x", "100000"), ("", "100000"), ("", "0"), ("", "soon")] {
        let sandbox = Sandbox::new();
        let path = sandbox.path("notify");
        let manager = Manager::at(&path);
        let mut sandbox = sandbox.with("NOTIFY_SOCKET", path.to_str().unwrap()).with("WATCHDOG_USEC", time);
        if !pid.is_empty() {
            sandbox = sandbox.with("WATCHDOG_PID", pid);
        }
        let (server, _) = start(&sandbox, &SERVE);
        assert!(manager.next().starts_with("READY=1"));
        let is_meant = pid.is_empty() && time == "100000";
        manager.0.set_read_timeout(Some(if is_meant { LIMIT } else { Duration::from_millis(400) })).unwrap();
        assert_eq!(manager.0.recv(&mut [0; 64]).is_ok(), is_meant, "{pid:?} {time:?}");
        server.signal(Signal::TERM);
        server.end().expect(0);
    }
}

#[test]
fn server_without_a_service_manager_or_with_a_deaf_one_serves() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let sandbox = sandbox.with("NOTIFY_SOCKET", path.to_str().unwrap()).with("WATCHDOG_USEC", "1000");
    let deaf = UnixDatagram::bind(sandbox.path("deaf")).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(sandbox.path("deaf")).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send(&[0; 1024]).is_ok() {}
    for name in ["notify", "deaf"] {
        if name == "deaf" {
            std::fs::rename(sandbox.path("deaf"), &path).unwrap();
        }
        let (server, address) = start(&sandbox, &SERVE);
        assert!(healthz(&address).starts_with("HTTP/1.0 200"), "{name}");
        server.signal(Signal::TERM);
        server.end().expect(0);
    }
    drop(deaf);
}

/// However much is logged, the token is not, nor is a cookie.
#[test]
fn token_is_in_no_log() {
    let sandbox = Sandbox::new();
    let args = ["-vvv", "serve", "--listen", "127.0.0.1:0", "--token-file", "token", "--allow-actions"];
    let (server, address) = start(&sandbox, &args);
    let token = std::fs::read_to_string(sandbox.path("token")).unwrap().trim().to_owned();
    let put = format!(
        "PUT /v1/holds/0123456789abcdef HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-length: 14\r\n\r\n{{\"name\":\"job\"}}"
    );
    assert!(ask(&address, &put).starts_with("HTTP/1.0 200"));
    let form = format!("token={token}&back=%2F");
    let login = format!(
        "POST /login HTTP/1.0\r\nhost: {address}\r\norigin: http://{address}\r\ncontent-length: {}\r\n\
         content-type: application/x-www-form-urlencoded\r\n\r\n{form}",
        form.len()
    );
    let answer = ask(&address, &login);
    let cookie = answer.split("leasehold-token=").nth(1).and_then(|rest| rest.split(';').next());
    let cookie = cookie.unwrap_or_else(|| panic!("{answer}")).to_owned();
    let asked = "reason=maintenance";
    let revoke = format!(
        "POST /lock/revoke?name=job HTTP/1.0\r\nhost: {address}\r\norigin: http://{address}\r\n\
         cookie: leasehold-token={cookie}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\n\r\n{asked}",
        asked.len()
    );
    assert!(ask(&address, &revoke).starts_with("HTTP/1.0 200"));
    let wrong = "GET /v1/locks HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer nearly-the-token\r\n\r\n";
    assert!(ask(&address, wrong).starts_with("HTTP/1.0 401"));
    ask(&address, &put.replacen("PUT", "DELETE", 1));
    server.signal(Signal::TERM);
    let ended = server.end().expect(0);
    assert!(ended.err.contains("an operator asked for a release"), "{ended:?}");
    for secret in [&*token, &*cookie, "nearly-the-token"] {
        assert!(!ended.err.contains(secret) && !ended.out.contains(secret), "{ended:?}");
    }
}

#[test]
fn public_address_without_tls_is_served_with_a_warning() {
    let sandbox = Sandbox::new();
    let (server, address) = start(&sandbox, &["serve", "--listen", "0.0.0.0:0", "--token-file", "token"]);
    server.complaint_with("warning: other machines can connect without TLS");
    let port = address.rsplit(':').next().unwrap();
    let local = format!("127.0.0.1:{port}");
    let answer = ask(&local, "GET /v1/locks HTTP/1.0\r\nhost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.0 401"), "{answer}");
    server.signal(Signal::TERM);
    server.end().expect(0);
}

/// A server that is asked to end leaves to their leases the locks that its answers have called valid. Many locks over
/// a store that decides at once: what is dropped with a task of the server would be released at once.
#[test]
fn terminated_server_releases_nothing() {
    let store = tempfile::tempdir().unwrap();
    for round in 0..ROUNDS {
        let url = format!("sqlite:{}", store.path().join(format!("{round}.db")).display());
        let sandbox = Sandbox::on(&url);
        let args = [&SERVE[..], &["--grace", if round % 2 == 0 { "0s" } else { "1s" }]].concat();
        let (server, address) = start(&sandbox, &args);
        let token = std::fs::read_to_string(sandbox.path("token")).unwrap();
        for number in 0..LOCKS {
            let answer = ask(&address, &put(&token, number));
            assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\"basis\":\"lease\""), "{answer}");
        }
        server.signal(Signal::TERM);
        if round >= ROUNDS / 2 {
            // The second signal ends the wait, and no lock.
            server.signal(Signal::TERM);
        }
        let ended = server.end().expect(0);
        assert!(ended.err.contains(&format!("{LOCKS} locks are still held")), "{ended:?}");
        let held = sandbox.end(&["ls"]).expect(0).out;
        assert_eq!(
            held.lines().filter(|line| line.contains("1 held")).count(),
            LOCKS,
            "round {round}: {held}"
        );
    }
}

/// With as few files as the page of the server asks for, connections without the token leave a place for one with it.
#[test]
fn watches_of_strangers_leave_descriptors_for_a_holder() {
    // The first limit can be raised by the server itself, the second one cannot.
    for limit in ["-Sn", "-n"] {
        let sandbox = Sandbox::new();
        let script = format!("ulimit {limit} {FEW_FILES}; exec leasehold {}", SERVE.join(" "));
        let server = Started::new(sandbox.sh(&script));
        if limit == "-n" {
            server.complaint_with("only 32 connections, not 5000");
        }
        let (server, address) = begun(server);
        let token = std::fs::read_to_string(sandbox.path("token")).unwrap();
        let mut strangers = Vec::new();
        for number in 0..STRANGERS {
            let mut stranger = TcpStream::connect(&address).unwrap();
            stranger.set_read_timeout(Some(LIMIT)).unwrap();
            stranger.write_all(b"GET /v1/locks/a/watch HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
            let mut begin = [0; 12];
            stranger.read_exact(&mut begin).unwrap_or_else(|error| panic!("{limit}, {number}: {error}"));
            assert_eq!(begin, *b"HTTP/1.0 200", "{limit}, {number}");
            strangers.push(stranger);
        }
        for number in 0..3 {
            let answer = ask(&address, &put(&token, number));
            assert!(answer.starts_with("HTTP/1.0 200"), "{limit}: {answer}");
        }
        drop(server);
    }
}

#[test]
fn limits_may_be_as_large_as_a_number_can_be() {
    let sandbox = Sandbox::new();
    let most = usize::MAX.to_string();
    let limits = ["--max-connections", "--max-streams", "--max-watchers", "--max-holds", "--max-waiters"];
    let args: Vec<&str> =
        SERVE.into_iter().chain(limits.into_iter().flat_map(|limit| [limit, &most])).collect();
    let (server, address) = start(&sandbox, &args);
    assert!(healthz(&address).starts_with("HTTP/1.0 200"));
    server.signal(Signal::TERM);
    server.end().expect(0);
}

/// Returns a request for a lock of its own.
fn put(token: &str, number: usize) -> String {
    let body = format!("{{\"name\":\"job-{number}\",\"ttl\":\"10m\"}}");
    format!(
        "PUT /v1/holds/0123456789abcdef-{number} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-length: {}\r\n\r\n{body}",
        token.trim(),
        body.len()
    )
}

/// Sends the signals that are not for a server, and checks for a while that it serves as before.
fn send_others(server: &mut Started) {
    for signal in [Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        server.signal(signal);
    }
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        assert!(server.is_running());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a server that has no terminal, also if the test has one.
fn start_service(sandbox: &Sandbox) -> (Started, String) {
    begun(Started::new(sandbox.sh(&format!("exec setsid leasehold {}", SERVE.join(" ")))))
}

#[test]
fn service_ends_by_no_other_signals_than_term_and_int() {
    for signal in [Signal::TERM, Signal::INT] {
        let sandbox = Sandbox::new();
        let (mut server, address) = start_service(&sandbox);
        send_others(&mut server);
        assert!(healthz(&address).starts_with("HTTP/1.0 200"));
        server.signal(signal);
        server.end().expect(0);
    }
}

/// A store that does not answer may take as long as its timeout.
#[test]
fn server_whose_store_is_away_ends_by_the_same_signals() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&format!("{}?timeout=60s", redis.server.url()));
    redis.server.stop().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Started::new(sandbox.sh(&format!("exec setsid leasehold {}", SERVE.join(" "))));
        let status = format!("/proc/{}/status", server.pid().as_raw_pid());
        eventually(|| {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
            let is_caught =
                |signal: Signal| caught.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1);
            if is_caught(Signal::TERM) && is_caught(Signal::INT) { Ok(()) } else { Err(status) }
        });
        send_others(&mut server);
        server.signal(signal);
        server.end().expect_end_by(signal);
    }
    redis.server.resume().unwrap();
}

/// A service manager may send a HUP right after TERM. It must not end the wait for the holders.
#[test]
fn hup_after_term_is_not_a_second_signal() {
    let sandbox = Sandbox::new();
    let (mut server, address) = start_service(&sandbox);
    let token = std::fs::read_to_string(sandbox.path("token")).unwrap();
    assert!(ask(&address, &put(&token, 0)).starts_with("HTTP/1.0 200"));
    server.signal(Signal::TERM);
    send_others(&mut server);
    server.signal(Signal::TERM);
    server.end().expect(0).says("1 locks are still held");
}

#[test]
fn server_on_a_terminal_ends_with_the_terminal() {
    let sandbox = Sandbox::new();
    let mut terminal = Pty::start(&sandbox, BINARY, &SERVE);
    terminal.see("listening at ");
    kill_process(terminal.pid(), Signal::HUP).unwrap();
    assert_eq!(terminal.end().0.code(), Some(0));
}

const ROUNDS: usize = 8;
const LOCKS: usize = 40;
/// A limit for open files that the connections of strangers exceed.
const FEW_FILES: usize = 64;
const STRANGERS: usize = 100;
