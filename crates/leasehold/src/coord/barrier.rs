//! A barrier at which a number of parties wait for each other, again and again.
//!
//! Ground rules: to arrive last and to open is one swap of the register, and to break is another, so
//! each generation ends in one way for all. The results of the last generations are kept, so that a
//! party that reads late still learns the result of its own.

#[cfg(test)]
mod fuzz;
mod state;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Moment, Resource};

use super::members::{Member, Members};
use crate::engine::{Change, Engine, Register};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::RwLock;
use state::{Arrival, Cause, Ended, State};

/// A cyclic barrier: a number of parties wait for each other, pass together, and may do so again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let round = locks.barrier("round", 2);
/// let (one, two) = tokio::join!(round.wait(), round.wait());
/// let (one, two) = (one?, two?);
/// assert_eq!(one.generation, two.generation);
/// assert!(one.is_leader() != two.is_leader()); // one of them, the last to arrive
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// No party passes before all parties of its generation have arrived, and then all of them pass. If one
/// of them gives up, is cancelled, or dies before, none passes: the barrier is *broken*, and all
/// present and later waiters get `Broken`, until it is [reset](Barrier::reset).
///
/// # Does not promise
/// A death may be noticed late: that takes up to one and a third of the [ttl](Barrier::ttl). The death of a
/// party after it has passed does not break the barrier. If the store loses its values, waiting parties
/// get `OutcomeUnknown`.
///
/// # Room
/// Each party takes sixteen bytes of one value: some 32,000 fit on the stores of this library, or fewer on a
/// MySQL with a small `max_allowed_packet`. A backend of another author may have room for two hundred only. Each
/// party also holds a claim of a name that all share: 10,000 fit on etcd, and some thousands on memcached, SQLite and
/// MySQL. A barrier stays in the store once it was used, and cannot be removed, so draw no names at random.
#[derive(Clone, Debug)]
pub struct Barrier {
    engine: Arc<Engine>,
    name: Result<Resource>,
    parties: u32,
    members: Members,
}

/// The result of passing a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BarrierWaitResult {
    /// The number of this passage; it rises by one each time that the barrier opens, breaks or is reset.
    pub generation: u64,
    /// The number of parties that came after this one: `parties - 1` for the first to arrive,
    /// zero for the last.
    pub index: u32,
}

impl BarrierWaitResult {
    /// Returns `true` for the last party to arrive, which is exactly one.
    pub fn is_leader(&self) -> bool {
        self.index == 0
    }
}

