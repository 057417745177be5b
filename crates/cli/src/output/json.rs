//! The shapes of `--json`: one object a line.
//!
//! Ground rules: these are an interface, described in `docs/book/src/cli.md`. Adding a field is fine,
//! changing or removing one is a breaking change. The id of a claim is never among them, because the id
//! is enough to end the claim.

use std::io::{self, Write};

use leasehold::{
    ClaimInfo, Deadlock, DeadlockedWait, Finding, Resource, ResourceSummary, Snapshot, SweepReport,
};
use serde::Serialize;

use crate::output::text::{now, timestamp};

/// The state of one lock: `show`, and with `at` every line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct LockShape<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    name: &'a str,
    state: &'static str,
    /// The last fence that was granted.
    fence: Option<String>,
    holders: Vec<ClaimShape<'a>>,
    waiting: Vec<ClaimShape<'a>>,
}

/// A claim that holds or waits.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimShape<'a> {
    /// A public name of the claim, as in `LEASEHOLD_OWNER`.
    tag: String,
    share: String,
    weight: u32,
    capacity: u32,
    fence: Option<String>,
    since: Option<String>,
    since_unix_ms: Option<u64>,
    remaining_ms: Option<u64>,
    note: &'a str,
}

/// One line of `ls`.
#[derive(Debug, Serialize)]
pub(crate) struct SummaryShape<'a> {
    name: &'a str,
    holders: u32,
    waiting: u32,
}

/// One line of `ls --deadlocks`.
#[derive(Debug, Serialize)]
pub(crate) struct DeadlockShape<'a> {
    waits: Vec<BlockedShape<'a>>,
}

/// A claim that waits in a deadlock.
#[derive(Debug, Serialize)]
pub(crate) struct BlockedShape<'a> {
    waits_for: &'a str,
    share: String,
    weight: u32,
    capacity: u32,
    holds: Vec<&'a str>,
    note: &'a str,
}

impl<'a> DeadlockShape<'a> {
    pub(crate) fn of(deadlock: &'a Deadlock) -> Self {
        let blocked = |wait: &'a DeadlockedWait| BlockedShape {
            waits_for: wait.resource.as_str(),
            share: wait.share.to_string(),
            weight: wait.share.weight(),
            capacity: wait.share.capacity(),
            holds: wait.holds.iter().map(Resource::as_str).collect(),
            note: &wait.note,
        };
        DeadlockShape { waits: deadlock.waits.iter().map(blocked).collect() }
    }
}

/// The outcome of `break`.
#[derive(Debug, Serialize)]
pub(crate) struct BrokenShape<'a> {
    name: &'a str,
    broken: Vec<ClaimShape<'a>>,
    /// Other locks that ended with the connection of the holder.
    also_released: Vec<&'a str>,
}

/// The outcome of `sweep`.
#[derive(Debug, Serialize)]
pub(crate) struct SweptShape {
    seen: u64,
    emptied: u64,
    removed: u64,
}

impl SweptShape {
    pub(crate) fn of(swept: SweepReport) -> Self {
        SweptShape { seen: swept.seen, emptied: swept.emptied, removed: swept.forgotten }
    }
}

/// The holders that `revoke` has asked.
#[derive(Debug, Serialize)]
pub(crate) struct RevokedShape<'a> {
    name: &'a str,
    asked: Vec<ClaimShape<'a>>,
}

/// One line of `doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct FindingShape<'a> {
    topic: &'a str,
    severity: &'static str,
    found: &'a str,
    meaning: &'a str,
    advice: &'a str,
}

impl<'a> FindingShape<'a> {
    pub(crate) fn of(finding: &'a Finding) -> Self {
        FindingShape {
            topic: finding.topic,
            severity: finding.severity.word(),
            found: &finding.found,
            meaning: &finding.meaning,
            advice: &finding.advice,
        }
    }
}

impl<'a> LockShape<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        LockShape {
            at: None,
            name: snapshot.resource.as_str(),
            state: if snapshot.holders.is_empty() { "free" } else { "held" },
            fence: snapshot.fence.map(|fence| fence.to_string()),
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
            share: info.share.to_string(),
            weight: info.share.weight(),
            capacity: info.share.capacity(),
            fence: info.fence.map(|fence| fence.to_string()),
            since: info.since_unix_ms.map(timestamp),
            since_unix_ms: info.since_unix_ms,
            remaining_ms: info.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            note: info.note.as_str(),
        }
    }
}

impl<'a> SummaryShape<'a> {
    pub(crate) fn of(summary: &'a ResourceSummary) -> Self {
        SummaryShape { name: summary.resource.as_str(), holders: summary.holders, waiting: summary.waiting }
    }
}

impl<'a> BrokenShape<'a> {
    pub(crate) fn of(name: &'a Resource, broken: &'a [ClaimInfo], also_released: &'a [Resource]) -> Self {
        let (broken, also_released) =
            (broken.iter().map(ClaimShape::of), also_released.iter().map(Resource::as_str));
        BrokenShape { name: name.as_str(), broken: broken.collect(), also_released: also_released.collect() }
    }
}

impl<'a> RevokedShape<'a> {
    pub(crate) fn of(name: &'a Resource, asked: &'a [ClaimInfo]) -> Self {
        RevokedShape { name: name.as_str(), asked: asked.iter().map(ClaimShape::of).collect() }
    }
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
    use leasehold::{Fence, Note, Severity, Share, SnapshotVersion};
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
        line(&mut out, &SummaryShape::of(&summary)).unwrap();
        let blocked = DeadlockedWait::new(holder.id, "ann", snapshot.resource.clone(), Share::MUTEX)
            .holds(vec![Resource::new("m").unwrap()]);
        line(&mut out, &DeadlockShape::of(&Deadlock::new(vec![blocked]))).unwrap();
        let finding = Finding::new("order", Severity::Good, "in line").meaning("fair");
        line(&mut out, &FindingShape::of(&finding)).unwrap();
        let expected = format!(
            "{}\n{}\n{}\n{}\n{}\n{}\n",
            format_args!(
                r#"{{"name":"n","state":"held","fence":"00000000000000000042","holders":[{held}],"waiting":[{waits}]}}"#
            ),
            format_args!(r#"{{"name":"n","broken":[{held}],"also_released":["n"]}}"#),
            format_args!(r#"{{"name":"n","asked":[{held}]}}"#),
            r#"{"name":"n","holders":1,"waiting":2}"#,
            r#"{"waits":[{"waits_for":"n","share":"mutex","weight":1,"capacity":1,"holds":["m"],"note":"ann"}]}"#,
            r#"{"topic":"order","severity":"good","found":"in line","meaning":"fair","advice":""}"#,
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert!(!expected.contains(&holder.id.to_hex()), "the secret stays inside");
    }
}
