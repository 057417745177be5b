//! The hook of a candidate: the program that `elect --on-demoted` runs after leadership has ended.
//!
//! Ground rules: the hook is started like a command, with a command's environment, in a process group with
//! a warden. Its time is limited: to one ttl, or to the grace period from the first signal that asks this
//! process to end while the hook runs. A signal before that has caused the resignation, which is why the hook runs.

use std::process::Stdio;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};
use rustix::process::Signal;

use crate::output::stderr::Stderr;
use crate::output::text::duration;
use crate::process::child::{Change, Child, Ending};
use crate::process::environment::variables;
use crate::request::Request;
use crate::request::program::Program;
use crate::request::reentry::Tags;
use crate::system::orphans;
use crate::system::signals::{SignalEvent, Signals, asks_to_end};
use crate::system::warden::Warden;

/// Runs the hook to its end, and reports a failure.
pub(crate) async fn run(request: &Request, program: &Program, signals: &mut Signals, stderr: &Stderr) {
    if let Err(complaint) = supervise(request, program, signals).await {
        stderr.print_line(&format!("--on-demoted failed: {complaint}"));
    }
}

async fn supervise(request: &Request, program: &Program, signals: &mut Signals) -> Result<(), String> {
    let file = program.find().map_err(|problem| problem.to_string())?;
    let warden = Warden::start(Vec::new(), None).map_err(|error| error.to_string())?;
    let variables = variables(request, &[], Tags::inherited().with(None));
    let child = Child::start(program, file, variables, warden.group(), Stdio::null).await;
    let ended = match child {
        Ok(child) => {
            Hook { warden: &warden, grace: request.grace(), end: None }
                .wait(&child, signals, request.ttl())
                .await
        }
        Err(error) => Err(error.to_string()),
    };
    warden.end().await;
    ended
}

/// A hook that runs.
struct Hook<'a> {
    warden: &'a Warden,
    grace: Duration,
    /// The time at which it is killed; `None` where it was not asked to end.
    end: Option<Moment>,
}

impl Hook<'_> {
    async fn wait(mut self, child: &Child, signals: &mut Signals, limit: Duration) -> Result<(), String> {
        let clock = SystemClock;
        let late = clock.now().after(limit);
        let mut is_late = false;
        loop {
            match child.change() {
                Some(Change::Ended(_)) if is_late => {
                    return Err(format!("it took longer than {}", duration(limit)));
                }
                Some(Change::Ended(Ending::Code(0))) => return Ok(()),
                Some(Change::Ended(Ending::Code(code))) => return Err(format!("exit code {code}")),
                Some(Change::Ended(Ending::Signal(signal))) => {
                    return Err(format!("signal {signal} ended it"));
                }
                Some(Change::Stopped(_)) | None => {}
            }
            let now = clock.now();
            if !is_late && now >= late {
                is_late = true;
                self.ask_to_end(Signal::TERM);
            }
            if self.end.is_some_and(|end| now >= end) {
                self.warden.signal(Signal::KILL);
            }
            let next = if is_late { None } else { Some(late) };
            let wake = self.end.into_iter().chain(next).min().map_or(LONGEST_PAUSE, |at| now.until(at));
            tokio::select! {
                biased;
                event = signals.next() => match event {
                    SignalEvent::Sent(signal) if asks_to_end(signal) => self.ask_to_end(signal),
                    SignalEvent::Sent(signal) => self.warden.signal(signal),
                    SignalEvent::Child => orphans::reap(&[child.pid(), self.warden.group()]),
                    SignalEvent::Continued => {}
                },
                () = tokio::time::sleep(wake.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)) => {}
            }
        }
    }

    /// Sends a signal that asks the hook to end; the grace period begins with the first one.
    fn ask_to_end(&mut self, signal: Signal) {
        self.end.get_or_insert_with(|| SystemClock.now().after(self.grace));
        self.warden.signal(signal);
        // A stopped process has to continue in order to end.
        self.warden.signal(Signal::CONT);
    }
}

/// The longest time between two looks at the clock, which also counts suspended time, and at a killed hook.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
