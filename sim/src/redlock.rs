//! The fencing token over several independent servers (Redlock), without a server that all of them ask.
//!
//! # The protocol
//!
//! Each of `n` nodes keeps, per resource, a lock that expires, and a record that does not: a counter,
//! and the node's run id at the time when the record was written. A record is **armed** if that is the
//! node's present run id: then the node has forgotten nothing since. An acquisition has two rounds,
//! each sent to all nodes at once.
//!
//! 1. **Ask.** A node whose lock is free, or is the asker's own, sets it to the asker's value and
//!    answers with the counter, its run id and whether the record is armed. The asker waits for the
//!    armed answers of a majority and takes the token `1 + the greatest armed counter`. From now on it
//!    speaks only to nodes that it has heard.
//! 2. **Write.** A node takes the token iff its lock still has the very value that this answer was
//!    given for, its run id is the same, the record is armed and its counter is smaller. A majority of
//!    these makes the grant.
//! 3. **Mend.** A holder writes its token into the nodes that it has heard *unarmed* before it wrote,
//!    if their run id is still the same, and arms them: `counter = max(counter, token)`.
//!
//! A value is drawn per message, not per acquisition: a repeated question that is carried out late
//! would otherwise lock anew for an asker that has long decided.
//!
//! If fewer than a majority are armed, nothing is granted until an operator arms nodes again with a
//! counter that is not less than any token that was ever decided on.
//!
//! # The adversary
//!
//! Every lock may expire at any time, so every question may take it. Messages are lost or carried out
//! at any later time, in any order, also after the acquisition has ended; questions may be repeated. A
//! node that crashes comes back with another run id, its counter at zero, and its lock with any
//! acquisition's value.
//!
//! Choices that can only hide a fault are left out. An acquisition is counted as granted the moment a
//! majority has its token: had the news been lost, later acquisitions would have less to be greater
//! than. It decides with its last answer: a request without an answer takes a lock from another client,
//! which is not worse than a write that is lost.

use stateright::{Model, Property};

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The token is written back to a majority, in place of each node counting for itself.
    pub writes_back: bool,
    /// Only armed records count, and are written.
    pub armed: bool,
    /// A node refuses to write if its run id has changed since it was asked.
    pub run_id: bool,
    /// A node refuses to write if its lock has another value than when it was asked.
    pub lock: bool,
    /// A node refuses to write if its record is unarmed, in place of arming it by the way.
    pub writes_armed_only: bool,
    /// A node is mended only if its run id has not changed since it was heard.
    pub mends_same_run_only: bool,
    /// An acquisition that has decided takes no more answers to its question.
    pub closes_first_round: bool,
    /// A repeated question has a value of its own.
    pub value_per_message: bool,
    /// The counter has to be smaller than the token, not just no greater.
    pub strictly_greater: bool,
}

impl Rules {
    /// The protocol as described above.
    pub const SOUND: Rules = Rules {
        writes_back: true,
        armed: true,
        run_id: true,
        lock: true,
        writes_armed_only: true,
        mends_same_run_only: true,
        closes_first_round: true,
        value_per_message: true,
        strictly_greater: true,
    };
}

/// The answer of one node to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// The counter of the record.
    pub counter: u8,
    /// The run id of the node.
    pub run: u8,
    /// `true` if the record was written under this run id.
    pub armed: bool,
}

/// One node's share in one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The greatest token that the node remembers.
    pub counter: u8,
    /// Another one after each restart.
    pub run: u8,
    /// `true` if the counter was written under this run id.
    pub armed: bool,
    /// The value of the lock.
    pub lock: u8,
}

/// A value of the lock that no writer will name any more.
const NO_OWNER: u8 = u8::MAX;

impl Node {
    const FRESH: Node = Node { counter: 0, run: 0, armed: true, lock: NO_OWNER };

    /// Carries out the first round. That the lock may be taken is the adversary's choice.
    pub fn ask(&mut self, value: u8, rules: &Rules) -> Answer {
        self.lock = value;
        if !rules.writes_back {
            self.counter += 1;
        }
        Answer { counter: self.counter, run: self.run, armed: self.armed }
    }

    /// Carries out the second round, in one step of the node. Returns whether the token is in the node
    /// now.
    pub fn write(&mut self, value: u8, run: u8, token: u8, rules: &Rules) -> bool {
        let still_locked = !rules.lock || self.lock == value;
        let same_run = !rules.run_id || self.run == run;
        let armed = !rules.armed || !rules.writes_armed_only || self.armed;
        let greater = self.counter < token || (!rules.strictly_greater && self.counter == token);
        let takes = still_locked && same_run && armed && greater;
        if takes {
            self.counter = token;
            self.armed = true;
        }
        takes
    }

