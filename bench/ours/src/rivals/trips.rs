//! The round trips of a command, counted by a relay between it and the server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::stores::Store;
use crate::Outcome;

/// The number of times that each command is counted.
pub(super) const TIMES: usize = 3;

/// Runs the command some times, and returns the round trips of each. What the first one prepares is not counted.
pub(super) fn count(store: &Store, at: fn(&Store) -> String) -> Outcome<Vec<u64>> {
    let Store::Postgres(server) = store else { return Err("only PostgreSQL is counted".into()) };
    let relay = Relay::start(server.addr())?;
    let words: Vec<String> = serde_json::from_str(&at(store))?;
    let words: Vec<String> = words
        .into_iter()
        .map(|word| word.replace(&server.addr().to_string(), &relay.addr.to_string()))
        .collect();
    let [program, arguments @ ..] = words.as_slice() else { return Err("no command was named".into()) };
    let mut counts = Vec::new();
    for _ in 0..=TIMES {
        let before = relay.trips.load(Ordering::Relaxed);
        let mut command = Command::new(program);
        let status = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{program} failed: {status}").into());
        }
        counts.push(relay.trips.load(Ordering::Relaxed) - before);
    }
    counts.remove(0);
    Ok(counts)
}

/// Passes all bytes on. Its threads end with their connections, and the last one with this process.
struct Relay {
    addr: SocketAddr,
    trips: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: SocketAddr) -> Outcome<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let relay = Relay { addr: listener.local_addr()?, trips: Arc::default() };
        let trips = relay.trips.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { return };
                let (answered, again) =
                    (Arc::new(AtomicBool::new(true)), (client.try_clone(), server.try_clone()));
                let (Ok(client_out), Ok(server_in)) = again else { return };
                let (trips, asked) = (trips.clone(), answered.clone());
                std::thread::spawn(move || {
                    pass(client, server, || {
                        if asked.swap(false, Ordering::Relaxed) {
                            trips.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                });
                std::thread::spawn(move || {
                    pass(server_in, client_out, || answered.store(true, Ordering::Relaxed))
                });
            }
        });
        Ok(relay)
    }
}

/// Copies until one side ends, and says when something comes.
fn pass(mut from: TcpStream, mut to: TcpStream, came: impl Fn()) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        came();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_bytes_after_an_answer_is_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut byte = [0; 2];
            while socket.read_exact(&mut byte).is_ok() {
                socket.write_all(b"!").unwrap();
            }
        });
        let mut client = TcpStream::connect(relay.addr).unwrap();
        for _ in 0..3 {
            client.write_all(b"a").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            client.write_all(b"b").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(relay.trips.load(Ordering::Relaxed), 3);
        drop(client);
        server.join().unwrap();
    }
}
