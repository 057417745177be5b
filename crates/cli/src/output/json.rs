//! The output of `--json`: one object a line.
//!
//! Ground rules: the shapes are an interface, described in `docs/book/src/cli.md`. Those of locks are of
//! `leasehold-monitor`, which other views use as well; the output of `ls`, `doctor` and `sweep` is the library's
//! own form of a value.

use std::io::{self, Write};

use serde::Serialize;

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
        ClaimInfo, Deadlock, DeadlockedWait, Fence, Finding, Note, Resource, ResourceSummary, Severity,
        Share, Snapshot, SnapshotVersion, SweepReport,
    };
    use leasehold_monitor::{BrokenShape, LockShape, RevokedShape};
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
