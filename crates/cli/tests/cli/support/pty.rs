//! A pseudo-terminal with a session of its own, with typed input and the output on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize};

use super::{LIMIT, Sandbox, UNTIL_CLOSED};

/// A process that leads a session on a terminal of its own.
pub(crate) struct Pty {
    child: Child,
    typed: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    /// Up to where the screen was read by [`Pty::see`].
    read: usize,
}

impl Pty {
    /// Starts a program on a terminal.
    pub(crate) fn start(sandbox: &Sandbox, program: &str, args: &[&str]) -> Pty {
        Pty::start_sized(sandbox, program, args, (24, 200))
    }

    /// Starts a program on a terminal with so many lines and columns.
    pub(crate) fn start_sized(sandbox: &Sandbox, program: &str, args: &[&str], size: (u16, u16)) -> Pty {
        Pty::over(spawn(sandbox, &LEADER, program, args, size))
    }

    /// Starts a program as the first process of a container, which these words start. The terminal belongs to the
    /// container alone.
    pub(crate) fn start_first(sandbox: &Sandbox, container: &[&str], program: &str, args: &[&str]) -> Pty {
        Pty::over(spawn(sandbox, &[container, &LEADER].concat(), program, args, (24, 200)))
    }

    fn over((child, typed): (Child, File)) -> Pty {
        let mut output = typed.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // When the last process on the other side has gone, this is an error.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Pty { child, typed, screen, seen: String::new(), read: 0 }
    }

    /// Starts a program on a terminal from which nothing is read.
    pub(crate) fn start_unread(sandbox: &Sandbox, program: &str, args: &[&str]) -> Pty {
        let (child, typed) = spawn(sandbox, &LEADER, program, args, (24, 80));
        Pty { child, typed, screen: channel().1, seen: String::new(), read: 0 }
    }

    /// Starts an interactive shell with job control, and waits for its prompt.
    pub(crate) fn shell(sandbox: &Sandbox) -> Pty {
        let mut shell = Pty::start(sandbox, "bash", &["--norc", "--noprofile", "-i"]);
        shell.see(PROMPT);
        shell
    }

    /// Types this.
    pub(crate) fn press(&mut self, keys: &str) {
        self.typed.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal, to so many lines and columns.
    pub(crate) fn resize(&self, size: (u16, u16)) {
        resize(&self.typed, size);
    }

    /// Returns `true` if the program on the terminal reads keys, and not lines.
    pub(crate) fn is_raw(&self) -> bool {
        !tcgetattr(&self.typed).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Stops the output: the terminal takes no more, as after Ctrl-S.
    pub(crate) fn stop_output(&self) {
        let name = ptsname(&self.typed, Vec::new()).unwrap();
        let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
        tcflow(slave.unwrap(), Action::OOff).unwrap();
    }

    /// Waits for output, and returns it as it is; `None` if none came in time, or if the program has ended.
    pub(crate) fn bytes(&self, limit: Duration) -> Option<Vec<u8>> {
        self.screen.recv_timeout(limit).ok()
    }

    /// Returns the process that leads the session.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Types a command line, and reads past its echo.
    pub(crate) fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\r"));
        self.see(line);
    }

    /// Waits until this appears behind what was seen before; what came up to its end.
    #[track_caller]
    pub(crate) fn see(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.seen[self.read..].find(text) {
                let end = self.read + at + text.len();
                let before = self.seen[self.read..end].to_owned();
                self.read = end;
                return before;
            }
            match self.screen.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("no `{text}` ({error}) behind byte {} of {:?}", self.read, self.seen),
            }
        }
    }

    /// Waits for the prompt; what came up to it.
    #[track_caller]
    pub(crate) fn prompt(&mut self) -> String {
        self.see(PROMPT)
    }

    /// Waits until the process has ended; its status, and all that was on the screen.
    pub(crate) fn end(mut self) -> (std::process::ExitStatus, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < LIMIT, "it does not end: {:?}", self.seen);
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        // The end of the leader hangs up the terminal, so the thread that reads it ends, sooner or later.
        loop {
            match self.screen.recv_timeout(UNTIL_CLOSED) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    println!("a process that was left behind keeps the terminal open");
                    break;
                }
            }
        }
        (status, std::mem::take(&mut self.seen))
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // The end of a session's leader hangs up its terminal, and so ends what runs there.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a program on a new terminal, by these words in front of it; the process, and the other side of the terminal.
fn spawn(sandbox: &Sandbox, words: &[&str], program: &str, args: &[&str], size: (u16, u16)) -> (Child, File) {
    let master = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = || -> OwnedFd {
        rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    resize(&master, size);
    let mut command = Command::new(words[0]);
    sandbox.prepare(&mut command);
    command.args(&words[1..]).arg(program).args(args).env("TERM", "xterm").env("PS1", PROMPT);
    command.stdin(Stdio::from(slave())).stdout(Stdio::from(slave())).stderr(Stdio::from(slave()));
    (command.spawn().unwrap(), master)
}

fn resize(terminal: &File, (lines, columns): (u16, u16)) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

/// The words that make a session and take the terminal of stdin; no code between fork and exec is needed for that.
const LEADER: [&str; 2] = ["setsid", "--ctty"];
pub(crate) const PROMPT: &str = "prompt> ";
