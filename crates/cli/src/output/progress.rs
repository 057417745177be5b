//! The line that a person sees while `run` waits: the holder of the lock, the time since its grant, and
//! the number of claims ahead.
//!
//! Ground rules: it only reads, and only if a person watches: stderr is a terminal and this process is in
//! the foreground there. It runs in a task of its own, which is never dropped midway in a request to the
//! store; the task is asked to end, and does so after the answer.

use std::io::IsTerminal;
use std::time::Duration;

use leasehold::{Client, Note, Resource, Snapshot};
use tokio::sync::watch;

use crate::output::describe::{held_for, note_or_tag};
use crate::output::stderr::Stderr;
use crate::output::text::visible_name;
use crate::system::terminal::Terminal;

/// The line, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Progress {
    stderr: Stderr,
    /// Dropped, it ends the task.
    stop_sender: Option<watch::Sender<()>>,
}

impl Progress {
    /// Shows the line from a moment later on, if there is a terminal to show it on.
    pub(crate) fn start(stderr: &Stderr, locks: &Client, names: Vec<Resource>, own: &Note) -> Progress {
        let stop_sender = std::io::stderr().is_terminal().then(|| {
            let (sender, ends) = watch::channel(());
            let line =
                ProgressLine { stderr: stderr.clone(), locks: locks.clone(), names, own: own.clone(), ends };
            drop(tokio::spawn(line.run()));
            sender
        });
        Progress { stderr: stderr.clone(), stop_sender }
    }
}

impl Progress {
    /// Removes the line, and waits until it is gone: what follows on the screen is the command's.
    pub(crate) async fn end(self) {
        let stderr = self.stop_sender.is_some().then(|| self.stderr.clone());
        drop(self);
        if let Some(stderr) = stderr {
            stderr.flush().await;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.stop_sender.take().is_some() {
            self.stderr.clear();
        }
    }
}

struct ProgressLine {
    stderr: Stderr,
    locks: Client,
    names: Vec<Resource>,
    own: Note,
    ends: watch::Receiver<()>,
}

impl ProgressLine {
    async fn run(mut self) {
        let Some(terminal) = Terminal::controlling() else { return };
        // A lock that is granted at once needs no line.
        let mut pause = FIRST_PAUSE;
        let mut snapshot: Option<Snapshot> = None;
        loop {
            tokio::select! {
                _ = self.ends.changed() => return,
                () = tokio::time::sleep(pause) => pause = PAUSE,
            }
            if !terminal.is_ours() {
                continue;
            }
            // Without an answer of the store, the line stays as it is.
            if let Some(seen) = self.look().await {
                snapshot = Some(seen);
            }
            // The sender is dropped as soon as the wait has ended: then the line was cleared, and stays
            // cleared.
            if self.ends.has_changed().is_err() {
                return;
            }
            let name = snapshot.as_ref().map(|snapshot| &snapshot.resource).or(self.names.first());
            self.stderr.show(name.map(|name| line(name, &self.own, snapshot.as_ref())).unwrap_or_default());
        }
    }

    /// Looks at the lock that is waited for; of several, at the first in whose queue this process is.
    async fn look(&self) -> Option<Snapshot> {
        let mut first = None;
        for name in &self.names {
            let snapshot = self.locks.inspect(name.as_str()).await.ok()?;
            if snapshot.waiting.iter().any(|waiter| waiter.note == self.own) {
                return Some(snapshot);
            }
            first.get_or_insert(snapshot);
        }
        first
    }
}

fn line(name: &Resource, own: &Note, snapshot: Option<&Snapshot>) -> String {
    let mut line = format!("leasehold: waiting for {}", visible_name(name.as_str()));
    let Some(snapshot) = snapshot else { return line };
    if let Some(ahead) = ahead(own, snapshot) {
        line.push_str(&format!(", {ahead} ahead"));
    }
    if let Some(holder) = snapshot.holders.first() {
        let length = held_for(holder).map(|length| format!(" for {length}")).unwrap_or_default();
        line.push_str(&format!("; held{length} by {}", note_or_tag(holder)));
        if snapshot.holders.len() > 1 {
            line.push_str(&format!(" and {} more", snapshot.holders.len() - 1));
        }
    }
    line
}

/// Returns the number of claims before that of this process, holders included; `None` if its claim cannot
/// be distinguished from another.
fn ahead(own: &Note, snapshot: &Snapshot) -> Option<usize> {
    let mut ours = snapshot.waiting.iter().enumerate().filter(|(_, waiter)| waiter.note == *own);
    match (ours.next(), ours.next()) {
        (Some((index, _)), None) => Some(snapshot.holders.len() + index),
        _ => None,
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(150);
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::ClaimId;
    use leasehold::{ClaimInfo, Share, SnapshotVersion};

    fn info(note: &str) -> ClaimInfo {
        ClaimInfo::new(ClaimId::from_bytes([1; 16]), Share::MUTEX).note(Note::new(note).unwrap())
    }

    fn shown(holders: &[&str], waiting: &[&str]) -> String {
        let name = Resource::new("job").unwrap();
        let snapshot = Snapshot::new(name.clone(), SnapshotVersion::new(""))
            .holders(holders.iter().map(|note| info(note)).collect())
            .waiting(waiting.iter().map(|note| info(note)).collect());
        line(&name, &Note::new("me").unwrap(), Some(&snapshot))
    }

    #[test]
    fn progress_line_shows_only_what_is_known() {
        assert_eq!(shown(&["a"], &["b", "me", "c"]), "leasehold: waiting for job, 2 ahead; held by a");
        assert_eq!(shown(&["a"], &["me", "me"]), "leasehold: waiting for job; held by a");
        assert_eq!(
            shown(&["a", "b", "c"], &["me"]),
            "leasehold: waiting for job, 3 ahead; held by a and 2 more"
        );
        assert_eq!(shown(&[], &[]), "leasehold: waiting for job");
    }

    #[test]
    fn foreign_note_cannot_control_the_terminal() {
        assert!(!shown(&["\x1b[2J"], &["me"]).contains('\x1b'));
    }
}
