//! The messages of `run` on stderr, written by a thread of its own.
//!
//! Ground rules: a terminal may take no output for a while (Ctrl-S), a pipe may be full, and a job in
//! the background may not write to its terminal at all. None of that may delay a renewal or a signal to
//! the command, so nothing else of `run` writes to stderr. A line that cannot be written is dropped.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::termios::tcgetwinsize;
use tokio::sync::oneshot;

use crate::output::redact::redacted;
use crate::output::text::{clipped, visible};
use crate::output::writing::Writing;
use crate::system::terminal::without_ttou;

/// A handle to the thread that writes the messages.
#[derive(Clone, Debug)]
pub(crate) struct Stderr {
    sender: SyncSender<Message>,
    writing: Writing,
}

#[derive(Debug)]
enum Message {
    /// A line that stays.
    Line(String),
    /// A line that is replaced by the next; an empty one removes it.
    Status(String),
    /// Everything before this was written.
    Flush(oneshot::Sender<()>),
    /// Lines are kept from now on, because a view has the terminal.
    Keep,
    /// The lines that were kept are written, and those after them at once.
    Resume,
}

impl Stderr {
    /// Starts the thread, unless it runs: two would break each other's lines.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub(crate) fn start() -> std::io::Result<Stderr> {
        if let Some(running) = Stderr::started() {
            return Ok(running);
        }
        let (sender, receiver) = sync_channel(BACKLOG);
        let writing = Writing::default();
        std::thread::Builder::new().name("voice".to_owned()).spawn({
            let writing = writing.clone();
            move || without_ttou(|| write_messages(&receiver, &writing))
        })?;
        Ok(SHARED.get_or_init(|| Stderr { sender, writing }).clone())
    }

    /// Returns the handle, if the thread was started.
    pub(crate) fn started() -> Option<Stderr> {
        SHARED.get().cloned()
    }

    /// Prints a line with the program's name as its prefix.
    pub(crate) fn print_line(&self, text: &str) {
        drop(self.sender.try_send(Message::Line(redacted(text))));
    }

    /// Shows a line that is replaced by the next. For terminals.
    pub(crate) fn show(&self, text: String) {
        drop(self.sender.try_send(Message::Status(text)));
    }

    /// Removes the line on the screen.
    pub(crate) fn clear(&self) {
        self.show(String::new());
    }

    /// Keeps the lines from now on, if they would go to a terminal, on which a view is about to be drawn.
    pub(crate) fn keep(&self) {
        if std::io::stderr().is_terminal() {
            drop(self.sender.try_send(Message::Keep));
        }
    }

    /// Prints the lines that were kept, and later ones at once.
    pub(crate) fn resume(&self) {
        drop(self.sender.try_send(Message::Resume));
    }

    /// Waits until everything is written, unless the terminal takes no output.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            self.writing.flushed(flushed).await;
        }
    }
}

/// Prints a line on stderr at once, for commands that hold no lock.
pub(crate) fn complain(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{}", prefixed(&redacted(text))));
}

fn write_messages(receiver: &Receiver<Message>, writing: &Writing) {
    let mut stderr = std::io::stderr();
    let mut is_shown = false;
    let mut kept: Option<Vec<String>> = None;
    while let Ok(message) = receiver.recv() {
        let clear = if is_shown { CLEAR_LINE } else { "" };
        let written = writing.during(|| {
            let written = match message {
                Message::Line(text) if kept.is_some() => {
                    if let Some(lines) = kept.as_mut().filter(|lines| lines.len() < MOST_KEPT) {
                        lines.push(text);
                    }
                    Ok(())
                }
                Message::Keep => {
                    kept = Some(Vec::new());
                    Ok(())
                }
                Message::Resume => {
                    let lines = kept.take().unwrap_or_default();
                    lines.iter().try_for_each(|text| writeln!(stderr, "{}", prefixed(text)))
                }
                Message::Line(text) => {
                    is_shown = false;
                    writeln!(stderr, "{clear}{}", prefixed(&text))
                }
                Message::Status(text) => {
                    is_shown = !text.is_empty();
                    write!(stderr, "{clear}{}", clipped(&text, width()))
                }
                Message::Flush(done) => {
                    let _ = done.send(());
                    Ok(())
                }
            };
            written.and_then(|()| stderr.flush())
        });
        // Without stderr, this cannot be reported anywhere.
        drop(written);
    }
}

/// Prefixes each line of a message with the name of the program. Line breaks are leasehold's own; any
/// other unprintable character came from outside.
fn prefixed(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("leasehold: {}", visible(line))).collect();
    lines.join("\n")
}

/// Returns the usable width. One column is left free, because a terminal may wrap when the last is
/// written.
fn width() -> usize {
    let stderr = std::io::stderr();
    let size = if stderr.is_terminal() { tcgetwinsize(&stderr).ok() } else { None };
    size.map_or(80, |size| usize::from(size.ws_col)).max(20) - 1
}

static SHARED: OnceLock<Stderr> = OnceLock::new();
const CLEAR_LINE: &str = "\r\x1b[K";
const BACKLOG: usize = 512;
/// The number of lines that are kept while a view has the terminal.
const MOST_KEPT: usize = 100;
