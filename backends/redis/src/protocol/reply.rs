//! Arguments and answers of the scripts, as values.
//!
//! Nothing that comes over the wire is trusted: what does not parse is a failure, never a panic and
//! never a guess.

use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Effect, Failure, FailureKind, Fence, Note, Resource, Share, Snapshot,
    SnapshotVersion,
};
use redis::Value;

use crate::protocol::keys::Keys;

/// The reply to one `contend`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ContendReply {
    Granted(Fence),
    Busy {
        ahead: u32,
        first_end: Duration,
        /// The time until another look challenges a claim ahead, or calls more of the queue.
        check_in: Option<Duration>,
        /// The number of waiters among those ahead.
        waiters_ahead: u32,
    },
    Full,
}

/// Writes a claim as the sorted sets name it.
pub(crate) fn member(claim: &Claim) -> String {
    written_member(claim, 0)
}

/// Writes the member of a claim, with room for more text.
fn written_member(claim: &Claim, room: usize) -> String {
    let (id, share) = (claim.id.to_hex(), &claim.share);
    let mut text = String::with_capacity(id.len() + 2 * NUMBER + room);
    text.push_str(&id);
    if (share.weight(), share.capacity()) == (1, 1) {
        text.push_str(":1:1");
    } else {
        text.push_str(&format!(":{}:{}", share.weight(), share.capacity()));
    }
    text
}

/// The length of a number of a share with its colon.
const NUMBER: usize = 11;

/// Writes what a single value of the claim is.
pub(crate) fn single_value(claim: &Claim) -> String {
    let note = claim.note.as_str();
    let mut text = written_member(claim, 2 + note.len());
    text.push_str("=:");
    text.push_str(note);
    text
}

/// Writes the options of the script `contend`, of which most are of interest only to what is not free.
pub(crate) fn contend_options(wait: &str, scope: &str, keys: &Keys) -> String {
    let floor = keys.floor();
    let length = floor.len().to_string();
    let parts = [wait, " ", scope, " ", &length, " ", &floor, &keys.hashed_name];
    parts.concat()
}

/// Writes a duration in whole milliseconds, at least one.
pub(crate) fn millis(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

/// Reads the answer of the script `contend`.
pub(crate) fn contend_reply(answer: Value) -> Result<ContendReply, Failure> {
    if let Value::BulkString(fence) = &answer {
        let seq = std::str::from_utf8(fence).ok().and_then(|digits| digits.parse().ok());
        return seq.map(|seq| ContendReply::Granted(Fence::new(0, seq, 0))).ok_or_else(not_understood);
    }
    let numbers: Vec<i64> = read(answer)?;
    // The client's own conversion to unsigned numbers wraps.
    let numbers: Option<Vec<u64>> = numbers.into_iter().map(|number| u64::try_from(number).ok()).collect();
    match numbers.unwrap_or_default()[..] {
        [1, seq, epoch] | [1, seq, epoch, 1] => Ok(ContendReply::Granted(Fence::new(epoch, seq, 0))),
        [0, ahead, first_end, check_in, waiters_ahead] => Ok(ContendReply::Busy {
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            first_end: Duration::from_millis(first_end),
            check_in: (check_in > 0).then(|| Duration::from_millis(check_in)),
            waiters_ahead: u32::try_from(waiters_ahead).unwrap_or(u32::MAX),
        }),
        [2] => Ok(ContendReply::Full),
        _ => Err(not_understood()),
    }
}

/// Returns `true` if the script `contend` has granted.
pub(crate) fn is_grant(answer: &Value) -> bool {
    match answer {
        Value::BulkString(_) => true,
        Value::Array(parts) => parts.first() == Some(&Value::Int(1)),
        _ => false,
    }
}

/// Returns `true` if the script `contend` has granted what the claim held before.
pub(crate) fn was_held(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if parts.get(3) == Some(&Value::Int(1)) && is_grant(answer))
}

/// Returns `true` if the script `renew` has extended any claim.
pub(crate) fn has_renewed(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if parts.contains(&Value::Int(1)))
}

/// Reads an answer that consists of `count` numbers.
pub(crate) fn numbers(answer: Value, count: usize) -> Result<Vec<u32>, Failure> {
    let numbers: Vec<u32> = read(answer)?;
    if numbers.len() == count { Ok(numbers) } else { Err(not_understood()) }
}

/// Reads the answer of the script `release`: `true` if the claim existed.
pub(crate) fn existed(answer: Value) -> Result<bool, Failure> {
    read::<u32>(answer).map(|there| there == 1)
}

/// Reads the answer of the script `inspect`.
pub(crate) fn snapshot(resource: &Resource, answer: Value) -> Result<Snapshot, Failure> {
    let Value::Array(parts) = answer else { return Err(not_understood()) };
    let [now, epoch, seq, version, holders, waiting]: [Value; 6] =
        parts.try_into().map_err(|_| not_understood())?;
    let (now, epoch, seq): (u64, u64, u64) = (read(now)?, read(epoch)?, read(seq)?);
    let mut holders = claim_infos(holders, now)?;
    holders.sort_by_key(|claim_info| claim_info.fence);
    Ok(Snapshot::new(resource.clone(), SnapshotVersion::new(read::<String>(version)?))
        .holders(holders)
        .waiting(claim_infos(waiting, now)?)
        .fence((seq > 0).then(|| Fence::new(epoch, seq, 0))))
}

/// Reads the answer of a script or a command as `T`.
pub(crate) fn read<T: redis::FromRedisValue>(answer: Value) -> Result<T, Failure> {
    redis::from_redis_value(answer).map_err(|error| not_understood().because(error))
}

