//! The fencing token of [`redlock`](crate::redlock), with a mark for each node in place of one for each
//! record.
//!
//! # The protocol
//!
//! A node keeps a **mark** beside its records: an epoch, valid for the node's present run only. It may
//! lose its memory and run on; then the mark is lost with the records. Since when it has none is
//! written on the node as well, so each loss has a name. With a valid mark it is *armed*; then a
//! resource that has no record of that epoch has had no token in it. A token is `(epoch, counter)`.
//!
//! 1. **Ask.** As in `redlock`. The asker waits for the armed answers of a majority, takes the greatest
//!    epoch among them, and the token `1 + the greatest counter` of that epoch; for a node that is
//!    behind, the counter is zero.
//! 2. **Write.** A node takes the token iff its lock still has the value of that answer, its run is the
//!    same, its mark is valid and of no greater epoch, and its record is not greater. A mark that is
//!    behind is raised by the way.
//!
//! A client that **returns** sends the token of its last grant along with the question. A node whose mark is
//! valid and of that epoch, and whose record is not greater, takes the next token together with the lock. If a
//! majority does, the acquisition is granted after one round.
//!
//! Nodes are not mended. A node that has forgotten comes back in an epoch that is new to it:
//!
//! - **Join.** An armer (a client that arms nodes) hears a majority of armed nodes, and some without
//!   memory. It *raises* the armed ones to the next epoch, each only from the epoch that it heard, and
//!   once a majority took that step it marks the others in the new epoch, each only in the run and
//!   after the loss that was heard.
//! - **Begin.** Where no node was ever marked: an armer hears all nodes, hears all of them once more,
//!   and marks those that are unchanged, in an epoch of its own. Another armer that begins at the same
//!   time may choose a lower one.
//!
//! # The adversary
//!
//! The adversary of `redlock`. In addition, marks are heard, raised and written at any time and in any order,
//! any of them may be lost, and several join at once.

mod node;

use stateright::{Model, Property};

pub use node::{Answer, NO_OWNER, Node, Rules, Seen, Token, decide};

/// The progress of one acquisition at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Not there, or not heard.
    Nothing,
    /// It has asked; the answer may be heard.
    Asked(Answer),
    /// It has asked, and the node has taken the token that follows its last one.
    Took(Answer),
    /// It has heard the answer, of this run, and decided.
    Seen(u8),
    /// The client that returns, with this last token, has decided; its question may still come.
    Late(Token),
    /// The node has taken the token.
    Written,
    /// The node refuses all that may still come.
    Over,
}

/// The progress of an armer at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// It was not heard.
    Nothing,
    /// It was heard a first time, after so many losses of memory.
    Met(u8),
    /// It was heard.
    Seen(Seen),
    /// It was raised.
    Raised,
    /// Nothing more is sent to it, or it refuses what may come.
    Over,
}

/// A node, and the progress of all others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Column<const K: usize, const J: usize> {
    node: Node,
    reach: [Reach; K],
    arms: [Arm; J],
}

/// The progress of one acquisition as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not begun.
    Idle,
    /// It asks, and began when `floor` was the greatest token of those that had finished.
    Asking {
        /// The greatest token then.
        floor: Token,
        /// The token of the last grant of its client, if it returns.
        last: Option<Token>,
    },
    /// It has decided on its token.
    Decided {
        /// As above.
        floor: Token,
        /// Its token.
        token: Token,
    },
    /// It was granted.
    Granted {
        /// Its token.
        token: Token,
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

/// All nodes, acquisitions and armers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize, const K: usize, const J: usize> {
    columns: [Column<K, J>; N],
    phases: [Phase; K],
    /// The epoch that each armer has chosen; zero before.
    chosen: [u8; J],
    crashes: u8,
    fault: Option<Fault>,
}

