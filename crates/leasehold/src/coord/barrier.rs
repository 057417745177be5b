//! Where a number of parties wait for each other, again and again.
//!
//! Ground rules: to arrive last and to open is one swap of the register, and to break is another, so each generation ends in
//! one way for all. How the last generations ended is kept, so that one who looks late still finds out about his own.

mod state;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Moment, Resource};

use super::members::{Member, Members};
use crate::engine::{Change, Engine, Register};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::RwLock;
use state::{Arrival, Cause, Ended, State};

/// A cyclic barrier: so many parties wait for each other, pass together, and may do so again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Leasehold::open("mem:").await?;
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
/// Nobody passes before all parties of his generation have arrived, and then all of them pass. Where one of them gives up, is
/// cancelled, or dies before, nobody passes: the barrier is *broken*, all who wait and all who come are told
/// `Broken`, until somebody [resets](Barrier::reset) it.
///
/// # Does not promise
/// That a death is noticed at once: it takes up to one and a third of the [ttl](Barrier::ttl). That one who has passed, and
/// died then, is missed: he did pass.
#[derive(Clone, Debug)]
pub struct Barrier {
    engine: Arc<Engine>,
    name: Result<Resource>,
    parties: u32,
    members: Members,
}

/// A barrier was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passage {
    /// Which passage of this barrier it was; it rises by one each time that the barrier opens, breaks or is reset.
    pub generation: u64,
    /// How many came after this one: `parties - 1` for the first to arrive, zero for the last.
    pub index: u32,
}

impl Passage {
    /// Whether this party was the last to arrive, which exactly one is.
    pub fn is_leader(&self) -> bool {
        self.index == 0
    }
}

impl Barrier {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, parties: u32, signs: RwLock) -> Barrier {
        let name = Resource::new(&format!("{name}!barrier")).map_err(Error::from);
        Barrier { engine, name, parties, members: Members::new(signs) }
    }

    /// The name of the resource on which those who have arrived show that they live.
    pub(crate) fn signs_of(name: &str) -> String {
        format!("{name}!arrived")
    }

    /// How long one who waits still counts as alive after his process was last heard of. 30 s unless set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.members = self.members.ttl(ttl);
        self
    }

    /// Waits until all parties have arrived.
    ///
    /// # Cancel safety
    /// To drop the future once it has arrived breaks the barrier, in the background: the others must not wait for one who has
    /// left. Where they have all arrived by then, they pass.
    ///
    /// # Errors
    /// `Broken` where a party gave up, was cancelled or died, or the barrier was reset, and until it is reset; `Invalid`
    /// where the barrier is used for another number of parties just now, or for more than fit into a value of this store;
    /// `Unsupported` where the store keeps no values, or knows no readers, before anything is sent. Else as the store failed;
    /// the barrier is broken then as by one who left.
    pub async fn wait(&self) -> Result<Passage> {
        self.wait_until(None).await
    }

    /// The same for up to `limit`; at its end the barrier is broken for all.
    ///
    /// # Cancel safety
    /// As [`Barrier::wait`].
    ///
    /// # Errors
    /// As [`Barrier::wait`], and `Timeout` for the one whose time was over.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<Passage> {
        self.wait_until(Some(limit)).await
    }

    /// Whether it is broken, and has not been reset since.
    ///
    /// # Errors
    /// As the store failed.
    pub async fn is_broken(&self) -> Result<bool> {
        let register = self.register("read")?;
        Ok(State::read(&register, register.read().await?.value.as_deref())?.broken.is_some())
    }

    /// How many have arrived and wait.
    ///
    /// # Errors
    /// As the store failed.
    pub async fn arrived(&self) -> Result<u32> {
        let register = self.register("read")?;
        let state = State::read(&register, register.read().await?.value.as_deref())?;
        Ok(u32::try_from(state.arrived.len()).unwrap_or(u32::MAX))
    }

    /// Makes it whole again. Those who wait at this moment are told `Broken`.
    ///
    /// # Cancel safety
    /// Of a dropped future it may be reset or not.
    ///
    /// # Errors
    /// As the store failed.
    pub async fn reset(&self) -> Result<()> {
        let register = self.register("reset")?;
        let resetting = register.ensure(|found| {
            let mut state = State::read(&register, found)?;
            if state.arrived.is_empty() && state.broken.is_none() {
                return Ok(Change::Leave(()));
            }
            // What is broken has ended its generation already.
            if state.broken.take().is_none() {
                state.next(Ended::Broken(Cause::Reset));
            }
            state.broken = None;
            Ok(Change::Write(state.written(), None, ()))
        });
        resetting.await
    }

    async fn wait_until(&self, limit: Option<Duration>) -> Result<Passage> {
        let register = self.register("wait")?;
        let fits = register.room().saturating_sub(State::HEADER) / State::PARTY;
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
            stands: None,
        };
        let member = party.members.join().await?;
        let id = member.id;
        party.member = Some(member);
        let passed = party.arrive(id, self.parties, deadline).await;
        // Its generation has ended, for this party at least: there is nothing left to break.
        if passed.is_ok() {
            party.stands = None;
        }
        passed
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone()?, op)
    }
}

/// One who waits. Dropped before his generation has ended he breaks it, in the background.
struct Party {
    engine: Arc<Engine>,
    register: Register,
    members: Members,
    member: Option<Member>,
    /// Under which number it may have arrived.
    stands: Option<u64>,
}

