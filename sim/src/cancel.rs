//! Leaving while an answer is under way: the state that an abandoned acquisition leaves on the server.
//!
//! # The protocol
//!
//! It is that of the engine's contender and reaper.
//!
//! 1. A claim's id is drawn once. **Every attempt repeats it**, one at a time. An attempt is answered
//!    with granted or busy, or ends with a broken connection, and then its outcome is not known.
//! 2. The caller that wants it may leave at any point. The attempt that is under way is not torn off;
//!    its outcome is waited for.
//! 3. Once it is not wanted any more, the claim is **released if it may exist**: if it was granted, if
//!    any attempt ended unknown, or if a place in line was kept for it. A release names the claim, and
//!    is repeated until it is answered.
//! 4. The server may refuse an id for good that was released once, if it can remember ids; it need not.
//!
//! # The adversary
//!
//! A connection may break while a request or its answer is under way. Whether the request is carried
//! out then, and when, is the adversary's choice: also after a later release that went over another
//! connection. Another client may hold at first, and releases at any time; leases do not run out by
//! themselves here, so that all remains are seen.

use stateright::{Model, Property};

/// The rules that the protocol needs, each of which a variant leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Each attempt repeats the id of the first.
    pub same_id: bool,
    /// A claim is released if the outcome of any attempt was not known.
    pub releases_unknown: bool,
    /// A claim is released that was granted when it was not wanted any more.
    pub releases_unwanted: bool,
    /// A release ends only what it names.
    pub releases_own_only: bool,
    /// The server refuses what was released before.
    pub remembers_released: bool,
}

impl Rules {
    /// The protocol as described above, with a server that does not remember.
    pub const SOUND: Rules = Rules {
        same_id: true,
        releases_unknown: true,
        releases_unwanted: true,
        releases_own_only: true,
        remembers_released: false,
    };
}

/// A request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// An attempt.
    Contend {
        /// Its id.
        id: u8,
        /// `true` if it keeps a place in line.
        waits: bool,
    },
    /// A release.
    Release {
        /// The id that it names.
        id: u8,
    },
}

/// The answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It holds.
    Granted,
    /// Not yet, or not at all.
    Busy,
    /// It does not exist any more.
    Ended,
}

/// The claim of another client.
const OTHER: u8 = u8::MAX;

/// A server with one line, the holder first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    holder: Option<u8>,
    line: Vec<u8>,
    released: Vec<u8>,
}

impl Server {
    /// Carries a request out.
    pub fn serve(&mut self, request: Request, rules: &Rules) -> Answer {
        match request {
            Request::Contend { id, .. } if rules.remembers_released && self.released.contains(&id) => {
                Answer::Busy
            }
            Request::Contend { id, waits } => {
                let is_next = self.line.first().is_none_or(|first| *first == id);
                if self.holder == Some(id) || self.holder.is_none() && is_next {
                    self.line.retain(|other| *other != id);
                    self.holder = Some(id);
                    return Answer::Granted;
                }
                if waits && !self.line.contains(&id) {
                    self.line.push(id);
                } else if !waits {
                    self.line.retain(|other| *other != id);
                }
                Answer::Busy
            }
            Request::Release { id } => {
                self.line.retain(|other| *other != id);
                if self.holder == Some(id) || !rules.releases_own_only {
                    self.holder = None;
                }
                if rules.remembers_released && !self.released.contains(&id) {
                    self.released.push(id);
                }
                Answer::Ended
            }
        }
    }

    fn has_ours(&self) -> bool {
        self.holder.is_some_and(|holder| holder != OTHER) || self.line.iter().any(|id| *id != OTHER)
    }
}

/// The progress of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It attempts.
    Contending,
    /// It was granted, and its caller has it.
    Holding,
    /// It ends the claim.
    Releasing,
    /// It is done with it.
    Done,
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    phase: Phase,
    wanted: bool,
    /// `true` if the claim may be on the server.
    may_be_there: bool,
    attempts: u8,
    breaks: u8,
    /// The request on the present connection, and the answer once it was carried out.
    current: Option<(Request, Option<Answer>)>,
    /// Requests of broken connections.
    stray: Vec<Request>,
    fault: bool,
}

/// One step of the adversary's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client sends an attempt, or a release.
    Send,
    /// The server carries out what is under way.
    Serve,
    /// The answer arrives.
    Receive,
    /// The connection breaks.
    Break,
    /// The server carries out a request of a broken connection.
    ServeStray(u8),
    /// A request of a broken connection is lost.
    LoseStray(u8),
    /// The caller does not want it any more.
    Leave,
    /// The client sees that there is nothing to end.
    Finish,
    /// The other releases.
    Yield,
}

/// The model: one claim, and another client that may hold.
#[derive(Clone, Copy, Debug)]
pub struct Cancel {
    /// The rules of the parties.
    pub rules: Rules,
    /// The most attempts that are made.
    pub attempts: u8,
    /// The number of times that a connection breaks.
    pub breaks: u8,
    /// `true` if a request of a broken connection may be carried out late.
    pub late: bool,
}

impl Cancel {
    fn request(&self, state: &State) -> Option<Request> {
        match state.phase {
            Phase::Contending if state.wanted && state.attempts < self.attempts => {
                let id = if self.rules.same_id { 0 } else { state.attempts };
                Some(Request::Contend { id, waits: true })
            }
            Phase::Releasing => {
                let last = state.attempts.saturating_sub(1);
                Some(Request::Release { id: if self.rules.same_id { 0 } else { last } })
            }
            _ => None,
        }
    }

