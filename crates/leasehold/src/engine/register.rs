//! One register, as the words that stand on registers use it: read, update, wait for a change.
//!
//! Ground rules: the backend's futures run in tasks of the engine and are never dropped midway. Whether a write of
//! unknown outcome took place is found out here, once for all: each value carries the marks of those who wrote last.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
};

use super::calling::closed;
use super::looking::EndOnDrop;
use super::outage::{Outage, jittered};
use super::{Engine, random};
use crate::error::{Error, ErrorKind, Result};

/// One register of the store of a client.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    engine: Arc<Engine>,
    /// Where it is, if not in the store of the client.
    elsewhere: Option<Arc<dyn Registers>>,
    at: Resource,
    /// What errors are about: what the user named, which need not be where this is.
    about: Resource,
    /// What errors call the operation.
    op: &'static str,
}

/// What stood in a register.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// What was written; `None` where there is nothing.
    pub(crate) value: Option<Vec<u8>>,
    /// Names the state, to wait for another.
    pub(crate) stamp: Stamp,
    /// In how long the store forgets the value, by its own clock; `None` where it never does.
    pub(crate) left: Option<Duration>,
    /// Who wrote last, the latest first.
    marks: Vec<Mark>,
}

/// What an update makes of what it found.
#[derive(Clone, Debug)]
pub(crate) enum Change<T> {
    /// It leaves all as it is.
    Leave(T),
    /// It writes this value, to be forgotten after a while where that is said.
    Write(Vec<u8>, Option<Duration>, T),
    /// It removes the value.
    Remove(T),
}

/// What became of an update.
#[derive(Clone, Debug)]
pub(crate) struct Updated<T> {
    /// What the change said, of the time that counted.
    pub(crate) told: T,
    /// How often somebody else was first.
    pub(crate) conflicts: u32,
}

/// Who wrote: drawn at random for each attempt.
type Mark = [u8; 8];

impl Engine {
    /// What the store promises of its registers.
    ///
    /// # Errors
    /// `Unsupported` where it has none.
    pub(crate) fn registers(&self, op: &'static str) -> Result<&RegisterPromise> {
        self.backend.registers().map(Registers::promise).ok_or_else(|| {
            let name = self.backend.profile().name;
            let text = format!("a `{name}` store keeps no values beside its locks, and this needs one");
            Error::new(ErrorKind::Unsupported, op, text)
        })
    }
}

impl Register {
    /// The register `at`.
    ///
    /// # Errors
    /// `Unsupported` where the store has none.
    pub(crate) fn open(engine: &Arc<Engine>, at: Resource, op: &'static str) -> Result<Register> {
        engine.registers(op)?;
        Ok(Register { engine: engine.clone(), elsewhere: None, about: at.clone(), at, op })
    }

    /// The register `at` of a store that is not the client's own.
    pub(crate) fn elsewhere(
        engine: &Arc<Engine>,
        store: Arc<dyn Registers>,
        at: Resource,
        op: &'static str,
    ) -> Register {
        Register { engine: engine.clone(), elsewhere: Some(store), about: at.clone(), at, op }
    }

    /// The same, whose errors are about `resource`, beside which it stands.
    pub(crate) fn about(self, resource: &Resource) -> Register {
        Register { about: resource.clone(), ..self }
    }

    /// What errors call the operation.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// What stands there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As the store failed, after it was given time to come back.
    pub(crate) async fn read(&self) -> Result<Seen> {
        self.told(self.find().await)
    }

    /// Changes what stands there, although up to `conflicts` others do so first.
    ///
    /// `change` is asked again each time that somebody else was first, so it must have no effect of its own. A removal leaves no
    /// mark: where its answer was lost and nothing is there any more, nobody can tell who removed it.
    ///
    /// # Cancel safety
    /// Of a dropped future the change may be made or not.
    ///
    /// # Errors
    /// `Timeout` after too many conflicts, and what `change` refuses: nothing was changed. `OutcomeUnknown` where the
    /// store did not answer in time, and what is found there later does not tell whether the change was made: so many have
    /// written since, or it was a removal. Else as the store failed.
    pub(crate) async fn update<T>(
        &self,
        conflicts: u32,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Change<T>>,
    ) -> Result<Updated<T>> {
        self.update_seen(conflicts, |seen| change(seen.value.as_deref())).await
    }

