//! One process: its tasks, its queue, its claim, and a hold on its way from one task to the next.

use leasehold_core::Fence;

use super::Rules;

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Elsewhere.
    Away,
    /// In the queue, or picked already; it listens.
    Waiting,
    /// Its end is closed; it may still be in the queue.
    Closed,
    /// A hold lies in its channel.
    Delivered(Fence),
    /// It holds.
    Holding(Fence),
}

/// The claim of a process that is on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    /// There is none.
    None,
    /// It waits.
    Waits,
    /// It was called back, which it may not know yet.
    Recalled,
}

/// A hold on its way to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hand {
    /// The number of times that it was handed on before this time.
    pub(super) passed: u32,
    /// It comes from the server.
    pub(super) fresh: bool,
    /// The task that was picked.
    pub(super) taker: Option<u8>,
}

/// The hold of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub(super) seq: u64,
    pub(super) lost: bool,
    pub(super) releasing: bool,
    /// The last fence that a task got under this claim.
    pub(super) last: Option<Fence>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub(super) tasks: Vec<Task>,
    /// The number of times that each task still wants the lock.
    pub(super) wishes: Vec<u8>,
    pub(super) queue: Vec<u8>,
    pub(super) contender: Contender,
    pub(super) held: Option<Held>,
    pub(super) hand: Option<Hand>,
    /// The number of tasks of others that were served while its claim was in the queue.
    pub(super) overtaken: u32,
}

impl Process {
    /// Sends a contender, if this process has none and it could be granted.
    pub(super) fn advance(&mut self) {
        let waits = self.queue.iter().any(|task| self.tasks[usize::from(*task)] == Task::Waiting);
        if waits && self.contender == Contender::None && self.held.is_none() {
            self.contender = Contender::Waits;
        }
    }

    /// Takes the first task out of the queue that is still there.
    pub(super) fn pick(&mut self) -> Option<u8> {
        let index = self.queue.iter().position(|task| self.tasks[usize::from(*task)] == Task::Waiting)?;
        Some(self.queue.remove(index))
    }

    pub(super) fn leave(&mut self, task: u8, rules: &Rules) {
        self.queue.retain(|other| *other != task);
        self.tasks[usize::from(task)] = Task::Away;
        if self.queue.is_empty() && self.contender == Contender::Waits && rules.recalls {
            self.contender = Contender::Recalled;
        }
    }

    /// Gives the hold to the task that it is meant for. Returns what the task gets, if it still waits.
    pub(super) fn deliver(&mut self, rules: &Rules) -> Option<Delivery> {
        let hand = self.hand?;
        let taker = usize::from(hand.taker?);
        let held = self.held.as_mut()?;
        self.hand = None;
        if self.tasks[taker] != Task::Waiting {
            if rules.keeps_undeliverable {
                self.hand = Some(Hand { taker: None, fresh: false, ..hand });
            }
            return Some(Delivery::Undeliverable);
        }
        let sub = if hand.fresh || !rules.advances_sub { hand.passed } else { hand.passed + 1 };
        let fence = Fence::new(0, held.seq, sub);
        let rises = held.last.is_none_or(|last| fence > last);
        held.last = Some(fence);
        self.tasks[taker] = Task::Delivered(fence);
        Some(Delivery::Done { fence, rises })
    }

    pub(super) fn receive_grant(&mut self, seq: u64) {
        self.contender = Contender::None;
        self.overtaken = 0;
        self.held = Some(Held { seq, lost: false, releasing: false, last: None });
        let taker = self.pick();
        self.hand = Some(Hand { passed: 0, fresh: taker.is_some(), taker });
    }

    pub(super) fn is_served(&self) -> bool {
        self.tasks.iter().any(|task| matches!(task, Task::Delivered(_) | Task::Holding(_)))
    }
}

/// The outcome of a delivery.
pub(super) enum Delivery {
    Undeliverable,
    Done { fence: Fence, rises: bool },
}