/// One step of the adversary's choice: which party, and which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks a node, and hears the answer.
    Ask(u8, u8),
    /// The same, and with that answer it decides on its token.
    AskAndDecide(u8, u8),
    /// Begins as the next acquisition of the client of another one, which was granted, and asks a node.
    Return(u8, u8, u8),
    /// A question of a client that returns is carried out after its client has decided.
    AskLate(u8, u8),
    /// Writes to a node; it is granted if that makes a majority.
    Write(u8, u8),
    /// An armer hears a node for the first time, where it hears all twice.
    Meet(u8, u8),
    /// An armer hears a node.
    Recall(u8, u8),
    /// An armer has heard enough, and chooses its epoch.
    Choose(u8),
    /// An armer marks a node: raises it, or brings it back.
    Mark(u8, u8),
    /// The node of the first number restarts, with a lock of the second number's value.
    Crash(u8, u8),
    /// The node loses its memory and runs on.
    Flush(u8),
}

/// The work of the armers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// All nodes are armed at first, and those that forget are brought back.
    Join,
    /// No node was ever marked; each armer begins in the epoch of this number.
    Begin([u8; 2]),
}

/// The model: `N` nodes, `K` acquisitions of one attempt each, and `J` armers, which arm once each.
#[derive(Clone, Copy, Debug)]
pub struct Quorum<const N: usize, const K: usize, const J: usize> {
    /// The rules of the parties.
    pub rules: Rules,
    /// The number of times that a node may forget.
    pub crashes: u8,
    /// The work of the armers.
    pub arming: Arming,
    /// The counter that a failed acquisition of former times has left in one node.
    pub leftover: u8,
    /// `true` if it is noted what each acquisition has to be greater than.
    pub order: bool,
    /// `true` if clients return.
    pub returns: bool,
}

impl<const N: usize, const K: usize, const J: usize> Quorum<N, K, J> {
    fn acquire(&self, state: &State<N, K, J>, attempt: usize, actions: &mut Vec<Step>) {
        // Acquisitions are alike, so they begin in the order of their numbers.
        let may_ask = match state.phases[attempt] {
            Phase::Idle => attempt == 0 || state.phases[attempt - 1] != Phase::Idle,
            Phase::Asking { .. } => true,
            Phase::Decided { .. } | Phase::Granted { .. } => false,
        };
        for (index, column) in state.columns.iter().enumerate() {
            let (asker, node) = (attempt as u8, index as u8);
            match column.reach[attempt] {
                Reach::Nothing if may_ask => {
                    actions.extend([Step::Ask(asker, node), Step::AskAndDecide(asker, node)]);
                    if self.returns && state.phases[attempt] == Phase::Idle {
                        let granted =
                            (0..attempt).filter(|one| matches!(state.phases[*one], Phase::Granted { .. }));
                        actions.extend(granted.map(|one| Step::Return(asker, node, one as u8)));
                    }
                }
                Reach::Asked(_) | Reach::Took(_) if may_ask => actions.push(Step::AskAndDecide(asker, node)),
                Reach::Seen(_) => actions.push(Step::Write(asker, node)),
                Reach::Late(_) => actions.push(Step::AskLate(asker, node)),
                _ => {}
            }
        }
    }

    fn arm(&self, state: &State<N, K, J>, armer: usize, actions: &mut Vec<Step>) {
        // Armers that join are alike as well.
        let touched = |armer: usize| state.columns.iter().any(|column| column.arms[armer] != Arm::Nothing);
        if self.arming == Arming::Join && armer > 0 && !touched(armer - 1) {
            return;
        }
        if state.chosen[armer] == 0 && self.choice(state, armer).is_some() {
            actions.push(Step::Choose(armer as u8));
        }
        let twice = self.rules.reads_twice && self.arming != Arming::Join;
        let all_met = state.columns.iter().all(|column| column.arms[armer] != Arm::Nothing);
        for (index, column) in state.columns.iter().enumerate() {
            let (number, node) = (armer as u8, index as u8);
            match column.arms[armer] {
                Arm::Nothing if state.chosen[armer] == 0 && twice => actions.push(Step::Meet(number, node)),
                Arm::Nothing if state.chosen[armer] == 0 => actions.push(Step::Recall(number, node)),
                Arm::Met(_) if state.chosen[armer] == 0 && all_met => {
                    actions.push(Step::Recall(number, node))
                }
                Arm::Seen(..) if state.chosen[armer] > 0 => actions.push(Step::Mark(number, node)),
                _ => {}
            }
        }
    }