impl Barrier {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, parties: u32, liveness_lock: RwLock) -> Barrier {
        let name = Resource::new(&format!("{name}!barrier")).map_err(Error::from);
        Barrier { engine, name, parties, members: Members::new(liveness_lock) }
    }

    /// Returns the name of the resource on which the parties that have arrived show that they live.
    pub(crate) fn liveness_name(name: &str) -> String {
        format!("{name}!arrived")
    }

    /// Sets how long a waiting party still counts as alive after the last sign of life of its
    /// process. Default: 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.members = self.members.ttl(ttl);
        self
    }

    /// Waits until all parties have arrived.
    ///
    /// # Cancel safety
    /// Dropping the future after it has arrived breaks the barrier, in the background: the others must
    /// not wait for a party that has left. If they have all arrived by then, they pass.
    ///
    /// # Errors
    /// `Broken` if a party gave up, was cancelled or died, or the barrier was reset, and until it is
    /// reset; `Invalid` if the barrier is used for another number of parties at present, or for more
    /// than fit into a value of this store; `Unsupported` if the store keeps no values, or has no
    /// readers, before anything is sent. Otherwise the failure of the store; the barrier is broken then
    /// as by a party that left.
    pub async fn wait(&self) -> Result<BarrierWaitResult> {
        self.wait_until(None).await
    }

    /// Waits up to `limit` until all parties have arrived; at its end the barrier is broken for all.
    ///
    /// A future of [`Barrier::wait`] that is dropped after `limit` breaks the barrier as well. It does so in
    /// the background, and its caller does not learn whether the others had arrived by then. This call
    /// returns when that is certain.
    ///
    /// # Cancel safety
    /// As [`Barrier::wait`].
    ///
    /// # Errors
    /// As [`Barrier::wait`], and `Timeout` for the party whose time was over.
    pub async fn wait_for(&self, limit: Duration) -> Result<BarrierWaitResult> {
        self.wait_until(Some(limit)).await
    }

    /// Returns `true` if it is broken, and has not been reset since.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The failure of the store.
    pub async fn is_broken(&self) -> Result<bool> {
        let register = self.register("read")?;
        Ok(State::read(&register, register.read().await?.value.as_deref())?.broken.is_some())
    }

    /// Returns the number of parties that have arrived and wait.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The failure of the store.
    pub async fn arrived(&self) -> Result<u32> {
        let register = self.register("read")?;
        let state = State::read(&register, register.read().await?.value.as_deref())?;
        Ok(u32::try_from(state.arrived.len()).unwrap_or(u32::MAX))
    }

    /// Resets the barrier, broken or not. Parties that wait at this moment get `Broken`.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not have been reset.
    ///
    /// # Errors
    /// The failure of the store.
    pub async fn reset(&self) -> Result<()> {
        let register = self.register("reset")?;
        let resetting = register.ensure(|found| {
            let mut state = State::read(&register, found)?;
            if state.arrived.is_empty() && state.broken.is_none() {
                return Ok(Change::Leave(()));
            }
            // A broken barrier has ended its generation already.
            if state.broken.take().is_none() {
                state.next(Ended::Broken(Cause::Reset));
            }
            state.broken = None;
            Ok(Change::Write(state.written(), None, ()))
        });
        resetting.await
    }

    async fn wait_until(&self, limit: Option<Duration>) -> Result<BarrierWaitResult> {
        let register = self.register("wait")?;
        let fits = register.capacity().saturating_sub(State::HEADER) / State::PARTY;
        if self.parties == 0 || usize::try_from(self.parties).is_ok_and(|parties| parties > fits) {
            let text = format!("{} parties cannot be kept here: choose between 1 and {fits}", self.parties);
            return Err(register.error(ErrorKind::Invalid, text));
        }
        let deadline = limit.map_or(Moment::NEVER, |limit| self.engine.clock().now().after(limit));
        let mut party = Party {
            engine: self.engine.clone(),
            register,
            members: self.members.clone(),
            member: None,
            arrived_as: None,
            is_arriving: false,
        };
        let member = party.members.join().await?;
        let id = member.id;
        party.member = Some(member);
        let outcome = party.arrive(id, self.parties, deadline).await;
        // Its generation has ended, for this party at least: there is nothing left to break.
        if outcome.is_ok() {
            party.arrived_as = None;
        }
        outcome
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone().map_err(|error| error.with_op(op))?, op)
    }
}

/// The reason why a party has not arrived yet: it would open the barrier for these others, which have to be looked at
/// before.
struct WouldOpen(Vec<u64>);

/// A waiting party. If it is dropped before its generation has ended, it breaks the barrier in
/// the background.
struct Party {
    engine: Arc<Engine>,
    register: Register,
    members: Members,
    member: Option<Member>,
    /// The number under which it may have arrived.
    arrived_as: Option<u64>,
    /// A request may be under way that makes it arrive.
    is_arriving: bool,
}

