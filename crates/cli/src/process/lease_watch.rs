//! The state of the leases of a hold: valid, suspect or lost, by the clock.
//!
//! Ground rules: the loss of one lock counts as the loss of all, and is returned once. The lock of a section or
//! of an outer `run` around this process counts like its own.

use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Guard, Resource, State};

use crate::output::status::{Event, Status};
use crate::output::stderr::Stderr;
use crate::output::text::{duration, visible_name};
use crate::process::lock_hold::LockHold;

/// The locks whose leases are watched, and where changes are reported.
#[derive(Debug)]
pub(crate) struct LeaseWatch<'a> {
    hold: &'a LockHold,
    stderr: &'a Stderr,
    status: &'a Status,
    is_lost: bool,
    /// `true` once it was reported that a lease is not renewed.
    is_suspect: bool,
}

/// The loss of a lock.
#[derive(Clone, Debug)]
pub(crate) struct LockLoss<'a> {
    pub(crate) lock: &'a Resource,
    pub(crate) cause: String,
}

impl<'a> LeaseWatch<'a> {
    pub(crate) fn new(hold: &'a LockHold, stderr: &'a Stderr, status: &'a Status) -> Self {
        LeaseWatch { hold, stderr, status, is_lost: false, is_suspect: false }
    }

    /// Returns the locks of this process, also after a loss.
    pub(crate) fn guards(&self) -> &'a [Guard] {
        self.hold.guards()
    }

    /// Returns `true` if one was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Looks at the clock. Returns the loss if this is the first look that sees it.
    pub(crate) fn check(&mut self) -> Option<LockLoss<'a>> {
        if self.is_lost {
            return None;
        }
        let mut suspect = None;
        for guard in self.guards() {
            match guard.state() {
                State::Lost(cause) => return Some(self.lose(guard.resource(), cause.to_string())),
                State::Suspect => suspect = suspect.or(Some(guard)),
                _ => {}
            }
        }
        for followed in self.hold.followed() {
            if let Some(cause) = followed.loss() {
                return Some(self.lose(followed.lock(), cause));
            }
        }
        self.report_suspect(suspect);
        None
    }

    fn lose(&mut self, lock: &'a Resource, cause: String) -> LockLoss<'a> {
        self.is_lost = true;
        self.status.report(&Event::Lost { cause: cause.clone() });
        LockLoss { lock, cause }
    }

    /// Waits until one is lost; for ever if that was seen.
    pub(crate) async fn lost(&self) {
        match self.is_lost {
            true => std::future::pending().await,
            false => self.hold.lost().await,
        }
    }

    /// Returns the time for which all are held without another renewal; `None` after a loss.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        if self.is_lost { None } else { self.hold.remaining() }
    }

    /// Returns the moment until which all are held without another renewal; `None` after a loss.
    pub(crate) fn end(&self) -> Option<Moment> {
        if self.is_lost { None } else { self.hold.end() }
    }

    /// Returns the time after which a renewal may have changed what remains.
    pub(crate) fn pause(&self) -> Duration {
        match self.remaining() {
            Some(remaining) if remaining != Duration::MAX => (remaining / 3).clamp(UPDATE_MIN, UPDATE_MAX),
            _ => Duration::MAX,
        }
    }

    /// Reports when renewals begin to fail, and when they succeed again.
    fn report_suspect(&mut self, suspect: Option<&Guard>) {
        if suspect.is_some() == std::mem::replace(&mut self.is_suspect, suspect.is_some()) {
            return;
        }
        match (suspect, self.guards().first()) {
            (Some(guard), _) => {
                let (name, remaining) = (visible_name(guard.resource().as_str()), guard.remaining());
                let lost_in_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
                self.status.report(&Event::Suspect { lost_in_ms });
                self.stderr.print_line(&format!(
                    "{name} could not be renewed, and is lost in {} unless a renewal succeeds",
                    duration(remaining)
                ));
            }
            (None, Some(guard)) => {
                self.status.report(&Event::Renewed);
                self.stderr
                    .print_line(&format!("{} was renewed again", visible_name(guard.resource().as_str())));
            }
            (None, None) => {}
        }
    }
}

/// The bounds of the interval at which renewals are reported to the warden: a third of the remaining time,
/// within these.
const UPDATE_MIN: Duration = Duration::from_millis(5);
const UPDATE_MAX: Duration = Duration::from_secs(5);
