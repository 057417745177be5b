//! A section around this process, as its keeper reports it, and the words between a keeper and others.
//!
//! Ground rules: what a keeper has said holds until the end that it has named. A keeper that says nothing by then,
//! or is gone, counts as a loss. As long as a process follows a section, the keeper does not release its lock.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::{Resource, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::exit::{Exit, Problem};
use crate::output::text::visible;
use crate::request::keepers::{KeeperAddress, Keepers};
use crate::system::rendezvous;

/// A request to a keeper, which is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Release,
    /// To report what happens to the claim with this tag.
    Follow(String),
}

/// The answer to the request to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Released,
    Lost,
    /// It was asked for from inside a run that would have to end first.
    Inside,
}

/// A report of a keeper to those that follow it, which is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It is held, without an end that is known.
    Held,
    /// It is held until then, unless another report comes before.
    Until(Moment),
    Lost(String),
}

impl Request {
    pub(crate) fn line(&self) -> String {
        match self {
            Request::Release => "release\n".to_owned(),
            Request::Follow(tag) => format!("follow {tag}\n"),
        }
    }

    pub(crate) fn read(line: &str) -> Option<Request> {
        match line.split_once(' ') {
            None if line == "release" => Some(Request::Release),
            Some(("follow", tag)) => Some(Request::Follow(tag.to_owned())),
            _ => None,
        }
    }
}

impl Answer {
    pub(crate) fn line(self) -> &'static str {
        match self {
            Answer::Released => "released\n",
            Answer::Lost => "lost\n",
            Answer::Inside => "inside\n",
        }
    }
}

impl Report {
    pub(crate) fn line(&self) -> String {
        match self {
            Report::Held => "held\n".to_owned(),
            Report::Until(end) => format!("until {}\n", end.as_nanos()),
            // The text of an error may have more than one line.
            Report::Lost(cause) => format!("lost {}\n", visible(cause)),
        }
    }

    fn read(line: &str) -> Option<Report> {
        match line.split_once(' ') {
            None if line == "held" => Some(Report::Held),
            Some(("until", nanos)) => {
                nanos.parse().ok().map(|nanos| Report::Until(Moment::from_nanos(nanos)))
            }
            Some(("lost", cause)) => Some(Report::Lost(cause.to_owned())),
            _ => None,
        }
    }
}

/// Asks the keeper with this socket to release the lock, and waits until it has.
///
/// # Errors
/// The keeper does not exist, ended without an answer, or said nothing for a while (`TimedOut`).
pub(crate) async fn ask_to_release(socket: &str) -> io::Result<Answer> {
    let silent = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut stream = timeout(ANSWER_LIMIT, rendezvous::connect(socket)).await.map_err(silent)??;
    timeout(ANSWER_LIMIT, stream.write_all(Request::Release.line().as_bytes())).await.map_err(silent)??;
    let mut text = Vec::new();
    loop {
        if timeout(ANSWER_LIMIT, stream.read_buf(&mut text)).await.map_err(silent)?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let known = [Answer::Released, Answer::Lost, Answer::Inside];
        if let Some(answer) = known.into_iter().find(|answer| text.ends_with(answer.line().as_bytes())) {
            return Ok(answer);
        }
    }
}

/// The lock of a section around this process.
#[derive(Debug)]
pub(crate) struct Followed {
    lock: Resource,
    reports: watch::Receiver<Report>,
    /// The descriptor that keeps a lock in files alive if the keeper is killed.
    life: Option<OwnedFd>,
    connection: OwnedFd,
    reader: AbortHandle,
}

/// The keeper of the claim of an outer run or section.
#[derive(Debug)]
pub(crate) enum Kept {
    /// No keeper: an outer run holds it, and ends this process on a loss.
    Run,
    Section(Followed),
    /// The keeper is gone, or gives the lock up. The claim protects nothing, although the store may still have it.
    Nobody,
}

/// Follows the section that keeps the claim with this tag.
///
/// # Errors
/// Unavailable, if its keeper does not answer.
pub(crate) async fn follow(keepers: &Keepers, lock: &Resource, tag: &str) -> Result<Kept, Problem> {
    let Some(keeper) = keepers.keeping(tag) else { return Ok(Kept::Run) };
    match timeout(ANSWER_LIMIT, begin(keeper, lock, tag)).await {
        Ok(Ok(followed)) => Ok(followed.map_or(Kept::Nobody, Kept::Section)),
        Ok(Err(error)) if is_gone(&error) => Ok(Kept::Nobody),
        Ok(Err(error)) => {
            let text = format!("cannot ask the keeper of {}: {error}", visible(lock.as_str()));
            Err(Problem::new(Exit::Unavailable, text))
        }
        Err(_) => {
            let text =
                format!("the keeper of {} does not answer: it is stopped, or hangs", visible(lock.as_str()));
            Err(Problem::new(Exit::Unavailable, text))
        }
    }
}

