//! One connection for subscriptions: subscribes to channels, and receives the events.
//!
//! An answer is matched by the channel's name, not by its order, because a server of a cluster ends
//! subscriptions by itself when their slot moves away. A refusal carries no name and belongs to the
//! oldest request.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use leasehold_core::Failure;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::net::connection::{Dialer, Duplex};
use crate::net::endpoint::Target;
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::slots::slot_of;

/// A connection for subscriptions.
#[derive(Debug)]
pub(crate) struct PubSubConn {
    writer: WriteHalf<Box<dyn Duplex>>,
    answers: mpsc::Receiver<Answer>,
    reader: AbortHandle,
    reach: ChannelScope,
    limit: Duration,
    asked: VecDeque<Question>,
}

/// A message or an answer that was heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PubSubEvent {
    Message {
        channel: String,
        payload: Vec<u8>,
    },
    /// The channel is subscribed.
    Subscribed(String),
    /// The channel is not subscribed any more.
    Ended {
        channel: String,
        by: End,
    },
    /// The server refuses these channels, and says why.
    Refused {
        channels: Vec<String>,
        reason: String,
    },
    /// A sign of life.
    Alive,
}

/// The side that ended a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// This side, which had asked for it.
    Us,
    /// The server, by itself: the slot went to another one.
    Server,
}

#[derive(Debug)]
struct Question {
    kind: Kind,
    channels: Vec<String>,
    asked_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Subscribe,
    Unsubscribe,
    Ping,
}

impl PubSubConn {
    /// Opens a connection for subscriptions, ready to use, and returns where it leads.
    pub(crate) async fn open(dialer: &Dialer, scope: ChannelScope) -> Result<(PubSubConn, Target), Failure> {
        let (stream, target) = dialer.stream().await?;
        Ok((PubSubConn::new(stream, scope, dialer.timeout()), target))
    }

    /// Listens over a stream that is logged in. An answer may take as long as `limit`.
    pub(crate) fn new(stream: Box<dyn Duplex>, reach: ChannelScope, limit: Duration) -> PubSubConn {
        let (reader, writer) = tokio::io::split(stream);
        let (sender, answers) = mpsc::channel(BACKLOG);
        let reader = leasehold_machine::spawn(read_all(BufReader::new(reader), sender)).abort_handle();
        PubSubConn { writer, answers, reader, reach, limit, asked: VecDeque::new() }
    }

    /// Asks for channels.
    pub(crate) async fn subscribe(&mut self, channels: Vec<String>) -> io::Result<()> {
        self.ask(Kind::Subscribe, channels).await
    }

    /// Gives channels up.
    pub(crate) async fn unsubscribe(&mut self, channels: Vec<String>) -> io::Result<()> {
        self.ask(Kind::Unsubscribe, channels).await
    }

    /// Asks for a sign of life.
    pub(crate) async fn ping(&mut self) -> io::Result<()> {
        self.ask(Kind::Ping, Vec::new()).await
    }

