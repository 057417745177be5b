//! Handing a held lock from task to task inside a process, without asking the server.
//!
//! # The protocol
//!
//! It is that of the engine's local queue (`local_queue.rs` and `handoff.rs` in `crates/leasehold/src/engine/acquire`), for
//! exclusive claims. However many tasks of a process wait, one claim of it is queued on the server, which serves
//! processes in the order of their arrival.
//!
//! 1. A task that wants the lock enters its process's queue at the end. If no claim of the process is on
//!    the server and the process holds nothing, a **contender** is sent.
//! 2. A grant goes to the first task in the queue that still waits, with `sub = 0`. So does a hold that is
//!    released, with `sub` one greater, if the claim is still valid and the **budget** of hand-offs is
//!    not used up; else the claim is released, and when the server has confirmed that, the queue
//!    continues.
//! 3. What cannot be delivered, because the task left in the same moment, is still in the giver's
//!    hands: the next one gets it.
//! 4. A task that leaves first closes its end, then takes itself out of the queue. If no task is left
//!    that wants it, the contender is called back. It may have been granted by then.
//!
//! # The adversary
//!
//! Orders all steps of all tasks and processes, where a step is what the code does under one lock or in
//! one message. Each task may leave at any point; the time budget may be over at any hand-off; a claim
//! may be lost at any time, and the server then forgets it.

mod process;

use leasehold_core::Fence;
use stateright::{Model, Property};

use process::Delivery;
pub use process::{Contender, Hand, Held, Process, Task};

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Each hand-off advances `sub`.
    pub advances_sub: bool,
    /// The number of hand-offs that are allowed under one grant.
    pub budget: u32,
    /// It is kept to.
    pub keeps_budget: bool,
    /// A hold that cannot be delivered goes to the next task, in place of being dropped.
    pub keeps_undeliverable: bool,
    /// When the contender was called back, the queue continues with the tasks that came meanwhile.
    pub continues_after_recall: bool,
    /// When a release is confirmed, the queue continues.
    pub continues_after_release: bool,
    /// The last task that leaves calls the contender back.
    pub recalls: bool,
}

impl Rules {
    /// Returns the protocol as described above, with a budget of this many hand-offs.
    pub const fn sound(budget: u32) -> Rules {
        Rules {
            advances_sub: true,
            budget,
            keeps_budget: true,
            keeps_undeliverable: true,
            continues_after_recall: true,
            continues_after_release: true,
            recalls: true,
        }
    }
}

/// All processes and the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    processes: Vec<Process>,
    /// Processes whose claims are on the server, in order.
    queue: Vec<u8>,
    holder: Option<u8>,
    seq: u64,
    highest: Fence,
    fault: bool,
}

/// One step of the adversary's choice. Numbers are process, then task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A task enters the queue.
    Enter(u8, u8),
    /// A task that waits, or has not taken what was delivered, closes its end.
    Close(u8, u8),
    /// A task that has closed its end leaves the queue.
    Leave(u8, u8),
    /// A task takes what was delivered.
    Take(u8, u8),
    /// A task gives its hold back.
    GiveBack(u8, u8),
    /// The claim of a contender arrives at the server.
    Join(u8),
    /// The server grants the first claim.
    Grant(u8),
    /// The grant arrives, and a task is picked for it.
    ReceiveGrant(u8),
    /// A contender that was called back ends.
    End(u8),
    /// A task is picked for the hold that was released, or the claim is released.
    Pick(u8),
    /// The time budget is over: it is released.
    Overtime(u8),
    /// The hold that was released is delivered.
    Deliver(u8),
    /// The server frees what is released.
    Free(u8),
    /// The release is confirmed.
    Confirm(u8),
    /// The process sees its claim lost.
    Lose(u8),
    /// The server forgets a lost claim.
    Expire(u8),
}