    /// Returns the epoch that an armer would choose by what it has heard.
    fn choice(&self, state: &State<N, K, J>, armer: usize) -> Option<u8> {
        let seen = state.columns.iter().filter_map(|column| match column.arms[armer] {
            Arm::Seen(seen) => Some(seen.epoch),
            _ => None,
        });
        let (armed, forgot) = seen.fold((0, 0), |(armed, forgot), epoch| match epoch {
            0 => (armed, forgot + 1),
            _ => (armed + 1, forgot),
        });
        match self.arming {
            Arming::Join if armed > N / 2 && forgot > 0 => {
                let seen = state.columns.iter().filter_map(|column| match column.arms[armer] {
                    Arm::Seen(seen) => Some(seen.epoch),
                    _ => None,
                });
                seen.max().map(|epoch| epoch + u8::from(self.rules.raises))
            }
            Arming::Begin(epochs) if forgot == N => Some(epochs[armer]),
            _ => None,
        }
    }

    fn mark(&self, state: &mut State<N, K, J>, armer: usize, node: usize) -> Option<()> {
        let raised = state.columns.iter().filter(|column| column.arms[armer] == Arm::Raised).count();
        let epoch = state.chosen[armer];
        let column = &mut state.columns[node];
        let Arm::Seen(seen) = column.arms[armer] else { return None };
        let joins = seen.epoch == 0 && self.arming == Arming::Join;
        if joins && self.rules.majority_first && raised <= N / 2 {
            return None;
        }
        // A refusal changes nothing: it is as if the message had been lost.
        if !column.node.mark(seen, epoch, &self.rules) {
            return None;
        }
        // A message that brings a node back may be repeated.
        if !joins {
            column.arms[armer] = Arm::Raised;
        }
        Some(())
    }

    fn decide(&self, state: &mut State<N, K, J>, attempt: usize) -> Option<()> {
        let Phase::Asking { floor, last } = state.phases[attempt] else { return None };
        let answers = state.columns.iter().filter_map(|column| match column.reach[attempt] {
            Reach::Asked(answer) | Reach::Took(answer) => Some(answer),
            _ => None,
        });
        let token = decide(answers, N, &self.rules)?;
        self.end_questions(state, attempt, last);
        state.phases[attempt] = Phase::Decided { floor, token };
        Some(())
    }

    /// Ends the first round. Answers that come later do not count.
    fn end_questions(&self, state: &mut State<N, K, J>, attempt: usize, last: Option<Token>) {
        for column in &mut state.columns {
            column.reach[attempt] = match (column.reach[attempt], last) {
                (Reach::Asked(Answer { run, .. }) | Reach::Took(Answer { run, .. }), _) => Reach::Seen(run),
                (Reach::Nothing, Some(last)) => Reach::Late(last),
                // A write that comes after the decision takes a lock from a client, which is not worse
                // than a write that is lost.
                _ => Reach::Over,
            };
        }
    }

    /// Asks a node, and grants the acquisition of a client that returns if a majority took its token.
    fn ask(&self, state: &mut State<N, K, J>, attempt: usize, node: usize) {
        let Phase::Asking { floor, last } = state.phases[attempt] else { return };
        let column = &mut state.columns[node];
        let Some(last) = last else {
            column.reach[attempt] = Reach::Asked(column.node.ask(attempt as u8));
            return;
        };
        column.reach[attempt] = match column.reach[attempt] {
            // The answer of a node that took the token is heard again, and not the question repeated.
            took @ Reach::Took(_) => took,
            _ => match column.node.return_to(attempt as u8, last, &self.rules) {
                (answer, true) => Reach::Took(answer),
                (answer, false) => Reach::Asked(answer),
            },
        };
        let took = state.columns.iter().filter(|column| matches!(column.reach[attempt], Reach::Took(_)));
        if took.count() > N / 2 {
            self.end_questions(state, attempt, Some(last));
            // Nothing is written by a second round.
            for column in &mut state.columns {
                if matches!(column.reach[attempt], Reach::Seen(_)) {
                    column.reach[attempt] = Reach::Over;
                }
            }
            state.grant(attempt, floor, (last.0, last.1 + 1));
        }
    }

