//! The value of a barrier's register: the parties that have arrived, and the results of the last generations.
//!
//! Ground rules: no time and no I/O; each change is one step of a state that is then written as a whole.

use super::BarrierWaitResult;
use crate::engine::Register;
use crate::engine::registers::record::{Parts, Record, are_distinct, foreign};
use crate::error::{ErrorKind, Result};

/// The result of an arrival.
pub(super) enum Arrival {
    Passed(BarrierWaitResult),
    Waits(BarrierWaitResult),
    Refused(Cause),
}

/// The result of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    Broken(Cause),
    /// The generation ended too long ago to be kept.
    Forgotten,
}

/// The reason why a barrier broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    TimedOut,
    Cancelled,
    Died,
    Reset,
}

impl Ended {
    const fn byte(self) -> u8 {
        match self {
            Ended::Passed => b'P',
            Ended::Broken(Cause::TimedOut) => b'T',
            Ended::Broken(Cause::Cancelled) => b'C',
            Ended::Broken(Cause::Died) => b'D',
            Ended::Broken(Cause::Reset) => b'R',
            Ended::Forgotten => b'-',
        }
    }

    fn of(byte: u8) -> Option<Ended> {
        let all = [
            Ended::Passed,
            Ended::Broken(Cause::TimedOut),
            Ended::Broken(Cause::Cancelled),
            Ended::Broken(Cause::Died),
            Ended::Broken(Cause::Reset),
            Ended::Forgotten,
        ];
        all.into_iter().find(|ended| ended.byte() == byte)
    }
}

/// The value of the register.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The number that distinguishes this barrier from one that the store has lost; zero if there is none.
    pub(super) made: u64,
    pub(super) generation: u64,
    /// The number of parties for which those that have arrived use it.
    pub(super) parties: u32,
    pub(super) broken: Option<Cause>,
    /// The results of the last generations, the latest first.
    pub(super) ended: Vec<u8>,
    /// The parties that wait, in the order of their arrival.
    pub(super) arrived: Vec<u64>,
    /// The parties that waited in the generation before, for a party that does not know whether it did.
    pub(super) before: Vec<u64>,
}

impl State {
    /// The most bytes that a value has beside the parties.
    pub(super) const HEADER: usize = 2 + 6 * size_of::<u64>() + REMEMBERED;
    /// The bytes for each party: now, and in the generation before.
    pub(super) const PARTY: usize = 2 * size_of::<u64>();

    pub(super) fn read(register: &Register, found: Option<&[u8]>) -> Result<State> {
        let Some(found) = found else { return Ok(State::default()) };
        State::parsed(found).ok_or_else(|| foreign(register, "barrier"))
    }

    fn parsed(found: &[u8]) -> Option<State> {
        let (mut parts, made) = match Parts::of(FIRST_KIND, found) {
            Some(parts) => (parts, 0),
            None => {
                let mut parts = Parts::of(KIND, found)?;
                let made = parts.number()?;
                (parts, made)
            }
        };
        // Another generation follows.
        let generation = parts.number().filter(|number| *number < u64::MAX)?;
        let parties = u32::try_from(parts.number()?).ok()?;
        let broken = match parts.byte()? {
            0 => None,
            byte => match Ended::of(byte)? {
                Ended::Broken(cause) => Some(cause),
                _ => return None,
            },
        };
        let ended = parts.text()?.to_vec();
        let (arrived, before) = (parts.numbers()?, parts.numbers()?);
        // The last one to arrive ends the generation.
        let is_open = arrived.is_empty() || arrived.len() < parties as usize;
        let is_possible = is_open && are_distinct(&arrived) && are_distinct(&before);
        let state = State { made, generation, parties, broken, ended, arrived, before };
        (parts.is_read() && is_possible).then_some(state)
    }

    pub(super) fn written(&self) -> Vec<u8> {
        let record = Record::of(KIND).number(self.made);
        let record = record.number(self.generation).number(u64::from(self.parties));
        let broken = self.broken.map_or(0, |cause| Ended::Broken(cause).byte());
        record.byte(broken).text(&self.ended).numbers(&self.arrived).numbers(&self.before).done()
    }

