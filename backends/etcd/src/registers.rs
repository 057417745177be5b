//! Registers: a key each, changed by a transaction on the revision at which it was created and on its version.
//!
//! Ground rules: a request is asked again elsewhere when a server does not answer, so a value begins with a number that
//! was drawn for this write; by it a write that took place is known from one that others were first at. What is to be
//! forgotten hangs on a lease of its own, whose time begins anew once the value stands.

use std::time::Duration;

use leasehold_core::{
    Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers, Resource, Safety,
    Stamp, Waiting,
};

use crate::backend::EtcdBackend;
use crate::cluster::Answer;
use crate::core::Core;
use crate::lease::length_for;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, Request, TxnRequest, TxnResponse,
};
use crate::refusal::Refusal;
use crate::txn::{created_at, into_range, op, version_is};
use crate::watcher::Target;
use crate::wire::Span;

/// What a cluster of this safety promises of its registers.
pub(crate) fn promise(safety: Safety) -> RegisterPromise {
    RegisterPromise { max_bytes: MAX_BYTES, waiting: Waiting::Notifies, safety, forgets: true }
}

#[async_trait::async_trait]
impl Registers for EtcdBackend {
    fn promise(&self) -> &RegisterPromise {
        &self.registers
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        Ok(look(&self.core, &self.core.layout.register(at)).await?.0)
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.registers.check(put)?;
        let key = self.core.layout.register(at);
        // A stamp of another store is of no state of this one.
        let Some(seen) = State::read(seen) else { return Ok(None) };
        match &put.value {
            None => remove(&self.core, key, seen).await,
            Some(value) => write(&self.core, key, seen, value, put.keep).await,
        }
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let key = self.core.layout.register(at);
        let end = [key.as_slice(), &[0]].concat();
        loop {
            let (found, revision) = look(&self.core, &key).await?;
            if patience.is_ended() || found.stamp != *seen {
                return Ok(found);
            }
            let span = Span { start: key.clone(), end: end.clone() };
            let watch = self.core.watcher.watch([Target::Any(span)], revision + 1);
            tokio::select! {
                rung = watch.rung() => rung?,
                () = patience.ended() => {}
                () = tokio::time::sleep(patience.left()) => {}
            }
        }
    }
}

/// One state of a key; all zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    created: i64,
    version: i64,
}

impl State {
    fn of(kv: &KeyValue) -> State {
        State { created: kv.create_revision, version: kv.version }
    }

    fn read(stamp: &Stamp) -> Option<State> {
        let (created, version) = stamp.0.split_once('.')?;
        Some(State { created: created.parse().ok()?, version: version.parse().ok()? })
    }

    fn stamp(self) -> Stamp {
        Stamp(format!("{}.{}", self.created, self.version))
    }

    /// That the key is in this state.
    fn holds(self, key: &[u8]) -> Vec<Compare> {
        vec![created_at(key, self.created), version_is(key, self.version)]
    }
}

/// What stands there, and the revision at which it was looked at.
async fn look(core: &Core, key: &[u8]) -> Result<(Registered, i64), Failure> {
    let found = core
        .cluster
        .ask(|line| async move { line.range(whole(key)).await })
        .await
        .map_err(Refusal::of_a_look)?
        .value;
    let revision = found.header.map_or(0, |header| header.revision);
    let Some(kv) = found.kvs.first() else {
        let nothing = Registered { value: None, stamp: State::default().stamp(), left: None };
        return Ok((nothing, revision));
    };
    let (_, value) = unframed(kv)?;
    let left = match kv.lease {
        0 => None,
        id => Some(time_left(core, id).await?),
    };
    let registered = Registered { value: Some(value.to_vec()), stamp: State::of(kv).stamp(), left };
    Ok((registered, revision))
}

async fn time_left(core: &Core, id: i64) -> Result<Duration, Failure> {
    let asked =
        core.cluster.ask(|line| async move { line.time_to_live(LeaseTimeToLiveRequest { id }).await });
    let ttl = asked.await.map_err(Refusal::of_a_look)?.value.ttl;
    // A lease that has ended meanwhile is counted below zero.
    Ok(Duration::from_secs(u64::try_from(ttl).unwrap_or_default()))
}

