//! One connection, shared by simultaneous requests; see [`leasehold_backend::connection`].
//!
//! Ground rules: a request whose time is over before it left never leaves; one whose time is over afterwards ends the
//! connection. Answers that carry a mark must carry the right one.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_backend::connection::{Connection, Duplex, NoAnswer, Question, garbled};

use crate::protocol::command::{Command, MAX_VALUE};
use crate::protocol::facts::Facts;
use crate::protocol::reply::{self, Reply};

/// The answers to a request, once they arrive.
pub(crate) type Sent = leasehold_backend::connection::Sent<Commands>;

/// One connection to one process of a server.
#[derive(Debug)]
pub(crate) struct Link {
    /// The facts that the server reported when the connection was made.
    pub(crate) facts: Facts,
    connection: Connection<Commands>,
    marks: AtomicU32,
}

impl Link {
    /// Takes over a stream that is logged in, and on which nothing is owed.
    pub(crate) fn new(stream: Box<dyn Duplex>, facts: Facts) -> Link {
        Link { facts, connection: Connection::new(stream), marks: AtomicU32::new(1) }
    }

    /// Returns `true` if it can take more requests. The end of an idle connection is noticed here.
    pub(crate) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    /// Sends these commands in one go, and waits for all their answers.
    pub(crate) async fn ask(
        &self,
        commands: &[Command<'_>],
        limit: Duration,
    ) -> Result<Vec<Reply>, NoAnswer> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        match self.send(commands) {
            Some(sent) => sent.within(limit).await,
            None => Err(NoAnswer::Unsent),
        }
    }

    /// Sends these commands in one go, at once, and returns their answers; `None` where the connection takes none.
    ///
    /// # Cancel safety
    /// They are sent, even if the future is dropped.
    pub(crate) fn send(&self, commands: &[Command<'_>]) -> Option<Sent> {
        let first = self.marks.fetch_add(commands.len() as u32, Ordering::Relaxed);
        let question = Commands { mark: first, count: commands.len(), replies: Vec::new() };
        self.connection.send(question, |bytes| {
            bytes.reserve(commands.iter().map(Command::length).sum());
            for (mark, command) in commands.iter().enumerate() {
                command.write(first.wrapping_add(mark as u32), bytes);
            }
        })
    }
}

/// Commands that are answered one by one.
#[derive(Debug)]
pub(crate) struct Commands {
    /// The mark of the next one.
    mark: u32,
    count: usize,
    /// The first answers.
    replies: Vec<Reply>,
}

impl Question for Commands {
    type Reply = Reply;
    type Answer = Vec<Reply>;

    /// All in one go.
    const PORTIONS: usize = 1;

    fn read(bytes: &[u8]) -> io::Result<Option<(Reply, usize)>> {
        let read = reply::read(bytes).map_err(|error| garbled(&error.to_string()))?;
        if read.is_none() && reply::is_overlong(bytes.len()) {
            return Err(garbled("an answer came from memcached that is longer than any"));
        }
        Ok(read)
    }

    fn take(&mut self, reply: Reply) -> io::Result<Option<Vec<Reply>>> {
        if reply.mark().is_some_and(|given| given != self.mark) {
            return Err(garbled("an answer came from memcached to another question"));
        }
        self.mark = self.mark.wrapping_add(1);
        self.replies.push(reply);
        Ok((self.replies.len() == self.count).then(|| std::mem::take(&mut self.replies)))
    }
}

/// The most bytes of one request, which carries so many values of the largest size; see
/// [`crate::net::servers`].
pub(crate) const MAX_REQUEST: usize = 4 * MAX_VALUE;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::protocol::command::Key;

    const LIMIT: Duration = Duration::from_millis(200);

    fn facts() -> Facts {
        let stats = [("version", "1"), ("time", "9"), ("uptime", "9")];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Facts::read(stats.map(owned).to_vec(), Vec::new()).unwrap()
    }

    fn link() -> (Link, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        (Link::new(Box::new(ours), facts()), theirs)
    }

