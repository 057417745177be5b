//! A lease that runs out, a holder that may stop at any moment, and a resource that checks fences.
//!
//! # The protocol
//!
//! 1. A server grants a free resource for `ttl` ticks of its clock, with a token that is one greater
//!    than the last.
//! 2. A client believes in a grant for `ttl - margin` ticks of **its own** clock, counted from **before
//!    it asked**. A renewal that is confirmed counts from before *it* was asked; one that is not
//!    answered changes nothing; what has run out stays lost.
//! 3. A release and a renewal name the claim; the server ignores them for any other.
//! 4. A holder looks at its clock, opens the resource with its token, which **raises the resource's
//!    fence before the first read**, then reads and writes. The resource refuses a token below its
//!    fence each time.
//!
//! # The adversary
//!
//! Every message takes any time or is lost, answers come in any order. A client stops between any two
//! of its instructions for any time, so what it does with the resource may come long after it looked at
//! its clock. A client's clock stops for one tick in any `ttl` (the other way round does no harm). With
//! a broken lease the server forgets the holder whenever it likes.
//!
//! # What holds
//!
//! *Mutual exclusion* (no two clients believe at once) is a promise of clocks and margin. *No lost
//! update* is a promise of the fence, and holds with a broken lease too.

mod server;

use stateright::{Model, Property};

pub use server::{Claim, Register, Server};

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Validity counts from before the request, not from the answer.
    pub counts_from_request: bool,
    /// Ticks that a client takes off for clocks that run apart.
    pub margin: u8,
    /// A renewal that is not answered changes nothing, in place of being hoped for.
    pub timeout_extends_nothing: bool,
    /// A release ends only its own claim.
    pub releases_own_only: bool,
    /// A late confirmation does not bring a lost claim back.
    pub lost_stays_lost: bool,
    /// The check that the resource makes.
    pub fence: FenceUse,
}

/// The check that the resource makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceUse {
    /// Nothing.
    Never,
    /// Writes.
    OnWrite,
    /// It is opened before the first read, and checks everything.
    BeforeRead,
}

impl Rules {
    /// The protocol as described above.
    pub const SOUND: Rules = Rules {
        counts_from_request: true,
        margin: 1,
        timeout_extends_nothing: true,
        releases_own_only: true,
        lost_stays_lost: true,
        fence: FenceUse::BeforeRead,
    };

    /// Returns for how long a client believes in an answer to what it asked `age` ticks ago.
    pub fn believes(&self, ttl: u8, age: u8) -> u8 {
        let counted = if self.counts_from_request { age } else { 0 };
        (ttl - self.margin).saturating_sub(counted)
    }
}

/// The progress of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It wants nothing now.
    Idle,
    /// It asked so many of its ticks ago.
    Asking(u8),
    /// The server has granted it; the answer is under way.
    Answered {
        /// Ticks since it asked.
        age: u8,
        /// The token that the answer says.
        token: u8,
    },
    /// It was granted, and believes in it for `left` more ticks.
    Holding {
        /// Ticks of its own clock.
        left: u8,
        /// Its fence.
        token: u8,
        /// The work that it has done so far.
        work: Work,
    },
}

/// The work that a holder has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Nothing.
    None,
    /// It looked at its clock, and holds.
    Checked,
    /// The resource is open to it.
    Opened,
    /// It has read this value.
    Read(u8),
    /// It has written, or was refused.
    Done,
}

/// A renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// There is none.
    None,
    /// It was sent so many ticks ago.
    Sent(u8),
    /// It was carried out; the answer is under way.
    Answered {
        /// Ticks since it was sent.
        age: u8,
        /// `true` if the claim still existed.
        held: bool,
    },
}

/// One client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    phase: Phase,
    number: u8,
    renewals: [Renewal; 2],
    sent: u8,
    releasing: Option<u8>,
    /// The ticks until its clock may stop again.
    steady: u8,
}

impl Client {
    fn believes(&self) -> bool {
        matches!(self.phase, Phase::Holding { left: 1.., .. })
    }

    fn tick(&mut self, ttl: u8) {
        let older = |age: u8| (age + 1).min(ttl);
        self.phase = match self.phase {
            Phase::Idle => Phase::Idle,
            Phase::Asking(age) => Phase::Asking(older(age)),
            Phase::Answered { age, token } => Phase::Answered { age: older(age), token },
            Phase::Holding { left, token, work } => {
                Phase::Holding { left: left.saturating_sub(1), token, work }
            }
        };
        for renewal in &mut self.renewals {
            *renewal = match *renewal {
                Renewal::None => Renewal::None,
                Renewal::Sent(age) => Renewal::Sent(older(age)),
                Renewal::Answered { age, held } => Renewal::Answered { age: older(age), held },
            };
        }
    }

