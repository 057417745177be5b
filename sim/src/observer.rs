//! Locks in a store that has no clock and compares: each observer measures by its own clock for how
//! long a claim has been in one and the same state.
//!
//! # The protocol
//!
//! 1. The store has one cell: a claim, and a number that every write changes. A write names the number
//!    that was read, and is carried out only if the cell has it still.
//! 2. A claim has a **count of signs of life**. A renewal, a grant that was asked for again, and an
//!    adoption by another process that continues under the same claim are one more, each.
//! 3. A claim has a **span**, which is `ttl` ticks at each sign of life. A process that reads the cell
//!    counts the span from then on, by its own clock; of several looks at a claim without a sign of
//!    life between them, the one counts by which it ends first. Then the observer puts its own claim in
//!    its place.
//! 4. A process that reads and writes something else, since it queues or leaves the queue, writes what
//!    is left of the span for it. So what several processes have seen, one after the other, adds up.
//! 5. A process that is granted or renewed believes in it for `ttl` ticks, counted from before it
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
    /// A process that queues or leaves writes what is left of the span of another's claim.
    pub hands_on: bool,
    /// A span counts from the look at it, and the look counts by which the claim ends first. Without it
    /// each span counts from the first look at the claim without a sign of life since.
    pub takes_least: bool,
}

impl Rules {
    /// Protocol as described above.
    pub const SOUND: Rules = Rules {
        counts_signs: true,
        sees_own_grant: false,
        compares: true,
        hands_on: true,
        takes_least: true,
    };
}

/// A claim in the cell, in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    claim: u8,
    /// The number of the write that granted it.
    fence: u8,
    beats: u8,
    /// Ticks for which it surely lives from the write on.
    span: u8,
}

impl Entry {
    /// Returns `true` if the other is the same claim without a sign of life in between.
    fn is_silent_since(self, other: Entry) -> bool {
        Entry { span: 0, ..self } == Entry { span: 0, ..other }
    }
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

/// A sighting of a claim, and for how many ticks it lives without another sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sighting {
    entry: Entry,
    left: u8,
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
            seen.left = seen.left.saturating_sub(1);
        }
    }

    /// Notes what arrived, and answers for how long it lives.
    fn note(&mut self, entry: Entry, rules: Rules) -> u8 {
        let known = self.seen.filter(|seen| seen.entry.is_silent_since(entry));
        let left = known.map_or(entry.span, |seen| match rules.takes_least {
            true => seen.left.min(entry.span),
            false => (seen.left + entry.span).saturating_sub(seen.entry.span),
        });
        self.seen = Some(Sighting { entry, left });
        left
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
    /// The same, and the process queues behind the claim in it, or leaves that queue.
    ArriveAndQueue(u8),
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
        let left = cell.entry.map_or(0, |entry| process.note(entry, self.rules));
        let is_alive = left > 0;
        let (seen, held) = (cell.number, process.left > 0);
        let first = Entry { claim, fence: 0, beats: 0, span: self.ttl };
        match cell.entry.filter(|_| is_alive) {
            Some(entry) if entry.claim == claim => {
                // Uncounted, the state is the end of the claim, which moves for processes that knew of
                // it before.
                let is_visible = self.rules.counts_signs || left < self.ttl;
                let entry = Entry { beats: entry.beats + u8::from(is_visible), span: self.ttl, ..entry };
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

    /// Returns what a process writes that queues behind the claim of another, or leaves that queue.
    fn queues(&self, process: &mut Process, process_id: u8, cell: Cell) -> Option<Write> {
        let entry =
            cell.entry.filter(|entry| self.rules.hands_on && entry.claim != self.claim(process_id))?;
        let span = process.note(entry, self.rules);
        process.left = 0;
        (span > 0).then_some(Write { seen: cell.number, entry: Entry { span, ..entry }, grants: false })
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
            (Step::ArriveAndQueue(_), Doing::Reading(cell, age)) => {
                let write = self.queues(&mut process, process_id, cell)?;
                process.writes = process.writes.checked_sub(1)?;
                process.doing = Doing::Writing(write, age);
            }
            (Step::Write(_), Doing::Writing(write, age)) => {
                let is_own = write.entry.claim == self.claim(process_id);
                if self.carry_out(state, write) && is_own {
                    process.left = process.left.max(self.ttl - age);
                    state.adopted |= self.is_heir(process_id);
                    if let Some(entry) =
                        state.cell.entry.filter(|_| write.grants && self.rules.sees_own_grant)
                    {
                        process.note(entry, self.rules);
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
                Doing::Reading(..) => {
                    actions.extend([Step::Arrive(process_id), Step::ArriveAndQueue(process_id)]);
                }
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
            | Step::ArriveAndQueue(process_id)
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
        if self.rules.hands_on {
            properties.push(Property::sometimes("a span is handed on", |model: &Self, state: &State<P>| {
                state.cell.entry.is_some_and(|entry| entry.span < model.ttl)
            }));
        }
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
    /// Nobody queues, for searches that would be long.
    const UNQUEUED: Rules = Rules { hands_on: false, ..SOUND };

    #[test]
    fn holds_with_a_holder_and_an_observer() {
        holds(Observer { rules: SOUND, ttl: 2, writes: [3, 1], heir: false });
    }

    #[test]
    fn holds_with_two_observers() {
        holds(Observer { rules: UNQUEUED, ttl: 2, writes: [2, 1, 1], heir: false });
    }

    #[test]
    fn holds_with_an_adoption() {
        holds(Observer { rules: UNQUEUED, ttl: 2, writes: [1, 2, 1], heir: true });
    }

    #[test]
    fn holds_with_spans_that_are_handed_on() {
        holds(Observer { rules: SOUND, ttl: 3, writes: [2, 2], heir: false });
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
    fn a_shortened_span_counted_from_the_first_look_breaks() {
        let rules = Rules { takes_least: false, ..SOUND };
        assert_eq!(breaks(Observer { rules, ttl: 2, writes: [1, 1, 1], heir: false }, EXCLUSIVE), 14);
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
        holds(Observer { rules: SOUND, ttl: 2, writes: [2, 1, 1], heir: false });
        holds(Observer { rules: SOUND, ttl: 2, writes: [1, 2, 1], heir: true });
        holds(Observer { rules: UNQUEUED, ttl: 2, writes: [3, 1, 1], heir: false });
        holds(Observer { rules: UNQUEUED, ttl: 3, writes: [2, 1, 1], heir: false });
        holds(Observer { rules: UNQUEUED, ttl: 3, writes: [1, 2, 1], heir: true });
    }
}
