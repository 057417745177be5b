//! The fenced register as a value: what each call does to it, and what it answers.

use std::fmt;

use crate::event::{Event, FenceValue, Operation, Stage};

/// A fenced register. Reading raises its fence, and a lower fence is refused from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    highest: Option<FenceValue>,
    value: u64,
}

/// A call of the register, with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterCall {
    pub(crate) fence: Option<FenceValue>,
    /// The value that is written; none for a read.
    pub(crate) written: Option<u64>,
    pub(crate) answer: Answer,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A read returned this value.
    Value(u64),
    /// A write was accepted.
    Accepted,
    /// The fence is too low.
    Refused,
    /// No answer came, or none that says what happened.
    Unknown,
}

impl RegisterCall {
    /// Returns the call of these events; none if they are about something else, or if it certainly never came to
    /// the register.
    pub(crate) fn of(invoke: &Event, done: Option<&Event>) -> Option<RegisterCall> {
        let written = match invoke.operation {
            Operation::Read => None,
            Operation::Write => Some(invoke.values.val?),
            _ => return None,
        };
        let answer = match done {
            None => Answer::Unknown,
            Some(done) if done.stage == Stage::Ok => match written {
                None => Answer::Value(done.values.val?),
                Some(_) => Answer::Accepted,
            },
            Some(done) if done.error.as_deref().is_some_and(|error| error.starts_with("refused")) => {
                Answer::Refused
            }
            Some(_) => return None,
        };
        Some(RegisterCall { fence: invoke.values.fence, written, answer })
    }
}

impl Model {
    /// Returns `true` if the register does not refuse the fence of this call. No fence is lower than any.
    pub(crate) fn admits(&self, call: &RegisterCall) -> bool {
        call.fence >= self.highest
    }

    /// Returns the register after the call; none if it would not answer so.
    pub(crate) fn after(&self, call: &RegisterCall) -> Option<Model> {
        let is_admitted = self.admits(call);
        let fits = match call.answer {
            Answer::Value(value) => is_admitted && value == self.value,
            Answer::Accepted => is_admitted,
            Answer::Refused => !is_admitted,
            Answer::Unknown => true,
        };
        match (fits, is_admitted) {
            (false, _) => None,
            (true, false) => Some(*self),
            (true, true) => Some(Model { highest: call.fence, value: call.written.unwrap_or(self.value) }),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.highest {
            Some(fence) => write!(f, "{} under the fence {fence}", self.value),
            None => write!(f, "{} under no fence", self.value),
        }
    }
}

#[cfg(test)]
impl Model {
    pub(crate) fn value_for_tests(&self) -> u64 {
        self.value
    }
}