    /// Arms the node with an operator's help, when too few nodes are armed.
    pub fn rearm(&mut self, counter: u8) {
        self.counter = counter;
        self.armed = true;
    }

    /// Mends a node that had forgotten, with a holder's help.
    pub fn mend(&mut self, run: u8, token: u8, rules: &Rules) {
        if self.run == run || !rules.mends_same_run_only {
            self.counter = self.counter.max(token);
            self.armed = true;
        }
    }

    fn crash(&mut self, lock: u8) {
        *self = Node { counter: 0, run: self.run + 1, armed: false, lock };
    }
}

/// Returns the token that these answers of `nodes` allow, if they are enough.
pub fn decide(answers: impl Iterator<Item = Answer>, nodes: usize, rules: &Rules) -> Option<u8> {
    let counted = answers.filter(|answer| answer.armed || !rules.armed);
    let (count, greatest) =
        counted.fold((0, 0), |(count, greatest), answer| (count + 1, greatest.max(answer.counter)));
    (count > nodes / 2).then_some(if rules.writes_back { greatest + 1 } else { greatest })
}

/// The progress of one acquisition at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Not there, or not heard.
    Nothing,
    /// It has asked; the answer may be heard.
    Asked(Answer),
    /// It has heard the answer and decided.
    Seen {
        /// The node's run id then.
        run: u8,
        /// `true` if it was armed then.
        armed: bool,
    },
    /// The node has taken the token.
    Written,
    /// The node refuses all that may still come.
    Over,
}

/// A node, and how far each acquisition has come there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Column<const K: usize> {
    /// The node.
    pub node: Node,
    /// By acquisition.
    pub reach: [Reach; K],
}

/// The progress of one acquisition as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not begun.
    Idle,
    /// It asks, and began when `floor` was the greatest token of those that had finished.
    Asking {
        /// The greatest token then.
        floor: u8,
    },
    /// It has decided on its token.
    Decided {
        /// As above.
        floor: u8,
        /// Its token.
        token: u8,
    },
    /// It was granted.
    Granted {
        /// Its token.
        token: u8,
    },
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// One token was granted twice.
    Twice,
    /// A token is below one that was granted before its acquisition began.
    Regress,
}

/// All nodes and acquisitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize, const K: usize> {
    columns: [Column<K>; N],
    phases: [Phase; K],
    crashes: u8,
    fault: Option<Fault>,
}

/// One step of the adversary's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The acquisition of this number asks a node of this number, and hears the answer.
    Ask(u8, u8),
    /// The same, and with that answer it decides on its token.
    AskAndDecide(u8, u8),
    /// A question is carried out after its asker has decided.
    AskLate(u8, u8),
    /// The acquisition writes to the node; it is granted if that makes a majority.
    Write(u8, u8),
    /// The holder mends the node.
    Mend(u8, u8),
    /// The operator arms the node.
    Rearm(u8),
    /// The node of the first number restarts, with a lock of the second number's value.
    Crash(u8, u8),
}

/// The counter that an operator writes to arm nodes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rearm {
    /// There is none.
    Never,
    /// The greatest token that was ever granted.
    Granted,
    /// The greatest token that was ever decided on.
    Decided,
}

/// The model: `N` nodes, `K` acquisitions of one attempt each, by whomever.
#[derive(Clone, Copy, Debug)]
pub struct Redlock<const N: usize, const K: usize> {
    /// The rules of the parties.
    pub rules: Rules,
    /// The number of times that a node may forget.
    pub crashes: u8,
    /// The counter that a failed acquisition of former times has left in one node.
    pub leftover: u8,
    /// The reaction of an operator when fewer than a majority are armed.
    pub rearm: Rearm,
    /// `true` if it is noted what each acquisition has to be greater than; without it the search is for
    /// tokens granted twice only, and shorter.
    pub order: bool,
}

