//! A latch that opens after a number of counts.
//!
//! Ground rules: the register keeps an id for each count, and not only their number: so a count that is
//! repeated because its answer was lost is one count. Each instance of a latch has a number drawn at
//! random, so an instance that was removed is not confused with the next.

#[cfg(test)]
mod fuzz;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Resource;

use crate::engine::registers::record::{Parts, Record, are_distinct, foreign};
use crate::engine::{Change, Engine, Register};
use crate::error::{Error, ErrorKind, Result};

/// A latch: closed until it was counted down a number of times, and then open for good.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let loaded = locks.latch("shards loaded", 2);
/// loaded.count_down_as("shard 1").await?;
/// loaded.count_down_as("shard 1").await?; // again, after a crash perhaps: counted once
/// assert_eq!(loaded.remaining().await?, 1);
/// loaded.count_down_as("shard 2").await?;
/// loaded.wait().await?; // it is open: everybody passes, now and later
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// No waiter passes before the last count, and every waiter passes after it, also one that comes long
/// after. A count is made once, even if its answer is lost on the way; by [name](Latch::count_down_as)
/// even if its program is started anew.
///
/// # Does not promise
/// The latch may never open: a latch does not know its future counters, so the death of one cannot be
/// noticed. If that matters, give the wait a limit, or use a [`Barrier`](crate::Barrier).
///
/// # Room
/// Each count takes eight bytes of one value: some 65,000 fit on the stores of this library, or fewer on a
/// MySQL with a small `max_allowed_packet`. A backend of another author may have room for four hundred only. The
/// latch stays in the store, open, until it is [removed](Latch::reset).
#[derive(Clone, Debug)]
pub struct Latch {
    engine: Arc<Engine>,
    name: Result<Resource>,
    count: u32,
}

impl Latch {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, count: u32) -> Latch {
        let name = Resource::new(&format!("{name}!latch")).map_err(Error::from);
        Latch { engine, name, count }
    }

    /// Counts down once. A latch that is open stays open.
    ///
    /// # Cancel safety
    /// If the future is dropped, the count may or may not be made. If that matters, count
    /// [by name](Latch::count_down_as).
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no values; `Invalid` if the latch was made for another number,
    /// or for more than fit into a value of this store; otherwise the failure of the store. After
    /// `OutcomeUnknown` it may or may not be counted.
    pub async fn count_down(&self) -> Result<()> {
        let register = self.register("count down")?;
        self.count_as(&register, register.draw()?).await
    }

    /// Counts down once in the name of `member`, which is counted once, however often that is repeated.
    ///
    /// Names are compared by 64 bits of their BLAKE3 hash. Two names with the same bits count as one,
    /// and the latch does not open: that does not happen by chance, but a user that may choose names
    /// freely can search for two within hours.
    ///
    /// # Cancel safety
    /// If the future is dropped, the count may or may not be made; repeating it does no harm.
    ///
    /// # Errors
    /// As [`Latch::count_down`].
    pub async fn count_down_as(&self, member: &str) -> Result<()> {
        self.count_as(&self.register("count down")?, id_of(member)).await
    }

    async fn count_as(&self, register: &Register, id: u64) -> Result<()> {
        let mut counts_in = None;
        loop {
            let counting = register.ensure(|found| {
                let mut record = self.state(register, found)?;
                if found.is_none() && counts_in.is_none() {
                    // It is made before it is counted in, so that its number is known by then.
                    return Ok(Change::Write(record.written(), None, false));
                }
                // A latch that another client removed meanwhile had the count, or needs none: the next
                // one must not get it.
                let was_removed = *counts_in.get_or_insert(record.made) != record.made;
                if was_removed || record.is_open() || record.counted.contains(&id) {
                    return Ok(Change::Leave(true));
                }
                record.counted.push(id);
                Ok(Change::Write(record.written(), None, true))
            });
            if counting.await? {
                return Ok(());
            }
        }
    }

    /// Returns the number of missing counts.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Latch::count_down`].
    pub async fn remaining(&self) -> Result<u32> {
        let register = self.register("read")?;
        let found = register.read().await?.value;
        Ok(self.state(&register, found.as_deref())?.remaining())
    }

    /// Waits until it is open.
    ///
    /// A waiter takes nothing, so there is no form with a limit: drop the future when it has taken long
    /// enough.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Client::open("mem:").await?;
    /// let loaded = locks.latch("shards loaded", 1);
    /// let limit = Duration::from_millis(20);
    /// assert!(tokio::time::timeout(limit, loaded.wait()).await.is_err()); // not open yet
    /// loaded.count_down().await?;
    /// assert!(tokio::time::timeout(limit, loaded.wait()).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Latch::count_down`]; `Broken` if the latch was [removed](Latch::reset) meanwhile.
    pub async fn wait(&self) -> Result<()> {
        let register = self.register("wait")?;
        // Written if the latch does not exist yet, so that an instance that is removed and made anew can
        // be distinguished from this one.
        let making = register.ensure(|found| {
            let record = self.state(&register, found)?;
            let made = record.made;
            Ok(if found.is_some() {
                Change::Leave(made)
            } else {
                Change::Write(record.written(), None, made)
            })
        });
        let made = making.await?;
        let mut seen = register.read().await?;
        loop {
            let record = self.state(&register, seen.value.as_deref())?;
            if record.made != made {
                return Err(register.error(ErrorKind::Broken, "the latch was removed during the wait"));
            }
            if record.is_open() {
                return Ok(());
            }
            seen = register.changed(&seen.stamp, CHANGE_WAIT_MAX).await?;
        }
    }

    /// Removes the latch: later users of the name have a new one. Present waiters get `Broken`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the latch may or may not exist.
    ///
    /// # Errors
    /// As [`Latch::count_down`].
    pub async fn reset(&self) -> Result<()> {
        let register = self.register("reset")?;
        let mut removes = None;
        let removing = register.ensure(|found| {
            let Some(found) = found else { return Ok(Change::Leave(())) };
            let made = State::read(&register, found)?.made;
            // If it is another one by now, the first one is removed.
            let is_first = *removes.get_or_insert(made) == made;
            Ok(if is_first { Change::Remove(()) } else { Change::Leave(()) })
        });
        removing.await
    }

    /// Returns the state as it was found, or a new one, whose number is drawn each time: one that was made and removed
    /// must not return.
    fn state(&self, register: &Register, found: Option<&[u8]>) -> Result<State> {
        let fits = (register.capacity().saturating_sub(State::HEADER)) / size_of::<u64>();
        if usize::try_from(self.count).is_ok_and(|count| count > fits) || self.count == 0 {
            let text = format!("a latch of {} cannot be kept here: choose between 1 and {fits}", self.count);
            return Err(register.error(ErrorKind::Invalid, text));
        }
        let Some(found) = found else {
            return Ok(State { made: register.draw()?, count: self.count, counted: Vec::new() });
        };
        let state = State::read(register, found)?;
        if state.count != self.count {
            let text = format!(
                "this latch was made for {} counts and not for {}; use one number, or remove the latch first",
                state.count, self.count
            );
            return Err(register.error(ErrorKind::Invalid, text));
        }
        Ok(state)
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone().map_err(|error| error.with_op(op))?, op)
    }
}

