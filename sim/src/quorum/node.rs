//! One node of a quorum, and the decision from the answers of several.

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Only answers of armed nodes count.
    pub armed: bool,
    /// A node refuses to write if its run has changed since it was asked.
    pub run_id: bool,
    /// A node refuses to write if its lock has another value than when it was asked.
    pub lock: bool,
    /// A node refuses to write in an epoch below its own.
    pub epoch: bool,
    /// Nodes come back in the next epoch, not in the present one.
    pub raises: bool,
    /// Nodes come back only once a majority was raised by the armer that brings them back.
    pub majority_first: bool,
    /// A node is raised only from the epoch that was heard of it.
    pub from_seen_epoch: bool,
    /// A node is marked only in the run that was heard of it.
    pub same_run: bool,
    /// A node is marked only if it has not lost its memory once more since it was heard without.
    pub same_loss: bool,
    /// Before a beginning, all nodes are heard twice.
    pub reads_twice: bool,
    /// A node takes the token of a client that returns only if its record is not greater than the last one.
    pub returns_record: bool,
    /// A node takes the token of a client that returns only in the epoch of the last one.
    pub returns_epoch: bool,
    /// A node takes the token of a client that returns only if it is armed.
    pub returns_armed: bool,
    /// A node takes the token of a client that returns together with the lock only, not if another has it.
    pub returns_lock: bool,
}

impl Rules {
    /// The protocol as described above.
    pub const SOUND: Rules = Rules {
        armed: true,
        run_id: true,
        lock: true,
        epoch: true,
        raises: true,
        majority_first: true,
        from_seen_epoch: true,
        same_run: true,
        same_loss: true,
        reads_twice: true,
        returns_record: true,
        returns_epoch: true,
        returns_armed: true,
        returns_lock: true,
    };
}

/// A token: the epoch, and the counter in it.
pub type Token = (u8, u8);

/// The answer of one node to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// The greatest token of the record.
    pub record: Token,
    /// The run of the node.
    pub run: u8,
    /// The epoch of its mark; zero without a valid one.
    pub epoch: u8,
}

/// One node's share in one resource, and its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The greatest token that the node remembers.
    pub record: Token,
    /// Another one after each restart.
    pub run: u8,
    /// The number of times that it has lost its memory, with a restart or without.
    pub losses: u8,
    /// The epoch of its mark; zero without a valid one.
    pub epoch: u8,
    /// The value of the lock.
    pub lock: u8,
}

/// A value of the lock that no writer will name any more.
pub const NO_OWNER: u8 = u8::MAX;

impl Node {
    /// Returns a node that has served no acquisition, in this epoch; zero where it is not armed.
    pub const fn fresh(epoch: u8) -> Node {
        Node { record: (0, 0), run: 0, losses: 0, epoch, lock: NO_OWNER }
    }

    /// Carries out the first round. That the lock may be taken is the adversary's choice.
    pub fn ask(&mut self, value: u8) -> Answer {
        self.lock = value;
        Answer { record: self.record, run: self.run, epoch: self.epoch }
    }

    /// Carries out the first round of a client that returns. Returns whether the token that follows its last one
    /// was taken as well.
    pub fn return_to(&mut self, value: u8, last: Token, rules: &Rules) -> (Answer, bool) {
        let armed = !rules.returns_armed || self.epoch > 0;
        let same_epoch = !rules.returns_epoch || self.epoch == last.0;
        let takes = armed && same_epoch && (!rules.returns_record || self.record <= last);
        if takes {
            self.record = (last.0, last.1 + 1);
        }
        if takes && !rules.returns_lock {
            return (Answer { record: self.record, run: self.run, epoch: self.epoch }, true);
        }
        (self.ask(value), takes)
    }

    /// Carries out the second round, in one step of the node. Returns whether the token is in the node
    /// now.
    pub fn write(&mut self, value: u8, run: u8, token: Token, rules: &Rules) -> bool {
        let still_locked = !rules.lock || self.lock == value;
        let same_run = !rules.run_id || self.run == run;
        let armed = !rules.armed || self.epoch > 0;
        let in_time = !rules.epoch || self.epoch <= token.0;
        let takes = still_locked && same_run && armed && in_time && self.record <= token;
        if takes {
            self.record = token;
            self.epoch = self.epoch.max(token.0);
        }
        takes
    }

    /// Marks the node, if it is as it was heard. Returns `true` if it did.
    pub fn mark(&mut self, seen: Seen, epoch: u8, rules: &Rules) -> bool {
        let same =
            (self.run == seen.run || !rules.same_run) && (self.epoch == seen.epoch || !rules.from_seen_epoch);
        // One that was heard armed has lost its mark with the rest.
        let forgot = seen.epoch == 0 && seen.losses.is_some_and(|losses| losses != self.losses);
        let takes = same && (!forgot || !rules.same_loss) && (self.epoch < epoch || !rules.raises);
        if takes {
            self.epoch = self.epoch.max(epoch);
        }
        takes
    }

    /// Restarts without memory.
    pub fn crash(&mut self, lock: u8) {
        *self = Node { record: (0, 0), run: self.run + 1, losses: self.losses + 1, epoch: 0, lock };
    }

    /// Loses its memory and runs on.
    pub fn flush(&mut self) {
        *self = Node { record: (0, 0), run: self.run, losses: self.losses + 1, epoch: 0, lock: NO_OWNER };
    }
}

/// The knowledge of an armer about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// Its run.
    pub run: u8,
    /// The epoch of its mark; zero without a valid one.
    pub epoch: u8,
    /// The number of times that it had lost its memory, where that was written on it.
    pub losses: Option<u8>,
}

/// Returns the token that these answers of `nodes` allow, if they are enough.
pub fn decide(answers: impl Iterator<Item = Answer> + Clone, nodes: usize, rules: &Rules) -> Option<Token> {
    let counted = answers.filter(|answer| answer.epoch > 0 || !rules.armed);
    if counted.clone().count() <= nodes / 2 {
        return None;
    }
    let epoch = counted.clone().map(|answer| answer.epoch).max()?;
    let counts = counted.filter(|answer| answer.record.0 == epoch);
    Some((epoch, 1 + counts.map(|answer| answer.record.1).max().unwrap_or(0)))
}