    async fn received(server: &mut tokio::io::DuplexStream) -> String {
        let mut bytes = vec![0; 4096];
        let length = server.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[tokio::test]
    async fn fragmented_answers_are_matched_to_their_requests() {
        let (link, mut server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let looks = [Command::Look { key: &key }, Command::Look { key: &key }];
        let serving = async {
            assert_eq!(received(&mut server).await, "mg a v c t O1\r\nmg a v c t O2\r\n");
            for piece in ["VA 2 c1 t5", " O1\r\nh", "i\r\nEN O", "2\r\n"] {
                server.write_all(piece.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let (replies, ()) = tokio::join!(link.ask(&looks, 100 * LIMIT), serving);
        let item = Reply::Item { value: b"hi".to_vec(), number: 1, left: Some(5), mark: Some(1) };
        assert_eq!(replies, Ok(vec![item, Reply::Missing { mark: Some(2) }]));
        assert!(link.is_usable());
    }

    #[tokio::test]
    async fn value_that_is_longer_than_any_of_ours_passes_by() {
        let (link, mut server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let long = "x\r\nEN O1\r\n".repeat(150_000);
        for round in 0..3 {
            let (first, second) = (2 * round + 1, 2 * round + 2);
            let looks = [Command::Look { key: &key }, Command::Look { key: &key }];
            let answers = format!("VA {} c9 t5 O{first}\r\n{long}\r\nEN O{second}\r\n", long.len());
            let serving = async {
                received(&mut server).await;
                server.write_all(answers.as_bytes()).await.unwrap();
            };
            let (replies, ()) = tokio::join!(link.ask(&looks, 100 * LIMIT), serving);
            let replies = replies.unwrap();
            assert!(matches!(replies[0], Reply::Item { number: 9, left: Some(5), .. }), "{:?}", replies[0]);
            assert_eq!(replies[1], Reply::Missing { mark: Some(second) });
            assert!(link.is_usable());
        }
        // Also if most of it comes when nothing is asked any more.
        let (head, rest) = (format!("VA {} c9 t5 O7\r\n", long.len()), format!("{long}\r\n"));
        let serving = async {
            received(&mut server).await;
            server.write_all(head.as_bytes()).await.unwrap();
        };
        let looks = [Command::Look { key: &key }];
        assert!(tokio::join!(link.ask(&looks, 100 * LIMIT), serving).0.is_ok());
        for part in rest.as_bytes().chunks(50_000) {
            server.write_all(part).await.unwrap();
            assert!(link.is_usable());
        }
        server.write_all(b"EN O8\r\n").await.unwrap();
        assert!(!link.is_usable(), "that was not asked");
    }

    #[tokio::test]
    async fn a_wrong_mark_or_a_garbled_answer_ends_the_connection() {
        for answer in ["EN O7\r\n", "HTTP/1.1 200 OK\r\n", "EN O1\r\nEN O2\r\n"] {
            let (link, mut server) = link();
            let key = Key::new("a".to_owned()).unwrap();
            server.write_all(answer.as_bytes()).await.unwrap();
            let outcome = link.ask(&[Command::Look { key: &key }], LIMIT).await;
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(outcome.is_err() || answer.len() > 10, "{answer:?}: {outcome:?}");
            assert!(!link.is_usable(), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn missing_answer_says_whether_the_request_was_sent() {
        let (link, server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let remove = [Command::Remove { key: &key, number: 1 }];
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Late));
        assert!(!link.is_usable(), "a server that owes an answer gets no further request");
        drop(server);

        let (link, server) = self::link();
        drop(server);
        let outcome = link.ask(&remove, LIMIT).await;
        assert_eq!(outcome, Err(NoAnswer::Unsent), "the stream took nothing");
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Unsent), "it is known to be broken");
    }

    #[tokio::test]
    async fn answer_that_is_longer_than_any_ends_the_connection() {
        let (link, mut server) = link();
        let sent = link.send(&[Command::Stats { part: "" }]).unwrap();
        let serving = async {
            // The end of the statistics does not come.
            while server.write_all(&b"STAT a b\r\n".repeat(1_000)).await.is_ok() {}
        };
        let (answer, ()) = tokio::join!(sent.within(Duration::from_secs(30)), serving);
        assert_eq!(answer, Err(NoAnswer::Broken));
    }
}
