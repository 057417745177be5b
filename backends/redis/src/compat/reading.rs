//! Parses the answers of the dialects' scripts.
//!
//! All dialects answer alike. Nothing that comes over the wire is trusted: what does not parse is a failure.

use std::time::Duration;

use leasehold_core::{ClaimId, ClaimInfo, Failure, Fence, Note, Resource, Share, Snapshot, SnapshotVersion};
use redis::Value;

use crate::protocol::reply;

/// The reply to one `contend`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ContendReply {
    Granted(Option<Fence>),
    /// The first of those ahead may end after `left`; never by itself where it is `None`.
    Busy {
        ahead: u32,
        left: Option<Duration>,
    },
}

/// Reads the answer to `contend`.
pub(crate) fn contend_reply(answer: Value) -> Result<ContendReply, Failure> {
    let numbers: Vec<i64> = reply::read(answer)?;
    match numbers[..] {
        [1, seq] if seq >= 0 => Ok(ContendReply::Granted(fence(seq))),
        [0, ahead, left] => {
            Ok(ContendReply::Busy { ahead: u32::try_from(ahead).unwrap_or(u32::MAX), left: millis(left) })
        }
        _ => Err(reply::not_understood()),
    }
}

/// Reads the answer to `inspect`.
pub(crate) fn snapshot(resource: &Resource, answer: Value) -> Result<Snapshot, Failure> {
    let Value::Array(rows) = answer else { return Err(reply::not_understood()) };
    let mut rows = rows.into_iter();
    let last: i64 = rows.next().map(reply::read).transpose()?.unwrap_or_default();
    let mut holders = rows.map(claim_info).collect::<Result<Vec<ClaimInfo>, Failure>>()?;
    holders.sort_by_key(|holder| (holder.fence, holder.id));
    // Of an id only its public name may be shown.
    let tags: Vec<String> = holders.iter().map(|holder| holder.id.tag()).collect();
    let version = SnapshotVersion::new(format!("{last}/{}", tags.join("/")));
    Ok(Snapshot::new(resource.clone(), version).holders(holders).fence(fence(last)))
}

fn claim_info(row: Value) -> Result<ClaimInfo, Failure> {
    let (id, kind, left, seq, note): (String, String, i64, i64, Vec<u8>) = reply::read(row)?;
    let id = ClaimId::from_hex(&id).ok_or_else(reply::not_understood)?;
    let share = match kind.as_str() {
        "r" => Share::READER,
        "w" => Share::WRITER,
        _ => Share::MUTEX,
    };
    // A note is text of its writer; other clients may write text that is not UTF-8.
    let note = Note::clipped(&String::from_utf8_lossy(&note));
    Ok(ClaimInfo::new(id, share).fence(fence(seq)).remaining(millis(left)).note(note))
}

/// Converts a number to a fence; zero means none.
fn fence(seq: i64) -> Option<Fence> {
    u64::try_from(seq).ok().filter(|seq| *seq > 0).map(|seq| Fence::new(0, seq, 0))
}

/// Converts milliseconds to a duration; a negative number means no end.
fn millis(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    #[test]
    fn answers_to_contenders_are_read() {
        assert_eq!(contend_reply(ints(&[1, 0])).unwrap(), ContendReply::Granted(None));
        assert_eq!(contend_reply(ints(&[1, 7])).unwrap(), ContendReply::Granted(Some(Fence::new(0, 7, 0))));
        let busy = |left| ContendReply::Busy { ahead: 1, left };
        assert_eq!(contend_reply(ints(&[0, 1, 70])).unwrap(), busy(Some(Duration::from_millis(70))));
        assert_eq!(contend_reply(ints(&[0, 1, -1])).unwrap(), busy(None));
        for bad in [ints(&[]), ints(&[1]), ints(&[1, -4]), ints(&[7, 1, 1]), Value::Nil, Value::Okay] {
            assert!(contend_reply(bad).is_err());
        }
    }

    #[test]
    fn snapshot_is_parsed_and_a_malformed_answer_is_an_error() {
        let resource = Resource::new("r").unwrap();
        let text = |text: &str| Value::BulkString(text.into());
        let row = |id: &str| {
            let cells =
                vec![text(id), text("w"), Value::Int(-1), Value::Int(4), Value::BulkString(vec![0xff])];
            Value::Array(vec![Value::Int(4), Value::Array(cells)])
        };
        let seen = snapshot(&resource, row(&"a".repeat(32))).unwrap();
        assert_eq!((seen.holders[0].share, seen.holders[0].remaining), (Share::WRITER, None));
        assert_eq!(
            (seen.fence, seen.holders[0].fence),
            (Some(Fence::new(0, 4, 0)), Some(Fence::new(0, 4, 0)))
        );
        assert!(!seen.version.as_str().contains("aaaa"), "an id is a secret");
        assert!(snapshot(&resource, row("nobody")).is_err());
        assert!(snapshot(&resource, Value::Nil).is_err());
        assert!(snapshot(&resource, ints(&[0])).unwrap().holders.is_empty());
    }
}
