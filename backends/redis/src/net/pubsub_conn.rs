//! One connection for subscriptions: subscribes to channels, and receives the events.
//!
//! A reply is matched by the channel's name, not by its order, because a server of a cluster ends
//! subscriptions by itself when their slot moves away. A refusal carries no name and belongs to the
//! oldest request.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use leasehold_backend::connection::Duplex;
use leasehold_core::Failure;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::net::connection::Dialer;
use crate::net::endpoint::Target;
use crate::net::timer;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::error;
use crate::protocol::slots::slot_of;

/// A connection for subscriptions.
#[derive(Debug)]
pub(crate) struct PubSubConn {
    writer: WriteHalf<Box<dyn Duplex>>,
    replies: mpsc::Receiver<Reply>,
    reader: AbortHandle,
    scope: ChannelScope,
    limit: Duration,
    pending: VecDeque<PendingRequest>,
}

/// A message or a reply that was received.
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
    /// The server has no channels of slots, being older than Redis 7.0. From now on this connection subscribes to
    /// plain channels: these have to be subscribed again.
    Widened(Vec<String>),
    /// The reply to a ping.
    Pong,
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
struct PendingRequest {
    kind: Kind,
    channels: Vec<String>,
    sent_at: Instant,
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

    /// Creates a connection from a stream that is logged in. A reply may take as long as `limit`.
    pub(crate) fn new(stream: Box<dyn Duplex>, scope: ChannelScope, limit: Duration) -> PubSubConn {
        let (reader, writer) = tokio::io::split(stream);
        let (sender, replies) = mpsc::channel(BACKLOG);
        let reader = leasehold_machine::spawn(read_all(BufReader::new(reader), sender)).abort_handle();
        PubSubConn { writer, replies, reader, scope, limit, pending: VecDeque::new() }
    }

    /// Subscribes to channels.
    pub(crate) async fn subscribe(&mut self, channels: Vec<String>) -> io::Result<()> {
        self.send(Kind::Subscribe, channels).await
    }

    /// Unsubscribes from channels.
    pub(crate) async fn unsubscribe(&mut self, channels: Vec<String>) -> io::Result<()> {
        self.send(Kind::Unsubscribe, channels).await
    }

    /// Sends a ping.
    pub(crate) async fn ping(&mut self) -> io::Result<()> {
        self.send(Kind::Ping, Vec::new()).await
    }

    /// Waits for the next event; `None` once the connection cannot be used any more.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn recv(&mut self) -> Option<PubSubEvent> {
        loop {
            let reply = self.replies.recv().await?;
            if let Some(event) = self.event_of(reply) {
                return Some(event);
            }
        }
    }

    /// Returns the servers that the channels of this connection reach.
    pub(crate) fn scope(&self) -> ChannelScope {
        self.scope
    }

    /// Returns when the oldest request will have gone unanswered for too long.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.pending.front().map(|request| request.sent_at + self.limit)
    }

    async fn send(&mut self, kind: Kind, channels: Vec<String>) -> io::Result<()> {
        let verb = match (kind, self.scope) {
            (Kind::Subscribe, ChannelScope::Everywhere) => "SUBSCRIBE",
            (Kind::Subscribe, ChannelScope::Slot) => "SSUBSCRIBE",
            (Kind::Unsubscribe, ChannelScope::Everywhere) => "UNSUBSCRIBE",
            (Kind::Unsubscribe, ChannelScope::Slot) => "SUNSUBSCRIBE",
            (Kind::Ping, _) => "PING",
        };
        // One command may name channels of one slot only.
        let at_once = if self.scope == ChannelScope::Slot { 1 } else { channels.len() };
        let mut written = Vec::new();
        let groups: Vec<&[String]> = match kind {
            Kind::Ping => vec![&[]],
            _ => channels.chunks(at_once.max(1)).collect(),
        };
        for group in groups {
            written.extend_from_slice(&encode(verb, group));
            self.pending.push_back(PendingRequest { kind, channels: group.to_vec(), sent_at: timer::now() });
        }
        let writing = async {
            self.writer.write_all(&written).await?;
            self.writer.flush().await
        };
        tokio::time::timeout(self.limit, writing).await.unwrap_or_else(|elapsed| Err(elapsed.into()))
    }

    fn event_of(&mut self, reply: Reply) -> Option<PubSubEvent> {
        match reply {
            Reply::Status => {
                self.complete(Kind::Ping, None);
                Some(PubSubEvent::Pong)
            }
            Reply::Error(reason) => {
                let position = match moved_slot(&reason) {
                    // The server may have ended the subscription before, and that was taken for the reply.
                    Some(slot) => self.pending.iter().position(|request| request.is_in(slot))?,
                    None => 0,
                };
                let request = self.pending.remove(position)?;
                match request.kind {
                    // A channel that is not subscribed need not be unsubscribed.
                    Kind::Unsubscribe => None,
                    Kind::Subscribe if error::has_no_slot_channels(&reason) => {
                        self.scope = ChannelScope::Everywhere;
                        Some(PubSubEvent::Widened(request.channels))
                    }
                    _ => Some(PubSubEvent::Refused { channels: request.channels, reason }),
                }
            }
            Reply::Many(parts) => {
                let mut parts = parts.into_iter();
                let (kind, channel) = (parts.next()?, parts.next()?);
                let channel = String::from_utf8(channel).ok()?;
                match kind.as_slice() {
                    b"message" | b"smessage" => {
                        Some(PubSubEvent::Message { channel, payload: parts.next().unwrap_or_default() })
                    }
                    b"subscribe" | b"ssubscribe" => {
                        self.complete(Kind::Subscribe, Some(&channel));
                        Some(PubSubEvent::Subscribed(channel))
                    }
                    b"unsubscribe" | b"sunsubscribe" => {
                        let was_requested = self.complete(Kind::Unsubscribe, Some(&channel));
                        Some(PubSubEvent::Ended {
                            channel,
                            by: if was_requested { End::Us } else { End::Server },
                        })
                    }
                    b"pong" => {
                        self.complete(Kind::Ping, None);
                        Some(PubSubEvent::Pong)
                    }
                    _ => None,
                }
            }
        }
    }

    /// Completes the oldest request that the reply fits; returns `false` where it fits none.
    fn complete(&mut self, kind: Kind, channel: Option<&str>) -> bool {
        let fits = |request: &PendingRequest| {
            let named = channel.is_none_or(|channel| request.channels.iter().any(|one| one == channel));
            request.kind == kind && named
        };
        let Some(position) = self.pending.iter().position(fits) else { return false };
        let Some(request) = self.pending.get_mut(position) else { return false };
        request.channels.retain(|one| channel != Some(one));
        if request.channels.is_empty() {
            self.pending.remove(position);
        }
        true
    }
}