    /// As [`Register::update`], for a change that asks for more than the value.
    pub(crate) async fn update_seen<T>(
        &self,
        conflicts: u32,
        mut change: impl FnMut(&Seen) -> Result<Change<T>>,
    ) -> Result<Updated<T>> {
        let mut lost = 0;
        loop {
            let seen = self.told(self.find().await)?;
            let (value, keep, told) = match change(&seen)? {
                Change::Leave(told) => return Ok(Updated { told, conflicts: lost }),
                Change::Write(value, keep, told) => (Some(value), keep, told),
                Change::Remove(told) => (None, None, told),
            };
            let mark = random(self.op).map_err(|error| error.on(&self.about))?;
            let put = Put { value: value.map(|value| framed(&value, mark, &seen.marks)), keep };
            if self.told(self.write(&seen, mark, put).await)? {
                return Ok(Updated { told, conflicts: lost });
            }
            if lost >= conflicts {
                let text =
                    format!("somebody else was first {} times in a row; nothing was changed", lost + 1);
                return Err(Error::new(ErrorKind::Timeout, self.op, text).on(&self.about));
            }
            lost += 1;
            if !self.engine.sleep(pause(lost)).await {
                return Err(Error::closed(self.op).on(&self.about));
            }
        }
    }

    /// As [`Register::update`], for a change that made twice is the same as made once: where nobody can tell whether it was
    /// made, it is made again.
    pub(crate) async fn ensure<T>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Change<T>>,
    ) -> Result<T> {
        self.ensure_seen(|seen| change(seen.value.as_deref())).await
    }

    /// As [`Register::ensure`], for a change that asks for more than the value.
    pub(crate) async fn ensure_seen<T>(
        &self,
        mut change: impl FnMut(&Seen) -> Result<Change<T>>,
    ) -> Result<T> {
        let mut doubts = 0;
        loop {
            match self.update_seen(CONFLICTS, &mut change).await {
                Ok(updated) => return Ok(updated.told),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown && doubts < DOUBTS => doubts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// How many bytes a value may have.
    pub(crate) fn room(&self) -> usize {
        let promised = self.store().map_or(0, |store| store.promise().max_bytes);
        promised.saturating_sub(1 + MAX_MARKS * size_of::<Mark>())
    }

    /// Whether the store forgets what it is told to.
    pub(crate) fn forgets(&self) -> bool {
        self.store().is_ok_and(|store| store.promise().forgets)
    }

    /// An error of an operation on this register.
    pub(crate) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.op, text).on(&self.about)
    }

    /// Waits up to `limit` until something else than `seen` stands there, and tells what does.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As the store failed; `Closed` when the client is closed.
    pub(crate) async fn changed(&self, seen: &Stamp, limit: Duration) -> Result<Seen> {
        let patience = Patience::until(self.engine.clock.clone(), self.engine.clock.now().after(limit));
        let leaving = EndOnDrop(patience.clone());
        let mut asked = 0;
        loop {
            let (registers, stamp, waits) = (self.clone(), seen.clone(), patience.clone());
            let looking = self.engine.call(async move { registers.wait(&stamp, &waits).await });
            let mut looking = std::pin::pin!(looking);
            let looked = tokio::select! {
                biased;
                looked = &mut looking => looked,
                () = self.engine.closed.cancelled() => return Err(Error::closed(self.op).on(&self.about)),
                () = self.engine.sleep_on(patience.left()) => {
                    leaving.0.end();
                    looking.await
                }
            };
            match looked {
                Ok(found) if found.stamp != *seen || patience.is_ended() => {
                    return self.told(unframed(found));
                }
                Err(failure) if !failure.is_transient() => return self.told(Err(looked_only(failure))),
                // The store was not given time to come back yet.
                Err(_) if patience.is_ended() => return self.read().await,
                Ok(_) | Err(_) => {}
            }
            asked += 1;
            // Where the client closes meanwhile, the next round says so.
            self.engine.sleep(pause(asked).min(patience.left())).await;
        }
    }

    /// What stands there; asked again through an outage of the store.
    async fn find(&self) -> Result<Seen, Failure> {
        let mut outage = Outage::none();
        loop {
            let registers = self.clone();
            let failure = match self.engine.call(async move { registers.now().await }).await {
                Ok(found) => return unframed(found),
                Err(failure) => failure,
            };
            let Some(length) = outage.goes_on(&self.engine, &failure) else {
                return Err(looked_only(failure));
            };
            if !self.engine.sleep(length).await {
                return Err(closed());
            }
        }
    }

    /// Whether this write on what was seen took place; asked again through an outage of the store.
    async fn write(&self, seen: &Seen, mark: Mark, put: Put) -> Result<bool, Failure> {
        let mut outage = Outage::none();
        let mut doubt = None;
        loop {
            // The same write twice is one write: the state that it asks for is gone after the first.
            let (registers, stamp, put) = (self.clone(), seen.stamp.clone(), put.clone());
            match self.engine.call(async move { registers.swap(&stamp, &put).await }).await {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => match doubt {
                    None => return Ok(false),
                    Some(doubt) => {
                        let found = self.find().await.map_err(|_| Failure::clone(&doubt))?;
                        return took_place(seen, mark, &found).ok_or(doubt);
                    }
                },
                Err(failure) => {
                    let failure = outage.honest(failure);
                    let Some(length) = outage.goes_on(&self.engine, &failure) else { return Err(failure) };
                    if !self.engine.sleep(length).await {
                        let is_known = failure.effect == Effect::None;
                        return Err(if is_known { closed() } else { failure });
                    }
                    if failure.effect == Effect::Unknown {
                        doubt = Some(failure);
                    }
                }
            }
        }
    }

    async fn now(&self) -> Result<Registered, Failure> {
        self.store()?.read(&self.at).await
    }

    async fn swap(&self, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.store()?.swap(&self.at, seen, put).await
    }

    async fn wait(&self, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        self.store()?.changed(&self.at, seen, patience).await
    }

    fn store(&self) -> Result<&dyn Registers, Failure> {
        if let Some(store) = &self.elsewhere {
            return Ok(&**store);
        }
        let none = || Failure::new(FailureKind::Unsupported, Effect::None, "this store has no registers");
        self.engine.backend.registers().ok_or_else(none)
    }

    fn told<T>(&self, outcome: Result<T, Failure>) -> Result<T> {
        outcome.map_err(|failure| Error::failed(self.op, failure).on(&self.about))
    }
}