impl Party {
    async fn arrive(&mut self, id: u64, parties: u32, deadline: Moment) -> Result<BarrierWaitResult> {
        self.arrived_as = Some(id);
        self.is_arriving = true;
        let register = self.register.clone();
        let fresh = register.draw()?;
        let mut uncertain: Option<(Option<u64>, u64)> = None;
        // The other parties that were alive when they were last looked at. They are looked at again only if others have
        // arrived or left since.
        let mut living = Vec::new();
        let (made, arrival) = loop {
            let mut attempted = None;
            let arriving = register.update(CONFLICTS, |found| {
                let mut state = State::read(&register, found)?;
                if found.is_none() {
                    state.made = fresh;
                }
                let made = state.made;
                if let Some(earlier_arrival) = state.earlier_arrival(id, parties) {
                    return Ok(Change::Leave((made, Ok(earlier_arrival))));
                }
                if let Some((found_made, generation)) = uncertain
                    && (found_made.is_some_and(|found| found != made) || generation + 1 < state.generation)
                {
                    return Err(outcome_forgotten(&register));
                }
                if let Some(cause) = state.broken {
                    return Ok(Change::Leave((made, Ok(Arrival::Refused(cause)))));
                }
                state.check_parties(&register, parties)?;
                if state.opens_with_one_more(parties) && !state.arrived.iter().all(|id| living.contains(id)) {
                    return Ok(Change::Leave((made, Err(WouldOpen(state.arrived)))));
                }
                // If there was none, another party may have made it instead.
                attempted = Some((found.map(|_| made), state.generation));
                let arrival = state.arrive(id, parties);
                Ok(Change::Write(state.written(), None, (made, Ok(arrival))))
            });
            match arriving.await.map(|arrived| arrived.result) {
                Ok((made, Ok(arrival))) => break (made, arrival),
                // Where one party waits alone, or all come within one pace, no other party has looked.
                Ok((made, Err(WouldOpen(others)))) => match self.living_of(others).await? {
                    Some(others) => living = others,
                    None => break (made, Arrival::Refused(Cause::Died)),
                },
                // It may have arrived: then it is found among the arrived, or among those of the
                // generation before.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown && uncertain.is_none() => {
                    uncertain = attempted;
                    if uncertain.is_none() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        self.is_arriving = false;
        match arrival {
            Arrival::Passed(result) => Ok(result),
            Arrival::Waits(result) => self.wait_for_generation(id, made, result, deadline).await,
            Arrival::Refused(cause) => {
                self.arrived_as = None;
                Err(broken(&register, cause))
            }
        }
    }

    /// Returns those of the parties that are alive; `None` if one was dead, and the barrier is broken now. The
    /// parties had arrived before this call.
    async fn living_of(&self, mut parties: Vec<u64>) -> Result<Option<Vec<u64>>> {
        let living = self.members.living_through_outage("wait").await?;
        let dead = dead_among(&parties, &living);
        // If none of the dead waits there any more, the barrier has been broken, passed or reset meanwhile.
        if !dead.is_empty() && break_generation(&self.register, &dead, Cause::Died).await? {
            return Ok(None);
        }
        parties.retain(|party| !dead.contains(party));
        Ok(Some(parties))
    }

    /// Waits until the generation of the barrier `made` has ended.
    async fn wait_for_generation(
        &mut self,
        id: u64,
        made: u64,
        result: BarrierWaitResult,
        deadline: Moment,
    ) -> Result<BarrierWaitResult> {
        let clock = self.engine.clock().clone();
        let mut next_check = clock.now().after(self.members.pace());
        let mut seen = self.register.read().await?;
        loop {
            let state = State::read(&self.register, seen.value.as_deref())?;
            if state.made != made {
                return Err(outcome_forgotten(&self.register));
            }
            match state.outcome_of(result.generation) {
                Some(Ended::Passed) => return Ok(result),
                Some(Ended::Broken(cause)) => {
                    self.arrived_as = None;
                    return Err(broken(&self.register, cause));
                }
                Some(Ended::Forgotten) => return Err(outcome_forgotten(&self.register)),
                None if !state.arrived.contains(&id) => return Err(outcome_forgotten(&self.register)),
                None => {}
            }
            let now = clock.now();
            if now >= deadline {
                if break_generation(&self.register, &[id], Cause::TimedOut).await? {
                    self.arrived_as = None;
                    let text = "not all had arrived at the end of the time; the barrier is broken";
                    return Err(self.register.error(ErrorKind::Timeout, text));
                }
                seen = self.register.read().await?;
                continue;
            }
            if now >= next_check {
                next_check = now.after(self.members.pace());
                if let Err(error) = self.break_if_any_died(&state, id).await {
                    tracing::debug!(%error, "could not check that all arrived parties are alive; the check will be repeated");
                }
                seen = self.register.read().await?;
                continue;
            }
            let pause = now.until(next_check).min(now.until(deadline));
            seen = self.register.changed(&seen.stamp, pause).await?;
        }
    }

    /// Breaks the barrier if one of the arrived parties is dead.
    async fn break_if_any_died(&self, seen: &State, id: u64) -> Result<()> {
        let living = self.members.living().await?;
        let mut dead = dead_among(&seen.arrived, &living);
        dead.retain(|other| *other != id);
        if !dead.is_empty() {
            break_generation(&self.register, &dead, Cause::Died).await?;
        }
        Ok(())
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        let (register, member, is_arriving) = (self.register.clone(), self.member.take(), self.is_arriving);
        let Some(id) = self.arrived_as else { return };
        self.engine.spawn(async move {
            let left = match is_arriving {
                true => leave_while_arriving(&register, id).await,
                false => break_generation(&register, &[id], Cause::Cancelled).await.map(drop),
            };
            if let Err(error) = left {
                tracing::debug!(%error, "a party that left could not break the barrier; the other parties will notice that it is gone");
            }
            // Only now: without the sign of life the others do the same in its place.
            drop(member);
        });
    }
}

/// Returns the dead among parties that had arrived before the living ones were asked for. Each party shows
/// that it lives before it arrives, so the answer of that request is valid for all of these.
fn dead_among(arrived: &[u64], living: &HashSet<u64>) -> Vec<u64> {
    arrived.iter().copied().filter(|party| !living.contains(party)).collect()
}

/// Breaks the barrier if this party has arrived there, and otherwise ends its arrival.
///
/// The request by which it arrives may still be under way, and nothing orders a read behind it. So the state is written
/// again if the party is not in it: that request then finds another stamp than the one that it requires.
async fn leave_while_arriving(register: &Register, id: u64) -> Result<()> {
    let leaving = register.ensure(|found| {
        let mut state = State::read(register, found)?;
        if found.is_none() {
            state.made = register.draw()?;
        }
        if state.arrived.contains(&id) {
            state.break_by(Cause::Cancelled);
        }
        Ok(Change::Write(state.written(), None, ()))
    });
    leaving.await
}

/// Breaks the barrier if one of these waits there. Returns `false` if none does: it has been passed, or
/// broken, before.
async fn break_generation(register: &Register, leaving: &[u64], cause: Cause) -> Result<bool> {
    let mut attempted = None;
    let breaking = register.ensure(|found| {
        let mut state = State::read(register, found)?;
        if !state.arrived.iter().any(|id| leaving.contains(id)) {
            let made = attempted.is_some_and(|generation| {
                matches!(state.outcome_of(generation), Some(Ended::Broken(broken)) if broken == cause)
            });
            return Ok(Change::Leave(made));
        }
        attempted = Some(state.generation);
        state.break_by(cause);
        Ok(Change::Write(state.written(), None, true))
    });
    breaking.await
}

fn outcome_forgotten(register: &Register) -> Error {
    let text =
        "the outcome is no longer recorded: the barrier was used too often since, or the store has lost it";
    register.error(ErrorKind::OutcomeUnknown, text)
}

fn broken(register: &Register, cause: Cause) -> Error {
    let reason = match cause {
        Cause::TimedOut => "one party's time was over before all had arrived",
        Cause::Cancelled => "one party left before all had arrived",
        Cause::Died => "one party died before all had arrived",
        Cause::Reset => "it was reset while this party waited",
    };
    register.error(ErrorKind::Broken, format!("{reason}; reset the barrier to use it again"))
}

/// The number of other parties that may arrive or leave while one tries to arrive.
const CONFLICTS: u32 = 10_000;