impl Drop for PubSubConn {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl PendingRequest {
    /// Returns whether it names a channel of this slot.
    fn is_in(&self, slot: u16) -> bool {
        self.channels.iter().any(|channel| slot_of(channel) == slot)
    }
}

/// Parses the slot that a refusal is about, where it names one: `MOVED 7 host:port`.
fn moved_slot(reason: &str) -> Option<u16> {
    reason.strip_prefix("MOVED ")?.split(' ').next()?.parse().ok()
}

/// Replies that wait to be received; the server keeps more until there is space.
const BACKLOG: usize = 1024;

/// Bounds of one reply: parts, and bytes of a part.
const MAX_PARTS: usize = 16;
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status,
    Error(String),
    Many(Vec<Vec<u8>>),
}

/// Reads until the connection ends, its bytes are not understood, or the listener is dropped.
async fn read_all(mut stream: BufReader<ReadHalf<Box<dyn Duplex>>>, replies: mpsc::Sender<Reply>) {
    while let Ok(reply) = read(&mut stream).await {
        if replies.send(reply).await.is_err() {
            return;
        }
    }
}

/// Reads a reply or a message.
pub(crate) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Reply> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(malformed)?;
    match kind {
        "+" => Ok(Reply::Status),
        "-" => Ok(Reply::Error(rest.to_owned())),
        "*" => {
            let count = rest.parse().ok().filter(|count| *count <= MAX_PARTS).ok_or_else(malformed)?;
            let mut parts = Vec::with_capacity(count);
            for _ in 0..count {
                parts.push(read_part(stream).await?);
            }
            Ok(Reply::Many(parts))
        }
        _ => Err(malformed()),
    }
}

async fn read_part(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let line = read_line(stream).await?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(malformed)?;
    match (kind, rest) {
        (":", number) => Ok(number.as_bytes().to_vec()),
        ("$", "-1") => Ok(Vec::new()),
        ("$", length) => {
            let length = length.parse().ok().filter(|length| *length <= MAX_BYTES).ok_or_else(malformed)?;
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes).await?;
            bytes.truncate(length);
            Ok(bytes)
        }
        _ => Err(malformed()),
    }
}

