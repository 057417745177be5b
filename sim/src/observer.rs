//! Locks in a store that has no clock and compares: each observer measures by its own clock for how
//! long a claim has been in one and the same state.
//!
//! # The protocol
//!
//! 1. The store has one cell: a claim, and a number that every write changes. A write names the number
//!    that was read, and is carried out only if the cell has it still.
//! 2. A claim has a **count of signs of life**. A renewal, a grant that was asked for again, and an
//!    adoption by another process that continues under the same claim are one more, each.
//! 3. A process that reads notes when it first saw the claim in this state. A claim is dead for an
//!    observer that has seen it in one state for `ttl` ticks of its own clock, and then the observer
//!    puts its own claim in its place.
//! 4. A process that is granted or renewed believes in it for `ttl` ticks, counted from before it
//!    asked, once it hears that the write was carried out.
//!
//! # The adversary
//!
//! A process stops for any time between any two of its steps: between what it read and what it writes,
//! too. Writes take any time. Answers are lost, so that it is unknown whether a write was carried out;
//! and a write whose sender has abandoned it and asked for something else may be carried out later.
//! Processes die.
//!
//! # What holds
//!
//! No two processes believe at once that they hold under different claims. Clocks that run apart are
//! the subject of
//! [`lease`](crate::lease), and are left out here.

use stateright::{Model, Property};

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A sign of life changes the state, no matter what its writer has seen before. Without it the
    /// state is the end of the claim as its writer has it, which does not change where the writer sees
    /// the claim for the first time.
    pub counts_signs: bool,
    /// A process that takes the cell has thereby seen its claim. It makes no difference where signs are
    /// counted.
    pub sees_own_grant: bool,
    /// A write is carried out only where nothing was written since the look before it.
    pub compares: bool,
}

impl Rules {
    /// Protocol as described above.
    pub const SOUND: Rules = Rules { counts_signs: true, sees_own_grant: false, compares: true };
}

/// A claim in the cell, in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    claim: u8,
    /// The number of the write that granted it.
    fence: u8,
    beats: u8,
}

/// The cell of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    number: u8,
    entry: Option<Entry>,
}

/// A write on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    seen: u8,
    entry: Entry,
    /// `true` if the fence is that of the write itself.
    grants: bool,
}

/// The activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// The cell that it has read so many ticks ago is on its way to it.
    Reading(Cell, u8),
    /// It sent this write, after it had begun to ask so many ticks ago.
    Writing(Write, u8),
}

/// A sighting of a claim in one state, for so many ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sighting {
    entry: Entry,
    age: u8,
}

/// A process with a clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    doing: Doing,
    seen: Option<Sighting>,
    /// A write that it gave up.
    loose: Option<Write>,
    /// Ticks for which it believes that it holds.
    left: u8,
    /// The number of writes that it may still send.
    writes: u8,
}

impl Process {
    fn tick(&mut self, ttl: u8) {
        self.left = self.left.saturating_sub(1);
        self.doing = match self.doing {
            Doing::Nothing => Doing::Nothing,
            Doing::Reading(cell, age) => Doing::Reading(cell, (age + 1).min(ttl)),
            Doing::Writing(write, age) => Doing::Writing(write, (age + 1).min(ttl)),
        };
        if let Some(seen) = &mut self.seen {
            seen.age = (seen.age + 1).min(ttl);
        }
    }

    /// Notes what arrived, and answers since when it is known.
    fn note(&mut self, entry: Entry) -> u8 {
        let known = self.seen.filter(|seen| seen.entry == entry);
        let age = known.map_or(0, |seen| seen.age);
        self.seen = Some(Sighting { entry, age });
        age
    }
}

/// The state of the store and of all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const P: usize> {
    cell: Cell,
    processes: [Process; P],
    /// `true` if a claim was taken for dead, and if one was adopted: for the states that have to be
    /// reached.
    taken_over: bool,
    adopted: bool,
}

/// A step that the adversary chooses. The number is the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A tick passes, for all.
    Tick,
    /// Asks, and the store shows the cell.
    Read(u8),
    /// The cell that was read arrives.
    Arrive(u8),
    /// The write is carried out, if it still may be, and the answer arrives.
    Write(u8),
    /// The same, and the answer is lost.
    WriteWithoutReply(u8),
    /// The process gives up waiting, and the write is still under way.
    GiveUp(u8),
    /// A write that was abandoned is carried out, if it still may be.
    WriteLate(u8),
}