    fn receive(&self, state: &mut State, request: Request, answer: Answer) {
        match (request, answer) {
            (Request::Contend { .. }, Answer::Granted) if state.wanted => state.phase = Phase::Holding,
            (Request::Contend { .. }, Answer::Granted) => state.may_be_there |= self.rules.releases_unwanted,
            // It is in line.
            (Request::Contend { .. }, _) => state.may_be_there = true,
            (Request::Release { .. }, _) => state.phase = Phase::Done,
        }
    }

    fn break_off(&self, state: &mut State) -> Option<()> {
        let (request, answer) = state.current.take()?;
        state.breaks += 1;
        if answer.is_none() && self.late {
            state.stray.push(request);
        }
        if matches!(request, Request::Contend { .. }) {
            state.may_be_there |= self.rules.releases_unknown;
        }
        Some(())
    }
}

impl Model for Cancel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let start = |holder| State {
            server: Server { holder, line: Vec::new(), released: Vec::new() },
            phase: Phase::Contending,
            wanted: true,
            may_be_there: false,
            attempts: 0,
            breaks: 0,
            current: None,
            stray: Vec::new(),
            fault: false,
        };
        vec![start(None), start(Some(OTHER))]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        match state.current {
            None => {
                if self.request(state).is_some() {
                    actions.push(Step::Send);
                }
                if state.phase == Phase::Contending && !state.wanted {
                    actions.push(Step::Finish);
                }
            }
            Some((_, answer)) => {
                actions.push(if answer.is_none() { Step::Serve } else { Step::Receive });
                if state.breaks < self.breaks {
                    actions.push(Step::Break);
                }
            }
        }
        for index in 0..state.stray.len() as u8 {
            actions.extend([Step::ServeStray(index), Step::LoseStray(index)]);
        }
        if state.wanted {
            actions.push(Step::Leave);
        }
        if state.server.holder == Some(OTHER) {
            actions.push(Step::Yield);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        let held_by_other = state.server.holder == Some(OTHER);
        match step {
            Step::Send => {
                let request = self.request(&state)?;
                state.attempts += u8::from(matches!(request, Request::Contend { .. }));
                state.current = Some((request, None));
            }
            Step::Serve => {
                let (request, _) = state.current?;
                let answer = state.server.serve(request, &self.rules);
                state.current = Some((request, Some(answer)));
            }
            Step::Receive => {
                let (request, answer) = state.current.take()?;
                self.receive(&mut state, request, answer?);
            }
            Step::Break => self.break_off(&mut state)?,
            Step::ServeStray(index) => {
                let request = state.stray.remove(index.into());
                state.server.serve(request, &self.rules);
            }
            Step::LoseStray(index) => drop(state.stray.remove(index.into())),
            Step::Leave => {
                state.wanted = false;
                if state.phase == Phase::Holding {
                    state.phase = Phase::Releasing;
                }
            }
            Step::Finish => state.phase = if state.may_be_there { Phase::Releasing } else { Phase::Done },
            Step::Yield => state.server.holder = None,
        }
        state.fault |= held_by_other && state.server.holder != Some(OTHER) && step != Step::Yield;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOTHING_LEFT, |_, state: &State| {
                state.phase != Phase::Done || !state.stray.is_empty() || !state.server.has_ours()
            }),
            Property::always(OTHERS_KEPT, |_, state: &State| !state.fault),
            Property::sometimes("it is granted after a connection broke", |_, state: &State| {
                state.phase == Phase::Holding && state.breaks > 0
            }),
            Property::sometimes("it is left and ended after a connection broke", |_, state: &State| {
                state.phase == Phase::Done && state.breaks > 0
            }),
        ]
    }
}

/// Nothing of a claim is on the server when its client is done and nothing is under way.
pub const NOTHING_LEFT: &str = "nothing is left of a claim that was ended";
/// No claim of another client is ended.
pub const OTHERS_KEPT: &str = "no other client's claim is ended";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{breaks, holds};

    const SOUND: Rules = Rules::SOUND;

    fn model(rules: Rules, late: bool) -> Cancel {
        Cancel { rules, attempts: 3, breaks: 3, late }
    }

    #[test]
    fn leaves_nothing_if_broken_connections_execute_nothing_late() {
        holds(model(SOUND, false));
    }

    #[test]
    fn late_request_leaves_a_claim_that_only_its_lease_ends() {
        assert_eq!(breaks(model(SOUND, true), NOTHING_LEFT), 8);
    }

    #[test]
    fn leaves_nothing_where_the_server_remembers_what_was_released() {
        holds(model(Rules { remembers_released: true, ..SOUND }, true));
    }

    #[test]
    fn another_id_for_each_attempt_breaks() {
        assert_eq!(breaks(model(Rules { same_id: false, ..SOUND }, false), NOTHING_LEFT), 10);
    }

    #[test]
    fn not_releasing_what_is_unknown_breaks() {
        assert_eq!(breaks(model(Rules { releases_unknown: false, ..SOUND }, false), NOTHING_LEFT), 5);
    }

    #[test]
    fn not_releasing_what_came_too_late_breaks() {
        assert_eq!(breaks(model(Rules { releases_unwanted: false, ..SOUND }, false), NOTHING_LEFT), 5);
    }

    #[test]
    fn releasing_any_present_claim_breaks() {
        assert_eq!(breaks(model(Rules { releases_own_only: false, ..SOUND }, false), OTHERS_KEPT), 6);
    }
}