    fn leave(&mut self) {
        let claim = self.number;
        *self = Client { phase: Phase::Idle, renewals: [Renewal::None; 2], sent: 0, ..*self };
        self.number += 1;
        self.releasing = Some(claim);
    }
}

/// The whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const C: usize> {
    server: Server,
    register: Register,
    clients: [Client; C],
}

/// One step of the adversary's choice. The first number is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A tick passes, for all clocks but this client's.
    Tick(Option<u8>),
    /// The server forgets the holder.
    Forget,
    /// Asks, or asks again.
    Ask(u8),
    /// The server carries the question out.
    Serve(u8),
    /// The answer arrives.
    Receive(u8),
    /// Sends a renewal in this slot.
    Renew(u8, u8),
    /// The server carries it out.
    ServeRenewal(u8, u8),
    /// The answer arrives.
    ReceiveRenewal(u8, u8),
    /// The client gives up waiting for the answer.
    GiveUpRenewal(u8, u8),
    /// Looks at its clock, and continues because it holds.
    Check(u8),
    /// Opens the resource.
    Open(u8),
    /// Reads.
    Read(u8),
    /// Writes one more than it has read.
    Write(u8),
    /// Gives the lock back, or gives up what it had lost.
    Leave(u8),
    /// The server carries a release out.
    ServeRelease(u8),
}

/// The model: `C` clients, one server, one resource.
#[derive(Clone, Copy, Debug)]
pub struct Lease<const C: usize> {
    /// The rules of the parties.
    pub rules: Rules,
    /// Length of a lease in ticks.
    pub ttl: u8,
    /// The number of times that each client acquires.
    pub attempts: u8,
    /// The number of messages that each sends again: questions whose answer was lost, and renewals.
    pub repeats: u8,
    /// `true` if clocks of clients may stop for a tick in `ttl`.
    pub slow_clocks: bool,
    /// `true` if the server forgets holders.
    pub broken: bool,
}

impl<const C: usize> Lease<C> {
    fn actions_of(&self, state: &State<C>, client_id: u8, actions: &mut Vec<Step>) {
        let client = state.clients[usize::from(client_id)];
        match client.phase {
            Phase::Idle if client.number < self.attempts => actions.push(Step::Ask(client_id)),
            Phase::Idle => {}
            Phase::Asking(_) => actions.extend([Step::Ask(client_id), Step::Serve(client_id)]),
            Phase::Answered { .. } => {
                actions.push(Step::Receive(client_id));
                if client.sent < self.repeats {
                    actions.push(Step::Ask(client_id));
                }
            }
            Phase::Holding { left, work, .. } => {
                actions.push(match work {
                    Work::None => Step::Check(client_id),
                    Work::Checked if self.rules.fence == FenceUse::BeforeRead => Step::Open(client_id),
                    Work::Checked | Work::Opened => Step::Read(client_id),
                    Work::Read(_) => Step::Write(client_id),
                    Work::Done => Step::Leave(client_id),
                });
                if left == 0 {
                    actions.push(Step::Leave(client_id));
                }
            }
        }
        for slot in 0..2 {
            match client.renewals[usize::from(slot)] {
                Renewal::None if client.believes() && client.sent < self.repeats => {
                    actions.push(Step::Renew(client_id, slot));
                }
                Renewal::None => {}
                Renewal::Sent(_) => {
                    actions
                        .extend([Step::ServeRenewal(client_id, slot), Step::GiveUpRenewal(client_id, slot)]);
                }
                Renewal::Answered { .. } => {
                    actions.extend([
                        Step::ReceiveRenewal(client_id, slot),
                        Step::GiveUpRenewal(client_id, slot),
                    ]);
                }
            }
        }
        if client.releasing.is_some() {
            actions.push(Step::ServeRelease(client_id));
        }
    }

    fn receive_renewal(&self, client: &mut Client, slot: u8) -> Option<()> {
        let Renewal::Answered { age, held } =
            std::mem::replace(&mut client.renewals[usize::from(slot)], Renewal::None)
        else {
            return None;
        };
        let Phase::Holding { left, .. } = &mut client.phase else { return Some(()) };
        if !held {
            *left = 0;
        } else if *left > 0 || !self.rules.lost_stays_lost {
            *left = self.rules.believes(self.ttl, age).max(*left);
        }
        Some(())
    }