impl<const N: usize, const K: usize> Redlock<N, K> {
    fn actions_of(&self, state: &State<N, K>, attempt: usize, actions: &mut Vec<Step>) {
        // Acquisitions are alike, so they begin in the order of their numbers.
        let may_ask = match state.phases[attempt] {
            Phase::Idle => attempt == 0 || state.phases[attempt - 1] != Phase::Idle,
            Phase::Asking { .. } => true,
            Phase::Decided { .. } | Phase::Granted { .. } => false,
        };
        let granted = matches!(state.phases[attempt], Phase::Granted { .. });
        for (index, column) in state.columns.iter().enumerate() {
            let (asker, node) = (attempt as u8, index as u8);
            match column.reach[attempt] {
                Reach::Nothing | Reach::Asked(_) if may_ask => {
                    actions.push(Step::AskAndDecide(asker, node));
                    if column.reach[attempt] == Reach::Nothing {
                        actions.push(Step::Ask(asker, node));
                    }
                }
                Reach::Seen { armed, .. } => {
                    actions.push(Step::Write(asker, node));
                    if granted && !armed && self.rules.armed {
                        actions.push(Step::Mend(asker, node));
                    }
                }
                _ => {}
            }
            if !may_ask && ![NO_OWNER, column.node.lock].contains(&self.late_value(attempt, column)) {
                actions.push(Step::AskLate(asker, node));
            }
        }
    }

    /// Returns the value of a question that is carried out after its asker has decided.
    fn late_value(&self, attempt: usize, column: &Column<K>) -> u8 {
        let first = column.reach[attempt] == Reach::Nothing;
        let dead = if first { self.rules.closes_first_round } else { self.rules.value_per_message };
        if dead { NO_OWNER } else { attempt as u8 }
    }

    fn ask_late(&self, column: &mut Column<K>, attempt: usize) {
        let value = self.late_value(attempt, column);
        let Answer { run, armed, .. } = column.node.ask(value, &self.rules);
        if column.reach[attempt] == Reach::Nothing && !self.rules.closes_first_round {
            column.reach[attempt] = Reach::Seen { run, armed };
        }
    }

    /// Drops what can have no effect any more, so that states which differ in it only are one.
    fn forget(&self, column: &mut Column<K>) {
        let rules = self.rules;
        for (value, reach) in column.reach.iter_mut().enumerate() {
            let Reach::Seen { run, armed } = *reach else { continue };
            let restarted = rules.run_id && rules.mends_same_run_only && run != column.node.run;
            let locks_return = !rules.run_id || !rules.value_per_message;
            let robbed = rules.lock && !locks_return && column.node.lock != value as u8;
            if restarted || robbed && armed {
                *reach = Reach::Over;
            }
        }
        let writer = column.reach.get(usize::from(column.node.lock));
        if let Some(Reach::Asked(Answer { run, .. }) | Reach::Seen { run, .. }) = writer
            && (!rules.run_id || *run == column.node.run)
        {
            return;
        }
        column.node.lock = NO_OWNER;
    }

    fn decide(&self, state: &mut State<N, K>, attempt: usize) -> Option<()> {
        let Phase::Asking { floor } = state.phases[attempt] else { return None };
        let answers = state.columns.iter().filter_map(|column| match column.reach[attempt] {
            Reach::Asked(answer) => Some(answer),
            _ => None,
        });
        let token = decide(answers, N, &self.rules)?;
        for column in &mut state.columns {
            if let Reach::Asked(Answer { run, armed, .. }) = column.reach[attempt] {
                column.reach[attempt] = Reach::Seen { run, armed };
            }
        }
        state.phases[attempt] = Phase::Decided { floor, token };
        if !self.rules.writes_back {
            state.grant(attempt, floor, token);
        }
        Some(())
    }
}

impl<const N: usize, const K: usize> State<N, K> {
    fn tokens(&self) -> impl Iterator<Item = u8> {
        self.phases.iter().filter_map(|phase| match phase {
            Phase::Granted { token } => Some(*token),
            _ => None,
        })
    }

    /// Returns the greatest token that the operator knows of.
    fn known(&self, rearm: Rearm) -> u8 {
        let known = self.phases.iter().filter_map(|phase| match phase {
            Phase::Granted { token } => Some(*token),
            Phase::Decided { token, .. } if rearm == Rearm::Decided => Some(*token),
            _ => None,
        });
        known.max().unwrap_or(0)
    }

    fn grant(&mut self, attempt: usize, floor: u8, token: u8) {
        if self.tokens().any(|other| other == token) {
            self.fault = Some(Fault::Twice);
        } else if token <= floor {
            self.fault = Some(Fault::Regress);
        }
        self.phases[attempt] = Phase::Granted { token };
    }
}

