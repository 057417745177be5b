//! One connection for commands, which many requests share; see [`leasehold_backend::connection`].
//!
//! Answers are handed out in portions, so that the server works on the requests that follow while the other tasks run.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use leasehold_backend::connection::{Connection, Duplex, NoAnswer, Question, Sent, garbled};
use redis::{Cmd, RedisError, Value};

use crate::net::replies;
use crate::protocol::error;

/// The handle to a connection, which ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    connection: Arc<Connection<Commands>>,
}

impl Pipe {
    /// Creates a connection from a stream that is logged in.
    pub(crate) fn new(stream: Box<dyn Duplex>) -> Pipe {
        Pipe { connection: Arc::new(Connection::new(stream)) }
    }

    /// Sends a request, which `write` appends to the bytes that it is given, and returns its reply; an error of
    /// the server is a reply. The request is of `ignored` commands, whose replies are dropped, and the one
    /// that counts.
    ///
    /// # Cancel safety
    /// A request that was begun is sent, even if its future is dropped.
    pub(crate) fn send(&self, ignored: usize, write: impl FnOnce(&mut Vec<u8>)) -> Reply {
        Reply { sent: self.connection.send(Commands { ignored }, write) }
    }

    /// Returns `true` once it is known that no reply comes any more. The end of an idle connection is noticed here.
    pub(crate) fn has_ended(&self) -> bool {
        !self.connection.is_usable()
    }

    /// Hands out the replies that have arrived, also those that another task is to read.
    pub(crate) async fn read_arrived(&self) {
        self.connection.read_arrived().await;
    }

    /// Sends one plain command, and returns its reply; an error of the server is a reply.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.send(0, |bytes| bytes.extend_from_slice(&command.get_packed_command())).await
    }
}

/// Commands, of which the last one counts.
#[derive(Debug)]
struct Commands {
    /// Replies to commands before the one that counts.
    ignored: usize,
}

impl Question for Commands {
    type Reply = Value;
    type Answer = Value;

    const PORTIONS: usize = 8;

    fn read(bytes: &[u8]) -> io::Result<Option<(Value, usize)>> {
        replies::read(bytes).map_err(|_| garbled("this is not a reply of Redis"))
    }

    fn take(&mut self, reply: Value) -> io::Result<Option<Value>> {
        if self.ignored == 0 {
            return Ok(Some(reply));
        }
        self.ignored -= 1;
        Ok(None)
    }
}

/// The reply to a request, once it arrives.
#[derive(Debug)]
pub(crate) struct Reply {
    sent: Option<Sent<Commands>>,
}

impl Future for Reply {
    type Output = Result<Value, RedisError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.sent {
            Some(sent) => ready!(Pin::new(sent).poll(context)),
            None => Err(NoAnswer::Unsent),
        };
        Poll::Ready(answer.map_err(|no_answer| match no_answer {
            NoAnswer::Unsent => error::unsent(),
            NoAnswer::Broken | NoAnswer::Late => error::broken(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Effect, FailureKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Returns a connection and its other end.
    fn opened(size: usize) -> (Pipe, DuplexStream) {
        let (near, far) = tokio::io::duplex(size);
        (Pipe::new(Box::new(near)), far)
    }

    fn send(pipe: &Pipe, ignored: usize, text: &str) -> Reply {
        pipe.send(ignored, |bytes| bytes.extend_from_slice(text.as_bytes()))
    }

    async fn received(far: &mut DuplexStream, count: usize) -> String {
        let mut bytes = vec![0; count];
        far.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn replies_are_handed_out_in_the_order_of_the_requests() {
        // So small that each request and each reply comes in several parts.
        let (pipe, mut far) = opened(3);
        let replies = [send(&pipe, 0, "one "), send(&pipe, 1, "two twice "), send(&pipe, 0, "three")];
        let serving = async {
            assert_eq!(received(&mut far, 19).await, "one two twice three");
            far.write_all(b":1\r\n+ignored\r\n$5\r\nsecon\r\n*1\r\n:3\r\n").await.unwrap();
        };
        let (values, ()) = tokio::join!(futures_util::future::join_all(replies), serving);
        let values: Vec<Value> = values.into_iter().map(Result::unwrap).collect();
        let second = Value::BulkString(b"secon".to_vec());
        assert_eq!(values, [Value::Int(1), second, Value::Array(vec![Value::Int(3)])]);
    }

    #[tokio::test]
    async fn long_reply_arrives_whole_and_the_next_one_behind_it() {
        for count in [2_000, 80_000] {
            let (pipe, mut far) = opened(1 << 14);
            let (long, next) = (send(&pipe, 0, "long"), send(&pipe, 0, "next"));
            let text = format!("*{count}\r\n{}:7\r\n", ":1\r\n".repeat(count));
            assert_eq!(received(&mut far, 8).await, "longnext");
            let serving = async { far.write_all(text.as_bytes()).await.unwrap() };
            let (long, next, ()) = tokio::join!(long, next, serving);
            assert_eq!(long.unwrap(), Value::Array(vec![Value::Int(1); count]));
            assert_eq!(next.unwrap(), Value::Int(7));
        }
    }

    #[tokio::test]
    async fn requests_fail_once_the_connection_ends() {
        for last in [&b""[..], b"?what\r\n", b":1\r\n:2\r\n:3\r\n"] {
            let (pipe, mut far) = opened(64);
            let (first, second) = (send(&pipe, 0, "first"), send(&pipe, 0, "second"));
            assert_eq!(received(&mut far, 11).await, "firstsecond");
            far.write_all(last).await.unwrap();
            drop(far);
            for (number, reply) in [(1, first.await), (2, second.await)] {
                match reply {
                    Ok(reply) => assert_eq!((reply, last.len()), (Value::Int(number), 12)),
                    Err(error) => {
                        assert_eq!(error::of_request(&error, "h:1").effect, Effect::Unknown, "{error}");
                        assert!(error.is_unrecoverable_error());
                    }
                }
            }
            while !pipe.has_ended() {
                tokio::task::yield_now().await;
            }
            let unsent = error::of_request(&send(&pipe, 0, "third").await.unwrap_err(), "h:1");
            assert_eq!((unsent.kind, unsent.effect), (FailureKind::Unavailable, Effect::None), "{unsent}");
        }
    }
}