    fn give_up_renewal(&self, client: &mut Client, slot: u8) {
        let sent = std::mem::replace(&mut client.renewals[usize::from(slot)], Renewal::None);
        if let (Renewal::Sent(age) | Renewal::Answered { age, .. }, Phase::Holding { left, .. }) =
            (sent, &mut client.phase)
            && !self.rules.timeout_extends_nothing
            && *left > 0
        {
            *left = self.rules.believes(self.ttl, age).max(*left);
        }
    }

    fn work(&self, register: &mut Register, token: u8, step: Step, work: Work) -> Option<Work> {
        let checks = self.rules.fence;
        Some(match (step, work) {
            (Step::Open(_), Work::Checked) if register.open(token) => Work::Opened,
            (Step::Read(_), Work::Checked | Work::Opened)
                if checks != FenceUse::BeforeRead || register.open(token) =>
            {
                Work::Read(register.value)
            }
            (Step::Write(_), Work::Read(value)) if checks == FenceUse::Never || register.open(token) => {
                register.value = value + 1;
                register.accepted += 1;
                Work::Done
            }
            (Step::Open(_) | Step::Read(_) | Step::Write(_), _) => Work::Done,
            _ => return None,
        })
    }

    fn next_of(&self, state: &mut State<C>, client_id: u8, step: Step) -> Option<()> {
        let client = &mut state.clients[usize::from(client_id)];
        let claim = Claim { client: client_id, number: client.number };
        match (step, client.phase) {
            (Step::Ask(_), before) => {
                client.sent += u8::from(matches!(before, Phase::Answered { .. }));
                client.phase = Phase::Asking(0);
            }
            (Step::Serve(_), Phase::Asking(age)) => {
                let token = state.server.grant(claim, self.ttl)?;
                client.phase = Phase::Answered { age, token };
            }
            (Step::Receive(_), Phase::Answered { age, token }) => {
                let left = self.rules.believes(self.ttl, age);
                client.phase = Phase::Holding { left, token, work: Work::None };
            }
            (Step::Renew(_, slot), _) => {
                client.renewals[usize::from(slot)] = Renewal::Sent(0);
                client.sent += 1;
            }
            (Step::ServeRenewal(_, slot), _) => {
                let renewal = &mut client.renewals[usize::from(slot)];
                let Renewal::Sent(age) = *renewal else { return None };
                *renewal = Renewal::Answered { age, held: state.server.renew(claim, self.ttl) };
            }
            (Step::ReceiveRenewal(_, slot), _) => self.receive_renewal(client, slot)?,
            (Step::GiveUpRenewal(_, slot), _) => self.give_up_renewal(client, slot),
            (Step::Check(_), Phase::Holding { left: left @ 1.., token, work: Work::None }) => {
                client.phase = Phase::Holding { left, token, work: Work::Checked };
            }
            (Step::Leave(_), _) => client.leave(),
            (Step::ServeRelease(_), _) => {
                let number = client.releasing.take()?;
                state.server.release(Claim { client: client_id, number }, &self.rules);
            }
            (Step::Open(_) | Step::Read(_) | Step::Write(_), Phase::Holding { left, token, work }) => {
                let work = self.work(&mut state.register, token, step, work)?;
                client.phase = Phase::Holding { left, token, work };
            }
            _ => return None,
        }
        Some(())
    }

    fn tick(&self, state: &mut State<C>, slow: Option<u8>) {
        state.server.tick();
        for (index, client) in state.clients.iter_mut().enumerate() {
            client.steady = client.steady.saturating_sub(1);
            if slow == Some(index as u8) {
                client.steady = self.ttl;
            } else {
                client.tick(self.ttl);
            }
        }
    }
}

impl<const C: usize> Model for Lease<C> {
    type State = State<C>;
    type Action = Step;

    fn init_states(&self) -> Vec<State<C>> {
        let client = Client {
            phase: Phase::Idle,
            number: 0,
            renewals: [Renewal::None; 2],
            sent: 0,
            releasing: None,
            steady: 0,
        };
        vec![State {
            server: Server { holder: None, left: 0, token: 0 },
            register: Register { seen: 0, value: 0, accepted: 0 },
            clients: [client; C],
        }]
    }

    fn actions(&self, state: &State<C>, actions: &mut Vec<Step>) {
        for client_id in 0..C as u8 {
            self.actions_of(state, client_id, actions);
        }
        actions.push(Step::Tick(None));
        if self.slow_clocks {
            let may = |client_id: &u8| state.clients[usize::from(*client_id)].steady == 0;
            actions.extend((0..C as u8).filter(may).map(|client_id| Step::Tick(Some(client_id))));
        }
        if self.broken && state.server.holder.is_some() {
            actions.push(Step::Forget);
        }
    }

