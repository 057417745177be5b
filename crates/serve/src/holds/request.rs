//! The request of a client, and the lock of the library that it becomes.

use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::kind::Kind;
use leasehold::{Client, Error, FenceGrade, Guard, Leadership, Lock, Note, Profile};
use serde::{Deserialize, Deserializer};

use crate::config::Limits;
use crate::problem::Problem;

/// The request for a lock. Two requests with one id have to be equal.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "struct LockRequest")]
pub(crate) struct HoldRequest {
    /// The name of the lock.
    pub(crate) name: String,
    /// The request for a lock.
    #[serde(default)]
    pub(crate) mode: Mode,
    /// The permits to take, of a semaphore.
    pub(crate) permits: Option<u32>,
    /// The permits that exist, of a semaphore.
    pub(crate) of: Option<u32>,
    /// The time for which the lock stays held without a sign of life.
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) ttl: Option<Duration>,
    /// The text that others see of the claim.
    pub(crate) note: Option<String>,
    /// The text that observers of an election see.
    pub(crate) value: Option<String>,
    /// The consequence of a broken stream or waiting request.
    #[serde(default)]
    pub(crate) on_disconnect: OnDisconnect,
    /// The longest time to hold the lock.
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) max_hold: Option<Duration>,
    /// The time after a loss for which nobody is granted the lock.
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) lock_delay: Option<Duration>,
    /// The grade that the fence has to have at least.
    pub(crate) fencing: Option<FenceGrade>,
    /// `true` if the holder wants to know of requests to release, also without a stream.
    #[serde(default)]
    pub(crate) revocable: bool,
}

/// The kind of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    #[default]
    Mutex,
    Read,
    Write,
    Permits,
    Leader,
}

/// The consequence of a broken stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnDisconnect {
    /// The lock stays held for its ttl.
    #[default]
    Keep,
    /// The lock is released at once.
    Release,
}

/// The lock that is held for a client.
#[derive(Debug)]
pub(super) enum HeldLock {
    Lock(Guard),
    Leader(Box<Leadership>),
}

impl HeldLock {
    pub(super) fn guard(&self) -> &Guard {
        match self {
            HeldLock::Lock(guard) => guard,
            HeldLock::Leader(leadership) => leadership.guard(),
        }
    }

    /// Releases it and waits for the answer of the store.
    ///
    /// # Errors
    /// As the library's release.
    pub(super) async fn release(self) -> leasehold::Result<()> {
        match self {
            HeldLock::Lock(guard) => guard.release().await,
            HeldLock::Leader(leadership) => leadership.resign().await,
        }
    }
}