async fn write(
    core: &Core,
    key: Vec<u8>,
    seen: State,
    value: &[u8],
    keep: Option<Duration>,
) -> Result<Option<Stamp>, Failure> {
    let lease = match keep {
        None => 0,
        Some(keep) => lease_for(core, keep).await?,
    };
    let mark = draw()?.to_be_bytes();
    let put = PutRequest { key: key.clone(), value: framed(mark, value), lease, ignore_value: false };
    let Answer { value: answer, doubt } = ask(core, &key, seen, Request::Put(put)).await?;
    let revision = answer.header.map_or(0, |header| header.revision);
    let written = match answer.succeeded {
        true if seen == State::default() => Some(State { created: revision, version: 1 }),
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
        settle(core, lease, written.is_some()).await?;
    }
    Ok(written.map(State::stamp))
}

async fn remove(core: &Core, key: Vec<u8>, seen: State) -> Result<Option<Stamp>, Failure> {
    let delete = Request::Delete(DeleteRangeRequest { key: key.clone() });
    let Answer { value: answer, doubt } = ask(core, &key, seen, delete).await?;
    match (answer.succeeded, doubt) {
        (true, _) => Ok(Some(State::default().stamp())),
        (false, false) => Ok(None),
        (false, true) => Err(in_doubt()),
    }
}

/// Does this if the key is as it was seen, and else shows it.
async fn ask(core: &Core, key: &[u8], seen: State, then: Request) -> Result<Answer<TxnResponse>, Failure> {
    let request = TxnRequest {
        compare: seen.holds(key),
        success: vec![op(then)],
        failure: vec![op(Request::Range(whole(key)))],
    };
    let asked = core.cluster.ask(|line| {
        let request = request.clone();
        async move { line.txn(request).await }
    });
    asked.await.map_err(Refusal::into_failure)
}

/// A new lease that is longer than a value is to be kept.
async fn lease_for(core: &Core, keep: Duration) -> Result<i64, Failure> {
    let ttl = i64::try_from(length_for(keep.min(MAX_KEEP))).unwrap_or(i64::MAX);
    let id = (draw()? >> 1).max(1).cast_signed();
    let asked = core.cluster.ask(|line| async move { line.grant(LeaseGrantRequest { ttl, id }).await });
    match asked.await {
        // Nobody else draws this number: it exists by this request, sent before.
        Ok(_) | Err(Refusal::LeaseExists) => Ok(id),
        Err(refusal) => Err(refusal.of_a_look()),
    }
}

/// Lets the time of a lease begin anew once its value stands, so that it is not forgotten too early; ends the lease of a
/// value that was not written.
async fn settle(core: &Core, lease: i64, is_written: bool) -> Result<(), Failure> {
    if !is_written {
        // What is not ended now ends by itself: nothing hangs on it.
        let ended = core.cluster.ask(|line| async move { line.revoke(lease).await });
        _ = ended.await;
        return Ok(());
    }
    let kept = core.cluster.ask(|line| async move { line.keep(vec![lease]).await });
    kept.await.map(drop).map_err(|refusal| {
        let mut failure = refusal.into_failure();
        failure.effect = Effect::Unknown;
        failure
    })
}

fn whole(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// A value as it is stored: the number of the write, and behind it what was written.
fn framed(mark: Mark, value: &[u8]) -> Vec<u8> {
    [&mark, value].concat()
}

fn unframed(kv: &KeyValue) -> Result<(&[u8], &[u8]), Failure> {
    kv.value.split_at_checked(size_of::<Mark>()).ok_or_else(|| {
        let key = String::from_utf8_lossy(&kv.key);
        let text =
            format!("what is stored under {key} was not written by leasehold: choose another ?prefix=");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    })
}

fn in_doubt() -> Failure {
    Failure::unanswered("a server did not answer, and another one says that the value has changed since")
}

fn draw() -> Result<u64, Failure> {
    getrandom::u64().map_err(|error| {
        Failure::unavailable(format!("the operating system gives no random numbers: {error}"))
    })
}

type Mark = [u8; 8];

/// Well below the 1.5 MiB that a server accepts unless told otherwise.
const MAX_BYTES: usize = 512 * 1024;
/// What is kept for longer is kept for this long: a hundred years.
const MAX_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let state = State { created: 7, version: 3 };
        assert_eq!(State::read(&state.stamp()), Some(state));
        assert_eq!(State::default().stamp().0, "0.0");
        for bad in ["", "7", "7.", "a.b"] {
            assert_eq!(State::read(&Stamp(bad.to_owned())), None, "{bad}");
        }
    }

    #[test]
    fn what_is_too_short_for_a_mark_is_foreign() {
        let kv = |value: &[u8]| KeyValue { value: value.to_vec(), ..KeyValue::default() };
        assert_eq!(unframed(&kv(b"12345678value")).unwrap().1, b"value");
        assert_eq!(unframed(&kv(b"1234567")).unwrap_err().kind, FailureKind::Foreign);
    }
}
