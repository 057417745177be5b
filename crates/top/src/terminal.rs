//! The terminal: its modes, the frames that are written to it, and what is typed.
//!
//! Ground rules: the terminal gets back the screen and the modes that it had, for any end of the view. A
//! terminal that takes no output delays nothing but the next frame: a thread of its own writes, and no frame is
//! made before the last one is written. Only this file writes to the terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::queue;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::process::{Signal, kill_current_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

/// Checks that the view can be shown: that there is a terminal to write to and to read from.
///
/// # Errors
/// A text for the person.
pub fn check_terminal() -> Result<(), String> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let problem = match (io::stdout().is_terminal(), io::stdin().is_terminal()) {
        (false, _) => "stdout is not a terminal",
        (_, false) => "stdin is not a terminal",
        _ if is_dumb => "TERM names a terminal without a cursor, or none",
        _ => return Ok(()),
    };
    Err(format!("cannot show the locks: {problem}; use `leasehold ls` instead, or `leasehold ls --json`"))
}

/// The terminal while the view has it.
pub(crate) struct OpenTerminal {
    terminal: ratatui::Terminal<CrosstermBackend<FrameBytes>>,
    bytes: FrameBytes,
    writer: Arc<FrameWriter>,
    frames: SyncSender<Vec<u8>>,
    events: mpsc::Receiver<Event>,
    is_entered: bool,
}

/// The bytes of the frame that is being made.
#[derive(Clone, Default)]
struct FrameBytes(Arc<Mutex<Vec<u8>>>);

/// The state of the thread that writes.
#[derive(Default)]
struct FrameWriter {
    is_busy: AtomicBool,
    is_broken: AtomicBool,
    idle: Notify,
}

impl OpenTerminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Of the terminal, or of the operating system.
    pub(crate) fn enter() -> io::Result<OpenTerminal> {
        restore_after_panic();
        let bytes = FrameBytes::default();
        let terminal = ratatui::Terminal::new(CrosstermBackend::new(bytes.clone()))?;
        let (frames, receiver) = sync_channel(1);
        let writer = Arc::new(FrameWriter::default());
        let (out, state) = (stdout()?, writer.clone());
        std::thread::Builder::new()
            .name("frames".to_owned())
            .spawn(move || write_frames(out, &receiver, &state))?;
        let mut session =
            OpenTerminal { terminal, bytes, writer, frames, events: keys()?, is_entered: false };
        session.resume()?;
        Ok(session)
    }

    /// Takes the modes and the screen that the view needs.
    ///
    /// # Errors
    /// Of the terminal.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        if self.is_entered {
            // A shell that has continued this process may have changed the modes meanwhile.
            disable_raw_mode()?;
        }
        enable_raw_mode()?;
        self.is_entered = true;
        queue!(self.bytes, EnterAlternateScreen, Hide)?;
        self.redraw()
    }

    /// Gives the modes and the screen back, and waits until that is written, up to a limit.
    pub(crate) async fn leave(&mut self) {
        if !std::mem::take(&mut self.is_entered) {
            return;
        }
        let _ = tokio::time::timeout(LAST_FRAME, self.idle()).await;
        if queue!(self.bytes, LeaveAlternateScreen, Show).is_ok() {
            self.send();
            let _ = tokio::time::timeout(LAST_FRAME, self.idle()).await;
        }
        // Without the terminal there is nothing to restore.
        let _ = disable_raw_mode();
    }

    /// Stops the processes of this job, as Ctrl-Z does, and returns when the shell continues them.
    ///
    /// # Errors
    /// Of the terminal.
    pub(crate) async fn suspend(&mut self) -> io::Result<()> {
        self.leave().await;
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        kill_current_process_group(Signal::TSTP)?;
        // On a busy machine a process is stopped some time after that. A job that no shell could continue is not.
        let _ = tokio::time::timeout(STOPPING, continued.recv()).await;
        self.resume()
    }

    /// Makes a frame, and begins to write what differs from the last one.
    ///
    /// # Errors
    /// Of the terminal.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut()))?;
        self.send();
        Ok(())
    }

    /// Makes the next frame draw every cell.
    ///
    /// # Errors
    /// Of the terminal.
    pub(crate) fn redraw(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal for its cursor, and wait for the answer.
        queue!(self.bytes, Clear(ClearType::All))?;
        self.terminal = ratatui::Terminal::new(CrosstermBackend::new(self.bytes.clone()))?;
        Ok(())
    }

    /// Returns `true` if the last frame was written.
    pub(crate) fn is_idle(&self) -> bool {
        !self.writer.is_busy.load(Ordering::SeqCst)
    }

    /// Returns `true` if the terminal takes no output any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.writer.is_broken.load(Ordering::SeqCst)
    }

    /// Waits until the last frame was written. Only one of these futures is used at a time.
    pub(crate) fn idle(&self) -> impl Future<Output = ()> + use<> {
        let writer = self.writer.clone();
        async move {
            while writer.is_busy.load(Ordering::SeqCst) {
                writer.idle.notified().await;
            }
        }
    }

    /// Waits until something is typed, or the size changes; `None` if the terminal is gone.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Returns what was typed already.
    pub(crate) fn event_now(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    fn send(&self) {
        let frame = std::mem::take(&mut *self.bytes.0.lock().unwrap_or_else(PoisonError::into_inner));
        if !frame.is_empty() {
            self.writer.is_busy.store(true, Ordering::SeqCst);
            if self.frames.try_send(frame).is_err() {
                // Only the end of a view that the terminal has blocked comes here.
                self.writer.is_broken.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Write for FrameBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // A frame is written as a whole.
        Ok(())
    }
}

/// Returns a handle that no other part of the program locks.
fn stdout() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

fn write_frames(mut out: File, frames: &Receiver<Vec<u8>>, state: &FrameWriter) {
    while let Ok(frame) = frames.recv() {
        if out.write_all(&frame).is_err() {
            state.is_broken.store(true, Ordering::SeqCst);
        }
        state.is_busy.store(false, Ordering::SeqCst);
        state.idle.notify_one();
    }
}

/// Reads what is typed, in a thread of its own.
fn keys() -> io::Result<mpsc::Receiver<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS);
    let read = move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(receiver)
}

/// Restores the terminal before the message of a panic is written.
fn restore_after_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = disable_raw_mode();
            if let Ok(mut out) = stdout() {
                let _ = queue!(out, LeaveAlternateScreen, Show);
            }
            before(panic);
        }));
    });
}

/// The time that a terminal has to take the last frame.
const LAST_FRAME: Duration = Duration::from_secs(1);
/// Longer than the kernel takes to stop a process, even if all its threads wait for a busy machine.
const STOPPING: Duration = Duration::from_secs(3);
const KEYS: usize = 64;
