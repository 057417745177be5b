//! ZooKeeper's four-letter words: what a single server reports of itself, over a connection of its own and
//! without a session.
//!
//! Servers allow `srvr` by default, and the others only if they are configured to.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// The answer of one server about itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ServerReport {
    /// It serves.
    Serves { role: String, version: String, slowest: Option<Duration> },
    /// It runs, and has no quorum.
    NoQuorum,
    /// It is not allowed to answer.
    NotAllowed,
    /// It cannot be reached.
    Unreachable(String),
}

/// Asks the server at `address`.
pub(crate) async fn ask(address: &str, limit: Duration) -> ServerReport {
    match tokio::time::timeout(limit, request(address, b"srvr")).await {
        Ok(Ok(answer)) => read(&String::from_utf8_lossy(&answer)),
        Ok(Err(error)) => ServerReport::Unreachable(error.to_string()),
        Err(_) => ServerReport::Unreachable(format!("no answer within {limit:?}")),
    }
}

async fn request(address: &str, command: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(command).await?;
    let mut answer = Vec::new();
    // It closes the connection behind its answer, which is a few lines.
    stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Asks an ensemble for its tick. All of its servers are set up with the same one, so the first answer
/// that has it counts. Servers that hang are waited for no longer than [`OTHERS_LIMIT`] once any server
/// has answered.
pub(crate) async fn tick(addresses: &[String], limit: Duration) -> Option<Duration> {
    let mut asked: FuturesUnordered<_> = addresses.iter().map(|address| request(address, b"conf")).collect();
    let mut end = Box::pin(sleep(limit));
    let mut is_answered = false;
    loop {
        let answer = tokio::select! {
            biased;
            answer = asked.next() => answer?,
            () = &mut end => return None,
        };
        // A server that cannot be reached says nothing of the others.
        let Ok(answer) = answer else { continue };
        if let Some(tick) = read_tick(&String::from_utf8_lossy(&answer)) {
            return Some(tick);
        }
        if !is_answered {
            is_answered = true;
            end = Box::pin(sleep(limit.min(OTHERS_LIMIT)));
        }
    }
}

pub(crate) fn read_tick(answer: &str) -> Option<Duration> {
    let tick = answer.lines().find_map(|line| line.strip_prefix("tickTime="))?;
    tick.trim().parse().ok().map(Duration::from_millis)
}

pub(crate) fn read(answer: &str) -> ServerReport {
    let value = |name: &str| {
        answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let Some(role) = value("Mode") else {
        if answer.contains("not currently serving") {
            return ServerReport::NoQuorum;
        }
        // A server that ends the connection without an answer is not ready to serve.
        let refused = answer.contains("not in the whitelist") || answer.contains("not executed");
        return if refused {
            ServerReport::NotAllowed
        } else {
            ServerReport::Unreachable("it said nothing".to_owned())
        };
    };
    let version = value("Zookeeper version").unwrap_or_default();
    let slowest = value("Latency min/avg/max").and_then(|times| times.rsplit('/').next()?.parse().ok());
    ServerReport::Serves {
        role: role.to_owned(),
        version: version.split(['-', ',']).next().unwrap_or_default().to_owned(),
        slowest: slowest.map(Duration::from_millis),
    }
}

const ANSWER_MAX: u64 = 16 * 1024;
/// A server that serves answers within milliseconds.
const OTHERS_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn what_a_server_says_is_read() {
        let answer = "Zookeeper version: 3.8.0-abc, built on x\nLatency min/avg/max: 0/0.5/21\nReceived: 9\n\
                      Connections: 2\nOutstanding: 0\nZxid: 0x1\nMode: follower\nNode count: 5\n";
        let slowest = Some(Duration::from_millis(21));
        let (role, version) = ("follower".to_owned(), "3.8.0".to_owned());
        assert_eq!(read(answer), ServerReport::Serves { role, version, slowest });
        assert_eq!(
            read("This ZooKeeper instance is not currently serving requests\n"),
            ServerReport::NoQuorum
        );
        assert_eq!(
            read("srvr is not executed because it is not in the whitelist.\n"),
            ServerReport::NotAllowed
        );
        assert!(matches!(read(""), ServerReport::Unreachable(_)));
        let answer =
            "clientPort=2181\ndataDir=/d\ntickTime=2000\nmaxClientCnxns=60\nminSessionTimeout=4000\n";
        assert_eq!(read_tick(answer), Some(Duration::from_secs(2)));
        assert_eq!(read_tick("conf is not executed because it is not in the whitelist.\n"), None);
    }

    /// Starts three servers, of which one hangs, and two may not say their tick.
    #[tokio::test]
    async fn hung_server_does_not_delay_the_tick() {
        let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut addresses = vec![hangs.local_addr().unwrap().to_string()];
        for _ in 0..2 {
            addresses.push(answers("conf is not executed because it is not in the whitelist.\n").await);
        }
        let limit = Duration::from_secs(120);
        let asked = Instant::now();
        assert_eq!(tick(&addresses, limit).await, None);
        assert!(asked.elapsed() < limit / 2, "waited {:?} for the one that hangs", asked.elapsed());

        addresses.push(answers("clientPort=2181\ntickTime=3000\n").await);
        assert_eq!(tick(&addresses, limit).await, Some(Duration::from_secs(3)));
    }

    /// Starts a server that answers all clients alike, and returns its address.
    async fn answers(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut command = [0; 4];
                stream.read_exact(&mut command).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }
}
