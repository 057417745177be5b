//! A client that speaks just enough HTTP, so that tests see every byte.
//!
//! It says that it speaks HTTP/1.0, so an answer ends with its connection and is not cut into chunks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

use super::LIMIT;

/// A connection of any kind.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// A request that is not sent yet.
#[derive(Clone)]
pub(crate) struct Request {
    address: SocketAddr,
    socket: Option<PathBuf>,
    host: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// An answer that is read line by line.
pub(crate) struct Stream {
    pub(crate) status: u16,
    pub(crate) head: String,
    reader: BufReader<Box<dyn Connection>>,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> Request {
        Request {
            address,
            socket: None,
            host: address.to_string(),
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Request {
        self.host = host.to_owned();
        self
    }

    pub(crate) fn socket(mut self, path: PathBuf) -> Request {
        self.socket = Some(path);
        self
    }

    pub(crate) fn body(self, body: &Value) -> Request {
        self.text(&body.to_string())
    }

    pub(crate) fn text(mut self, body: &str) -> Request {
        self.body = body.to_owned();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.0\r\nhost: {}\r\n", self.method, self.path, self.host);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        format!("{head}\r\n{}", self.body).into_bytes()
    }

    pub(crate) async fn connect(&self) -> Box<dyn Connection> {
        match &self.socket {
            Some(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            None => Box::new(TcpStream::connect(self.address).await.unwrap()),
        }
    }

    /// Sends it and reads the whole answer.
    pub(crate) async fn send(&self) -> Reply {
        self.send_over(self.connect().await).await
    }

    pub(crate) async fn send_over(&self, connection: impl Connection) -> Reply {
        self.answer_over(connection).await.unwrap_or_else(|text| panic!("no answer: {text:?}"))
    }

    /// Sends it to a server that may have ended; then there is no answer.
    pub(crate) async fn send_if_alive(&self) -> Option<Reply> {
        let connection = TcpStream::connect(self.address).await.ok()?;
        self.answer_over(connection).await.ok()
    }

    /// Returns the whole answer, or what came instead of it.
    async fn answer_over(&self, mut connection: impl Connection) -> Result<Reply, String> {
        let exchange = async {
            // A server that refuses a request may close the connection while it is sent.
            let _ = connection.write_all(&self.bytes()).await;
            let mut answer = Vec::new();
            let _ = connection.read_to_end(&mut answer).await;
            answer
        };
        let answer = tokio::time::timeout(LIMIT, exchange).await.expect("an answer in time");
        let text = String::from_utf8(answer).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Err(text) };
        let status = head[9..12].parse().unwrap();
        Ok(Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    }

    /// Sends it and leaves the answer to be read.
    pub(crate) async fn open(&self) -> Stream {
        let mut connection = self.connect().await;
        connection.write_all(&self.bytes()).await.unwrap();
        let mut reader = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && !head.ends_with("\n\r\n") {
            let read =
                tokio::time::timeout(LIMIT, reader.read_line(&mut head)).await.expect("a head in time");
            assert!(read.unwrap() > 0, "the connection ended: {head:?}");
        }
        let status = head[9..12].parse().unwrap();
        Stream { status, head: head.to_ascii_lowercase(), reader }
    }

    /// Sends it and does not read the answer.
    pub(crate) async fn begin(&self) -> Box<dyn Connection> {
        let mut connection = self.connect().await;
        connection.write_all(&self.bytes()).await.unwrap();
        connection
    }
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body of a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Checks that it is this problem.
    pub(crate) fn is_problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!(
            (body["code"].as_str(), body["status"].as_u64()),
            (Some(code), Some(status.into())),
            "{self:?}"
        );
        body["detail"].as_str().unwrap().to_owned()
    }
}

impl Stream {
    /// Reads the next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read =
            tokio::time::timeout(LIMIT, self.reader.read_line(&mut line)).await.expect("a line in time");
        // A server that was killed resets the connection.
        (read.unwrap_or(0) > 0).then(|| line.trim_end().to_owned())
    }

    /// Reads the next event; `None` at the end.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.line().await?).unwrap())
    }

    /// Reads events until this one.
    pub(crate) async fn until(&mut self, event: &str) -> Value {
        loop {
            let next = self.event().await.unwrap_or_else(|| panic!("the stream ended before {event}"));
            if next["event"] == event {
                return next;
            }
        }
    }

    /// Returns whether it stays silent for so long.
    pub(crate) async fn is_silent(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.event()).await.is_err()
    }
}
