//! The protected resource: a fenced register for each lock, behind a Unix socket of the rig.
//!
//! A read raises the fence of the register before it answers, and a write checks it, so that no lower fence gets in
//! between: that is what makes a read-modify-write under a fence safe. The register keeps its own log, which is
//! the truth about what was accepted.
//!
//! Ground rules: a request counts when its whole line has arrived. What a client sent before it was stopped or killed
//! is served nevertheless, as a server would.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_history::{Event, FenceValue, Operation, Stage, Values};
use serde::{Deserialize, Serialize};

use crate::recorder::Recorder;

/// A request to the register of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) fence: Option<FenceValue>,
    /// The value to write; a read has none.
    pub(crate) write: Option<u64>,
}

/// The answer of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The value after the request; none if the fence was refused.
    pub(crate) value: Option<u64>,
    /// The highest fence that was seen.
    pub(crate) highest: Option<FenceValue>,
}

/// The check that the registers make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checks {
    Fences,
    /// For tests that show that it matters.
    Nothing,
}

/// The registers, and the thread that serves them.
#[derive(Debug)]
pub(crate) struct RegisterServer {
    path: PathBuf,
    over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FencedRegisters {
    checks: Checks,
    recorder: Arc<Recorder>,
    kept: Mutex<HashMap<String, FencedRegister>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FencedRegister {
    highest: Option<FenceValue>,
    value: u64,
}

impl RegisterServer {
    /// Serves registers at this path.
    pub(crate) fn start(
        path: PathBuf,
        checks: Checks,
        recorder: Arc<Recorder>,
    ) -> io::Result<RegisterServer> {
        let listener = UnixListener::bind(&path)?;
        let over = Arc::new(AtomicBool::new(false));
        let registers = Arc::new(FencedRegisters { checks, recorder, kept: Mutex::default() });
        let is_over = over.clone();
        std::thread::Builder::new().name("registers".into()).spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let registers = registers.clone();
                let Ok(stream) = stream else { continue };
                // If no thread can be started, the client sees the end of its connection.
                let _ = std::thread::Builder::new()
                    .name("register".into())
                    .spawn(move || registers.serve(&stream));
            }
        })?;
        Ok(RegisterServer { path, over })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RegisterServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        drop(UnixStream::connect(&self.path));
    }
}

impl FencedRegisters {
    /// Serves one client until it leaves.
    fn serve(&self, mut stream: &UnixStream) {
        let Ok(reader) = stream.try_clone() else { return };
        let mut reader = BufReader::new(reader);
        let mut line = String::new();
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(read) if read > 0 && line.ends_with('\n') => {}
                _ => return,
            }
            let Ok(request) = serde_json::from_str::<Request>(&line) else { return };
            let answer = self.handle(request);
            let Ok(mut text) = serde_json::to_string(&answer) else { return };
            text.push('\n');
            if stream.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn handle(&self, request: Request) -> Answer {
        let Request { key, owner, fence, write } = request;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let register = kept.entry(key.clone()).or_default();
        let before = register.highest;
        let is_refused = self.checks == Checks::Fences && fence < before;
        if !is_refused {
            register.highest = fence.max(before);
            register.value = write.unwrap_or(register.value);
        }
        let register = *register;
        let mut values = Values::default();
        (values.owner, values.fence, values.highest) = (Some(owner), fence, before);
        values.val = write.or((!is_refused).then_some(register.value));
        let operation = if write.is_some() { Operation::ServedWrite } else { Operation::ServedRead };
        let stage = if is_refused { Stage::Fail } else { Stage::Ok };
        self.recorder.served(Event::new(stage, operation).on(key).with(values));
        Answer { value: (!is_refused).then_some(register.value), highest: register.highest }
    }
}

/// A connection of a worker's task to the registers.
#[derive(Debug)]
pub(crate) struct RegisterClient {
    stream: tokio::io::BufReader<tokio::net::UnixStream>,
}

impl RegisterClient {
    pub(crate) async fn connect(path: &Path) -> io::Result<RegisterClient> {
        let stream = tokio::net::UnixStream::connect(path).await?;
        Ok(RegisterClient { stream: tokio::io::BufReader::new(stream) })
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        self.stream.write_all(text.as_bytes()).await?;
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(fence: u64, write: Option<u64>) -> Request {
        let (key, owner, fence) = ("job".to_owned(), "c1".to_owned(), Some(FenceValue::new(0, fence, 0)));
        Request { key, owner, fence, write }
    }

    async fn register(checks: Checks) -> (tempfile::TempDir, RegisterServer, RegisterClient, Arc<Recorder>) {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::default());
        let server = RegisterServer::start(folder.path().join("socket"), checks, recorder.clone()).unwrap();
        let client = RegisterClient::connect(server.path()).await.unwrap();
        (folder, server, client, recorder)
    }

    #[tokio::test]
    async fn a_read_raises_the_fence_and_a_lower_write_is_refused() {
        let (_folder, _server, mut client, recorder) = register(Checks::Fences).await;
        assert_eq!(client.ask(&ask(5, None)).await.unwrap().value, Some(0));
        assert_eq!(client.ask(&ask(5, Some(1))).await.unwrap().value, Some(1));
        assert_eq!(client.ask(&ask(6, None)).await.unwrap().value, Some(1));
        let refused = client.ask(&ask(5, Some(2))).await.unwrap();
        assert_eq!(refused, Answer { value: None, highest: Some(FenceValue::new(0, 6, 0)) });
        assert_eq!(client.ask(&ask(6, Some(2))).await.unwrap().value, Some(2));
        let progress = recorder.progress();
        assert_eq!((progress.writes, progress.refusals), (2, 1));
        assert!(leasehold_history::Checker::new().check(&recorder.history()).is_clean());
    }

    #[tokio::test]
    async fn register_that_checks_nothing_is_found_out() {
        let (_folder, _server, mut client, recorder) = register(Checks::Nothing).await;
        for (fence, write) in [(5, None), (6, None), (6, Some(1)), (5, Some(1))] {
            client.ask(&ask(fence, write)).await.unwrap();
        }
        let verdict = leasehold_history::Checker::new().check(&recorder.history());
        let found: Vec<String> = verdict.violations.iter().map(|one| one.invariant.to_string()).collect();
        assert_eq!(found, ["I1", "I3"]);
    }

    #[tokio::test]
    async fn half_a_request_is_not_served() {
        let (_folder, server, mut client, recorder) = register(Checks::Fences).await;
        let mut torn = UnixStream::connect(server.path()).unwrap();
        let text = serde_json::to_string(&ask(9, Some(9))).unwrap();
        torn.write_all(text.as_bytes()).unwrap();
        drop(torn);
        assert_eq!(client.ask(&ask(1, None)).await.unwrap().value, Some(0));
        assert_eq!(recorder.progress().writes, 0);
    }
}
