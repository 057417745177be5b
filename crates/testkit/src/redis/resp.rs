//! As much of Redis's protocol (RESP2) as the kit needs to ask its own server.
//!
//! One request, one reply. The server is ours, but limits hold all the same: a test kit that runs out of
//! memory hides the fault that it was to show.

use std::path::Path;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::error::{Error, cannot};

/// The answer of the server. An error reply is an `Err`, not a `Reply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status or a string, of any bytes.
    Bytes(Vec<u8>),
    /// An integer.
    Int(i64),
    /// No value.
    Nil,
    /// Several replies; an error among them is represented by its text.
    Many(Vec<Reply>),
}

impl Reply {
    /// Returns the text of a string, or the digits of an integer.
    ///
    /// # Errors
    /// For no value, for several, and for bytes that are not UTF-8.
    pub fn into_text(self) -> Result<String, Error> {
        match self {
            Self::Bytes(bytes) => {
                String::from_utf8(bytes).map_err(cannot("read as text", "a reply of redis"))
            }
            Self::Int(number) => Ok(number.to_string()),
            other => Err(Error::failed(format!("redis answered {other:?} where a text is expected"))),
        }
    }

    /// Returns the texts of several strings.
    ///
    /// # Errors
    /// For anything but a list, and as [`Reply::into_text`] for what is in it.
    pub fn into_texts(self) -> Result<Vec<String>, Error> {
        match self {
            Self::Many(replies) => replies.into_iter().map(Self::into_text).collect(),
            other => Err(Error::failed(format!("redis answered {other:?} where a list is expected"))),
        }
    }
}

/// A connection on which one request at a time is asked.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    pub(super) async fn open(socket: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket).await.map_err(cannot("connect to", socket.display()))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request and reads its reply; the inner error is the server's.
    pub(super) async fn ask(&mut self, args: &[&[u8]]) -> Result<Result<Reply, String>, Error> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&request).await.map_err(cannot("write to", "redis"))?;
        read_reply(&mut self.stream, 0).await
    }
}

const MAX_REPLY_LINE: u64 = 64 * 1024;
const MAX_BYTES: usize = 64 * 1024 * 1024;
const MAX_ITEMS: usize = 1024 * 1024;
const MAX_DEPTH: usize = 8;

async fn read_reply<R: AsyncBufRead + Unpin + Send>(
    from: &mut R,
    depth: usize,
) -> Result<Result<Reply, String>, Error> {
    let line = read_line(from).await?;
    let malformed = || Error::failed(format!("redis sent a reply that begins with {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(malformed)?;
    let length = |limit: usize| match rest.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(length) => {
            usize::try_from(length).ok().filter(|length| *length <= limit).map(Some).ok_or_else(malformed)
        }
        Err(_) => Err(malformed()),
    };
    let reply = match kind {
        "+" => Reply::Bytes(rest.as_bytes().to_vec()),
        "-" => return Ok(Err(rest.to_owned())),
        ":" => Reply::Int(rest.parse().map_err(|_| malformed())?),
        "$" => match length(MAX_BYTES)? {
            Some(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes).await.map_err(cannot("read from", "redis"))?;
                bytes.truncate(length);
                Reply::Bytes(bytes)
            }
            None => Reply::Nil,
        },
        "*" if depth < MAX_DEPTH => match length(MAX_ITEMS)? {
            Some(length) => {
                let mut items = Vec::new();
                for _ in 0..length {
                    let item = Box::pin(read_reply(from, depth + 1)).await?;
                    items.push(item.unwrap_or_else(|error| Reply::Bytes(error.into_bytes())));
                }
                Reply::Many(items)
            }
            None => Reply::Nil,
        },
        _ => return Err(malformed()),
    };
    Ok(Ok(reply))
}

async fn read_line<R: AsyncBufRead + Unpin>(from: &mut R) -> Result<String, Error> {
    let mut line = String::new();
    from.take(MAX_REPLY_LINE).read_line(&mut line).await.map_err(cannot("read from", "redis"))?;
    match line.strip_suffix("\r\n") {
        Some(whole) => Ok(whole.to_owned()),
        None => Err(Error::failed("redis closed the connection within a reply")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(mut bytes: &[u8]) -> Result<Result<Reply, String>, Error> {
        read_reply(&mut bytes, 0).await
    }

    #[tokio::test]
    async fn every_kind_of_reply_is_read() {
        let bytes = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        let all = b"*6\r\n+OK\r\n:-7\r\n$2\r\n\r\n\r\n$-1\r\n*-1\r\n-ERR no\r\n";
        let parts = vec![bytes("OK"), Reply::Int(-7), bytes("\r\n"), Reply::Nil, Reply::Nil, bytes("ERR no")];
        assert_eq!(read(all).await, Ok(Ok(Reply::Many(parts))));
        assert_eq!(read(b"-NOAUTH who\r\n").await, Ok(Err("NOAUTH who".to_owned())));
    }

    #[tokio::test]
    async fn malformed_replies_are_errors() {
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        for bad in
            ["", "+OK", "\r\n", "é\r\n", ":x\r\n", "$-2\r\n", "$99999999999\r\n", "$3\r\nab", "*1\r\n", &deep]
        {
            assert!(read(bad.as_bytes()).await.is_err(), "{bad:?}");
        }
    }
}