    fn next_state(&self, last: &State<C>, step: Step) -> Option<State<C>> {
        let mut state = *last;
        match step {
            Step::Tick(slow) => self.tick(&mut state, slow),
            Step::Forget => state.server.expire(),
            Step::Ask(client_id)
            | Step::Serve(client_id)
            | Step::Receive(client_id)
            | Step::Renew(client_id, _)
            | Step::ServeRenewal(client_id, _)
            | Step::ReceiveRenewal(client_id, _)
            | Step::GiveUpRenewal(client_id, _)
            | Step::Check(client_id)
            | Step::Open(client_id)
            | Step::Read(client_id)
            | Step::Write(client_id)
            | Step::Leave(client_id)
            | Step::ServeRelease(client_id) => self.next_of(&mut state, client_id, step)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_LOST_UPDATE, |_, state: &State<C>| {
                state.register.value == state.register.accepted
            }),
            Property::sometimes(
                "every client acquires and writes each time",
                |model: &Self, state: &State<C>| state.register.accepted == model.attempts * C as u8,
            ),
            Property::sometimes(
                "a holder that had lost its lease came to the resource",
                |_, state: &State<C>| {
                    state.clients.iter().any(|client| matches!(client.phase, Phase::Holding { left: 0, token, work: Work::Done } if token < state.server.token))
                },
            ),
        ];
        if !self.broken {
            properties.push(Property::always(EXCLUSIVE, |_, state: &State<C>| {
                state.clients.iter().filter(|client| client.believes()).count() <= 1
            }));
        }
        properties
    }
}

/// No write is lost.
pub const NO_LOST_UPDATE: &str = "the counter is as great as the number of accepted writes";
/// No two clients believe that they hold.
pub const EXCLUSIVE: &str = "no two clients believe at once that they hold";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks, holds};

    const SOUND: Rules = Rules::SOUND;

    fn two(rules: Rules, attempts: u8, repeats: u8) -> Lease<2> {
        Lease { rules, ttl: 3, attempts, repeats, slow_clocks: true, broken: false }
    }

    #[test]
    fn holds_with_two_acquisitions_each() {
        holds(Lease { ttl: 2, ..two(SOUND, 2, 0) });
    }

    #[test]
    fn holds_with_renewals_and_repeated_questions() {
        holds(Lease { ttl: 2, ..two(SOUND, 1, 1) });
    }

    #[test]
    fn no_update_is_lost_though_the_lease_is_broken() {
        holds(Lease { broken: true, slow_clocks: false, ..two(SOUND, 2, 0) });
        holds(Lease::<3> { rules: SOUND, ttl: 2, attempts: 1, repeats: 0, slow_clocks: false, broken: true });
    }

    #[test]
    fn counting_from_the_answer_breaks() {
        assert_eq!(breaks(two(Rules { counts_from_request: false, ..SOUND }, 1, 0), EXCLUSIVE), 9);
    }

    #[test]
    fn breaks_without_a_margin_by_a_slow_clock_only() {
        let rules = Rules { margin: 0, ..SOUND };
        assert_eq!(breaks(two(rules, 1, 0), EXCLUSIVE), 9);
        holds(Lease { slow_clocks: false, ..two(rules, 2, 0) });
    }

    #[test]
    fn a_renewal_that_is_hoped_for_breaks() {
        assert_eq!(breaks(two(Rules { timeout_extends_nothing: false, ..SOUND }, 1, 1), EXCLUSIVE), 11);
    }

    #[test]
    fn release_of_any_present_claim_breaks() {
        assert_eq!(breaks(two(Rules { releases_own_only: false, ..SOUND }, 2, 0), EXCLUSIVE), 14);
    }

    #[test]
    fn update_is_lost_if_only_writes_or_nothing_is_checked() {
        assert_eq!(breaks(two(Rules { fence: FenceUse::OnWrite, ..SOUND }, 1, 0), NO_LOST_UPDATE), 15);
        assert_eq!(breaks(two(Rules { fence: FenceUse::Never, ..SOUND }, 1, 0), NO_LOST_UPDATE), 15);
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_for_others_if_a_lost_lease_does_not_stay_lost() {
        holds(two(Rules { lost_stays_lost: false, ..SOUND }, 1, 1));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_renewals_that_overtake_each_other() {
        holds(two(SOUND, 1, 1));
        holds(two(SOUND, 1, 2));
    }

    #[test]
    #[ignore = "minutes"]
    fn holds_with_a_longer_lease() {
        holds(two(SOUND, 2, 0));
        holds(Lease { ttl: 4, ..two(SOUND, 2, 0) });
    }
}