impl Step {
    /// Returns `true` if it happens by itself, without a task that wants to.
    fn is_inner(self) -> bool {
        !matches!(
            self,
            Step::Enter(..) | Step::Close(..) | Step::GiveBack(..) | Step::Overtime(_) | Step::Lose(_)
        )
    }
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct LocalHandoff {
    /// The rules of the parties.
    pub rules: Rules,
    /// The number of tasks of each process.
    pub tasks: &'static [u8],
    /// The number of times that each task wants the lock.
    pub wishes: u8,
    /// `true` if tasks leave before they are served.
    pub leaving: bool,
    /// `true` if claims are lost.
    pub losing: bool,
}

impl LocalHandoff {
    fn actions_of(&self, state: &State, index: u8, actions: &mut Vec<Step>) {
        let process = &state.processes[usize::from(index)];
        for (number, task) in process.tasks.iter().enumerate() {
            let number = number as u8;
            match task {
                // A task that was picked while it left returns only when that is settled: its old end
                // is another one.
                Task::Away if process.hand.is_some_and(|hand| hand.taker == Some(number)) => {}
                Task::Away if process.wishes[usize::from(number)] > 0 => {
                    actions.push(Step::Enter(index, number));
                }
                Task::Away => {}
                Task::Waiting if self.leaving => actions.push(Step::Close(index, number)),
                Task::Waiting => {}
                Task::Closed => actions.push(Step::Leave(index, number)),
                Task::Delivered(_) => {
                    actions.push(Step::Take(index, number));
                    if self.leaving {
                        actions.push(Step::Close(index, number));
                    }
                }
                Task::Holding(_) => actions.push(Step::GiveBack(index, number)),
            }
        }
        let (in_queue, holds) = (state.queue.contains(&index), state.holder == Some(index));
        match process.contender {
            Contender::None => {}
            _ if holds => actions.push(Step::ReceiveGrant(index)),
            Contender::Waits if !in_queue => actions.push(Step::Join(index)),
            Contender::Waits => {}
            Contender::Recalled => actions.push(Step::End(index)),
        }
        if state.holder.is_none() && state.queue.first() == Some(&index) {
            actions.push(Step::Grant(index));
        }
        match process.hand {
            Some(Hand { taker: None, .. }) => actions.extend([Step::Pick(index), Step::Overtime(index)]),
            Some(_) => actions.push(Step::Deliver(index)),
            None => {}
        }
        if let Some(held) = process.held {
            if held.releasing {
                actions.push(if holds { Step::Free(index) } else { Step::Confirm(index) });
            }
            if held.lost && holds {
                actions.push(Step::Expire(index));
            } else if self.losing && !held.lost {
                actions.push(Step::Lose(index));
            }
        }
    }

    fn deliver(&self, state: &mut State, index: u8) -> Option<()> {
        let delivery = state.processes[usize::from(index)].deliver(&self.rules)?;
        let Delivery::Done { fence, rises } = delivery else { return Some(()) };
        // A claim that was lost while it was handed on may come after a newer one: its fence is lower,
        // as it should be.
        let across = self.losing || fence > state.highest;
        state.fault |= !rises || !across;
        state.highest = state.highest.max(fence);
        for other in state.queue.iter().filter(|other| **other != index) {
            state.processes[usize::from(*other)].overtaken += 1;
        }
        Some(())
    }

    fn step_of_task(&self, process: &mut Process, task: u8, step: Step) -> Option<()> {
        let place = usize::from(task);
        match (step, process.tasks[place]) {
            (Step::Enter(..), _) => {
                process.wishes[place] -= 1;
                process.tasks[place] = Task::Waiting;
                process.queue.push(task);
                process.advance();
            }
            (Step::Close(..), Task::Waiting) => process.tasks[place] = Task::Closed,
            (Step::Leave(..), _) => process.leave(task, &self.rules),
            (Step::Take(..), Task::Delivered(fence)) => process.tasks[place] = Task::Holding(fence),
            // A hold in a channel that is dropped releases itself, as each hold does that is dropped.
            (Step::Close(..), Task::Delivered(fence)) | (Step::GiveBack(..), Task::Holding(fence)) => {
                process.tasks[place] = Task::Away;
                process.hand = Some(Hand { passed: fence.sub, fresh: false, taker: None });
            }
            _ => return None,
        }
        Some(())
    }

    /// Passes a released hold to the next task, if that is allowed and one waits; else releases the
    /// claim.
    fn give_on(&self, process: &mut Process, in_time: bool) -> Option<()> {
        let hand = process.hand.take()?;
        let held = process.held?;
        let within = hand.passed < self.rules.budget || !self.rules.keeps_budget;
        let may = in_time && !held.lost && within;
        match may.then(|| process.pick()).flatten() {
            Some(taker) => process.hand = Some(Hand { taker: Some(taker), ..hand }),
            None => process.held = Some(Held { releasing: true, ..held }),
        }
        Some(())
    }

    /// Ends a contender without a grant.
    fn end(&self, process: &mut Process) {
        process.contender = Contender::None;
        process.overtaken = 0;
        if self.rules.continues_after_recall {
            process.advance();
        }
    }

    fn confirm(&self, process: &mut Process) {
        process.held = None;
        if self.rules.continues_after_release {
            process.advance();
        }
    }

