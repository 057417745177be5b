//! Registers: a key each, changed by a transaction on the revision at which it was created and on its
//! version.
//!
//! Ground rules: a request is sent again elsewhere when a server does not answer, so a value begins
//! with a number that was drawn for this write; by it a write that took place is known from one that
//! others were first at. No state ever returns, so a request that arrives late does nothing: each
//! removal changes a second key, and a value that is put where none exists is put only if that key was
//! not changed. A value that is to be forgotten hangs on a lease of its own, whose time begins anew
//! once the value is stored. That lease is longer than was asked for, so the value carries its own time, and
//! only what is left of that is reported.

use std::time::Duration;

use leasehold_backend::changes::until_changed;
use leasehold_backend::random;
use leasehold_core::{
    Durability, Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers,
    Resource, Stamp, WaitMode,
};

use super::EtcdBackend;
use crate::client::Shared;
use crate::net::cluster::Answer;
use crate::net::error::Refusal;
use crate::protocol::layout::key_request;
use crate::protocol::proto::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, Request, RequestOp, TxnRequest, TxnResponse,
};
use crate::protocol::txn::{Span, changed_at, created_at, into_range, op, version_is};

/// Returns what a cluster of this safety promises of its registers.
pub(crate) fn promise(durability: Durability) -> RegisterPromise {
    RegisterPromise::new(MAX_BYTES, WaitMode::Notifies, durability)
        .forgets()
        .names_removals()
        .rounding(Duration::from_secs(1))
}

#[async_trait::async_trait]
impl Registers for EtcdBackend {
    fn promise(&self) -> &RegisterPromise {
        &self.registers
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        Ok(look(&self.shared, &Place::of(&self.shared, at)).await?.0)
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.registers.check(put)?;
        let place = Place::of(&self.shared, at);
        // A stamp of another store is of no state of this one.
        let Some(seen) = State::read(seen) else { return Ok(None) };
        match &put.value {
            None => remove(&self.shared, &place, seen).await,
            Some(value) => write(&self.shared, &place, seen, value, put.keep).await,
        }
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let place = Place::of(&self.shared, at);
        let end = [place.key.as_slice(), &[0]].concat();
        let look = || async {
            let (found, revision) = look(&self.shared, &place).await?;
            let span = Span { start: place.key.clone(), end: end.clone() };
            Ok((found, self.shared.watcher.changed(span, revision + 1)))
        };
        until_changed(patience, |found| found.stamp != *seen, look).await
    }
}

/// The place of a register.
#[derive(Debug)]
struct Place {
    key: Vec<u8>,
    /// The key that is changed when this register is removed, or another one of its share.
    removals: Vec<u8>,
}

impl Place {
    fn of(shared: &Shared, at: &Resource) -> Place {
        Place { key: shared.layout.register(at), removals: shared.layout.removals(at) }
    }

    /// Looks at the key, and at the key that distinguishes one absence from the next.
    fn looks(&self) -> Vec<RequestOp> {
        vec![op(Request::Range(whole(&self.key))), op(Request::Range(key_request(&self.removals)))]
    }
}

/// One state of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// The revision that created it; 0 where it does not exist.
    created: i64,
    /// The number of puts since then; without a value, the revision of the last removal of its share.
    version: i64,
}

impl State {
    fn of(kv: &KeyValue) -> State {
        State { created: kv.create_revision, version: kv.version }
    }

    fn read(stamp: &Stamp) -> Option<State> {
        let (created, version) = stamp.as_str().split_once('.')?;
        Some(State { created: created.parse().ok()?, version: version.parse().ok()? })
    }

    fn stamp(self) -> Stamp {
        Stamp::new(format!("{}.{}", self.created, self.version))
    }

    /// Returns the state without a value since this removal.
    fn absent(removed: Option<&KeyValue>) -> State {
        State { created: 0, version: removed.map_or(0, |kv| kv.mod_revision) }
    }

    /// Returns the condition that the register is in this state.
    fn holds(self, place: &Place) -> Vec<Compare> {
        let same = match self.created {
            0 => changed_at(&place.removals, self.version),
            _ => version_is(&place.key, self.version),
        };
        vec![created_at(&place.key, self.created), same]
    }
}

