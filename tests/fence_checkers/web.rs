//! A small service and a small object store behind HTTP, and clients of both.
//!
//! The store does not imitate a product: it keeps the promises of the condition headers, and derives
//! entity tags from the content alone, as the strictest common case for clients that rely on them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::Fence;
use leasehold::fenced::{
    ConditionalPut, FenceGate, FencedObject, ObjectRefusal, ObjectState, ObjectTag, header,
};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::place::{Counter, Refused};

/// A running server; it ends with this.
pub(crate) struct Web {
    addr: SocketAddr,
    serving: JoinHandle<()>,
}

struct Shelf {
    counter: FenceGate<u64>,
    object: Mutex<Stored>,
}

struct Stored {
    body: Vec<u8>,
    generation: u64,
}

/// A request or an answer: the first line, the headers with names in lower case, the body.
pub(crate) struct Message {
    first: String,
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Web {
    /// Serves a counter with this number, and an object with the same number that was never held.
    pub(crate) async fn start(number: u64) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let body = FencedObject::unheld(number.to_string().as_bytes());
        let shelf = Arc::new(Shelf {
            counter: FenceGate::new(number),
            object: Mutex::new(Stored { body, generation: 1 }),
        });
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shelf.clone()));
            }
        });
        Web { addr, serving }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One request a connection.
async fn serve(mut stream: TcpStream, shelf: Arc<Shelf>) {
    let request = receive(&mut BufReader::new(&mut stream)).await;
    let (status, headers, body) = match request.first.as_str() {
        "GET /counter HTTP/1.1" | "PUT /counter HTTP/1.1" => shelf.count(&request),
        "GET /object HTTP/1.1" => {
            let object = shelf.object.lock().unwrap();
            (200, object.tags(), object.body.clone())
        }
        "PUT /object HTTP/1.1" => shelf.object.lock().unwrap().put(&request),
        _ => (404, Vec::new(), Vec::new()),
    };
    send(&mut stream, &format!("HTTP/1.1 {status} -"), &headers, &body).await;
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl Shelf {
    fn count(&self, request: &Message) -> Answer {
        let shown = request.header(header::NAME).map(str::as_bytes);
        let done = header::open(&self.counter, shown).and_then(|pass| {
            let work = |number: &mut u64| {
                if request.first.starts_with("PUT") {
                    *number = parsed(&request.body);
                }
                *number
            };
            Ok(pass.access(work)?)
        });
        match done {
            Ok(number) => (200, Vec::new(), number.to_string().into_bytes()),
            Err(refusal) => (refusal.status(), Vec::new(), refusal.to_string().into_bytes()),
        }
    }
}

impl Stored {
    fn etag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.body.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    fn tags(&self) -> Vec<(&'static str, String)> {
        vec![("etag", self.etag()), ("x-goog-generation", self.generation.to_string())]
    }

    fn put(&mut self, request: &Message) -> Answer {
        let holds = |name: &str, holds: &dyn Fn(&str) -> bool| request.header(name).is_none_or(holds);
        let all = holds("if-match", &|tag| tag == self.etag())
            && holds("if-none-match", &|_| false)
            && holds("x-goog-if-generation-match", &|number| number == self.generation.to_string());
        if !all {
            return (412, Vec::new(), Vec::new());
        }
        self.body.clone_from(&request.body);
        self.generation += 1;
        (200, self.tags(), Vec::new())
    }
}

impl Message {
    fn header(&self, name: &str) -> Option<&str> {
        let known = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, value)| value.as_str())
    }
}

async fn receive(from: &mut (impl AsyncBufRead + Unpin)) -> Message {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).await.unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let split = |line: &String| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers = lines.iter().skip(1).map(split).collect();
    let first = lines.first().cloned().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    let mut message = Message { first, status, headers, body: Vec::new() };
    let length = message.header("content-length").map_or(0, |length| length.parse().unwrap());
    message.body.resize(length, 0);
    from.read_exact(&mut message.body).await.unwrap();
    message
}