async fn begin(keeper: &KeeperAddress, lock: &Resource, tag: &str) -> io::Result<Option<Followed>> {
    let mut stream = rendezvous::connect(&keeper.socket).await?;
    stream.write_all(Request::Follow(tag.to_owned()).line().as_bytes()).await?;
    let (mut text, life) = rendezvous::receive_with(&stream).await?;
    let mut newest = None;
    loop {
        newest = last_report(&mut text).or(newest);
        match newest {
            Some(Report::Lost(_)) => return Ok(None),
            Some(_) => break,
            None if stream.read_buf(&mut text).await? == 0 => return Ok(None),
            None => {}
        }
    }
    let connection = stream.as_fd().try_clone_to_owned()?;
    let (sender, reports) = watch::channel(newest.unwrap_or(Report::Held));
    let reader = tokio::spawn(read(stream, text, sender)).abort_handle();
    Ok(Some(Followed { lock: lock.clone(), reports, life, connection, reader }))
}

async fn read(mut stream: UnixStream, mut text: Vec<u8>, sender: watch::Sender<Report>) {
    let mut is_over = false;
    while !is_over {
        let count = stream.read_buf(&mut text).await.unwrap_or(0);
        let newest = match last_report(&mut text) {
            Some(Report::Lost(cause)) => Some(Report::Lost(cause)),
            _ if count == 0 || text.len() > MAX_LINE => Some(Report::Lost(GONE.to_owned())),
            newest => newest,
        };
        is_over = matches!(newest, Some(Report::Lost(_)));
        if let Some(newest) = newest {
            sender.send_replace(newest);
        }
    }
    // The connection lasts as long as this process runs under the lock: the keeper waits for its end.
    sender.closed().await;
    drop(stream);
}

/// Takes the complete lines out, and returns the last report; after a loss nothing else counts.
fn last_report(text: &mut Vec<u8>) -> Option<Report> {
    let mut newest = None;
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        let report = std::str::from_utf8(&line[..end]).ok().and_then(Report::read);
        if !matches!(newest, Some(Report::Lost(_))) {
            newest = report.or(newest);
        }
    }
    newest
}

impl Followed {
    /// Returns the lock.
    pub(crate) fn lock(&self) -> &Resource {
        &self.lock
    }

    /// Returns the cause if the lock is lost, by the clock.
    pub(crate) fn loss(&self) -> Option<String> {
        match &*self.reports.borrow() {
            Report::Held => None,
            Report::Until(end) => (SystemClock.now() >= *end).then(|| SILENT.to_owned()),
            Report::Lost(cause) => Some(cause.clone()),
        }
    }

    /// Returns the time for which it is held without another report.
    pub(crate) fn remaining(&self) -> Duration {
        match &*self.reports.borrow() {
            Report::Held => Duration::MAX,
            Report::Until(end) => SystemClock.now().until(*end),
            Report::Lost(_) => Duration::ZERO,
        }
    }

    /// Waits until it is lost.
    pub(crate) async fn lost(&self) {
        let mut reports = self.reports.clone();
        while self.loss().is_none() {
            let pause = self.remaining().min(LONGEST_PAUSE);
            tokio::select! {
                _ = reports.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Returns a copy of what keeps a lock in files alive.
    pub(crate) fn life(&self) -> Option<OwnedFd> {
        self.life.as_ref().and_then(|life| life.try_clone().ok())
    }

    /// Returns a copy of the connection, by which another program keeps the keeper waiting for its end.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Returns `true` if nothing listens any more, or ended before its answer.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe | NotFound | UnexpectedEof)
}

/// The line that says that the release is still to come.
pub(crate) const WAITS: &str = "waits\n";
/// The time for an answer, or for a sign that one will come: a keeper waits five seconds for its store.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const MAX_LINE: usize = 4096;
const GONE: &str = "the keeper of its section is gone";
const SILENT: &str = "the keeper of its section has said nothing for as long as the lock lasts";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_others_are_ignored() {
        for request in [Request::Release, Request::Follow("a".repeat(32))] {
            assert_eq!(Request::read(request.line().trim_end()), Some(request));
        }
        for report in
            [Report::Held, Report::Until(Moment::from_nanos(7)), Report::Lost("it was broken".to_owned())]
        {
            assert_eq!(Report::read(report.line().trim_end()), Some(report));
        }
        for nonsense in ["", "released", "until", "until x", "follow", "held 1"] {
            assert_eq!((Request::read(nonsense), Report::read(nonsense)), (None, None), "{nonsense}");
        }
    }

    #[test]
    fn last_report_counts_and_a_loss_is_final() {
        let mut text = b"held\nuntil 5\nnonsense\nunt".to_vec();
        assert_eq!(last_report(&mut text), Some(Report::Until(Moment::from_nanos(5))));
        assert_eq!(text, b"unt");
        text.extend(b"il 9\nlost broken\nheld\n");
        assert_eq!(last_report(&mut text), Some(Report::Lost("broken".to_owned())));
    }
}
