//! The shapes of `--json`: one object a line.
//!
//! Ground rules: these are an interface, described in `docs/book/src/cli.md`. Adding a field is fine,
//! changing or removing one is a breaking change. The id of a claim is never among them, because the id
//! is enough to end the claim.
//!
//! The output of `ls`, `doctor` and `sweep` is the library's own form of a value, and so are the texts of fences
//! and shares. Here is what the command adds: the moment, as text, and objects around several values.

use std::io::{self, Write};

use leasehold::{ClaimInfo, Fence, Note, Resource, Share, Snapshot};
use serde::Serialize;

use crate::output::text::{now, timestamp};

/// The state of one lock: `show`, and with `at` every line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct LockShape<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    name: &'a Resource,
    state: &'static str,
    /// The last fence that was granted.
    fence: Option<Fence>,
    holders: Vec<ClaimShape<'a>>,
    waiting: Vec<ClaimShape<'a>>,
}

/// A claim that holds or waits.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimShape<'a> {
    /// A public name of the claim, as in `LEASEHOLD_OWNER`.
    tag: String,
    share: Share,
    weight: u32,
    capacity: u32,
    fence: Option<Fence>,
    since: Option<String>,
    since_unix_ms: Option<u64>,
    remaining_ms: Option<u64>,
    note: &'a Note,
}

/// The outcome of `break`.
#[derive(Debug, Serialize)]
pub(crate) struct BrokenShape<'a> {
    name: &'a Resource,
    broken: Vec<ClaimShape<'a>>,
    /// The holders that released the lock when they were asked; `None` if none was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<Vec<ClaimShape<'a>>>,
    /// Other locks that ended with the connection of the holder.
    also_released: &'a [Resource],
}

/// The holders that `revoke` has asked.
#[derive(Debug, Serialize)]
pub(crate) struct RevokedShape<'a> {
    name: &'a Resource,
    asked: Vec<ClaimShape<'a>>,
    /// Those that hold the lock after the wait; `None` without a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    still_held: Option<Vec<ClaimShape<'a>>>,
}

impl<'a> LockShape<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        LockShape {
            at: None,
            name: &snapshot.resource,
            state: if snapshot.holders.is_empty() { "free" } else { "held" },
            fence: snapshot.fence,
            holders: snapshot.holders.iter().map(ClaimShape::of).collect(),
            waiting: snapshot.waiting.iter().map(ClaimShape::of).collect(),
        }
    }

    /// Returns its state at this moment.
    pub(crate) fn of_now(snapshot: &'a Snapshot) -> Self {
        LockShape { at: Some(now()), ..LockShape::of(snapshot) }
    }
}

impl<'a> ClaimShape<'a> {
    fn of(info: &'a ClaimInfo) -> Self {
        ClaimShape {
            tag: info.id.tag(),
            share: info.share,
            weight: info.share.weight(),
            capacity: info.share.capacity(),
            fence: info.fence,
            since: info.since_unix_ms.map(timestamp),
            since_unix_ms: info.since_unix_ms,
            remaining_ms: info.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            note: &info.note,
        }
    }
}

impl<'a> BrokenShape<'a> {
    pub(crate) fn of(name: &'a Resource, broken: &'a [ClaimInfo], also_released: &'a [Resource]) -> Self {
        BrokenShape { name, broken: claims(broken), released: None, also_released }
    }

    /// Adds the holders that released the lock by themselves after they were asked.
    pub(crate) fn released(self, released: Option<&'a [ClaimInfo]>) -> Self {
        BrokenShape { released: released.map(claims), ..self }
    }
}

impl<'a> RevokedShape<'a> {
    pub(crate) fn of(name: &'a Resource, asked: &'a [ClaimInfo]) -> Self {
        RevokedShape { name, asked: claims(asked), still_held: None }
    }

    /// Adds the holders that did not release the lock in time.
    pub(crate) fn still_held(self, still_held: Option<&'a [ClaimInfo]>) -> Self {
        RevokedShape { still_held: still_held.map(claims), ..self }
    }
}