async fn send(to: &mut TcpStream, first: &str, headers: &[(impl AsRef<str>, impl AsRef<str>)], body: &[u8]) {
    let mut text = format!("{first}\r\n");
    for (name, value) in headers {
        text += &format!("{}: {}\r\n", name.as_ref(), value.as_ref());
    }
    text += &format!("content-length: {}\r\n\r\n", body.len());
    to.write_all(&[text.as_bytes(), body].concat()).await.unwrap();
}

async fn ask(addr: SocketAddr, first: &str, headers: &[(&str, &str)], body: &[u8]) -> Message {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    send(&mut stream, &format!("{first} HTTP/1.1"), headers, body).await;
    receive(&mut BufReader::new(stream)).await
}

pub(crate) async fn get(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Message {
    ask(addr, &format!("GET {path}"), headers, b"").await
}

fn parsed(bytes: &[u8]) -> u64 {
    str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// A client of the service, which shows its fence with each request.
pub(crate) struct HttpCounter {
    addr: SocketAddr,
    fence: String,
}

impl HttpCounter {
    pub(crate) async fn open(addr: SocketAddr, fence: Option<Fence>) -> Result<HttpCounter, Refused> {
        let mut counter = HttpCounter { addr, fence: header::value(fence).unwrap() };
        counter.read().await.map(|_| counter)
    }

    fn judged(answer: &Message) -> Result<u64, Refused> {
        match answer.status {
            200 => Ok(parsed(&answer.body)),
            412 => Err(Refused),
            other => panic!("{other}: {}", String::from_utf8_lossy(&answer.body)),
        }
    }
}

#[async_trait]
impl Counter for HttpCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        Self::judged(&get(self.addr, "/counter", &[(header::NAME, &self.fence)]).await)
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let (headers, body) = ([(header::NAME, self.fence.as_str())], number.to_string());
        Self::judged(&ask(self.addr, "PUT /counter", &headers, body.as_bytes()).await).map(drop)
    }
}

/// A client of the object store.
pub(crate) struct ObjectCounter {
    addr: SocketAddr,
    /// The kind of tags that it uses.
    kind: ObjectTag,
    object: FencedObject,
}

impl ObjectCounter {
    pub(crate) async fn open(
        addr: SocketAddr,
        kind: ObjectTag,
        fence: Option<Fence>,
    ) -> Result<ObjectCounter, Refused> {
        for _ in 0..10 {
            let raise = FencedObject::open(fence, &look(addr, &kind).await).map_err(only_stale)?;
            if let Some(tag) = put(addr, &kind, &raise).await {
                return Ok(ObjectCounter { addr, kind, object: raise.done(tag) });
            }
        }
        panic!("another client was quicker ten times")
    }
}

fn only_stale(refusal: ObjectRefusal) -> Refused {
    assert!(matches!(refusal, ObjectRefusal::Stale(_)), "{refusal}");
    Refused
}

fn tag(kind: &ObjectTag, answer: &Message) -> ObjectTag {
    match kind {
        ObjectTag::Generation(_) => {
            ObjectTag::Generation(answer.header("x-goog-generation").unwrap().parse().unwrap())
        }
        _ => ObjectTag::Entity(answer.header("etag").unwrap().to_owned()),
    }
}

async fn look(addr: SocketAddr, kind: &ObjectTag) -> ObjectState {
    let answer = get(addr, "/object", &[]).await;
    ObjectState::at(tag(kind, &answer), answer.body)
}

async fn put(addr: SocketAddr, kind: &ObjectTag, put: &ConditionalPut) -> Option<ObjectTag> {
    let answer = ask(addr, "PUT /object", &[put.condition()], put.body()).await;
    match answer.status {
        200 => Some(tag(kind, &answer)),
        412 => None,
        other => panic!("{other}"),
    }
}

#[async_trait]
impl Counter for ObjectCounter {
    async fn read(&mut self) -> Result<u64, Refused> {
        Ok(parsed(self.object.content()))
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let write = self.object.write(number.to_string().as_bytes()).unwrap();
        match put(self.addr, &self.kind, &write).await {
            Some(tag) => {
                self.object = write.done(tag);
                Ok(())
            }
            None => Err(only_stale(self.object.refused(&look(self.addr, &self.kind).await))),
        }
    }
}
