//! The state of a hold, for programs: a file, a descriptor, and the service manager.
//!
//! Ground rules: a pipe may be full, and a disk may be slow. None of that may delay a renewal or a signal
//! to the command, so each place has a thread of its own, and a change that does not fit into
//! its backlog is dropped. The shapes are an interface, described in `docs/book/src/cli.md`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use leasehold::{Fence, FenceGrade, Resource};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::exit::{Exit, Problem};
use crate::output::text::{now, visible, visible_name};
use crate::output::writing::Writing;
use crate::system::keeper_socket::draw;
use crate::system::service_manager::ServiceManager;

/// A change of the state of a hold.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The lock is asked for.
    Waiting,
    /// It is held: by this process, or by an outer `run`, under which this one runs.
    Granted { locks: Vec<LockState>, grade: &'static str, nested: bool },
    /// A renewal failed or is overdue.
    Suspect { lost_in_ms: u64 },
    /// A renewal succeeded after that.
    Renewed,
    /// It is lost.
    Lost { cause: String },
    /// It is revoked: a client asks for its release.
    Revoked { lock: Resource, reason: String },
    /// It was released.
    Released,
    /// This process ends.
    Exit { code: u8, by: Ender },
}

/// One of the locks of a hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LockState {
    pub(crate) name: Resource,
    pub(crate) fence: Option<Fence>,
}

/// The origin of an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ender {
    Command,
    Leasehold,
}

/// The places to which the state is reported.
#[derive(Debug, Default)]
pub(crate) struct Sinks {
    pub(crate) file: Option<PathBuf>,
    pub(crate) descriptor: Option<OwnedFd>,
    pub(crate) service_manager: bool,
}

/// A handle to the threads that write, one for each place.
#[derive(Debug)]
pub(crate) struct Status {
    name: Resource,
    senders: Vec<(SyncSender<Message>, Writing)>,
}

#[derive(Debug)]
enum Message {
    Event(String, Event),
    Flush(oneshot::Sender<()>),
}

impl Status {
    /// Starts the threads.
    ///
    /// # Errors
    /// The file cannot be written, or is not an ordinary file; no thread is left.
    pub(crate) fn start(name: &Resource, sinks: Sinks) -> Result<Status, Problem> {
        let file = sinks.file.as_deref().map(StatusFile::new).transpose()?.map(Place::File);
        let stream = sinks.descriptor.map(|fd| Place::Stream(Some(File::from(fd))));
        let manager =
            if sinks.service_manager { ServiceManager::of_environment().map(Place::Manager) } else { None };
        let mut senders = Vec::new();
        for place in [file, stream, manager].into_iter().flatten() {
            let (sender, receiver) = sync_channel(BACKLOG);
            let writing = Writing::default();
            let writer = Writer { name: name.clone(), place, writing: writing.clone() };
            writer.begin()?;
            let started =
                std::thread::Builder::new().name("status".to_owned()).spawn(move || writer.run(&receiver));
            started.map_err(|error| Problem::new(Exit::NotStarted, format!("cannot start: {error}")))?;
            senders.push((sender, writing));
        }
        Ok(Status { name: name.clone(), senders })
    }

    /// Reports a change. It does not wait.
    pub(crate) fn report(&self, event: &Event) {
        tracing::trace!(name = visible_name(self.name.as_str()), ?event, "the state has changed");
        for (sender, _) in &self.senders {
            drop(sender.try_send(Message::Event(now(), event.clone())));
        }
    }

    /// Waits until everything is written, except to places that take no output.
    pub(crate) async fn flush(&self) {
        let mut flushes = JoinSet::new();
        for (sender, writing) in &self.senders {
            let (done, flushed) = oneshot::channel();
            if sender.try_send(Message::Flush(done)).is_ok() {
                let writing = writing.clone();
                flushes.spawn(async move { writing.flushed(flushed).await });
            }
        }
        flushes.join_all().await;
    }
}

/// Returns the word of JSON for a grade.
pub(crate) fn grade(grade: FenceGrade) -> &'static str {
    match grade {
        FenceGrade::None => "none",
        FenceGrade::BestEffort => "best-effort",
        FenceGrade::AcrossFailover => "across-failover",
        FenceGrade::Strict => "strict",
        _ => "unknown",
    }
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    name: &'a Resource,
    pid: u32,
    #[serde(flatten)]
    event: &'a Event,
}

struct Writer {
    name: Resource,
    place: Place,
    writing: Writing,
}

#[derive(Debug)]
enum Place {
    File(StatusFile),
    /// `None` once it has failed: half of a line, and then another line, would be worse than nothing more.
    Stream(Option<File>),
    Manager(ServiceManager),
}

impl Writer {
    fn run(mut self, receiver: &Receiver<Message>) {
        let writing = self.writing.clone();
        while let Ok(message) = receiver.recv() {
            match message {
                Message::Event(at, event) => writing.during(|| self.write(at, &event)),
                Message::Flush(done) => drop(done.send(())),
            }
        }
    }

    /// Replaces a file for the first time: a file that cannot be replaced is refused before the lock is asked for, and
    /// nothing that was in it before is taken for the state of this process.
    fn begin(&self) -> Result<(), Problem> {
        match (&self.place, self.line(now(), &Event::Waiting)) {
            (Place::File(file), Some(line)) => file.replace(&line).map_err(|error| file.failure(&error)),
            _ => Ok(()),
        }
    }

