//! A compare-and-set register, with the operations that coordination primitives need: read, update, wait
//! for a change.
//!
//! Ground rules: the backend's futures run in tasks of the engine and are never dropped midway. Whether a
//! write of unknown outcome took place is resolved here, for all primitives: each value carries the
//! random marks of its last writers. The marks go with the value. So a write is not sent again if the first
//! one may have made a value that was removed since, and would be made twice.

#[cfg(test)]
mod fuzz;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers, Resource, Stamp,
    doubled,
};

use crate::engine::Engine;
use crate::engine::backend_call::closed;
use crate::engine::inspect::EndOnDrop;
use crate::engine::random;
use crate::engine::retry::{RetryState, jittered};
use crate::error::{Error, ErrorKind, Result};

/// A register in the store of a client.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    engine: Arc<Engine>,
    /// The store of the register, if it is not that of the client.
    other_store: Option<Arc<dyn Registers>>,
    at: Resource,
    /// The resource that errors name: the user's name for it, which need not be where the register is.
    about: Resource,
    /// The name of the operation in errors.
    op: &'static str,
}

/// The contents of a register when it was read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The value; `None` where the register is empty.
    pub(crate) value: Option<Vec<u8>>,
    /// The stamp of this state, used to wait for another.
    pub(crate) stamp: Stamp,
    /// The remaining time to live, by the store's own clock; `None` where the value does not expire.
    pub(crate) left: Option<Duration>,
    /// The marks of the last writers, the latest first.
    marks: Vec<Mark>,
}

/// The decision of an update on the contents that it found.
#[derive(Clone, Debug)]
pub(crate) enum Change<T> {
    /// No change.
    Leave(T),
    /// A write of this value, with an optional time to live.
    Write(Vec<u8>, Option<Duration>, T),
    /// A removal of the value.
    Remove(T),
}

/// The result of an update.
#[derive(Clone, Debug)]
pub(crate) struct Updated<T> {
    /// The return value of the attempt that took effect.
    pub(crate) result: T,
    /// The number of conflicts with other writers.
    pub(crate) conflicts: u32,
}

/// The mark of a writer: drawn at random for each attempt.
type Mark = [u8; 8];

impl Engine {
    /// Returns what the store promises of its registers.
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
    /// Opens the register `at`.
    ///
    /// # Errors
    /// `Unsupported` where the store has none.
    pub(crate) fn open(engine: &Arc<Engine>, at: Resource, op: &'static str) -> Result<Register> {
        engine.registers(op)?;
        Ok(Register { engine: engine.clone(), other_store: None, about: at.clone(), at, op })
    }

    /// Opens the register `at` of a store that is not the client's own.
    pub(crate) fn in_store(
        engine: &Arc<Engine>,
        store: Arc<dyn Registers>,
        at: Resource,
        op: &'static str,
    ) -> Register {
        Register { engine: engine.clone(), other_store: Some(store), about: at.clone(), at, op }
    }

    /// Returns this register with errors that name `resource`, to which it belongs.
    pub(crate) fn about(self, resource: &Resource) -> Register {
        Register { about: resource.clone(), ..self }
    }

    /// Returns the name of the operation in errors.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// Reads the register.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of the store, once an outage has lasted longer than the client tolerates.
    pub(crate) async fn read(&self) -> Result<Seen> {
        self.with_context(self.find().await)
    }

    /// Changes the register, retrying after up to `conflicts` conflicts with other writers.
    ///
    /// `change` is called again after each conflict, so it must have no side effects. A removal leaves no
    /// mark: if its answer was lost and the register is found empty, it is unknown which client removed
    /// the value.
    ///
    /// # Cancel safety
    /// If the future is dropped, the change may or may not be made.
    ///
    /// # Errors
    /// `Timeout` after too many conflicts, `Invalid` for a value that is longer than the capacity, and any error of
    /// `change`: nothing was changed. `OutcomeUnknown`
    /// where the store did not answer in time and the later contents do not show whether the change was made:
    /// too many writes came since, it was a removal, or it was a first value and there is none. Otherwise those
    /// of the store.
    pub(crate) async fn update<T>(
        &self,
        conflicts: u32,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Change<T>>,
    ) -> Result<Updated<T>> {
        self.update_seen(conflicts, |seen| change(seen.value.as_deref())).await
    }

