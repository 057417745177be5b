//! Holders and waiters, for people.
//!
//! Ground rules: notes and names come from other clients. They are made visible here, so that no caller can
//! forget it.

use leasehold::{ClaimInfo, Snapshot};

use crate::output::text::{ago, duration, timestamp, visible};

/// Returns the holders and the time of the first grant, in one line: `held by … since … (3m 12s ago)`.
pub(crate) fn held_by(snapshot: &Snapshot) -> String {
    let others = match snapshot.holders.len() {
        0 => return "free".to_owned(),
        1 => String::new(),
        2 => " and one other".to_owned(),
        count => format!(" and {} others", count - 1),
    };
    let first = &snapshot.holders[0];
    let since = since(first).map(|since| format!(" since {since}")).unwrap_or_default();
    format!("held by {}{others}{since}", note_or_tag(first))
}

/// Returns the note of a claim, or its tag without a note.
pub(crate) fn note_or_tag(info: &ClaimInfo) -> String {
    match info.note.as_str() {
        "" => format!("a claim without a note (tag {})", &info.id.tag()[..8]),
        note => visible(note),
    }
}

/// Returns the time of the grant, as a point in time and as an age.
pub(crate) fn since(info: &ClaimInfo) -> Option<String> {
    let at = info.since_unix_ms?;
    Some(format!("{} ({} ago)", timestamp(at), duration(ago(at))))
}

/// Returns the time since the grant.
pub(crate) fn held_for(info: &ClaimInfo) -> Option<String> {
    info.since_unix_ms.map(|at| duration(ago(at)))
}

/// Returns `3 waiting`, or nothing without waiters.
pub(crate) fn waiting(snapshot: &Snapshot) -> Option<String> {
    let count = snapshot.waiting.len();
    (count > 0).then(|| format!("{count} waiting"))
}