    /// Ends the generation and begins the next.
    pub(super) fn next(&mut self, ended: Ended) {
        self.generation += 1;
        self.before = std::mem::take(&mut self.arrived);
        self.ended.insert(0, ended.byte());
        self.ended.truncate(REMEMBERED);
    }

    /// Breaks the barrier, which ends the generation.
    pub(super) fn break_by(&mut self, cause: Cause) {
        self.next(Ended::Broken(cause));
        self.broken = Some(cause);
    }

    /// Returns the result of that generation; `None` if it has not ended.
    pub(super) fn outcome_of(&self, generation: u64) -> Option<Ended> {
        let ago = usize::try_from(self.generation.checked_sub(generation + 1)?).ok()?;
        Some(self.ended.get(ago).and_then(|byte| Ended::of(*byte)).unwrap_or(Ended::Forgotten))
    }

    /// Returns `true` if the next party is the last one.
    pub(super) fn opens_with_one_more(&self, parties: u32) -> bool {
        u32::try_from(self.arrived.len()).is_ok_and(|arrived| arrived + 1 == parties)
    }

    /// Adds a party; the last one opens the barrier.
    pub(super) fn arrive(&mut self, id: u64, parties: u32) -> Arrival {
        let before = u32::try_from(self.arrived.len()).unwrap_or(u32::MAX);
        let result = BarrierWaitResult {
            generation: self.generation,
            index: parties.saturating_sub(before.saturating_add(1)),
        };
        self.parties = parties;
        self.arrived.push(id);
        if !result.is_leader() {
            return Arrival::Waits(result);
        }
        self.next(Ended::Passed);
        Arrival::Passed(result)
    }

    /// Returns the result of a party that has arrived in this generation, or in the one before.
    pub(super) fn earlier_arrival(&self, id: u64, parties: u32) -> Option<Arrival> {
        let place = |ids: &[u64], generation| {
            let place = ids.iter().position(|other| *other == id)?;
            let before = u32::try_from(place + 1).unwrap_or(u32::MAX);
            Some(BarrierWaitResult { generation, index: parties.saturating_sub(before) })
        };
        if let Some(result) = place(&self.arrived, self.generation) {
            return Some(Arrival::Waits(result));
        }
        let generation = self.generation.checked_sub(1)?;
        let result = place(&self.before, generation)?;
        match self.outcome_of(generation)? {
            Ended::Broken(cause) => Some(Arrival::Refused(cause)),
            _ => Some(Arrival::Passed(result)),
        }
    }

    pub(super) fn check_parties(&self, register: &Register, parties: u32) -> Result<()> {
        if self.arrived.is_empty() || self.parties == parties {
            return Ok(());
        }
        let text =
            format!("the waiting parties expect {} parties, and this barrier is for {parties}", self.parties);
        Err(register.error(ErrorKind::Invalid, text))
    }
}

/// A barrier, in its second format.
const KIND: u8 = b'B';
/// The first format had no number of the barrier. It is read, because a barrier is never removed.
const FIRST_KIND: u8 = b'b';
/// The number of generations whose results are kept.
const REMEMBERED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_of_the_first_format_is_read_and_written_in_the_second() {
        let record =
            Record::of(b'b').number(7).number(3).byte(b'T').text(b"TP").numbers(&[1]).numbers(&[2, 3]);
        let first = State::parsed(&record.done()).unwrap();
        assert_eq!((first.made, first.generation, first.parties), (0, 7, 3));
        assert_eq!((first.broken, first.ended.as_slice()), (Some(Cause::TimedOut), &b"TP"[..]));
        let again = State::parsed(&State { made: 9, ..first.clone() }.written()).unwrap();
        assert_eq!((again.made, again.generation, again.parties), (9, 7, 3));
        assert_eq!((again.arrived, again.before), (first.arrived, first.before));
    }
}
