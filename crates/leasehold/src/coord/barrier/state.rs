//! What stands in the register of a barrier: who has arrived, and how the last generations ended.
//!
//! Ground rules: no time and no I/O; each change is one step of a state that is then written as a whole.

use super::Passage;
use crate::engine::Register;
use crate::engine::record::{Parts, Record, foreign};
use crate::error::{ErrorKind, Result};

/// What became of an arrival.
pub(super) enum Arrival {
    Passed(Passage),
    Waits(Passage),
    Refused(Cause),
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Passed,
    Broken(Cause),
    /// Too long ago to be kept.
    Forgotten,
}

/// Why a barrier broke.
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

/// What stands in the register.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) generation: u64,
    /// For how many parties those who have arrived use it.
    pub(super) parties: u32,
    pub(super) broken: Option<Cause>,
    /// How the last generations ended, the latest first.
    pub(super) ended: Vec<u8>,
    /// Who waits, in the order of coming.
    pub(super) arrived: Vec<u64>,
    /// Who waited in the generation before, for one who does not know whether he did.
    pub(super) before: Vec<u64>,
}

impl State {
    /// What a value has at most beside those who have arrived.
    pub(super) const HEADER: usize = 2 + 5 * size_of::<u64>() + REMEMBERED;
    /// What it has for each party: now, and in the generation before.
    pub(super) const PARTY: usize = 2 * size_of::<u64>();

    pub(super) fn read(register: &Register, found: Option<&[u8]>) -> Result<State> {
        let Some(found) = found else { return Ok(State::default()) };
        let read = || {
            let mut parts = Parts::of(KIND, found)?;
            let generation = parts.number()?;
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
            let state = State { generation, parties, broken, ended, arrived, before };
            parts.is_read().then_some(state)
        };
        read().ok_or_else(|| foreign(register, "barrier"))
    }

    pub(super) fn written(&self) -> Vec<u8> {
        let record = Record::of(KIND).number(self.generation).number(u64::from(self.parties));
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

    /// How that generation ended; `None` where it has not.
    pub(super) fn how_ended(&self, generation: u64) -> Option<Ended> {
        let ago = usize::try_from(self.generation.checked_sub(generation + 1)?).ok()?;
        Some(self.ended.get(ago).and_then(|byte| Ended::of(*byte)).unwrap_or(Ended::Forgotten))
    }

    /// Arrives; the last one opens.
    pub(super) fn arrive(&mut self, id: u64, parties: u32) -> Arrival {
        let before = u32::try_from(self.arrived.len()).unwrap_or(u32::MAX);
        let passage =
            Passage { generation: self.generation, index: parties.saturating_sub(before.saturating_add(1)) };
        self.parties = parties;
        self.arrived.push(id);
        if !passage.is_leader() {
            return Arrival::Waits(passage);
        }
        self.next(Ended::Passed);
        Arrival::Passed(passage)
    }

    /// What became of one who has arrived in this generation, or in the one before.
    pub(super) fn stood(&self, id: u64, parties: u32) -> Option<Arrival> {
        let place = |ids: &[u64], generation| {
            let place = ids.iter().position(|other| *other == id)?;
            let before = u32::try_from(place + 1).unwrap_or(u32::MAX);
            Some(Passage { generation, index: parties.saturating_sub(before) })
        };
        if let Some(passage) = place(&self.arrived, self.generation) {
            return Some(Arrival::Waits(passage));
        }
        let generation = self.generation.checked_sub(1)?;
        let passage = place(&self.before, generation)?;
        match self.how_ended(generation)? {
            Ended::Broken(cause) => Some(Arrival::Refused(cause)),
            _ => Some(Arrival::Passed(passage)),
        }
    }

    pub(super) fn is_for(&self, register: &Register, parties: u32) -> Result<()> {
        if self.arrived.is_empty() || self.parties == parties {
            return Ok(());
        }
        let text =
            format!("those who wait here wait for {} parties, and this is for {parties}", self.parties);
        Err(register.error(ErrorKind::Invalid, text))
    }
}

/// Barrier, written in its first way.
const KIND: u8 = b'b';
/// One who looks later than so many generations is told that nobody knows.
const REMEMBERED: usize = 64;