impl<const N: usize, const K: usize> Model for Redlock<N, K> {
    type State = State<N, K>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        let mut columns = [Column { node: Node::FRESH, reach: [Reach::Nothing; K] }; N];
        columns[0].node.counter = self.leftover;
        columns.sort_unstable();
        vec![State { columns, phases: [Phase::Idle; K], crashes: 0, fault: None }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Step>) {
        if state.fault.is_some() {
            return;
        }
        for attempt in 0..K {
            self.actions_of(state, attempt, actions);
        }
        let armed = state.columns.iter().filter(|column| column.node.armed).count();
        if self.rearm != Rearm::Never && armed <= N / 2 {
            let unarmed = (0..N).filter(|node| !state.columns[*node].node.armed);
            actions.extend(unarmed.map(|node| Step::Rearm(node as u8)));
        }
        if state.crashes < self.crashes {
            let begun = state.phases.iter().filter(|phase| **phase != Phase::Idle).count() as u8;
            for node in 0..N as u8 {
                actions.extend((0..begun).chain([NO_OWNER]).map(|lock| Step::Crash(node, lock)));
            }
        }
    }

    fn next_state(&self, last: &Self::State, step: Step) -> Option<Self::State> {
        let mut state = *last;
        match step {
            Step::Ask(asker, node) | Step::AskAndDecide(asker, node) => {
                let attempt = usize::from(asker);
                if state.phases[attempt] == Phase::Idle {
                    let floor = if self.order { state.tokens().max().unwrap_or(0) } else { 0 };
                    state.phases[attempt] = Phase::Asking { floor };
                }
                let column = &mut state.columns[usize::from(node)];
                column.reach[attempt] = Reach::Asked(column.node.ask(asker, &self.rules));
                if matches!(step, Step::AskAndDecide(..)) {
                    self.decide(&mut state, attempt)?;
                }
            }
            Step::AskLate(asker, node) => self.ask_late(&mut state.columns[usize::from(node)], asker.into()),
            Step::Write(asker, node) => {
                let attempt = usize::from(asker);
                let (Phase::Decided { token, .. } | Phase::Granted { token }) = state.phases[attempt] else {
                    return None;
                };
                let column = &mut state.columns[usize::from(node)];
                let Reach::Seen { run, .. } = column.reach[attempt] else { return None };
                // A refusal changes nothing: it is as if the message had been lost.
                if !column.node.write(asker, run, token, &self.rules) {
                    return None;
                }
                column.reach[attempt] = Reach::Written;
                let written = state.columns.iter().filter(|column| column.reach[attempt] == Reach::Written);
                if let Phase::Decided { floor, token } = state.phases[attempt]
                    && written.count() > N / 2
                {
                    state.grant(attempt, floor, token);
                }
            }
            Step::Mend(asker, node) => {
                let Phase::Granted { token } = state.phases[usize::from(asker)] else { return None };
                let column = &mut state.columns[usize::from(node)];
                let Reach::Seen { run, .. } = column.reach[usize::from(asker)] else { return None };
                column.node.mend(run, token, &self.rules);
                if self.rules.mends_same_run_only {
                    column.reach[usize::from(asker)] = Reach::Over;
                }
            }
            Step::Rearm(node) => {
                let counter = state.known(self.rearm).max(self.leftover);
                state.columns[usize::from(node)].node.rearm(counter);
            }
            Step::Crash(node, lock) => {
                state.crashes += 1;
                state.columns[usize::from(node)].node.crash(lock);
            }
        }
        for column in &mut state.columns {
            self.forget(column);
        }
        // Nodes are alike: states that differ in their order only are one.
        state.columns.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNIQUE, |_, state: &Self::State| state.fault != Some(Fault::Twice)),
            Property::always(RISING, |_, state: &Self::State| state.fault != Some(Fault::Regress)),
            Property::sometimes("every acquisition is granted", |_, state: &Self::State| {
                state.tokens().count() == K
            }),
        ]
    }
}

