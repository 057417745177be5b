//! The explanations of outcomes that were not expected, for the page: they stay bold all the same.

use crate::{Fault, Store};

/// Returns `true` if a failure of this cell is one that the store still has: a run that did not meet it supersedes nothing.
pub(super) fn remains(store: Store, fault: Fault) -> bool {
    is_reset_of_a_session(store, fault)
}

/// Returns `true` for a lock that a connection holds, where connections are reset. F8 resets those that it has cut off
/// when it ends.
fn is_reset_of_a_session(store: Store, fault: Fault) -> bool {
    store.is_session() && [8, 11].contains(&fault.get())
}

/// Returns an explanation of an outcome of this cell that was not expected, a sentence a line.
pub(super) fn explained(store: Store, fault: Fault) -> Option<&'static str> {
    if is_reset_of_a_session(store, fault) {
        return Some(
            "Two holders were valid at once, for 1 to 21 ms: the server frees the locks of a connection as soon as it \
             is reset, and their holder reads the end of it some milliseconds later.\n\
             [What a lock can promise](safety.md#by-store) says so of every lock that a connection holds.",
        );
    }
    match (store, fault.get()) {
        (Store::Cluster, 3) => Some(
            "The wait was 2.002 s too long, and the bound of I6 was 2 s then.\n\
             It is 3 s since, because the engine waits two seconds for the last answer of a store that hangs.\n\
             The bounds are below.",
        ),
        _ => None,
    }
}
