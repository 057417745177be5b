//! A section around this process, as its keeper reports it.
//!
//! Ground rules: what a keeper has said holds until the end that it has named. A keeper that says nothing by then,
//! or is gone, counts as a loss. As long as a process follows a section, the keeper does not release its lock.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use leasehold::backend::Clock;
use leasehold::{Resource, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::exit::{Exit, Problem};
use crate::output::text::visible_name;
use crate::process::keeper_lines::{Answer, Refusal, Report, Request};
use crate::request::keepers::{KeeperAddress, Keepers};
use crate::system::keeper_socket::{self, SocketAddress, is_gone};
use crate::system::processes::Identity;

/// Asks the keeper at this address to release the lock, and waits until it has.
///
/// # Errors
/// The keeper does not exist, ended without an answer, or said nothing for a while (`TimedOut`).
pub(crate) async fn ask_to_release(keeper: &SocketAddress) -> io::Result<Answer> {
    let silent = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut stream = timeout(ANSWER_LIMIT, keeper_socket::connect(keeper)).await.map_err(silent)??;
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

/// Asks which keepers of this environment may live. Returns those, and the tags of the claims that the others kept.
pub(crate) async fn living() -> (Vec<KeeperAddress>, Vec<String>) {
    let (mut living, mut over) = (Vec::new(), Vec::new());
    for keeper in Keepers::inherited().all() {
        match keeper_socket::may_listen(&keeper.socket).await {
            true => living.push(keeper.clone()),
            false => over.extend(keeper.tags.iter().cloned()),
        }
    }
    (living, over)
}

/// The lock of a section, or of an outer `run`, around this process.
#[derive(Debug)]
pub(crate) struct Followed {
    lock: Resource,
    reports: watch::Receiver<Report>,
    /// The descriptor that keeps a lock in files alive if the keeper is killed.
    liveness_fd: Option<OwnedFd>,
    /// `None` if no keeper reports, but the store.
    connection: Option<OwnedFd>,
    reader: AbortHandle,
}

/// The answer to the request to follow a section.
enum FollowAnswer {
    Followed(Followed),
    Refused(Refusal),
    /// The keeper has ended, or keeps no such claim any more.
    Gone,
}

/// The keeper of the claim of an outer run or section.
#[derive(Debug)]
pub(crate) enum ClaimKeeper {
    /// None: an outer run holds it.
    OuterRun,
    Section(Followed),
    /// The keeper has ended, or has lost the lock. The claim protects nothing, although the store may still have it.
    Gone,
}

/// Follows the section that keeps the claim with this tag, for an inner section of these callers, or a run.
///
/// # Errors
/// Unavailable, if its keeper does not answer, or has no place; refused, if the section is over. A keeper that lives
/// keeps its lock, and to wait for that would be to wait for oneself.
pub(crate) async fn follow(
    keepers: &Keepers,
    lock: &Resource,
    tag: &str,
    callers: &[Identity],
) -> Result<ClaimKeeper, Problem> {
    let Some(keeper) = keepers.keeping(tag) else { return Ok(ClaimKeeper::OuterRun) };
    let request = Request::Follow { tag: tag.to_owned(), callers: callers.to_vec() };
    match timeout(ANSWER_LIMIT, ask_to_follow(keeper, lock, &request)).await {
        Ok(Ok(FollowAnswer::Followed(followed))) => Ok(ClaimKeeper::Section(followed)),
        Ok(Ok(FollowAnswer::Refused(refusal))) => Err(refused(refusal, lock)),
        Ok(Ok(FollowAnswer::Gone)) => Ok(ClaimKeeper::Gone),
        Ok(Err(error)) if is_gone(&error) => Ok(ClaimKeeper::Gone),
        Ok(Err(error)) => {
            let text = format!("cannot ask the keeper of {}: {error}", visible_name(lock.as_str()));
            Err(Problem::new(Exit::Unavailable, text))
        }
        Err(_) => {
            let text = format!(
                "the keeper of {} does not answer: it is stopped, or hangs",
                visible_name(lock.as_str())
            );
            Err(Problem::new(Exit::Unavailable, text))
        }
    }
}

fn refused(refusal: Refusal, lock: &Resource) -> Problem {
    let lock = visible_name(lock.as_str());
    match refusal {
        Refusal::Over => {
            let text = format!(
                "the section that holds {lock} is over, and its lock is kept only for what runs under it \
                 already: unset LEASEHOLD_OWNER to wait for {lock} like any other"
            );
            Problem::new(Exit::Refused, text)
        }
        Refusal::Full => {
            let text = format!(
                "the section that holds {lock} has as many nested runs as its keeper can follow: end some first"
            );
            Problem::new(Exit::Unavailable, text)
        }
    }
}

async fn ask_to_follow(
    keeper: &KeeperAddress,
    lock: &Resource,
    request: &Request,
) -> io::Result<FollowAnswer> {
    let mut stream = keeper_socket::connect(&keeper.socket).await?;
    stream.write_all(request.line().as_bytes()).await?;
    let (mut text, liveness_fd) = keeper_socket::receive_with(&stream).await?;
    let mut newest = None;
    loop {
        if let Some(refusal) = Refusal::read(&text) {
            return Ok(FollowAnswer::Refused(refusal));
        }
        newest = last_report(&mut text).or(newest);
        match newest {
            Some(Report::Lost(_)) => return Ok(FollowAnswer::Gone),
            Some(_) => break,
            None if stream.read_buf(&mut text).await? == 0 => return Ok(FollowAnswer::Gone),
            None => {}
        }
    }
    let connection = Some(stream.as_fd().try_clone_to_owned()?);
    let (sender, reports) = watch::channel(newest.unwrap_or(Report::Held));
    let reader = tokio::spawn(read(stream, text, sender)).abort_handle();
    Ok(FollowAnswer::Followed(Followed { lock: lock.clone(), reports, liveness_fd, connection, reader }))
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

/// Removes the complete lines from the text, and returns their last report; after a loss no other report counts.
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
    /// Follows an outer `run` by the reports of a task.
    pub(crate) fn of_run(lock: &Resource, reports: watch::Receiver<Report>, reader: AbortHandle) -> Followed {
        Followed { lock: lock.clone(), reports, liveness_fd: None, connection: None, reader }
    }

    /// Returns the lock.
    pub(crate) fn lock(&self) -> &Resource {
        &self.lock
    }

    /// Returns the cause if the lock is lost, by the clock.
    pub(crate) fn loss(&self) -> Option<String> {
        match &*self.reports.borrow() {
            Report::Held => None,
            Report::Until(end) => (SystemClock.now() >= *end).then(|| self.silence().to_owned()),
            Report::Lost(cause) => Some(cause.clone()),
        }
    }

    fn silence(&self) -> &'static str {
        if self.connection.is_some() { SILENT } else { NO_ANSWER }
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
    pub(crate) fn liveness_fd(&self) -> Option<OwnedFd> {
        self.liveness_fd.as_ref().and_then(|fd| fd.try_clone().ok())
    }

    /// Reports to the keeper that nothing runs under the lock any more, even while another process has the connection.
    pub(crate) fn leave(&self) {
        if let Some(connection) = &self.connection {
            let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
    }

    /// Returns a copy of the connection, by which another program keeps the keeper waiting for its end.
    pub(crate) fn connection(&self) -> Option<OwnedFd> {
        self.connection.as_ref().and_then(|connection| connection.try_clone().ok())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The time for an answer, or for a sign that one will come: a keeper waits five seconds for its store.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The longest time between two looks at the clock, which also counts suspended time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const MAX_LINE: usize = 4096;
const GONE: &str = "the keeper of its section is gone";
const NO_ANSWER: &str = "the store has not answered for as long as the lock of the outer run lasts";
const SILENT: &str = "the keeper of its section has said nothing for as long as the lock lasts";

#[cfg(test)]
mod tests {
    use leasehold::backend::Moment;

    use super::*;

    #[test]
    fn last_report_counts_and_a_loss_is_final() {
        let mut text = b"held\nuntil 5\nnonsense\nunt".to_vec();
        assert_eq!(last_report(&mut text), Some(Report::Until(Moment::from_nanos(5))));
        assert_eq!(text, b"unt");
        text.extend(b"il 9\nlost broken\nheld\n");
        assert_eq!(last_report(&mut text), Some(Report::Lost("broken".to_owned())));
    }
}