impl Party {
    async fn arrive(&mut self, id: u64, parties: u32, deadline: Moment) -> Result<Passage> {
        self.stands = Some(id);
        let register = self.register.clone();
        let mut doubted = None;
        let arrival = loop {
            let mut attempted = None;
            let arriving = register.update(CONFLICTS, |found| {
                let mut state = State::read(&register, found)?;
                if let Some(stood) = state.stood(id, parties) {
                    return Ok(Change::Leave(stood));
                }
                if doubted.is_some_and(|generation| generation + 1 < state.generation) {
                    return Err(nobody_knows(&register));
                }
                if let Some(cause) = state.broken {
                    return Ok(Change::Leave(Arrival::Refused(cause)));
                }
                state.is_for(&register, parties)?;
                attempted = Some(state.generation);
                let arrival = state.arrive(id, parties);
                Ok(Change::Write(state.written(), None, arrival))
            });
            match arriving.await {
                Ok(arrived) => break arrived.told,
                // It may have arrived: then it is found where it stands, or stood in the generation before.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown && doubted.is_none() => {
                    doubted = attempted;
                    if doubted.is_none() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        match arrival {
            Arrival::Passed(passage) => Ok(passage),
            Arrival::Waits(passage) => self.passage(id, passage, deadline).await,
            Arrival::Refused(cause) => {
                self.stands = None;
                Err(broken(&register, cause))
            }
        }
    }

    /// Waits until the generation has ended.
    async fn passage(&mut self, id: u64, passage: Passage, deadline: Moment) -> Result<Passage> {
        let clock = self.engine.clock().clone();
        let mut look_at = clock.now().after(self.members.pace());
        let mut seen = self.register.read().await?;
        loop {
            let state = State::read(&self.register, seen.value.as_deref())?;
            match state.how_ended(passage.generation) {
                Some(Ended::Passed) => return Ok(passage),
                Some(Ended::Broken(cause)) => {
                    self.stands = None;
                    return Err(broken(&self.register, cause));
                }
                Some(Ended::Forgotten) => return Err(nobody_knows(&self.register)),
                None if !state.arrived.contains(&id) => return Err(nobody_knows(&self.register)),
                None => {}
            }
            let now = clock.now();
            if now >= deadline {
                if break_it(&self.register, &[id], Cause::TimedOut).await? {
                    self.stands = None;
                    let text = "not all had arrived at the end of the time; the barrier is broken";
                    return Err(self.register.error(ErrorKind::Timeout, text));
                }
                seen = self.register.read().await?;
                continue;
            }
            if now >= look_at {
                look_at = now.after(self.members.pace());
                if let Err(error) = self.break_for_the_dead(&state, id).await {
                    tracing::debug!(%error, "whether all who have arrived live is asked again");
                }
                seen = self.register.read().await?;
                continue;
            }
            let pause = now.until(look_at).min(now.until(deadline));
            seen = self.register.changed(&seen.stamp, pause).await?;
        }
    }

    /// Breaks the barrier where one of those who stood there is dead.
    async fn break_for_the_dead(&self, seen: &State, id: u64) -> Result<()> {
        let living = self.members.living().await?;
        // Each shows that he lives before he arrives, so who had arrived before that question can be told dead by its answer.
        let dead: Vec<u64> =
            seen.arrived.iter().copied().filter(|other| *other != id && !living.contains(other)).collect();
        if !dead.is_empty() {
            break_it(&self.register, &dead, Cause::Died).await?;
        }
        Ok(())
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        let (register, member) = (self.register.clone(), self.member.take());
        let Some(id) = self.stands else { return };
        self.engine.spawn(async move {
            if let Err(error) = break_it(&register, &[id], Cause::Cancelled).await {
                tracing::debug!(%error, "one who left could not break the barrier; the others will find him gone");
            }
            // Only now: without the sign of life the others do the same in his place.
            drop(member);
        });
    }
}

/// Breaks the barrier if one of these waits there. `false` where none does: it has been passed, or broken, before.
async fn break_it(register: &Register, leaving: &[u64], cause: Cause) -> Result<bool> {
    let mut attempted = None;
    let breaking = register.ensure(|found| {
        let mut state = State::read(register, found)?;
        if !state.arrived.iter().any(|id| leaving.contains(id)) {
            let made = attempted.is_some_and(|generation| {
                matches!(state.how_ended(generation), Some(Ended::Broken(broken)) if broken == cause)
            });
            return Ok(Change::Leave(made));
        }
        attempted = Some(state.generation);
        state.next(Ended::Broken(cause));
        state.broken = Some(cause);
        Ok(Change::Write(state.written(), None, true))
    });
    breaking.await
}

fn nobody_knows(register: &Register) -> Error {
    let text = "it was used so often since that nobody knows any more, or the store has lost it";
    register.error(ErrorKind::OutcomeUnknown, text)
}

fn broken(register: &Register, cause: Cause) -> Error {
    let who = match cause {
        Cause::TimedOut => "one party's time was over before all had arrived",
        Cause::Cancelled => "one party left before all had arrived",
        Cause::Died => "one party died before all had arrived",
        Cause::Reset => "it was reset while this party waited",
    };
    register.error(ErrorKind::Broken, format!("{who}; reset the barrier to use it again"))
}

/// So many others may arrive or leave while one tries to arrive.
const CONFLICTS: u32 = 10_000;