fn claim_infos(list: Value, now: u64) -> Result<Vec<ClaimInfo>, Failure> {
    let Value::Array(list) = list else { return Err(not_understood()) };
    let mut list = list.into_iter();
    let mut claim_infos = Vec::with_capacity(list.len() / 3);
    while let (Some(member), Some(end), Some(written)) = (list.next(), list.next(), list.next()) {
        let (member, end): (String, u64) = (read(member)?, read(end)?);
        // A note is text of its writer; other clients may write text that is not UTF-8.
        let written: Vec<u8> = read(written)?;
        claim_infos.push(claim_info(&member, end, &String::from_utf8_lossy(&written), now)?);
    }
    Ok(claim_infos)
}

fn claim_info(member: &str, end: u64, written: &str, now: u64) -> Result<ClaimInfo, Failure> {
    let (id, share) = parse_member(member).ok_or_else(|| foreign(member))?;
    // The text about a claim may be gone (evicted) although the claim holds.
    let mut parts = written.splitn(5, ':');
    let fence = parts.next().and_then(parse_fence).filter(|fence| fence.seq > 0);
    let since = parts.next().and_then(|since| since.parse().ok());
    let note = parts.nth(2).unwrap_or_default();
    Ok(ClaimInfo::new(id, share)
        .fence(fence)
        .since_unix_ms(since)
        .remaining(Some(Duration::from_millis(end.saturating_sub(now))))
        .note(Note::clipped(note)))
}

/// Reads `seq` or `epoch.seq`.
fn parse_fence(text: &str) -> Option<Fence> {
    let (epoch, seq) = match text.split_once('.') {
        Some((epoch, seq)) => (epoch.parse().ok()?, seq),
        None => (0, text),
    };
    Some(Fence::new(epoch, seq.parse().ok()?, 0))
}

fn parse_member(member: &str) -> Option<(ClaimId, Share)> {
    let mut parts = member.split(':');
    let id = ClaimId::from_hex(parts.next()?)?;
    let (weight, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let share = Share::permits(weight, capacity).ok()?;
    parts.next().is_none().then_some((id, share))
}

fn foreign(member: &str) -> Failure {
    let shown: String = member.chars().take(8).collect();
    Failure::new(
        FailureKind::Foreign,
        Effect::None,
        format!(
            "the entry under this name that begins with {shown:?} is not a claim of leasehold: choose another ?prefix="
        ),
    )
}

/// Returns the failure for an answer that is not understood.
pub(crate) fn not_understood() -> Failure {
    Failure::new(
        FailureKind::Unsupported,
        Effect::Unknown,
        "the server's answer is not understood: check that it is Redis 6.2 or later, or Valkey, without a proxy that rewrites answers",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    #[test]
    fn answers_of_contend_are_read() {
        let granted = ContendReply::Granted(Fence::new(3, 1_800_000_000_000_000, 0));
        assert_eq!(contend_reply(ints(&[1, 1_800_000_000_000_000, 3])).unwrap(), granted);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let plain = ContendReply::Granted(Fence::new(0, 1_800_000_000_000_000, 0));
        assert_eq!(contend_reply(text("1800000000000000")).unwrap(), plain);
        assert!(is_grant(&text("1800000000000000")) && !was_held(&text("1800000000000000")));
        assert!(contend_reply(text("1.8")).is_err() && contend_reply(text("")).is_err());
        let busy = |check_in| ContendReply::Busy {
            ahead: 3,
            first_end: Duration::from_millis(70),
            check_in,
            waiters_ahead: 2,
        };
        assert_eq!(contend_reply(ints(&[0, 3, 70, 0, 2])).unwrap(), busy(None));
        assert_eq!(contend_reply(ints(&[0, 3, 70, 9, 2])).unwrap(), busy(Some(Duration::from_millis(9))));
        assert_eq!(contend_reply(ints(&[2])).unwrap(), ContendReply::Full);
        for bad in
            [ints(&[]), ints(&[1]), ints(&[9, 9]), ints(&[1, -4, 0]), ints(&[1, 4]), Value::Nil, Value::Okay]
        {
            assert!(contend_reply(bad).is_err());
        }
    }

    #[test]
    fn a_claim_is_written_and_read_back() {
        let id = ClaimId::from_bytes([9; 16]);
        let share = Share::permits(2, 7).unwrap();
        let resource = Resource::new("r").unwrap();
        let claim = Claim::new(id, resource, share, Duration::from_secs(1));
        assert_eq!(parse_member(&member(&claim)), Some((id, share)));
        let claim_info = claim_info(&member(&claim), 1500, "12:900:2:7:host: a:b", 1000).unwrap();
        assert_eq!(claim_info.fence, Some(Fence::new(0, 12, 0)));
        assert_eq!(
            (claim_info.since_unix_ms, claim_info.remaining),
            (Some(900), Some(Duration::from_millis(500)))
        );
        assert_eq!(claim_info.note.as_str(), "host: a:b");
        let elected = super::claim_info(&member(&claim), 1500, "7.12:900:2:7:", 1000).unwrap();
        assert_eq!(elected.fence, Some(Fence::new(7, 12, 0)));
    }

    proptest! {
        #[test]
        fn nothing_that_is_stored_panics(member in ".{0,60}", written in ".{0,60}", end in any::<u64>()) {
            if let Ok(claim_info) = claim_info(&member, end, &written, 5) {
                prop_assert!(claim_info.remaining.is_some());
            }
        }
    }
}