impl HoldRequest {
    /// Checks what can be checked without the store.
    ///
    /// # Errors
    /// `invalid_request`.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Problem> {
        leasehold::Resource::new(&self.name).map_err(|error| Problem::invalid(format!("name: {error}")))?;
        if let Some(ttl) = self.ttl
            && !(TTL_MIN..=limits.ttl).contains(&ttl)
        {
            let text =
                format!("ttl: {ttl:?} is out of range: this server takes {TTL_MIN:?} to {:?}", limits.ttl);
            return Err(Problem::invalid(text));
        }
        if let Some(delay) = self.lock_delay
            && delay > limits.ttl
        {
            let text =
                format!("lock_delay: {delay:?} is out of range: this server takes {:?} at most", limits.ttl);
            return Err(Problem::invalid(text));
        }
        let is_permits = self.mode == Mode::Permits;
        if is_permits != self.of.is_some() || (!is_permits && self.permits.is_some()) {
            let text =
                "of: give the number of permits that exist with mode \"permits\", and with no other mode";
            return Err(Problem::invalid(text));
        }
        if (self.mode == Mode::Leader) != self.value.is_some() {
            let text =
                "value: give what observers see of the leader with mode \"leader\", and with no other mode";
            return Err(Problem::invalid(text));
        }
        if self.mode == Mode::Leader && self.lock_delay.is_some_and(|delay| !delay.is_zero()) {
            let text = "lock_delay: a leader has none, since its election would name it during that time, although it \
                        is lost; leave lock_delay out, and let what it writes to check the fence";
            return Err(Problem::invalid(text));
        }
        if self.note.is_some() && self.mode == Mode::Leader {
            return Err(Problem::invalid("note: the note of a leader is its value; leave the note out"));
        }
        let note = self.note.as_deref().unwrap_or_default();
        Note::new(note).map_err(|error| Problem::invalid(format!("note: {error}")))?;
        Ok(())
    }

    /// Returns the time for which it stays held without a sign of life of its client. One that the client did not ask
    /// for keeps to the limit of this server, too, unless the store takes nothing that short.
    pub(crate) fn ttl(&self, profile: &Profile, limits: &Limits) -> Duration {
        let default = TTL.min(limits.ttl);
        let default = match profile.liveness {
            Liveness::Lease { min, max } => default.clamp(min, max),
            _ => default,
        };
        self.ttl.unwrap_or(default)
    }

    /// Acquires it with this ttl: waits without a limit, or looks once. Dropping the future withdraws the request.
    ///
    /// # Errors
    /// As the library's calls.
    pub(super) async fn acquire(
        &self,
        client: &Client,
        ttl: Duration,
        waits: bool,
    ) -> Result<Option<HeldLock>, Error> {
        let name = &self.name;
        let locked = match self.mode {
            Mode::Mutex => {
                let mutex = self.with_settings(client.mutex(name), ttl)?;
                if waits { Some(mutex.lock().await?) } else { mutex.try_lock().await? }
            }
            Mode::Read => {
                let lock = self.with_settings(client.rwlock(name), ttl)?;
                if waits { Some(lock.read().await?) } else { lock.try_read().await? }
            }
            Mode::Write => {
                let lock = self.with_settings(client.rwlock(name), ttl)?;
                if waits { Some(lock.write().await?) } else { lock.try_write().await? }
            }
            Mode::Permits => {
                let (permits, of) = (self.permits.unwrap_or(1), self.of.unwrap_or(1));
                let lock = self.with_settings(client.semaphore(name, of), ttl)?;
                if waits {
                    Some(lock.acquire_many(permits).await?)
                } else {
                    lock.try_acquire_many(permits).await?
                }
            }
            Mode::Leader => return self.campaign(client, ttl, waits).await,
        };
        Ok(locked.map(HeldLock::Lock))
    }

    async fn campaign(&self, client: &Client, ttl: Duration, waits: bool) -> Result<Option<HeldLock>, Error> {
        let election = client.election(&self.name).ttl(ttl);
        let election = election.with(|mutex| self.with_settings(mutex, ttl))?;
        let value = self.value.as_deref().unwrap_or_default();
        let leads =
            if waits { Some(election.campaign(value).await?) } else { election.try_campaign(value).await? };
        Ok(leads.map(|leads| HeldLock::Leader(Box::new(leads))))
    }

    fn with_settings<K: Kind>(&self, lock: Lock<K>, ttl: Duration) -> Result<Lock<K>, Error> {
        let mut lock = lock.ttl(ttl);
        if let Some(note) = &self.note {
            lock = lock.note(Note::clipped(note));
        }
        if let Some(limit) = self.max_hold {
            lock = lock.max_hold(limit);
        }
        if let Some(time) = self.lock_delay {
            lock = lock.lock_delay(time);
        }
        if self.revocable {
            lock = lock.revocable()?;
        }
        match self.fencing {
            None => Ok(lock),
            Some(grade) => lock.require_fencing(grade),
        }
    }
}

/// Parses a duration as it is written in a request: `10s`, `500ms`, `1m30s`, or `0`.
///
/// # Errors
/// A text for people.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 500ms or 1m30s"))
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| duration(&text).map_err(serde::de::Error::custom)).transpose()
}

/// The default ttl, which is the library's.
const TTL: Duration = Duration::from_secs(30);
/// The shortest ttl: shorter ones do not survive the way of a heartbeat.
const TTL_MIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<HoldRequest, String> {
        let request: HoldRequest = serde_json::from_str(text).map_err(|error| error.to_string())?;
        request.check(&Limits::default()).map_err(|problem| problem.detail)?;
        Ok(request)
    }

    #[test]
    fn shortest_request_is_a_mutex() {
        let request = parsed(r#"{"name":"a"}"#).unwrap();
        assert_eq!(
            (request.mode, request.on_disconnect, request.ttl),
            (Mode::Mutex, OnDisconnect::Keep, None)
        );
        let request = parsed(r#"{"name":"a","ttl":"5s","mode":"permits","of":3}"#).unwrap();
        assert_eq!((request.ttl, request.of), (Some(Duration::from_secs(5)), Some(3)));
    }

    #[test]
    fn wrong_request_is_explained() {
        for (text, hint) in [
            (r#"{}"#, "name"),
            (r#"{"name":""}"#, "name"),
            (r#"{"name":"a\u0000"}"#, "name"),
            (r#"{"name":"a","ttl":30}"#, "expected"),
            (r#"{"name":"a","ttl":"30"}"#, "30s"),
            (r#"{"name":"a","ttl":"1ms"}"#, "out of range"),
            (r#"{"name":"a","ttl":"2h"}"#, "out of range"),
            (r#"{"name":"a","tll":"2s"}"#, "unknown field"),
            (r#"{"name":"a","mode":"exclusive"}"#, "unknown variant"),
            (r#"{"name":"a","mode":"permits"}"#, "permits that exist"),
            (r#"{"name":"a","of":3}"#, "permits that exist"),
            (r#"{"name":"a","mode":"leader"}"#, "observers see"),
            (r#"{"name":"a","value":"b"}"#, "observers see"),
            (r#"{"name":"a","mode":"leader","value":"b","lock_delay":"1s"}"#, "lock_delay"),
        ] {
            let refused = parsed(text).unwrap_err();
            assert!(refused.contains(hint), "{text}: {refused}");
        }
    }
}