    /// Drops what can have no effect any more, so that states which differ in it only are one.
    fn forget(&self, column: &mut Column<K, J>) {
        for (value, reach) in column.reach.iter_mut().enumerate() {
            let Reach::Seen(run) = *reach else { continue };
            let restarted = self.rules.run_id && run != column.node.run;
            let robbed = self.rules.lock && self.rules.run_id && column.node.lock != value as u8;
            if restarted || robbed {
                *reach = Reach::Over;
            }
        }
        let writer = column.reach.get(usize::from(column.node.lock));
        if !matches!(writer, Some(Reach::Asked(_) | Reach::Took(_) | Reach::Seen(_))) {
            column.node.lock = NO_OWNER;
        }
    }
}

impl<const N: usize, const K: usize, const J: usize> State<N, K, J> {
    fn tokens(&self) -> impl Iterator<Item = Token> {
        self.phases.iter().filter_map(|phase| match phase {
            Phase::Granted { token } => Some(*token),
            _ => None,
        })
    }

    /// Returns `true` if this acquisition was granted without a second round.
    fn is_in_one_round(&self, attempt: usize) -> bool {
        matches!(self.phases[attempt], Phase::Granted { .. })
            && self.columns.iter().all(|column| column.reach[attempt] != Reach::Written)
    }

    fn grant(&mut self, attempt: usize, floor: Token, token: Token) {
        if self.tokens().any(|other| other == token) {
            self.fault = Some(Fault::Twice);
        } else if token <= floor {
            self.fault = Some(Fault::Regress);
        }
        self.phases[attempt] = Phase::Granted { token };
    }
}

impl<const N: usize, const K: usize, const J: usize> Model for Quorum<N, K, J> {
    type State = State<N, K, J>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        let epoch = u8::from(self.arming == Arming::Join);
        let fresh = Column { node: Node::fresh(epoch), reach: [Reach::Nothing; K], arms: [Arm::Nothing; J] };
        let mut columns = [fresh; N];
        if self.leftover > 0 {
            columns[0].node.record = (epoch, self.leftover);
        }
        columns.sort_unstable();
        vec![State { columns, phases: [Phase::Idle; K], chosen: [0; J], crashes: 0, fault: None }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Step>) {
        if state.fault.is_some() {
            return;
        }
        for attempt in 0..K {
            self.acquire(state, attempt, actions);
        }
        for armer in 0..J {
            self.arm(state, armer, actions);
        }
        if state.crashes < self.crashes {
            let begun = state.phases.iter().filter(|phase| **phase != Phase::Idle).count() as u8;
            for node in 0..N as u8 {
                // With run ids, a lock that survives is useless: a client that may write knows of
                // another run.
                let locks = if self.rules.run_id { 0 } else { begun };
                actions.extend((0..locks).chain([NO_OWNER]).map(|lock| Step::Crash(node, lock)));
                actions.push(Step::Flush(node));
            }
        }
    }

