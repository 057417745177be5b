//! The settings of a lock, their defaults, and the checks of them that need no I/O.
//!
//! A new setting is a field here and a setter in `mod.rs`. One that the engine has to know is also a field of
//! `Wanted` or `WaitOptions` in `engine/mod.rs`.

use std::time::Duration;

use leasehold_core::{Liveness, Note, Profile, Resource, Share};

use super::hours;
use crate::engine::{Engine, Owner, WaitOptions, Want, Wanted};
use crate::error::{Error, ErrorKind, Result};

/// All settings of a lock.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) ttl: Duration,
    pub(super) is_ttl_set: bool,
    pub(super) lock_delay: Duration,
    pub(super) note: Note,
    pub(super) guard: GuardSettings,
}

/// The settings that a guard keeps, to acquire its lock again. It takes the others from its claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuardSettings {
    pub(super) max_hold: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) linger: Duration,
    pub(super) wait: WaitOptions,
    pub(super) owner: Option<Owner>,
}

impl Settings {
    /// Creates the default settings on a store with this profile.
    pub(super) fn new(profile: &Profile, note: Note) -> Settings {
        let ttl = match profile.liveness {
            Liveness::Lease { min, max } => TTL.clamp(min, max),
            _ => TTL,
        };
        Settings { ttl, is_ttl_set: false, lock_delay: Duration::ZERO, note, guard: GuardSettings::default() }
    }

    /// Returns the settings for a lock that belongs to this one: without an owner, a check for deadlocks, a linger
    /// time, and a minimum or a maximum time.
    pub(super) fn of_companion(&self) -> Settings {
        let wait = WaitOptions { deadlock_check: None, ..self.guard.wait };
        Settings { guard: GuardSettings { wait, ..GuardSettings::default() }, ..self.clone() }
    }

    /// Makes a claim of a store with leases last longer than one with the settings `other`, also if that one was
    /// renewed later, or if the store answers again only shortly before its end.
    pub(super) fn outlive(&mut self, other: &Settings, engine: &Engine) {
        let Liveness::Lease { max, .. } = engine.profile().liveness else { return };
        let other = other.ttl.saturating_add(other.lock_delay).as_secs_f64();
        // The last renewal was at most `renew_at` of the ttl before that of the other. Half of the rest is for
        // renewals that fail, of which the pauses are up to a tenth of the ttl.
        let ttl = other * 1.5 / (1.0 - engine.tuning().renew_at);
        self.ttl = Duration::try_from_secs_f64(ttl).unwrap_or(max).min(max);
    }

    /// Builds the request for this share. Checks everything that can be checked without sending anything.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported`.
    pub(super) fn want(&self, engine: &Engine, resource: Resource, share: Share) -> Result<Want> {
        self.check(engine, share).map_err(|error| error.on(&resource))?;
        if let Liveness::Heartbeat { valid } = engine.profile().liveness
            && self.is_ttl_set
            && self.ttl != valid
        {
            engine.report_unused_ttl(self.ttl, valid);
        }
        Ok(Want::of(Wanted {
            resource,
            share,
            ttl: self.ttl,
            lock_delay: self.lock_delay,
            max_hold: self.guard.max_hold,
            linger: self.guard.linger,
            note: self.note.clone(),
        }))
    }

    /// Checks the share and the settings. If several are wrong, the first check here decides on the error.
    fn check(&self, engine: &Engine, share: Share) -> Result<()> {
        let checks_deadlocks = self.guard.wait.deadlock_check.is_some();
        check_share(engine, share)?;
        if checks_deadlocks {
            engine.announces_waits(OP)?;
        }
        self.check_linger()?;
        self.check_lease(engine.profile())?;
        self.check_ttl(engine)?;
        if self.guard.max_hold.is_some_and(|limit| limit.is_zero()) {
            return Err(invalid("a max_hold of zero leaves no time to hold it"));
        }
        if checks_deadlocks && self.guard.owner.is_none() {
            return Err(invalid(
                "deadlocks are found between owners, and this lock has none: add an `owner`, one for each thread \
                 of control",
            ));
        }
        Ok(())
    }

    fn check_linger(&self) -> Result<()> {
        if self.guard.linger <= self.ttl {
            return Ok(());
        }
        Err(invalid(format!(
            "a linger time of {:?} is longer than the ttl of {:?}: an idle process would keep others waiting for \
             longer than one that crashed; take at most the ttl",
            self.guard.linger, self.ttl
        )))
    }

    /// Checks that the store can keep a claim for the ttl and the lock delay.
    fn check_lease(&self, profile: &Profile) -> Result<()> {
        let name = profile.name;
        match profile.liveness {
            Liveness::Lease { min, max } if !(min..=max).contains(&self.ttl) => {
                let (ttl, max) = (hours(self.ttl), hours(max));
                Err(invalid(format!("a ttl of {ttl} is out of range: {name} takes {min:?} to {max}")))
            }
            Liveness::Lease { max, .. } if self.lock_delay > max - self.ttl => {
                let (ttl, lock_delay, max) = (hours(self.ttl), hours(self.lock_delay), hours(max));
                Err(invalid(format!(
                    "a ttl of {ttl} and a lock delay of {lock_delay} together exceed the longest lease of {name}, \
                     which is {max}"
                )))
            }
            Liveness::Lease { .. } => Ok(()),
            _ if self.lock_delay.is_zero() => Ok(()),
            _ => {
                let text = format!(
                    "a `{name}` store frees a lock when its holder's session or connection ends, so it cannot keep a \
                     lock delay after a loss"
                );
                Err(Error::new(ErrorKind::Unsupported, OP, text))
            }
        }
    }

    /// Checks that the ttl leaves a holder time to work.
    fn check_ttl(&self, engine: &Engine) -> Result<()> {
        if self.ttl < TTL_MIN {
            return Err(invalid(format!("a ttl of {:?} is too short: take {TTL_MIN:?} at least", self.ttl)));
        }
        if !engine.is_useful(self.ttl) {
            return Err(invalid(format!(
                "a ttl of {:?} is too short for this connection: less than a tenth of it is left after the drift \
                 between two clocks and the coarseness of the server's are taken off; take a longer one",
                self.ttl
            )));
        }
        Ok(())
    }
}

fn check_share(engine: &Engine, share: Share) -> Result<()> {
    engine.profile().admits(share).map_err(|unmet| {
        let text = match engine.backend().unsupported_reason(share) {
            Some(why) => format!("{unmet}: {why}"),
            None => unmet.to_string(),
        };
        Error::new(ErrorKind::Unsupported, OP, text)
    })
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, OP, text.into())
}

const OP: &str = "lock";
const TTL: Duration = Duration::from_secs(30);
const TTL_MIN: Duration = Duration::from_millis(20);