/// Returns the present value, and the revision at which it was looked at.
async fn look(shared: &Shared, place: &Place) -> Result<(Registered, i64), Failure> {
    let request = TxnRequest { success: place.looks(), ..TxnRequest::default() };
    let asked = shared.cluster.ask(|conn| {
        let request = request.clone();
        async move { conn.txn(request).await }
    });
    let answer = asked.await.map_err(Refusal::without_effect)?.value;
    let revision = answer.header.map_or(0, |header| header.revision);
    let mut found = answer.responses.into_iter().filter_map(into_range);
    let (values, removed) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
    let Some(kv) = values.kvs.first() else {
        let stamp = State::absent(removed.kvs.first()).stamp();
        return Ok((Registered { value: None, stamp, left: None }, revision));
    };
    let (keep, value) = unframed(kv)?;
    let left = match keep {
        None => None,
        Some(keep) => Some(keep.saturating_sub(time_used(shared, kv.lease, keep).await?)),
    };
    let registered = Registered { value: Some(value.to_vec()), stamp: State::of(kv).stamp(), left };
    Ok((registered, revision))
}

/// Returns the time since this lease began, rounded up; `keep` where the lease has ended.
async fn time_used(shared: &Shared, id: i64, keep: Duration) -> Result<Duration, Failure> {
    let asked =
        shared.cluster.ask(|conn| async move { conn.time_to_live(LeaseTimeToLiveRequest { id }).await });
    let lease = asked.await.map_err(Refusal::without_effect)?.value;
    // A lease that has ended meanwhile is counted below zero.
    let Ok(left) = u64::try_from(lease.ttl) else { return Ok(keep) };
    // The server may have granted more than it was asked for.
    let granted = u64::try_from(lease.granted_ttl).unwrap_or_default();
    Ok(Duration::from_secs(granted.saturating_sub(left)))
}

async fn write(
    shared: &Shared,
    place: &Place,
    seen: State,
    value: &[u8],
    keep: Option<Duration>,
) -> Result<Option<Stamp>, Failure> {
    let lease = match keep {
        None => 0,
        Some(keep) => lease_for(shared, keep).await?,
    };
    let mark = random::number()?.to_be_bytes();
    let value = framed(mark, keep, value);
    let put = PutRequest { key: place.key.clone(), value, lease, ignore_value: false };
    let Answer { value: answer, doubt } = ask(shared, place, seen, vec![op(Request::Put(put))]).await?;
    let revision = answer.header.map_or(0, |header| header.revision);
    let written = match answer.succeeded {
        true if seen.created == 0 => Some(State { created: revision, version: 1 }),
        true => Some(State { version: seen.version + 1, ..seen }),
        // A try whose answer was lost may have been the one that was first.
        false => match answer.responses.into_iter().next().and_then(into_range) {
            Some(found) if doubt => match found.kvs.first() {
                Some(kv) if kv.value.starts_with(&mark) => Some(State::of(kv)),
                _ => return Err(in_doubt()),
            },
            _ => None,
        },
    };
    if lease != 0 {
        settle(shared, lease, written.is_some()).await?;
    }
    Ok(written.map(State::stamp))
}

async fn remove(shared: &Shared, place: &Place, seen: State) -> Result<Option<Stamp>, Failure> {
    let delete = op(Request::Delete(DeleteRangeRequest { key: place.key.clone() }));
    let note = PutRequest { key: place.removals.clone(), ..PutRequest::default() };
    // A register without a value stays as it is.
    let then = if seen.created == 0 { Vec::new() } else { vec![delete, op(Request::Put(note))] };
    let Answer { value: answer, doubt } = ask(shared, place, seen, then).await?;
    match (answer.succeeded, doubt) {
        (true, _) if seen.created == 0 => Ok(Some(seen.stamp())),
        (true, _) => {
            let version = answer.header.map_or(0, |header| header.revision);
            Ok(Some(State { created: 0, version }.stamp()))
        }
        (false, false) => Ok(None),
        (false, true) => Err(in_doubt()),
    }
}

/// Does this if the register is as it was seen, and else shows it.
async fn ask(
    shared: &Shared,
    place: &Place,
    seen: State,
    then: Vec<RequestOp>,
) -> Result<Answer<TxnResponse>, Failure> {
    let request = TxnRequest { compare: seen.holds(place), success: then, failure: place.looks() };
    let asked = shared.cluster.ask(|conn| {
        let request = request.clone();
        async move { conn.txn(request).await }
    });
    asked.await.map_err(Refusal::into_failure)
}

