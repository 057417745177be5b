//! The explanations of outcomes that were not expected, for the page: they stay bold all the same.

use crate::{CellOutcome as Found, Fault, Store};

/// Returns `true` if a failure of this cell is one that the store still has: a run that did not meet it supersedes nothing.
pub(super) fn remains(store: Store, fault: Fault, outcome: Found) -> bool {
    is_reset_of_a_session(store, fault) && outcome == Found::Timing
}

/// Returns `true` for a lock that a connection holds, where connections end. F8 resets those that it has cut off when
/// it ends, F10 ends the one whose answer it loses, and a server that restarts, as in F24, ends its own.
fn is_reset_of_a_session(store: Store, fault: Fault) -> bool {
    store.is_session() && [8, 10, 11, 24].contains(&fault.get())
}

/// Returns an explanation of an outcome of this cell that was not expected, a sentence a line.
fn explained(store: Store, fault: Fault, outcome: Found) -> Option<&'static str> {
    match (store, fault.get(), outcome) {
        (_, _, Found::Timing) if is_reset_of_a_session(store, fault) => Some(
            "Two holders were valid at once, for 1 to 28 ms in the runs that were looked at: the server frees the locks \
             of a connection as soon as it ends, and their holder reads the end of it some milliseconds later.\n\
             [What a lock can promise](safety.md#by-store) says so of every lock that a connection holds.",
        ),
        (Store::Cluster, 3, Found::Late) => Some(
            "The wait was 2.002 s too long, and the bound of I6 was 2 s then.\n\
             It is 3 s since, because the engine waits two seconds for the last answer of a store that hangs.\n\
             The bounds are below.",
        ),
        (Store::Etcd, 3, Found::Late) => Some(
            "A leader of etcd 3.4.23 that was stopped and deposed ended leases that its successor had extended, up to 7 s after \
             it continued.\n\
             The page of etcd says so of these versions, and the fault that was recorded had ended before.\n\
             It lasts until these revocations are over since.",
        ),
        _ => None,
    }
}

/// Returns the explanation as lines below an item of a list; nothing where there is none.
pub(super) fn below(store: Store, fault: Fault, outcome: Found) -> String {
    explained(store, fault, outcome).map_or(String::new(), |why| format!("  {}\n", why.replace('\n', "\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_excuses_nothing_else() {
        let reset = |outcome| explained(Store::MariaDbGetLock, Fault::number(11), outcome);
        assert!(reset(Found::Timing).is_some());
        for other in [Found::Unsafe, Found::Fences, Found::Late, Found::NotJudged, Found::Failed] {
            assert_eq!(reset(other), None);
            assert!(!remains(Store::MariaDbGetLock, Fault::number(11), other));
        }
        assert_eq!(explained(Store::MariaDb, Fault::number(11), Found::Timing), None);
    }
}