/// The value of the register.
struct State {
    /// The number that distinguishes this instance of the latch from all others.
    made: u64,
    count: u32,
    /// The numbers of the counters.
    counted: Vec<u64>,
}

impl State {
    /// The bytes of a value beside the counts.
    const HEADER: usize = 1 + 3 * size_of::<u64>();

    fn read(register: &Register, found: &[u8]) -> Result<State> {
        State::parsed(found).ok_or_else(|| foreign(register, "latch"))
    }

    fn parsed(found: &[u8]) -> Option<State> {
        let mut parts = Parts::of(KIND, found)?;
        let (made, count) = (parts.number()?, u32::try_from(parts.number()?).ok()?);
        let state = State { made, count, counted: parts.numbers()? };
        let is_possible = state.counted.len() <= state.count as usize && are_distinct(&state.counted);
        (parts.is_read() && is_possible).then_some(state)
    }

    fn written(&self) -> Vec<u8> {
        Record::of(KIND).number(self.made).number(u64::from(self.count)).numbers(&self.counted).done()
    }

    fn remaining(&self) -> u32 {
        self.count.saturating_sub(u32::try_from(self.counted.len()).unwrap_or(u32::MAX))
    }

    fn is_open(&self) -> bool {
        self.remaining() == 0
    }
}

/// A latch, in its second format. In the first, `l`, members counted under other numbers: a name that
/// is counted by both would count twice, so neither reads the format of the other.
const KIND: u8 = b'L';
/// The time for which one request waits for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Returns the number under which a named member counts, the same in every process and every version.
fn id_of(member: &str) -> u64 {
    let digest = blake3::hash(member.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_counts_under_one_number_for_each_way_of_writing() {
        // These are an interface: a version that counts under other numbers has to write another format.
        let written = (KIND, id_of("shard 1"), id_of(""));
        assert_eq!(written, (b'L', 13_760_905_573_519_302_224, 12_007_152_915_317_330_863));
    }
}