    /// Changes the register like [`Register::update`], for a change that needs more than the value.
    pub(crate) async fn update_seen<T>(
        &self,
        conflicts: u32,
        mut change: impl FnMut(&Seen) -> Result<Change<T>>,
    ) -> Result<Updated<T>> {
        let mut lost = 0;
        loop {
            let seen = self.with_context(self.find().await)?;
            let (value, keep, result) = match change(&seen)? {
                Change::Leave(result) => return Ok(Updated { result, conflicts: lost }),
                Change::Write(value, keep, result) => (Some(value), keep, result),
                Change::Remove(result) => (None, None, result),
            };
            if let Some(value) = &value {
                self.check_length(value)?;
            }
            let mark = random(self.op).map_err(|error| error.on(&self.about))?;
            let put = Put { value: value.map(|value| framed(&value, mark, &seen.marks)), keep };
            if self.with_context(self.write(&seen, mark, put).await)? {
                return Ok(Updated { result, conflicts: lost });
            }
            if lost >= conflicts {
                let text =
                    format!("another client was first {} times in a row; nothing was changed", lost + 1);
                return Err(Error::new(ErrorKind::Timeout, self.op, text).on(&self.about));
            }
            lost += 1;
            if !self.engine.sleep(pause(lost)).await {
                return Err(Error::closed(self.op).on(&self.about));
            }
        }
    }

