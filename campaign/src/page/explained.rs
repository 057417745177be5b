//! The explanations of outcomes that were not expected, for the page: they stay bold all the same.

use crate::{Fault, Store};

/// Returns `true` if a failure of this cell is one that the store still has: a run that did not meet it supersedes nothing.
pub(super) fn remains(store: Store, fault: Fault) -> bool {
    store == Store::MariaDbGetLock && fault.get() == 11
}

/// Returns an explanation of an outcome of this cell that was not expected, a sentence a line.
pub(super) fn explained(store: Store, fault: Fault) -> Option<&'static str> {
    match (store, fault.get()) {
        (Store::MariaDbGetLock, 11) => Some(
            "Two holders were valid at once, for 2 to 21 ms: the server frees the locks of a connection as soon as it \
             is reset, and their holder reads the end of it some milliseconds later.\n\
             [What a lock can promise](safety.md#by-store) says so of every lock that a connection holds.",
        ),
        (Store::Cluster, 3) => Some(
            "The wait was 2.002 s too long, and the bound of I6 was 2 s then.\n\
             It is 3 s since, because the engine waits two seconds for the last answer of a store that hangs.\n\
             The bounds are below.",
        ),
        _ => None,
    }
}