async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(MAX_BYTES as u64).read_until(b'\n', &mut line).await?;
    let text = line.strip_suffix(b"\r\n").ok_or_else(malformed)?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn malformed() -> io::Error {
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

    async fn conn(scope: ChannelScope, replies: &[u8]) -> (PubSubConn, tokio::io::DuplexStream) {
        let (client, mut server) = tokio::io::duplex(8192);
        server.write_all(replies).await.unwrap();
        (PubSubConn::new(Box::new(client), scope, Duration::from_secs(5)), server)
    }

    fn bulk(parts: &[&str]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| format!("${}\r\n{part}\r\n", part.len())).collect();
        format!("*{}\r\n{}", parts.len(), parts.concat())
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
        let (mut conn, mut server) = conn(ChannelScope::Slot, text.concat().as_bytes()).await;
        conn.subscribe(vec!["a".into(), "b".into()]).await.unwrap();
        conn.ping().await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Subscribed("a".into())));
        let reason = format!("MOVED {} h:1", slot_of("b"));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Refused { channels: vec!["b".into()], reason }));
        let payload = b"x\r\ny".to_vec();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Message { channel: "a".into(), payload }));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Server }));
        assert!(conn.overdue_at().is_some());
        assert_eq!(conn.recv().await, Some(PubSubEvent::Pong));
        assert!(conn.overdue_at().is_none());
        let mut sent = vec![0; 80];
        let count = server.read(&mut sent).await.unwrap();
        sent.truncate(count);
        let expected = [encode("SSUBSCRIBE", &["a".into()]), encode("SSUBSCRIBE", &["b".into()])].concat();
        assert!(sent.starts_with(&expected));
    }

    #[tokio::test]
    async fn what_was_given_up_is_not_taken_for_what_a_server_ended() {
        let (ended, begun) = (bulk(&["unsubscribe", "a"]), bulk(&["subscribe", "a"]));
        let (mut conn, _server) =
            conn(ChannelScope::Everywhere, (ended.clone() + &begun + &ended).as_bytes()).await;
        conn.unsubscribe(vec!["a".into()]).await.unwrap();
        conn.subscribe(vec!["a".into()]).await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Us }));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Subscribed("a".into())));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Server }));
    }

    #[tokio::test]
    async fn a_slot_that_moves_in_between_refuses_its_own_channel() {
        // The server ends "a" by itself while it is being unsubscribed, and refuses requests about "a"
        // after that.
        let moved = format!("-MOVED {} h:1\r\n", slot_of("a"));
        let begun = bulk(&["ssubscribe", "b"]);
        let text = [bulk(&["sunsubscribe", "a"]), moved.clone(), moved.clone(), begun].concat();
        let (mut conn, _server) = conn(ChannelScope::Slot, text.as_bytes()).await;
        conn.unsubscribe(vec!["a".into()]).await.unwrap();
        conn.subscribe(vec!["a".into(), "b".into()]).await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Ended { channel: "a".into(), by: End::Us }));
        let reason = format!("MOVED {} h:1", slot_of("a"));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Refused { channels: vec!["a".into()], reason }));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Subscribed("b".into())));
        assert!(conn.overdue_at().is_none());
    }

    #[tokio::test]
    async fn a_server_without_channels_of_slots_is_asked_for_plain_ones() {
        let unknown = |channel| {
            format!("-ERR unknown command `SSUBSCRIBE`, with args beginning with: `{channel}`, \r\n")
        };
        let text =
            [unknown("a"), unknown("b"), bulk(&["subscribe", "b"]), bulk(&["subscribe", "a"])].concat();
        let (mut conn, mut server) = conn(ChannelScope::Slot, text.as_bytes()).await;
        let both = vec!["a".to_owned(), "b".to_owned()];
        conn.subscribe(both.clone()).await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Widened(vec!["a".into()])));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Widened(vec!["b".into()])));
        conn.subscribe(both.clone()).await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Subscribed("b".into())));
        assert_eq!(conn.recv().await, Some(PubSubEvent::Subscribed("a".into())));
        conn.unsubscribe(both.clone()).await.unwrap();
        drop(conn);
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).await.unwrap();
        assert!(sent.ends_with(&[encode("SUBSCRIBE", &both), encode("UNSUBSCRIBE", &both)].concat()));
    }

    #[tokio::test]
    async fn a_resource_of_that_name_is_not_taken_for_an_unknown_command() {
        let reason = "ERR unknown command `SUBSCRIBE`, with args beginning with: `{lh:SSUBSCRIBE}:wake`, ";
        let (mut conn, _server) = conn(ChannelScope::Everywhere, format!("-{reason}\r\n").as_bytes()).await;
        let channels = vec!["{lh:SSUBSCRIBE}:wake".to_owned()];
        conn.subscribe(channels.clone()).await.unwrap();
        assert_eq!(conn.recv().await, Some(PubSubEvent::Refused { channels, reason: reason.to_owned() }));
    }

    #[tokio::test]
    async fn what_is_not_redis_ends_the_connection() {
        for reply in ["HTTP/1.1 400\r\n", "*99\r\n", "*1\r\n$99999999\r\n", "*1\r\n%1\r\n", "\r\n", "+no end"]
        {
            let (mut conn, server) = conn(ChannelScope::Everywhere, reply.as_bytes()).await;
            drop(server);
            assert_eq!(conn.recv().await, None, "{reply}");
        }
    }
}