    /// Changes the register like [`Register::update`], for an idempotent change: where it is unknown
    /// whether the change was made, it is made again, a few times at most. What `change` draws for a value that
    /// it finds missing must be drawn anew each time.
    pub(crate) async fn ensure<T>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Change<T>>,
    ) -> Result<T> {
        self.ensure_seen(|seen| change(seen.value.as_deref())).await
    }

    /// Changes the register like [`Register::ensure`], for a change that needs more than the value.
    pub(crate) async fn ensure_seen<T>(
        &self,
        mut change: impl FnMut(&Seen) -> Result<Change<T>>,
    ) -> Result<T> {
        let mut doubts = 0;
        loop {
            match self.update_seen(CONFLICTS, &mut change).await {
                Ok(updated) => return Ok(updated.result),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown && doubts < DOUBTS => doubts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the maximum size of a value in bytes.
    pub(crate) fn capacity(&self) -> usize {
        let promised = self.store().map_or(0, |store| store.promise().max_bytes);
        promised.saturating_sub(1 + MAX_MARKS * size_of::<Mark>())
    }

    /// Checks that a value fits with all the marks that later writers add, and not only with those of now.
    fn check_length(&self, value: &[u8]) -> Result<()> {
        let (length, capacity) = (value.len(), self.capacity());
        if length <= capacity {
            return Ok(());
        }
        let text = format!("a value of {length} bytes is too long: this store takes {capacity} at most");
        Err(self.error(ErrorKind::Invalid, text))
    }

    /// Returns `true` if the store supports a time to live.
    pub(crate) fn forgets(&self) -> bool {
        self.store().is_ok_and(|store| store.promise().forgets)
    }

    /// Returns the longest time to live.
    pub(crate) fn max_keep(&self) -> Duration {
        self.store().map_or(Duration::MAX, |store| store.promise().max_keep)
    }

    /// Returns the largest difference by which [`Seen::left`] is rounded down.
    pub(crate) fn rounding(&self) -> Duration {
        self.store().map_or(Duration::ZERO, |store| store.promise().rounding)
    }

    /// Draws a number that no other client draws.
    ///
    /// # Errors
    /// `Unavailable` where the operating system gives no random bytes.
    pub(crate) fn draw(&self) -> Result<u64> {
        random(self.op).map(u64::from_be_bytes).map_err(|error| error.on(&self.about))
    }

    /// Returns an error of an operation on this register.
    pub(crate) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.op, text).on(&self.about)
    }

    /// Waits up to `limit` until the state differs from `seen`, and returns the state.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of the store; `Closed` when the client is closed.
    pub(crate) async fn changed(&self, seen: &Stamp, limit: Duration) -> Result<Seen> {
        let end = self.engine.clock.now().after(limit);
        let patience = Patience::until(self.engine.clock.clone(), end);
        let leaving = EndOnDrop(patience.clone());
        let mut asked = 0;
        loop {
            let (registers, stamp, waits) = (self.clone(), seen.clone(), patience.clone());
            let request = self.engine.run_read(async move {
                registers.engine.wait_until_closing(&waits, registers.wait(&stamp, &waits)).await
            });
            let mut request = std::pin::pin!(request);
            let outcome = tokio::select! {
                biased;
                outcome = &mut request => outcome,
                () = self.engine.closed.cancelled() => return Err(Error::closed(self.op).on(&self.about)),
                _ = self.engine.sleep_until(end) => {
                    // The request is not dropped: the end of patience makes the backend answer at once.
                    leaving.0.end();
                    request.await
                }
            };
            match outcome {
                Ok(found) if found.stamp != *seen || patience.is_ended() => {
                    return self.with_context(unframed(found));
                }
                Err(failure) if !failure.is_transient() => {
                    return self.with_context(Err(failure.with_effect(Effect::None)));
                }
                // The read applies the outage tolerance, which this wait has not.
                Err(_) if patience.is_ended() => return self.read().await,
                Ok(_) | Err(_) => {}
            }
            asked += 1;
            // If the client closes meanwhile, the next round returns that.
            self.engine.sleep(pause(asked).min(patience.left())).await;
        }
    }

    /// Reads the register; retries through an outage of the store.
    async fn find(&self) -> Result<Seen, Failure> {
        let mut retries = RetryState::none();
        loop {
            let registers = self.clone();
            let failure = match self.engine.run_read(async move { registers.now().await }).await {
                Ok(found) => return unframed(found),
                Err(failure) => failure,
            };
            let Some(length) = retries.next_pause(&self.engine, &failure) else {
                return Err(failure.with_effect(Effect::None));
            };
            if !self.engine.sleep(length).await {
                return Err(closed());
            }
        }
    }

    /// Writes if the register is still as seen. Returns whether the write took place; retries through an
    /// outage of the store.
    async fn write(&self, seen: &Seen, mark: Mark, put: Put) -> Result<bool, Failure> {
        let may_repeat = may_be_repeated(seen, &put, self.store()?.promise().names_removals);
        let mut retries = RetryState::none();
        let mut doubt = None;
        loop {
            let (registers, stamp, put) = (self.clone(), seen.stamp.clone(), put.clone());
            match self.engine.run_write(async move { registers.swap(&stamp, &put).await }).await {
                Ok(Some(_)) => return Ok(true),
                // The state has changed: by another writer, or by an earlier attempt of this write whose
                // answer was lost. The marks show which.
                Ok(None) => match doubt {
                    None => return Ok(false),
                    Some(doubt) => return self.resolve(seen, mark, doubt).await,
                },
                Err(failure) => {
                    let failure = retries.with_overall_effect(failure);
                    let Some(length) = retries.next_pause(&self.engine, &failure) else {
                        return Err(failure);
                    };
                    if !self.engine.sleep(length).await {
                        let is_known = failure.effect == Effect::None;
                        return Err(if is_known { closed() } else { failure });
                    }
                    if failure.effect == Effect::Unknown {
                        if !may_repeat {
                            return self.resolve(seen, mark, failure).await;
                        }
                        doubt = Some(failure);
                    }
                }
            }
        }
    }

    /// Finds out whether a write took place whose answer was lost.
    async fn resolve(&self, seen: &Seen, mark: Mark, doubt: Failure) -> Result<bool, Failure> {
        let found = self.find().await.map_err(|_| doubt.clone())?;
        took_place(seen, mark, &found).ok_or(doubt)
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
        if let Some(store) = &self.other_store {
            return Ok(&**store);
        }
        let none = || Failure::new(FailureKind::Unsupported, Effect::None, "this store has no registers");
        self.engine.backend.registers().ok_or_else(none)
    }

    fn with_context<T>(&self, outcome: Result<T, Failure>) -> Result<T> {
        outcome.map_err(|failure| Error::failed(self.op, failure).on(&self.about))
    }
}

/// Returns `true` if a write has no effect after the first: the state that it requires never returns.
fn may_be_repeated(seen: &Seen, put: &Put, names_removals: bool) -> bool {
    // Without a name for each removal all states without a value are one. The end of a time to live has no name.
    let returns = seen.value.is_none() && !(names_removals && put.keep.is_none());
    // A removal of nothing changes nothing.
    !returns || put.value.is_none()
}