/// The model of `P` processes and one cell. The first two may share one claim; each of the others has a
/// claim of its own.
#[derive(Clone, Copy, Debug)]
pub struct Observer<const P: usize> {
    /// The rules of the parties.
    pub rules: Rules,
    /// Length of a lease in ticks.
    pub ttl: u8,
    /// The number of writes that each process may send.
    pub writes: [u8; P],
    /// `true` if the second process is the heir of the first one: it continues under that claim, and
    /// takes nothing else.
    pub heir: bool,
}

impl<const P: usize> Observer<P> {
    fn claim(&self, process_id: u8) -> u8 {
        if self.is_heir(process_id) { 0 } else { process_id }
    }

    fn is_heir(&self, process_id: u8) -> bool {
        self.heir && process_id == 1
    }

    /// Decides what a process writes that has read this, if anything.
    fn decide(&self, process: &mut Process, process_id: u8, cell: Cell) -> Option<Write> {
        let claim = self.claim(process_id);
        let age = cell.entry.map(|entry| process.note(entry));
        let is_alive = age.is_some_and(|age| age < self.ttl);
        let (seen, held) = (cell.number, process.left > 0);
        let first = Entry { claim, fence: 0, beats: 0 };
        match cell.entry.filter(|_| is_alive) {
            Some(entry) if entry.claim == claim => {
                // Uncounted, the state is the end of the claim, which moves for processes that knew of
                // it before.
                let is_visible = self.rules.counts_signs || age.is_some_and(|age| age > 0);
                let entry = Entry { beats: entry.beats + u8::from(is_visible), ..entry };
                Some(Write { seen, entry, grants: false })
            }
            Some(_) => {
                process.left = 0;
                None
            }
            None if held || self.is_heir(process_id) => {
                // Its claim is gone, and an heir takes nothing anew.
                process.left = 0;
                None
            }
            None => Some(Write { seen, entry: first, grants: true }),
        }
    }

    fn carry_out(&self, state: &mut State<P>, write: Write) -> bool {
        if self.rules.compares && write.seen != state.cell.number {
            return false;
        }
        let number = state.cell.number + 1;
        let fence = if write.grants { number } else { write.entry.fence };
        state.taken_over |= write.grants && state.cell.entry.is_some();
        state.cell = Cell { number, entry: Some(Entry { fence, ..write.entry }) };
        true
    }

    fn next_of(&self, state: &mut State<P>, process_id: u8, step: Step) -> Option<()> {
        let mut process = state.processes[usize::from(process_id)];
        match (step, process.doing) {
            (Step::Read(_), Doing::Nothing) => process.doing = Doing::Reading(state.cell, 0),
            (Step::Arrive(_), Doing::Reading(cell, age)) => {
                process.doing = match self.decide(&mut process, process_id, cell) {
                    Some(write) if process.writes > 0 => {
                        process.writes -= 1;
                        Doing::Writing(write, age)
                    }
                    _ => Doing::Nothing,
                };
            }
            (Step::Write(_), Doing::Writing(write, age)) => {
                if self.carry_out(state, write) {
                    process.left = process.left.max(self.ttl - age);
                    state.adopted |= self.is_heir(process_id);
                    if let Some(entry) =
                        state.cell.entry.filter(|_| write.grants && self.rules.sees_own_grant)
                    {
                        process.note(entry);
                    }
                }
                process.doing = Doing::Nothing;
            }
            (Step::WriteWithoutReply(_), Doing::Writing(write, _)) => {
                if !self.carry_out(state, write) {
                    return None;
                }
                process.doing = Doing::Nothing;
            }
            (Step::GiveUp(_), Doing::Writing(write, _)) if process.loose.is_none() => {
                process.loose = Some(write);
                process.doing = Doing::Nothing;
            }
            (Step::WriteLate(_), _) => {
                let write = process.loose.take()?;
                if !self.carry_out(state, write) {
                    return None;
                }
            }
            _ => return None,
        }
        state.processes[usize::from(process_id)] = process;
        Some(())
    }
}

impl<const P: usize> Model for Observer<P> {
    type State = State<P>;
    type Action = Step;

    fn init_states(&self) -> Vec<State<P>> {
        let processes = self.writes.map(|writes| Process {
            doing: Doing::Nothing,
            seen: None,
            loose: None,
            left: 0,
            writes,
        });
        let cell = Cell { number: 0, entry: None };
        vec![State { cell, processes, taken_over: false, adopted: false }]
    }

