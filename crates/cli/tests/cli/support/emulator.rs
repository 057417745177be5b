//! A terminal emulator on a pseudo-terminal: what a person would see.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::pty::Pty;
use super::{LIMIT, Sandbox};

/// A program on a terminal, and the screen of that terminal.
pub(crate) struct Emulator {
    pub(crate) pty: Pty,
    pub(crate) parser: vt100::Parser,
    /// All that the program has written.
    pub(crate) raw: Vec<u8>,
}

impl Emulator {
    /// Starts a program on a terminal with so many lines and columns.
    pub(crate) fn start(sandbox: &Sandbox, program: &str, args: &[&str], size: (u16, u16)) -> Emulator {
        let pty = Pty::start_sized(sandbox, program, args, size);
        Emulator { pty, parser: parser(size), raw: Vec::new() }
    }

    /// Starts `leasehold top` on a terminal with 24 lines of 80 columns.
    pub(crate) fn top(sandbox: &Sandbox, args: &[&str]) -> Emulator {
        let args = [&["top", "--interval", "200ms"], args].concat();
        Emulator::start(sandbox, "leasehold", &args, (24, 80))
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.pty.press(keys);
    }

    pub(crate) fn resize(&mut self, size: (u16, u16)) {
        self.pty.resize(size);
        self.parser.screen_mut().set_size(cells(size.0), cells(size.1));
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pty.pid(), signal).unwrap();
    }

    /// Returns the lines of the screen.
    pub(crate) fn screen(&self) -> String {
        self.parser.screen().contents()
    }

    /// Returns the line with this text.
    #[track_caller]
    pub(crate) fn line(&self, text: &str) -> String {
        let screen = self.screen();
        let line = screen.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no line with {text:?} in\n{screen}")).to_owned()
    }

    /// Waits until the screen has this text.
    #[track_caller]
    pub(crate) fn see(&mut self, text: &str) {
        self.wait(&format!("{text:?}"), |screen| screen.contains(text));
    }

    /// Waits until the screen does not have this text.
    #[track_caller]
    pub(crate) fn miss(&mut self, text: &str) {
        self.wait(&format!("a screen without {text:?}"), |screen| !screen.contains(text));
    }

    /// Waits until the screen fits.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, fits: impl Fn(&str) -> bool) {
        let began = Instant::now();
        while !fits(&self.screen()) {
            let left = LIMIT.saturating_sub(began.elapsed());
            match self.pty.bytes(left).filter(|_| !left.is_zero()) {
                Some(bytes) => self.take(&bytes),
                None => panic!("no {what} in\n{}", self.screen()),
            }
        }
    }

    /// Takes what the program writes for a while.
    pub(crate) fn watch(&mut self, length: Duration) {
        let began = Instant::now();
        while let Some(bytes) = self.pty.bytes(length.saturating_sub(began.elapsed())) {
            self.take(&bytes);
        }
    }

    /// Waits for the end of the program; returns its exit code, and the emulator as it is then.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Option<i32>, vt100::Parser) {
        let (status, rest) = loop {
            match self.pty.bytes(LIMIT) {
                Some(bytes) => self.take(&bytes),
                None => break self.pty.end(),
            }
        };
        self.parser.process(rest.as_bytes());
        (status.code(), self.parser)
    }

    fn take(&mut self, bytes: &[u8]) {
        self.parser.process(bytes);
        self.raw.extend_from_slice(bytes);
    }
}

fn parser((lines, columns): (u16, u16)) -> vt100::Parser {
    vt100::Parser::new(cells(lines), cells(columns), 0)
}

fn cells(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}