/// Looking has no effect, so it does not matter whether the question arrived.
fn looked_only(mut failure: Failure) -> Failure {
    failure.effect = Effect::None;
    failure
}

/// Whether a write that was not answered took place, by what stands there now; `None` where that does not tell.
fn took_place(seen: &Seen, mark: Mark, found: &Seen) -> Option<bool> {
    if found.marks.contains(&mark) {
        return Some(true);
    }
    // Where the last one that was seen is still listed, all who wrote since are.
    let listed = seen.marks.first().is_some_and(|last| found.marks.contains(last));
    listed.then_some(false)
}

/// A value as it is stored: how many marks, the marks, and what was to be written.
fn framed(value: &[u8], mark: Mark, before: &[Mark]) -> Vec<u8> {
    let kept = &before[..before.len().min(MAX_MARKS - 1)];
    let count = u8::try_from(kept.len() + 1).unwrap_or(u8::MAX);
    let mut frame = Vec::with_capacity(1 + (kept.len() + 1) * mark.len() + value.len());
    frame.push(count);
    frame.extend_from_slice(&mark);
    kept.iter().for_each(|mark| frame.extend_from_slice(mark));
    frame.extend_from_slice(value);
    frame
}

fn unframed(found: Registered) -> Result<Seen, Failure> {
    let Registered { value, stamp, left } = found;
    let Some(frame) = value else { return Ok(Seen { value: None, stamp, left, marks: Vec::new() }) };
    let parts = frame.split_first().and_then(|(count, rest)| {
        rest.split_at_checked(usize::from(*count) * size_of::<Mark>())
            .filter(|_| usize::from(*count) <= MAX_MARKS)
    });
    let Some((marks, value)) = parts else {
        let detail =
            "what is stored under this name was not written by this library; remove it or take another name";
        return Err(Failure::new(FailureKind::Foreign, Effect::None, detail));
    };
    let marks = marks.chunks_exact(size_of::<Mark>()).filter_map(|mark| Mark::try_from(mark).ok()).collect();
    Ok(Seen { value: Some(value.to_vec()), stamp, left, marks })
}