    /// Waits for what comes next; `None` once the connection cannot be used any more.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn hear(&mut self) -> Option<PubSubEvent> {
        loop {
            let answer = self.answers.recv().await?;
            if let Some(heard) = self.understand(answer) {
                return Some(heard);
            }
        }
    }

    /// Returns when the oldest question will have gone unanswered for too long.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.asked.front().map(|question| question.asked_at + self.limit)
    }

    async fn ask(&mut self, kind: Kind, channels: Vec<String>) -> io::Result<()> {
        let verb = match (kind, self.reach) {
            (Kind::Subscribe, ChannelScope::Everywhere) => "SUBSCRIBE",
            (Kind::Subscribe, ChannelScope::Slot) => "SSUBSCRIBE",
            (Kind::Unsubscribe, ChannelScope::Everywhere) => "UNSUBSCRIBE",
            (Kind::Unsubscribe, ChannelScope::Slot) => "SUNSUBSCRIBE",
            (Kind::Ping, _) => "PING",
        };
        // One command may name channels of one slot only.
        let at_once = if self.reach == ChannelScope::Slot { 1 } else { channels.len() };
        let mut written = Vec::new();
        let groups: Vec<&[String]> = match kind {
            Kind::Ping => vec![&[]],
            _ => channels.chunks(at_once.max(1)).collect(),
        };
        for group in groups {
            written.extend_from_slice(&encode(verb, group));
            self.asked.push_back(Question { kind, channels: group.to_vec(), asked_at: timer::now() });
        }
        let writing = async {
            self.writer.write_all(&written).await?;
            self.writer.flush().await
        };
        tokio::time::timeout(self.limit, writing).await.unwrap_or_else(|elapsed| Err(elapsed.into()))
    }

    fn understand(&mut self, answer: Answer) -> Option<PubSubEvent> {
        match answer {
            Answer::Status => {
                self.settle(Kind::Ping, None);
                Some(PubSubEvent::Alive)
            }
            Answer::Error(reason) => {
                let position = match moved_slot(&reason) {
                    // The server may have ended the subscription before, and that was taken for the answer.
                    Some(slot) => self.asked.iter().position(|question| question.is_in(slot))?,
                    None => 0,
                };
                let question = self.asked.remove(position)?;
                match question.kind {
                    // A channel that is not subscribed need not be unsubscribed.
                    Kind::Unsubscribe => None,
                    _ => Some(PubSubEvent::Refused { channels: question.channels, reason }),
                }
            }
            Answer::Many(words) => {
                let mut words = words.into_iter();
                let (kind, channel) = (words.next()?, words.next()?);
                let channel = String::from_utf8(channel).ok()?;
                match kind.as_slice() {
                    b"message" | b"smessage" => {
                        Some(PubSubEvent::Message { channel, payload: words.next().unwrap_or_default() })
                    }
                    b"subscribe" | b"ssubscribe" => {
                        self.settle(Kind::Subscribe, Some(&channel));
                        Some(PubSubEvent::Subscribed(channel))
                    }
                    b"unsubscribe" | b"sunsubscribe" => {
                        let asked = self.settle(Kind::Unsubscribe, Some(&channel));
                        Some(PubSubEvent::Ended { channel, by: if asked { End::Us } else { End::Server } })
                    }
                    b"pong" => {
                        self.settle(Kind::Ping, None);
                        Some(PubSubEvent::Alive)
                    }
                    _ => None,
                }
            }
        }
    }

    /// Takes the answer off the oldest question that it fits; `false` where it fits none.
    fn settle(&mut self, kind: Kind, channel: Option<&str>) -> bool {
        let fits = |question: &Question| {
            let named = channel.is_none_or(|channel| question.channels.iter().any(|one| one == channel));
            question.kind == kind && named
        };
        let Some(position) = self.asked.iter().position(fits) else { return false };
        let Some(question) = self.asked.get_mut(position) else { return false };
        question.channels.retain(|one| channel != Some(one));
        if question.channels.is_empty() {
            self.asked.remove(position);
        }
        true
    }
}

impl Drop for PubSubConn {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Question {
    /// Returns whether it names a channel of this slot.
    fn is_in(&self, slot: u16) -> bool {
        self.channels.iter().any(|channel| slot_of(channel) == slot)
    }
}

/// Parses the slot that a refusal is about, where it names one: `MOVED 7 host:port`.
fn moved_slot(reason: &str) -> Option<u16> {
    reason.strip_prefix("MOVED ")?.split(' ').next()?.parse().ok()
}

/// Answers that wait to be heard; the server keeps more until there is room.
const BACKLOG: usize = 1024;

/// Bounds of one answer: parts, and bytes of a part.
const MAX_PARTS: usize = 16;
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug)]
enum Answer {
    Status,
    Error(String),
    Many(Vec<Vec<u8>>),
}

/// Reads until the connection ends, its bytes are not understood, or the listener is dropped.
async fn read_all(mut stream: BufReader<ReadHalf<Box<dyn Duplex>>>, answers: mpsc::Sender<Answer>) {
    while let Ok(answer) = read(&mut stream).await {
        if answers.send(answer).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Answer> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(not_understood)?;
    match kind {
        "+" => Ok(Answer::Status),
        "-" => Ok(Answer::Error(rest.to_owned())),
        "*" => {
            let count = rest.parse().ok().filter(|count| *count <= MAX_PARTS).ok_or_else(not_understood)?;
            let mut parts = Vec::with_capacity(count);
            for _ in 0..count {
                parts.push(read_part(stream).await?);
            }
            Ok(Answer::Many(parts))
        }
        _ => Err(not_understood()),
    }
}

async fn read_part(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(not_understood)?;
    match (kind, rest) {
        (":", number) => Ok(number.as_bytes().to_vec()),
        ("$", "-1") => Ok(Vec::new()),
        ("$", length) => {
            let length =
                length.parse().ok().filter(|length| *length <= MAX_BYTES).ok_or_else(not_understood)?;
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes).await?;
            bytes.truncate(length);
            Ok(bytes)
        }
        _ => Err(not_understood()),
    }
}