    fn actions(&self, state: &State<P>, actions: &mut Vec<Step>) {
        actions.push(Step::Tick);
        for (process_id, process) in (0..).zip(&state.processes) {
            match process.doing {
                Doing::Nothing => actions.push(Step::Read(process_id)),
                Doing::Reading(..) => actions.push(Step::Arrive(process_id)),
                Doing::Writing(..) => {
                    actions.extend([
                        Step::Write(process_id),
                        Step::WriteWithoutReply(process_id),
                        Step::GiveUp(process_id),
                    ]);
                }
            }
            if process.loose.is_some() {
                actions.push(Step::WriteLate(process_id));
            }
        }
    }

    fn next_state(&self, last: &State<P>, step: Step) -> Option<State<P>> {
        let mut state = *last;
        match step {
            Step::Tick => state.processes.iter_mut().for_each(|process| process.tick(self.ttl)),
            Step::Read(process_id)
            | Step::Arrive(process_id)
            | Step::Write(process_id)
            | Step::WriteWithoutReply(process_id)
            | Step::GiveUp(process_id)
            | Step::WriteLate(process_id) => self.next_of(&mut state, process_id, step)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSIVE, |model: &Self, state: &State<P>| {
                let believing = (0..).zip(&state.processes).filter(|(_, process)| process.left > 0);
                let mut claims = believing.map(|(process_id, _)| model.claim(process_id));
                let first = claims.next();
                claims.all(|claim| Some(claim) == first)
            }),
            Property::sometimes("a claim is taken for dead", |_, state: &State<P>| state.taken_over),
            Property::sometimes(
                "a claim is believed in that has given a sign of life",
                |_, state: &State<P>| {
                    state.processes.iter().any(|process| process.left > 0)
                        && state.cell.entry.is_some_and(|entry| entry.beats > 0)
                },
            ),
        ];
        if self.heir {
            properties.push(Property::sometimes("a claim is adopted", |_, state: &State<P>| state.adopted));
        }
        properties
    }
}

/// No two processes believe that they hold under different claims.
pub const EXCLUSIVE: &str = "no two claims are believed in at once";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks, holds};

    const SOUND: Rules = Rules::SOUND;
    const UNCOUNTED: Rules = Rules { counts_signs: false, ..SOUND };

    #[test]
    fn holds_with_a_holder_and_an_observer() {
        holds(Observer { rules: SOUND, ttl: 2, writes: [3, 1], heir: false });
    }

    #[test]
    fn holds_with_two_observers() {
        holds(Observer { rules: SOUND, ttl: 2, writes: [2, 1, 1], heir: false });
    }

    #[test]
    fn holds_with_an_adoption() {
        holds(Observer { rules: SOUND, ttl: 2, writes: [1, 2, 1], heir: true });
    }

    /// Checks the first renewal of one that waited: it has not seen its own grant.
    #[test]
    fn a_first_renewal_that_changes_nothing_breaks() {
        let model = Observer { rules: UNCOUNTED, ttl: 2, writes: [2, 1], heir: false };
        assert_eq!(breaks(model, EXCLUSIVE), 13);
    }

    #[test]
    fn an_adoption_that_changes_nothing_breaks() {
        let rules = Rules { sees_own_grant: true, ..UNCOUNTED };
        let model = Observer { rules, ttl: 2, writes: [1, 1, 1], heir: true };
        assert_eq!(breaks(model, EXCLUSIVE), 13);
    }

    #[test]
    fn a_repeated_grant_that_changes_nothing_breaks() {
        // Its first answer was lost, so it has not seen its claim, independent of the others that hear
        // of their grant.
        let rules = Rules { sees_own_grant: true, ..UNCOUNTED };
        let model = Observer { rules, ttl: 2, writes: [2, 1], heir: false };
        assert_eq!(breaks(model, EXCLUSIVE), 13);
    }

    #[test]
    fn writing_without_comparing_breaks() {
        let model =
            Observer { rules: Rules { compares: false, ..SOUND }, ttl: 2, writes: [1, 1], heir: false };
        assert_eq!(breaks(model, EXCLUSIVE), 6);
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_longer_leases_and_more_renewals() {
        holds(Observer { rules: SOUND, ttl: 2, writes: [3, 1, 1], heir: false });
        holds(Observer { rules: SOUND, ttl: 3, writes: [2, 1, 1], heir: false });
        holds(Observer { rules: SOUND, ttl: 3, writes: [1, 2, 1], heir: true });
    }
}