    /// Returns `true` if any task waits for ever: nothing continues by itself, and no holder exists
    /// that could release.
    fn is_stuck(&self, state: &State) -> bool {
        let waits = |process: &Process| process.tasks.contains(&Task::Waiting);
        if !state.processes.iter().any(waits) || state.processes.iter().any(Process::is_served) {
            return false;
        }
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        !actions.into_iter().any(Step::is_inner)
    }
}

impl Model for LocalHandoff {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let process = |tasks: &u8| Process {
            tasks: vec![Task::Away; usize::from(*tasks)],
            wishes: vec![self.wishes; usize::from(*tasks)],
            queue: Vec::new(),
            contender: Contender::None,
            held: None,
            hand: None,
            overtaken: 0,
        };
        vec![State {
            processes: self.tasks.iter().map(process).collect(),
            queue: Vec::new(),
            holder: None,
            seq: 0,
            highest: Fence::default(),
            fault: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        for index in 0..state.processes.len() as u8 {
            self.actions_of(state, index, actions);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Enter(index, task)
            | Step::Close(index, task)
            | Step::Leave(index, task)
            | Step::Take(index, task)
            | Step::GiveBack(index, task) => {
                self.step_of_task(&mut state.processes[usize::from(index)], task, step)?;
            }
            Step::Join(index) => state.queue.push(index),
            Step::Grant(index) => {
                state.queue.retain(|other| *other != index);
                state.holder = Some(index);
                state.seq += 1;
            }
            Step::ReceiveGrant(index) => {
                let seq = state.seq;
                state.processes[usize::from(index)].receive_grant(seq);
            }
            Step::End(index) => {
                state.queue.retain(|other| *other != index);
                self.end(&mut state.processes[usize::from(index)]);
            }
            Step::Pick(index) => self.give_on(&mut state.processes[usize::from(index)], true)?,
            Step::Overtime(index) => self.give_on(&mut state.processes[usize::from(index)], false)?,
            Step::Deliver(index) => self.deliver(&mut state, index)?,
            Step::Free(_) | Step::Expire(_) => state.holder = None,
            Step::Confirm(index) => self.confirm(&mut state.processes[usize::from(index)]),
            Step::Lose(index) => state.processes[usize::from(index)].held.as_mut()?.lost = true,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RISING, |_, state: &State| !state.fault),
            Property::always(ONE, |_, state: &State| {
                let served = |process: &Process| {
                    let of_tasks = process
                        .tasks
                        .iter()
                        .filter(|task| matches!(task, Task::Delivered(_) | Task::Holding(_)));
                    of_tasks.count() + usize::from(process.hand.is_some())
                };
                let valid = |process: &&Process| process.held.is_some_and(|held| !held.lost);
                state.processes.iter().all(|process| served(process) <= 1)
                    && state.processes.iter().filter(valid).map(served).sum::<usize>() <= 1
            }),
            Property::always(FAIR, |model: &Self, state: &State| {
                let others = state.processes.len() as u32 - 1;
                state.processes.iter().all(|process| process.overtaken <= others * (model.rules.budget + 1))
            }),
            Property::always(AWAKE, |model: &Self, state: &State| !model.is_stuck(state)),
            Property::sometimes(
                "every task is done, and the budget was used up once",
                |model: &Self, state: &State| {
                    let done = |process: &Process| {
                        process.wishes.iter().all(|left| *left == 0) && process.held.is_none()
                    };
                    state.highest.sub == model.rules.budget && state.processes.iter().all(done)
                },
            ),
        ]
    }
}

/// Each fence is greater than the one before; with claims that get lost, under one claim.
pub const RISING: &str = "fences rise from task to task";
/// Only one task holds at a time.
pub const ONE: &str = "one task at a time is served under claims that are valid";
/// A process on the server is passed by no more tasks than the budget allows.
pub const FAIR: &str = "a process in the queue is passed by no more tasks of another than the budget and one";
/// No task waits for ever.
pub const AWAKE: &str = "every waiter will be served, since a task holds the lock or a step is under way";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks, holds};

    const SOUND: Rules = Rules::sound(1);

    fn model(rules: Rules, tasks: &'static [u8], wishes: u8, losing: bool) -> LocalHandoff {
        LocalHandoff { rules, tasks, wishes, leaving: true, losing }
    }

    #[test]
    fn holds_with_two_processes() {
        holds(model(SOUND, &[2, 1], 1, true));
        holds(model(SOUND, &[2, 2], 1, false));
        holds(model(Rules::sound(2), &[3, 1], 1, false));
    }

    #[test]
    fn without_sub_two_tasks_get_one_fence() {
        assert_eq!(breaks(model(Rules { advances_sub: false, ..SOUND }, &[2, 1], 1, false), RISING), 9);
    }

    #[test]
    fn without_a_budget_a_process_starves() {
        assert_eq!(breaks(model(Rules { keeps_budget: false, ..SOUND }, &[3, 1], 1, false), FAIR), 15);
    }

    #[test]
    fn dropping_what_cannot_be_delivered_blocks_all() {
        let rules = Rules { keeps_undeliverable: false, ..SOUND };
        assert_eq!(breaks(model(rules, &[2, 1], 1, false), AWAKE), 8);
    }

    #[test]
    fn queue_that_does_not_continue_after_a_recall_stalls() {
        let rules = Rules { continues_after_recall: false, ..SOUND };
        assert_eq!(breaks(model(rules, &[2, 1], 1, false), AWAKE), 5);
    }

    #[test]
    fn queue_that_does_not_continue_after_a_release_stalls() {
        let rules = Rules { continues_after_release: false, ..SOUND };
        assert_eq!(breaks(model(rules, &[2, 1], 1, false), AWAKE), 10);
    }

    #[test]
    fn holds_if_a_contender_is_not_recalled_but_grants_uselessly() {
        holds(model(Rules { recalls: false, ..SOUND }, &[2, 1], 1, true));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_tasks_that_come_twice() {
        holds(model(SOUND, &[2, 1], 2, true));
        holds(model(SOUND, &[3, 2], 1, false));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_three_processes() {
        holds(model(SOUND, &[2, 1, 1], 1, true));
    }
}