/// Returns whether a write without an answer took place, judged by the present contents; `None` where
/// they do not show it.
fn took_place(seen: &Seen, mark: Mark, found: &Seen) -> Option<bool> {
    if found.marks.contains(&mark) {
        return Some(true);
    }
    // If the last writer that was seen is still listed, so are all that wrote since.
    let listed = seen.marks.first().is_some_and(|last| found.marks.contains(last));
    listed.then_some(false)
}

#[cfg(test)]
impl Seen {
    /// Returns what is seen of a value without its writers.
    pub(crate) fn of(value: &[u8], left: Option<Duration>) -> Seen {
        Seen { value: Some(value.to_vec()), stamp: Stamp::new(""), left, marks: Vec::new() }
    }
}

/// Encodes a value for storage: the number of marks, the marks, and the value itself.
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
            .filter(|_| (1..=MAX_MARKS).contains(&usize::from(*count)))
    });
    let Some((marks, value)) = parts else {
        let detail =
            "the value under this name was not written by this library; remove it or use another name";
        return Err(Failure::new(FailureKind::Foreign, Effect::None, detail));
    };
    let marks = marks.chunks_exact(size_of::<Mark>()).filter_map(|mark| Mark::try_from(mark).ok()).collect();
    Ok(Seen { value: Some(value.to_vec()), stamp, left, marks })
}

/// Returns the pause before try number `tried`: up to 2 ms at first, up to half a second in the end. Half
/// of it is random.
fn pause(tried: u32) -> Duration {
    jittered(doubled(PAUSE_FIRST, PAUSE_LAST, tried))
}

/// The number of marks that a value keeps, and so the number of later writes after which the fate of a
/// write is unknown.
const MAX_MARKS: usize = 16;
/// The number of conflicts after which a change is given up, for changes that each client makes at its
/// own pace.
const CONFLICTS: u32 = 10_000;
/// The number of times that an idempotent change of unknown outcome is made again.
const DOUBTS: u32 = 3;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LAST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(marks: &[u8]) -> Seen {
        let marks = marks.iter().map(|byte| [*byte; 8]).collect();
        Seen { value: Some(Vec::new()), stamp: Stamp::new(""), left: None, marks }
    }

    #[test]
    fn register_frame_reads_back_and_remembers_the_last_writers() {
        let mut marks = Vec::new();
        for byte in 0..40 {
            let frame = framed(b"value", [byte; 8], &marks);
            let found = Registered { value: Some(frame), stamp: Stamp::new("s"), left: None };
            let found = unframed(found).unwrap();
            assert_eq!(found.value.as_deref(), Some(&b"value"[..]));
            let expected: Vec<Mark> = (0..=byte).rev().take(MAX_MARKS).map(|byte| [byte; 8]).collect();
            assert_eq!(found.marks, expected);
            marks = found.marks;
        }
    }

    #[test]
    fn a_foreign_value_is_refused() {
        for frame in [
            &b""[..],
            b"\0no writer",
            b"\x02short",
            b"\xffand a long text that has no room for so many marks",
        ] {
            let found = Registered { value: Some(frame.to_vec()), stamp: Stamp::new(""), left: None };
            assert_eq!(unframed(found).unwrap_err().kind, FailureKind::Foreign);
        }
    }

    #[test]
    fn write_that_may_be_made_twice_is_not_repeated() {
        let (present, absent) = (seen(&[1]), Seen { value: None, ..seen(&[]) });
        let put = |keep| Put { value: Some(Vec::new()), keep };
        let (lasting, brief) = (put(None), put(Some(Duration::from_secs(1))));
        let removal = Put { value: None, keep: None };
        for names_removals in [false, true] {
            for put in [&lasting, &brief, &removal] {
                assert!(may_be_repeated(&present, put, names_removals), "{put:?}");
            }
            assert!(may_be_repeated(&absent, &removal, names_removals));
            assert!(!may_be_repeated(&absent, &brief, names_removals));
            assert_eq!(may_be_repeated(&absent, &lasting, names_removals), names_removals);
        }
    }

    #[test]
    fn unknown_write_outcome_is_reported_as_unknown() {
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