/// Opens a new lease that is longer than a value is to be kept.
async fn lease_for(shared: &Shared, keep: Duration) -> Result<i64, Failure> {
    // A second more, because a server ends a lease within its last second.
    let ttl = i64::try_from(keep.min(MAX_KEEP).as_millis().div_ceil(1000) + 1).unwrap_or(i64::MAX);
    let id = (random::number()? >> 1).max(1).cast_signed();
    let asked = shared.cluster.ask(|conn| async move { conn.grant(LeaseGrantRequest { ttl, id }).await });
    match asked.await {
        // No other writer draws this number: the value exists by this request, sent before.
        Ok(_) | Err(Refusal::LeaseExists) => Ok(id),
        Err(refusal) => Err(refusal.without_effect()),
    }
}

/// Lets the time of a lease begin anew once its value is stored, so that it is not forgotten too early;
/// ends the lease of a value that was not written.
async fn settle(shared: &Shared, lease: i64, is_written: bool) -> Result<(), Failure> {
    if !is_written {
        // A lease that is not ended now ends by itself: nothing hangs on it.
        let ended = shared.cluster.ask(|conn| async move { conn.revoke(lease).await });
        _ = ended.await;
        return Ok(());
    }
    let kept = shared.cluster.ask(|conn| async move { conn.keep_alive(vec![lease]).await });
    kept.await.map(drop).map_err(Refusal::into_uncertain)
}

fn whole(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// Writes a value as it is stored: the number of the write, for how many milliseconds the value is kept if it is to be
/// forgotten, and behind them the value itself.
fn framed(mark: Mark, keep: Option<Duration>, value: &[u8]) -> Vec<u8> {
    let millis = |keep: Duration| u64::try_from(keep.min(MAX_KEEP).as_millis()).unwrap_or(u64::MAX);
    let keep = keep.map(|keep| millis(keep).to_be_bytes());
    [&mark[..], keep.as_ref().map_or(&[], |keep| keep), value].concat()
}

/// Returns for how long a value that is to be forgotten is kept, and the value.
fn unframed(kv: &KeyValue) -> Result<(Option<Duration>, &[u8]), Failure> {
    let parts = || {
        let (_, rest) = kv.value.split_first_chunk::<{ size_of::<Mark>() }>()?;
        if kv.lease == 0 {
            return Some((None, rest));
        }
        let (keep, value) = rest.split_first_chunk()?;
        Some((Some(Duration::from_millis(u64::from_be_bytes(*keep))), value))
    };
    parts().ok_or_else(|| {
        let key = String::from_utf8_lossy(&kv.key);
        let text =
            format!("what is stored under {key} was not written by leasehold: choose another ?prefix=");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    })
}

fn in_doubt() -> Failure {
    Failure::unanswered("a server did not answer, and another one says that the value has changed since")
}

type Mark = [u8; 8];

/// Well below the 1.5 MiB that a server accepts by default.
const MAX_BYTES: usize = 512 * 1024;
/// The longest time that a value is kept, instead of longer ones: a hundred years.
const MAX_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let state = State { created: 7, version: 3 };
        assert_eq!(State::read(&state.stamp()), Some(state));
        assert_eq!(State::default().stamp().as_str(), "0.0");
        for bad in ["", "7", "7.", "a.b"] {
            assert_eq!(State::read(&Stamp::new(bad.to_owned())), None, "{bad}");
        }
    }

    #[test]
    fn what_is_too_short_for_a_mark_is_foreign() {
        let kv = |value: &[u8], lease| KeyValue { value: value.to_vec(), lease, ..KeyValue::default() };
        assert_eq!(unframed(&kv(b"12345678value", 0)).unwrap(), (None, &b"value"[..]));
        for (short, lease) in [(&b"1234567"[..], 0), (b"1234567", 1), (b"123456781234567", 1)] {
            assert_eq!(unframed(&kv(short, lease)).unwrap_err().kind, FailureKind::Foreign);
        }
    }

    #[test]
    fn a_value_carries_for_how_long_it_is_kept() {
        for (keep, lease) in [(None, 0), (Some(Duration::from_millis(1_500)), 7), (Some(MAX_KEEP), 7)] {
            let kv = KeyValue { value: framed([7; 8], keep, b"value"), lease, ..KeyValue::default() };
            assert_eq!(unframed(&kv).unwrap(), (keep, &b"value"[..]));
        }
    }
}