/// No token is granted twice.
pub const UNIQUE: &str = "no token is granted twice";
/// Every token is greater than all that were granted before its acquisition began.
pub const RISING: &str = "a token is greater than all granted before its acquisition began";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks, breaks_somehow, holds};

    const SOUND: Rules = Rules::SOUND;
    const DURABLE: Rules =
        Rules { armed: false, run_id: false, mends_same_run_only: false, lock: false, ..SOUND };

    const ARMS_BY_WRITING: Rules = Rules { writes_armed_only: false, ..SOUND };

    /// A variant with the crashes that it takes to break it, and what was left in one node before.
    type Variant = (Rules, u8, u8);
    const WITHOUT_LOCK: Variant = (Rules { lock: false, ..SOUND }, 1, 1);
    const LATE_ANSWERS: Variant = (Rules { closes_first_round: false, ..SOUND }, 1, 0);
    const ONE_VALUE: Variant = (Rules { value_per_message: false, ..SOUND }, 1, 1);
    const MENDS_ANY_RUN: Variant = (Rules { mends_same_run_only: false, ..SOUND }, 2, 0);
    const NO_RUN_IDS: Variant = (Rules { run_id: false, mends_same_run_only: false, ..SOUND }, 2, 0);

    /// Builds three nodes.
    fn three<const K: usize>(rules: Rules, crashes: u8, leftover: u8) -> Redlock<3, K> {
        Redlock { rules, crashes, leftover, rearm: Rearm::Never, order: true }
    }

    /// Returns the least number of steps to one token for two, with three nodes and three acquisitions.
    fn twice(rules: Rules, crashes: u8, leftover: u8) -> usize {
        breaks(Redlock { order: false, ..three::<3>(rules, crashes, leftover) }, UNIQUE)
    }

    #[test]
    fn holds_with_a_node_that_forgets() {
        holds(three::<3>(SOUND, 1, 0));
    }

    #[test]
    fn counting_per_node_breaks() {
        let rules = Rules { writes_back: false, armed: false, ..SOUND };
        assert_eq!(twice(rules, 0, 0), 4);
        assert_eq!(breaks(three::<3>(rules, 0, 0), RISING), 6);
    }

    #[test]
    fn two_plain_rounds_hold_only_while_no_node_forgets() {
        holds(three::<3>(DURABLE, 0, 0));
        assert_eq!(twice(DURABLE, 1, 0), 9);
        breaks_somehow(three::<3>(DURABLE, 1, 0), RISING);
    }

    #[test]
    fn arming_by_a_write_breaks() {
        assert_eq!(twice(ARMS_BY_WRITING, 1, 0), 10);
    }

    #[test]
    fn each_other_rule_is_needed() {
        for (rules, crashes, leftover) in [WITHOUT_LOCK, LATE_ANSWERS, ONE_VALUE, MENDS_ANY_RUN, NO_RUN_IDS] {
            let model = Redlock { order: false, ..three::<3>(rules, crashes, leftover) };
            breaks_somehow(model, UNIQUE);
        }
    }

    #[test]
    #[ignore = "minutes"]
    fn the_shortest_ways_to_break_it() {
        assert_eq!(breaks(three::<3>(DURABLE, 1, 0), RISING), 12);
        for ((rules, crashes, leftover), steps) in
            [(WITHOUT_LOCK, 15), (LATE_ANSWERS, 15), (ONE_VALUE, 16), (MENDS_ANY_RUN, 17), (NO_RUN_IDS, 17)]
        {
            assert_eq!(twice(rules, crashes, leftover), steps, "{rules:?}");
        }
        let rearm = Redlock { rearm: Rearm::Granted, order: false, ..three::<3>(SOUND, 2, 0) };
        assert_eq!(breaks(rearm, UNIQUE), 12);
    }

    #[test]
    fn arming_with_what_was_granted_breaks() {
        breaks_somehow(Redlock { rearm: Rearm::Granted, order: false, ..three::<3>(SOUND, 2, 0) }, UNIQUE);
    }

    #[test]
    #[ignore = "minutes"]
    fn arming_with_what_was_decided_holds() {
        holds(Redlock { rearm: Rearm::Decided, ..three::<3>(SOUND, 2, 0) });
        holds(Redlock { rearm: Rearm::Decided, ..three::<3>(SOUND, 3, 0) });
    }

    #[test]
    #[ignore = "minutes"]
    fn two_rules_may_be_softer() {
        // A repeated write may be answered with yes.
        holds(three::<3>(Rules { strictly_greater: false, ..SOUND }, 1, 1));
        // Writing needs no run id where values are drawn per message and mending looks at it.
        holds(three::<3>(Rules { run_id: false, ..SOUND }, 2, 0));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_two_that_forget() {
        holds(three::<3>(SOUND, 1, 1));
        holds(three::<3>(SOUND, 2, 1));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_four_acquisitions() {
        holds(three::<4>(SOUND, 1, 0));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_five_nodes() {
        holds(Redlock::<5, 2> { rules: SOUND, crashes: 2, leftover: 1, rearm: Rearm::Never, order: true });
        holds(Redlock::<5, 3> { rules: SOUND, crashes: 1, leftover: 0, rearm: Rearm::Never, order: true });
    }
}
