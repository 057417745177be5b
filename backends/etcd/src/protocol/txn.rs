//! The parts that transactions are made of.

use crate::protocol::proto::{
    Compare, Operand, RangeResponse, Request, RequestOp, Response, ResponseOp, compare,
};

/// A range of keys, its end excluded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Span {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        // No queue goes up to the last key of all.
        self.start.as_slice() <= key && key < self.end.as_slice()
    }
}

/// A key that is to go, and what it has to be like for that.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Erase {
    pub(crate) key: Vec<u8>,
    /// Without any, it goes in one transaction with others.
    pub(crate) only_if: Vec<Compare>,
}

/// Builds one operation of a transaction.
pub(crate) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns the keys that an operation found.
pub(crate) fn into_range(response: ResponseOp) -> Option<RangeResponse> {
    match response.response {
        Some(Response::Range(found)) => Some(found),
        _ => None,
    }
}

/// Returns the condition that a key was created at this revision; 0 where none may exist.
pub(crate) fn created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: compare::EQUAL,
        target: compare::CREATE,
        key: key.to_vec(),
        operand: Some(Operand::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

/// Returns the condition that a key was changed last at this revision: a change that was sent before
/// and arrives later does nothing.
pub(crate) fn changed_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: compare::EQUAL,
        target: compare::MOD,
        key: key.to_vec(),
        operand: Some(Operand::ModRevision(revision)),
        range_end: Vec::new(),
    }
}

/// Returns the condition that everything in a queue was created at or after this revision.
pub(crate) fn nothing_before(queue: &Span, revision: i64) -> Compare {
    Compare {
        result: compare::GREATER,
        target: compare::CREATE,
        key: queue.start.clone(),
        operand: Some(Operand::CreateRevision(revision - 1)),
        range_end: queue.end.clone(),
    }
}

/// Returns the condition that nothing in a queue was created at or after this revision.
pub(crate) fn nothing_since(queue: &Span, revision: i64) -> Compare {
    Compare {
        result: compare::LESS,
        target: compare::CREATE,
        key: queue.start.clone(),
        operand: Some(Operand::CreateRevision(revision)),
        range_end: queue.end.clone(),
    }
}

/// Returns the condition that a key has this version; 0 where none may exist.
pub(crate) fn version_is(key: &[u8], version: i64) -> Compare {
    Compare {
        result: compare::EQUAL,
        target: compare::VERSION,
        key: key.to_vec(),
        operand: Some(Operand::Version(version)),
        range_end: Vec::new(),
    }
}

/// Returns the condition that a key is attached to this lease.
pub(crate) fn lease_is(key: &[u8], lease: i64) -> Compare {
    Compare {
        result: compare::EQUAL,
        target: compare::LEASE,
        key: key.to_vec(),
        operand: Some(Operand::Lease(lease)),
        range_end: Vec::new(),
    }
}

/// Returns `true` if it is what [`lease_is`] makes.
pub(crate) fn is_about_a_lease(condition: &Compare) -> bool {
    condition.target == compare::LEASE
}

/// Returns the conditions that a key's value begins with `head` and a space.
pub(crate) fn value_begins(key: &[u8], head: &str) -> [Compare; 2] {
    // The character behind the space is the first that cannot follow.
    [(compare::GREATER, ' '), (compare::LESS, '!')].map(|(result, end)| Compare {
        result,
        target: compare::VALUE,
        key: key.to_vec(),
        operand: Some(Operand::Value(format!("{head}{end}").into_bytes())),
        range_end: Vec::new(),
    })
}