    fn next_state(&self, last: &Self::State, step: Step) -> Option<Self::State> {
        let mut state = *last;
        match step {
            Step::Ask(asker, node) | Step::AskAndDecide(asker, node) | Step::Return(asker, node, _) => {
                let attempt = usize::from(asker);
                if state.phases[attempt] == Phase::Idle {
                    let floor = if self.order { state.tokens().max().unwrap_or((0, 0)) } else { (0, 0) };
                    let last = match step {
                        Step::Return(_, _, client) => match state.phases[usize::from(client)] {
                            Phase::Granted { token } => Some(token),
                            _ => None,
                        },
                        _ => None,
                    };
                    state.phases[attempt] = Phase::Asking { floor, last };
                }
                self.ask(&mut state, attempt, usize::from(node));
                if matches!(step, Step::AskAndDecide(..)) {
                    self.decide(&mut state, attempt)?;
                }
            }
            Step::AskLate(asker, node) => {
                let column = &mut state.columns[usize::from(node)];
                let Reach::Late(last) = column.reach[usize::from(asker)] else { return None };
                _ = column.node.return_to(asker, last, &self.rules);
                column.reach[usize::from(asker)] = Reach::Over;
            }
            Step::Write(asker, node) => {
                let attempt = usize::from(asker);
                let (Phase::Decided { token, .. } | Phase::Granted { token }) = state.phases[attempt] else {
                    return None;
                };
                let column = &mut state.columns[usize::from(node)];
                let Reach::Seen(run) = column.reach[attempt] else { return None };
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
            Step::Meet(armer, node) => {
                let column = &mut state.columns[usize::from(node)];
                column.arms[usize::from(armer)] = Arm::Met(column.node.losses);
            }
            Step::Recall(armer, node) => {
                let column = &mut state.columns[usize::from(node)];
                let Node { run, epoch, losses, .. } = column.node;
                // One that has changed in between ends the attempt.
                let same = !matches!(column.arms[usize::from(armer)], Arm::Met(met) if met != losses);
                column.arms[usize::from(armer)] =
                    if same { Arm::Seen(Seen { run, epoch, losses: Some(losses) }) } else { Arm::Over };
            }
            Step::Choose(armer) => {
                let armer = usize::from(armer);
                state.chosen[armer] = self.choice(&state, armer)?;
            }
            Step::Mark(armer, node) => self.mark(&mut state, usize::from(armer), usize::from(node))?,
            Step::Crash(node, lock) => {
                state.crashes += 1;
                state.columns[usize::from(node)].node.crash(lock);
            }
            Step::Flush(node) => {
                state.crashes += 1;
                state.columns[usize::from(node)].node.flush();
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
        let mut properties = vec![
            Property::always(UNIQUE, |_, state: &Self::State| state.fault != Some(Fault::Twice)),
            Property::always(RISING, |_, state: &Self::State| state.fault != Some(Fault::Regress)),
            Property::sometimes("every acquisition is granted", |_, state: &Self::State| {
                state.tokens().count() == K
            }),
            Property::sometimes(
                "a token of a later epoch is granted",
                |model: &Self, state: &Self::State| {
                    let first = if model.arming == Arming::Join && model.crashes > 0 { 1 } else { 0 };
                    state.tokens().any(|token| token.0 > first)
                },
            ),
        ];
        if self.returns {
            properties.push(Property::sometimes(
                "a client that returns is granted in one round",
                |_, state: &Self::State| (0..K).any(|attempt| state.is_in_one_round(attempt)),
            ));
        }
        properties
    }
}

/// No token is granted twice.
pub const UNIQUE: &str = "no token is granted twice";
/// Every token is greater than all that were granted before its acquisition began.
pub const RISING: &str = "a token is greater than all granted before its acquisition began";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks_somehow, holds};

    const SOUND: Rules = Rules::SOUND;

    /// Builds three nodes, some of which forget and are brought back.
    fn join<const K: usize, const J: usize>(rules: Rules, crashes: u8) -> Quorum<3, K, J> {
        Quorum { rules, crashes, arming: Arming::Join, leftover: 0, order: true, returns: false }
    }

    /// Builds five nodes, of which one forgets and is brought back.
    fn five_nodes(rules: Rules) -> Quorum<5, 2, 1> {
        Quorum { rules, crashes: 1, arming: Arming::Join, leftover: 0, order: true, returns: false }
    }

    /// Builds three nodes that were never marked.
    fn begin<const K: usize>(rules: Rules, crashes: u8, epochs: [u8; 2]) -> Quorum<3, K, 2> {
        Quorum { rules, crashes, arming: Arming::Begin(epochs), leftover: 0, order: true, returns: false }
    }

    #[test]
    fn holds_with_a_node_that_forgets_and_is_brought_back() {
        holds(join::<2, 1>(SOUND, 1));
    }

    #[test]
    fn holds_from_a_beginning_of_two_at_once() {
        holds(begin::<2>(SOUND, 0, [1, 2]));
    }

    #[test]
    fn each_rule_is_needed() {
        for (rules, crashes) in [
            (Rules { armed: false, ..SOUND }, 2),
            (Rules { raises: false, majority_first: false, ..SOUND }, 1),
            (Rules { epoch: false, ..SOUND }, 1),
            (Rules { lock: false, ..SOUND }, 1),
            (Rules { same_loss: false, ..SOUND }, 2),
        ] {
            breaks_somehow(Quorum { order: false, ..join::<2, 1>(rules, crashes) }, UNIQUE);
        }
        // Two have to come back, brought by two, before one is brought back in an epoch that it has
        // forgotten.
        let rules = Rules { majority_first: false, ..SOUND };
        breaks_somehow(Quorum { order: false, ..join::<2, 2>(rules, 2) }, UNIQUE);
    }

    #[test]
    fn holds_with_clients_that_return() {
        holds(Quorum { returns: true, ..join::<3, 0>(SOUND, 0) });
        holds(Quorum { returns: true, ..join::<2, 1>(SOUND, 1) });
    }

    #[test]
    fn each_rule_for_clients_that_return_is_needed() {
        for (rules, crashes) in
            [(Rules { returns_record: false, ..SOUND }, 0), (Rules { returns_lock: false, ..SOUND }, 0)]
        {
            let model = Quorum { returns: true, order: false, ..join::<3, 0>(rules, crashes) };
            breaks_somehow(model, UNIQUE);
        }
        // Of nodes that have forgotten.
        let rules = Rules { returns_armed: false, returns_epoch: false, ..SOUND };
        breaks_somehow(Quorum { returns: true, order: false, ..join::<3, 1>(rules, 2) }, UNIQUE);
    }

    #[test]
    #[ignore = "minutes"]
    fn client_that_returns_in_another_epoch_breaks() {
        let rules = Rules { returns_epoch: false, ..SOUND };
        breaks_somehow(Quorum { returns: true, order: false, ..join::<3, 1>(rules, 2) }, UNIQUE);
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_clients_that_return_to_nodes_that_forget() {
        holds(Quorum { returns: true, ..join::<3, 1>(SOUND, 1) });
        holds(Quorum { returns: true, ..join::<3, 1>(SOUND, 2) });
        holds(Quorum { returns: true, ..join::<2, 2>(SOUND, 2) });
        holds(Quorum { returns: true, ..five_nodes(SOUND) });
        holds(Quorum { returns: true, leftover: 1, ..join::<2, 1>(SOUND, 2) });
        holds(Quorum { returns: true, ..join::<4, 0>(SOUND, 0) });
    }

    #[test]
    fn beginning_after_one_read_breaks() {
        let rules = Rules { reads_twice: false, ..SOUND };
        breaks_somehow(Quorum { order: false, ..begin::<2>(rules, 1, [2, 1]) }, UNIQUE);
    }

    #[test]
    #[ignore = "minutes"]
    fn three_rules_may_be_softer() {
        // A restart is a loss of memory, too.
        holds(join::<2, 1>(Rules { same_run: false, ..SOUND }, 2));
        holds(join::<2, 1>(Rules { run_id: false, ..SOUND }, 2));
        holds(join::<2, 2>(Rules { from_seen_epoch: false, ..SOUND }, 2));
        holds(begin::<2>(Rules { from_seen_epoch: false, ..SOUND }, 1, [2, 1]));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_several_that_forget() {
        holds(join::<2, 1>(SOUND, 2));
        holds(Quorum { leftover: 1, ..join::<2, 1>(SOUND, 2) });
        holds(join::<3, 1>(SOUND, 1));
        holds(join::<2, 2>(SOUND, 2));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_from_any_beginning() {
        holds(begin::<2>(SOUND, 1, [2, 1]));
        holds(begin::<2>(SOUND, 1, [1, 2]));
        // By one clock, at one instant.
        holds(begin::<2>(SOUND, 1, [1, 1]));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_five_nodes() {
        holds(five_nodes(SOUND));
    }
}