async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(MAX_BYTES as u64).read_until(b'\n', &mut line).await?;
    let text = line.strip_suffix(b"\r\n").ok_or_else(not_understood)?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is not Redis")
}

fn encode(verb: &str, channels: &[String]) -> Vec<u8> {
    let mut text = format!("*{}\r\n${}\r\n{verb}\r\n", channels.len() + 1, verb.len());
    for channel in channels {
        text.push_str(&format!("${}\r\n{channel}\r\n", channel.len()));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ears(reach: ChannelScope, answers: &[u8]) -> (PubSubConn, tokio::io::DuplexStream) {
        let (client, mut server) = tokio::io::duplex(8192);
        server.write_all(answers).await.unwrap();
        (PubSubConn::new(Box::new(client), reach, Duration::from_secs(5)), server)
    }

    fn bulk(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    }

    #[tokio::test]
    async fn server_unsubscribe_is_reported_and_errors_match_requests() {
        let text = [
            "*3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n",
            &format!("-MOVED {} h:1\r\n", slot_of("b")),
            &bulk(&["smessage", "a", "x\r\ny"]),
            "*3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n",
            "*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        ];
        let (mut ears, mut server) = ears(ChannelScope::Slot, text.concat().as_bytes()).await;
        ears.subscribe(vec!["a".into(), "b".into()]).await.unwrap();
        ears.ping().await.unwrap();
        assert_eq!(ears.hear().await, Some(PubSubEvent::Subscribed("a".into())));
        let reason = format!("MOVED {} h:1", slot_of("b"));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Refused { channels: vec!["b".into()], reason }));
        let payload = b"x\r\ny".to_vec();
        assert_eq!(ears.hear().await, Some(PubSubEvent::Message { channel: "a".into(), payload }));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Server }));
        assert!(ears.overdue_at().is_some());
        assert_eq!(ears.hear().await, Some(PubSubEvent::Alive));
        assert!(ears.overdue_at().is_none());
        let mut sent = vec![0; 80];
        let count = server.read(&mut sent).await.unwrap();
        sent.truncate(count);
        let expected = [encode("SSUBSCRIBE", &["a".into()]), encode("SSUBSCRIBE", &["b".into()])].concat();
        assert!(sent.starts_with(&expected));
    }

    #[tokio::test]
    async fn what_was_given_up_is_not_taken_for_what_a_server_ended() {
        let (ended, begun) = (bulk(&["unsubscribe", "a"]), bulk(&["subscribe", "a"]));
        let (mut ears, _server) =
            ears(ChannelScope::Everywhere, (ended.clone() + &begun + &ended).as_bytes()).await;
        ears.unsubscribe(vec!["a".into()]).await.unwrap();
        ears.subscribe(vec!["a".into()]).await.unwrap();
        assert_eq!(ears.hear().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Us }));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Subscribed("a".into())));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Server }));
    }

    #[tokio::test]
    async fn a_slot_that_moves_in_between_refuses_its_own_channel() {
        // The server ends "a" by itself while it is being unsubscribed, and refuses questions about "a"
        // after that.
        let moved = format!("-MOVED {} h:1\r\n", slot_of("a"));
        let begun = bulk(&["ssubscribe", "b"]);
        let text = [bulk(&["sunsubscribe", "a"]), moved.clone(), moved.clone(), begun].concat();
        let (mut ears, _server) = ears(ChannelScope::Slot, text.as_bytes()).await;
        ears.unsubscribe(vec!["a".into()]).await.unwrap();
        ears.subscribe(vec!["a".into(), "b".into()]).await.unwrap();
        assert_eq!(ears.hear().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Us }));
        let reason = format!("MOVED {} h:1", slot_of("a"));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Refused { channels: vec!["a".into()], reason }));
        assert_eq!(ears.hear().await, Some(PubSubEvent::Subscribed("b".into())));
        assert!(ears.overdue_at().is_none());
    }

    #[tokio::test]
    async fn what_is_not_redis_ends_the_connection() {
        for answer in
            ["HTTP/1.1 400\r\n", "*99\r\n", "*1\r\n$99999999\r\n", "*1\r\n%1\r\n", "\r\n", "+no end"]
        {
            let (mut ears, server) = ears(ChannelScope::Everywhere, answer.as_bytes()).await;
            drop(server);
            assert_eq!(ears.hear().await, None, "{answer}");
        }
    }
}