fn claims(claims: &[ClaimInfo]) -> Vec<ClaimShape<'_>> {
    claims.iter().map(ClaimShape::of).collect()
}

/// Writes one line.
///
/// # Errors
/// Of the stream.
pub(crate) fn line(out: &mut impl Write, shape: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, shape)?;
    out.write_all(b"\n")?;
    // A reader that reads line by line must not wait for the next.
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::ClaimId;
    use leasehold::{
        Deadlock, DeadlockedWait, Finding, ResourceSummary, Severity, SnapshotVersion, SweepReport,
    };
    use std::time::Duration;

    #[test]
    fn the_shapes_are_an_interface() {
        let holder = ClaimInfo::new(ClaimId::from_bytes([7; 16]), Share::permits(2, 3).unwrap())
            .fence(Some(Fence::new(0, 42, 0)))
            .since_unix_ms(Some(1_000))
            .remaining(Some(Duration::from_millis(27_500)))
            .note(Note::new("a \"note\"\u{1b}").unwrap());
        let waiter = ClaimInfo::new(holder.id, Share::READER).note(holder.note.clone());
        let snapshot = Snapshot::new(Resource::new("n").unwrap(), SnapshotVersion::new("1"))
            .holders(vec![holder.clone()])
            .waiting(vec![waiter])
            .fence(Some(Fence::new(0, 42, 0)));
        let tag = holder.id.tag();
        let held = format!(
            r#"{{"tag":"{tag}","share":"2/3","weight":2,"capacity":3,"fence":"00000000000000000042","since":"1970-01-01T00:00:01Z","since_unix_ms":1000,"remaining_ms":27500,"note":"a \"note\"\u001b"}}"#
        );
        let waits = format!(
            r#"{{"tag":"{tag}","share":"reader","weight":1,"capacity":4294967295,"fence":null,"since":null,"since_unix_ms":null,"remaining_ms":null,"note":"a \"note\"\u001b"}}"#
        );
        let mut out = Vec::new();
        line(&mut out, &LockShape::of(&snapshot)).unwrap();
        let also_released = [snapshot.resource.clone()];
        line(&mut out, &BrokenShape::of(&snapshot.resource, &snapshot.holders, &also_released)).unwrap();
        line(&mut out, &RevokedShape::of(&snapshot.resource, &snapshot.holders)).unwrap();
        let summary = ResourceSummary::new(snapshot.resource.clone(), 1, 2);
        line(&mut out, &summary).unwrap();
        let blocked = DeadlockedWait::new(holder.id, "ann", snapshot.resource.clone(), Share::MUTEX)
            .holds(vec![Resource::new("m").unwrap()]);
        line(&mut out, &Deadlock::new(vec![blocked])).unwrap();
        let finding = Finding::new("order", Severity::Good, "in line").meaning("fair");
        line(&mut out, &finding).unwrap();
        line(&mut out, &SweepReport::default()).unwrap();
        let expected = format!(
            "{}\n{}\n{}\n{}\n{}\n{}\n{}\n",
            format_args!(
                r#"{{"name":"n","state":"held","fence":"00000000000000000042","holders":[{held}],"waiting":[{waits}]}}"#
            ),
            format_args!(r#"{{"name":"n","broken":[{held}],"also_released":["n"]}}"#),
            format_args!(r#"{{"name":"n","asked":[{held}]}}"#),
            r#"{"name":"n","holders":1,"waiting":2}"#,
            r#"{"waits":[{"waits_for":"n","share":"mutex","weight":1,"capacity":1,"holds":["m"],"note":"ann"}]}"#,
            r#"{"topic":"order","severity":"good","found":"in line","meaning":"fair","advice":""}"#,
            r#"{"seen":0,"emptied":0,"removed":0}"#,
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert!(!expected.contains(&holder.id.to_hex()), "the secret stays inside");
    }
}