    fn line(&self, at: String, event: &Event) -> Option<Vec<u8>> {
        let line = Line { at, name: &self.name, pid: std::process::id(), event };
        let mut line = serde_json::to_vec(&line).ok()?;
        line.push(b'\n');
        Some(line)
    }

    /// Writes a change. A place that fails cannot be reported anywhere.
    fn write(&mut self, at: String, event: &Event) {
        let Some(line) = self.line(at, event) else { return };
        match &mut self.place {
            Place::File(file) => drop(file.replace(&line)),
            Place::Stream(stream) => {
                if stream.as_mut().is_some_and(|stream| stream.write_all(&line).is_err()) {
                    *stream = None;
                }
            }
            Place::Manager(manager) => report_to(manager, &self.name, event),
        }
    }
}

/// A file that has the newest state, and is replaced as a whole.
#[derive(Debug)]
struct StatusFile {
    path: PathBuf,
    /// The path as it was given, for people.
    shown: String,
}

impl StatusFile {
    fn new(path: &Path) -> Result<StatusFile, Problem> {
        let shown = visible(&path.to_string_lossy());
        let path = target(path).map_err(|error| failure(&shown, &error))?;
        if std::fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            let text = format!(
                "{shown} is not an ordinary file, and would be replaced by one; use --status-fd for it"
            );
            return Err(Problem::new(Exit::Usage, text));
        }
        Ok(StatusFile { path, shown })
    }

    fn failure(&self, error: &io::Error) -> Problem {
        failure(&self.shown, error)
    }

    /// Makes a file beside the one that it is going to replace. In a folder of all users another one may have put
    /// anything there, a link for example, so the name is drawn, and the file has to be new.
    fn begin(&self) -> io::Result<(File, PathBuf)> {
        let mut fresh = self.path.clone().into_os_string();
        fresh.push(format!(".{}.new", draw()));
        let file = File::options().write(true).create_new(true).open(&fresh)?;
        Ok((file, fresh.into()))
    }

    fn replace(&self, line: &[u8]) -> io::Result<()> {
        let (mut file, fresh) = self.begin()?;
        // No sync: after a crash of the machine the state means nothing.
        let written = file.write_all(line).and_then(|()| std::fs::rename(&fresh, &self.path));
        if written.is_err() {
            drop(std::fs::remove_file(&fresh));
        }
        written
    }
}

fn failure(shown: &str, error: &io::Error) -> Problem {
    Problem::new(Exit::Output, format!("cannot write the status file {shown}: {error}"))
}

/// Reports a change to the service manager.
fn report_to(manager: &ServiceManager, name: &Resource, event: &Event) {
    let name = visible_name(name.as_str());
    let text = match event {
        Event::Waiting => format!("STATUS=waits for {name}"),
        Event::Granted { locks, .. } => match locks.first().and_then(|lock| lock.fence) {
            Some(fence) => format!("READY=1\nSTATUS=holds {name}, fence {fence}"),
            None => format!("READY=1\nSTATUS=holds {name}"),
        },
        Event::Suspect { lost_in_ms } => {
            format!("STATUS=could not renew {name}, lost in {lost_in_ms} ms")
        }
        Event::Renewed => format!("STATUS=holds {name}, renewed again"),
        Event::Lost { cause } => format!("STATUS=has lost {name}: {}", visible(cause)),
        Event::Revoked { lock, reason } => {
            format!("STATUS=is asked for {}: {}", visible_name(lock.as_str()), visible(reason))
        }
        Event::Released => format!("STATUS=has released {name}"),
        Event::Exit { .. } => "STOPPING=1".to_owned(),
    };
    manager.send(&text);
}

/// Returns the file that is replaced: a link keeps its place, and what it leads to is replaced. A link of another user
/// is not followed, because it could lead to any file of this one.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..MOST_LINKS {
        let found = match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => found,
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        };
        if found.uid() != geteuid().as_raw() && found.uid() != 0 {
            let text = format!(
                "{} is a link of the user {}, which could lead anywhere; remove it, or name another file",
                visible(&path.to_string_lossy()),
                found.uid()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let to = std::fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("/")).join(to);
    }
    Err(io::Error::other("too many links lead from one to the next"))
}

const BACKLOG: usize = 512;
/// The number of links that the kernel follows.
const MOST_LINKS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_an_interface() {
        let name = Resource::new("job").unwrap();
        let locks = vec![LockState { name: name.clone(), fence: Some(Fence::new(0, 42, 0)) }];
        for (event, text) in [
            (Event::Waiting, r#"{"event":"waiting"}"#),
            (
                Event::Granted { locks, grade: grade(FenceGrade::Strict), nested: false },
                r#"{"event":"granted","locks":[{"name":"job","fence":"00000000000000000042"}],"grade":"strict","nested":false}"#,
            ),
            (Event::Suspect { lost_in_ms: 7 }, r#"{"event":"suspect","lost_in_ms":7}"#),
            (Event::Renewed, r#"{"event":"renewed"}"#),
            (Event::Lost { cause: "x".to_owned() }, r#"{"event":"lost","cause":"x"}"#),
            (
                Event::Revoked { lock: name, reason: "r".to_owned() },
                r#"{"event":"revoked","lock":"job","reason":"r"}"#,
            ),
            (Event::Released, r#"{"event":"released"}"#),
            (
                Event::Exit { code: 75, by: Ender::Leasehold },
                r#"{"event":"exit","code":75,"by":"leasehold"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&event).unwrap(), text);
        }
    }
}
