//! The signals that this process listens to.
//!
//! Ground rules: a signal that was ignored when this process started stays ignored (that is how
//! `nohup`, and a shell's background jobs, work), and so the command ignores it too. No other signal is
//! touched.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold::backend::{Clock, Moment};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::system::orphans;

/// A signal, or another event, that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// A signal that is meant for the command, or ends a wait.
    Sent(Signal),
    /// A child has ended, stopped or continued.
    Child,
    /// This process was stopped and continues.
    Continued,
}

/// The signals since the start of listening.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(SignalEvent, tokio::signal::unix::Signal)>,
    /// The last signal that asks a program to end, and its time.
    ending: Option<(Signal, Moment)>,
    /// `true` if signals that do not ask a program to end mean nothing to this process itself.
    ends_if_asked: bool,
}

impl Signals {
    /// Listens to the events of [`SignalEvent`].
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn listen() -> io::Result<Signals> {
        let ignored = ignored_at_start();
        let sent =
            PASSED_ON.iter().filter(|signal| !ignored.has(**signal)).map(|signal| SignalEvent::Sent(*signal));
        let mut streams = Vec::new();
        // This is also the order in which events are reported: those of the command itself come first.
        for event in [SignalEvent::Continued, SignalEvent::Child].into_iter().chain(sent) {
            let kind = match event {
                SignalEvent::Child => Signal::CHILD,
                SignalEvent::Continued => Signal::CONT,
                SignalEvent::Sent(signal) => signal,
            };
            streams.push((event, signal(SignalKind::from_raw(kind.as_raw()))?));
        }
        Ok(Signals { streams, ending: None, ends_if_asked: false })
    }

    /// Listens as [`Signals::listen`] does, in a process that only signals end that ask a program to end. The others
    /// are meant for a command, and mean nothing while none runs.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn listen_for_candidate() -> io::Result<Signals> {
        Ok(Signals { ends_if_asked: true, ..Signals::listen()? })
    }

    /// Waits for the next of any kind.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        self.first(|_| true).await
    }

    /// Waits for one that was sent to this process.
    pub(crate) async fn sent(&mut self) -> Signal {
        match self.first(|event| matches!(event, SignalEvent::Sent(_))).await {
            SignalEvent::Sent(signal) => signal,
            _ => std::future::pending().await,
        }
    }

    /// Waits for one that ends this process, which waits for no child by its id at this time: those that end are orphans,
    /// and are reaped. So is a spare process that is killed.
    pub(crate) async fn sent_to_childless(&mut self) -> Signal {
        loop {
            match self.first(|event| event != SignalEvent::Continued).await {
                SignalEvent::Sent(signal) if !self.ends_if_asked || asks_to_end(signal) => return signal,
                SignalEvent::Child => orphans::reap(&[]),
                SignalEvent::Sent(_) | SignalEvent::Continued => {}
            }
        }
    }

    /// Waits for this one.
    pub(crate) async fn received(&mut self, signal: Signal) {
        self.first(|event| event == SignalEvent::Sent(signal)).await;
    }

    /// Waits until this process was stopped and continues.
    pub(crate) async fn continued(&mut self) {
        self.first(|event| event == SignalEvent::Continued).await;
    }

    /// Returns the last signal that asks a program to end. A command that runs for longer than `grace`
    /// after a HUP uses it for something else, such as reading its configuration; then the HUP does not
    /// count.
    pub(crate) fn ending(&self, grace: Duration) -> Option<Signal> {
        self.ending.filter(|asked| still_asks(*asked, SystemClock.now(), grace)).map(|(signal, _)| signal)
    }

    /// Returns the last signal that asks a program to end, if it came at this moment or later.
    pub(crate) fn ending_since(&self, begin: Moment) -> Option<Signal> {
        self.ending.filter(|(_, at)| *at >= begin).map(|(signal, _)| signal)
    }

    async fn first(&mut self, wanted: impl Fn(SignalEvent) -> bool) -> SignalEvent {
        let event = poll_fn(|cx| {
            for (event, stream) in self.streams.iter_mut().filter(|(event, _)| wanted(*event)) {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*event);
                }
            }
            Poll::Pending
        })
        .await;
        if let SignalEvent::Sent(signal) = event
            && asks_to_end(signal)
            // A final request to end is not undone by a HUP.
            && (signal != Signal::HUP || self.ending.is_none_or(|(before, _)| before == Signal::HUP))
        {
            self.ending = Some((signal, SystemClock.now()));
        }
        event
    }
}

/// Returns `true` if the signal asks a program to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
}

fn still_asks((signal, at): (Signal, Moment), now: Moment, grace: Duration) -> bool {
    signal != Signal::HUP || now.since(at) <= grace
}

/// Returns `true` if this process ignored the signal when it started.
pub(crate) fn was_ignored(signal: Signal) -> bool {
    ignored_at_start().has(signal)
}

/// A set of signals as the kernel writes it: bit n-1 is signal n.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mask(u64);

impl Mask {
    pub(crate) fn has(self, signal: Signal) -> bool {
        u32::try_from(signal.as_raw() - 1)
            .ok()
            .and_then(|bit| self.0.checked_shr(bit))
            .is_some_and(|mask| mask & 1 == 1)
    }
}

/// Returns the signals that this process ignored when it started; none without `/proc`.
fn ignored_at_start() -> Mask {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status)
}

pub(crate) fn ignored_in(status: &str) -> Mask {
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Mask(digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or_default())
}

/// The signals that are passed on to the command, and end the wait for the lock.
const PASSED_ON: &[Signal] =
    &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survived_hup_does_not_ask_to_end() {
        let (at, grace) = (Moment::from_nanos(0), Duration::from_secs(5));
        let (soon, later) = (at.after(grace), at.after(grace * 2));
        assert!(still_asks((Signal::HUP, at), soon, grace) && !still_asks((Signal::HUP, at), later, grace));
        for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
            assert!(still_asks((signal, at), later, grace), "{signal:?}");
        }
    }

    #[test]
    fn the_kernels_mask_is_read_by_bits() {
        let mask =
            ignored_in("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t00\n");
        assert!(mask.has(Signal::HUP) && mask.has(Signal::PIPE));
        assert!(!mask.has(Signal::INT) && !mask.has(Signal::TERM));
        assert!(!ignored_in("").has(Signal::HUP));
    }
}