/// The pause before try number `tried`: up to 2 ms at first, up to half a second in the end. Half of it is chance.
fn pause(tried: u32) -> Duration {
    jittered(PAUSE_FIRST.saturating_mul(1 << tried.min(9)).min(PAUSE_LAST))
}

/// As many writers may come between a write and the question whether it took place.
const MAX_MARKS: usize = 16;
/// So many others may be first before a change is given up that everybody makes at his own pace.
const CONFLICTS: u32 = 10_000;
/// So often a change is made again that may have been made.
const DOUBTS: u32 = 3;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LAST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(marks: &[u8]) -> Seen {
        let marks = marks.iter().map(|byte| [*byte; 8]).collect();
        Seen { value: Some(Vec::new()), stamp: Stamp(String::new()), left: None, marks }
    }

    #[test]
    fn register_frame_reads_back_and_remembers_the_last_writers() {
        let mut marks = Vec::new();
        for byte in 0..40 {
            let frame = framed(b"value", [byte; 8], &marks);
            let found = Registered { value: Some(frame), stamp: Stamp("s".to_owned()), left: None };
            let found = unframed(found).unwrap();
            assert_eq!(found.value.as_deref(), Some(&b"value"[..]));
            let expected: Vec<Mark> = (0..=byte).rev().take(MAX_MARKS).map(|byte| [byte; 8]).collect();
            assert_eq!(found.marks, expected);
            marks = found.marks;
        }
    }

    #[test]
    fn a_foreign_value_is_refused() {
        for frame in [&b""[..], b"\x02short", b"\xffand a long text that has no room for so many marks"] {
            let found = Registered { value: Some(frame.to_vec()), stamp: Stamp(String::new()), left: None };
            assert_eq!(unframed(found).unwrap_err().kind, FailureKind::Foreign);
        }
    }

    #[test]
    fn whether_a_write_took_place_is_told_only_where_it_is_known() {
        let before = seen(&[3, 2, 1]);
        assert_eq!(took_place(&before, [9; 8], &seen(&[9, 3, 2, 1])), Some(true));
        assert_eq!(took_place(&before, [9; 8], &seen(&[5, 9, 3, 2])), Some(true));
        assert_eq!(took_place(&before, [9; 8], &seen(&[6, 5, 3, 2])), Some(false));
        assert_eq!(took_place(&before, [9; 8], &seen(&[7, 6, 5])), None, "too many wrote since");
        let gone = Seen { value: None, ..seen(&[]) };
        assert_eq!(took_place(&gone, [9; 8], &seen(&[7])), None, "it may have been removed since");
        assert_eq!(took_place(&before, [9; 8], &gone), None, "and so it may if this was to remove it");
    }
}
