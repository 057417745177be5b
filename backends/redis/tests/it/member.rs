//! One member of a quorum: its scripts, and the state in which each of them accepts or refuses.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::quorum::{
    Answer, Mark, Member, MemberRenew, MemberRenewal, MemberState, NO_FENCE, Notification, RequestStamp, Vote,
};
use leasehold_core::{Claim, FailureKind, Fence, Note, Share};
use leasehold_redis::RedlockConfig;
use leasehold_testkit::{RedisServer, Reply};

const VOTE: &str = "{lh:job}:vote";
const RECORD: &str = "{lh:job}:record";
const MARK: &str = "{lh:}:mark";
const UNARMED: &str = "{lh:}:unarmed";
const NEWS: &str = "{lh:job}:news";
/// The messages about a lock that ended, and about one that was taken.
const FREED: &str = "-";
const TAKEN: &str = "01234567";
const LONG: Duration = Duration::from_secs(600);

/// Starts a server, and returns it as a member. The other two of its quorum do not exist.
async fn start() -> Option<(RedisServer, Arc<dyn Member>)> {
    let server = RedisServer::start_or_skip().await?;
    let url = format!("redlock://{},127.0.0.1:1,127.0.0.1:2?timeout=30s", server.addr());
    let member = RedlockConfig::parse(&url).unwrap().members().remove(0);
    Some((server, member))
}

/// Starts a member that is armed in epoch 5.
async fn armed() -> Option<(RedisServer, Arc<dyn Member>, MemberState)> {
    let (server, member) = start().await?;
    assert!(member.set_epoch(&member.state().await.unwrap(), 5).await.unwrap());
    let state = member.state().await.unwrap();
    Some((server, member, state))
}

fn long(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, LONG)
}

fn stamp(number: u64) -> RequestStamp {
    RequestStamp::numbered(7, number)
}

fn fence(epoch: u64, seq: u64) -> Fence {
    Fence::new(epoch, seq, 0)
}

async fn text(server: &RedisServer, args: &[&str]) -> Option<String> {
    match server.command(args).await.unwrap() {
        Reply::Nil => None,
        Reply::Int(number) => Some(number.to_string()),
        other => Some(other.into_text().unwrap()),
    }
}

async fn set(server: &RedisServer, key: &str, value: &str) {
    server.command(&["SET", key, value]).await.unwrap();
}

async fn field(server: &RedisServer, name: &str) -> Option<String> {
    text(server, &["HGET", VOTE, name]).await
}

async fn left(server: &RedisServer) -> u64 {
    text(server, &["PTTL", VOTE]).await.unwrap().parse().unwrap()
}

/// Asks in the first round, and expects the lock.
async fn yours(
    member: &Arc<dyn Member>,
    claim: &Claim,
    stamp: RequestStamp,
    last: Option<Fence>,
) -> (Fence, Option<Fence>) {
    let answer: Answer = member.prepare(claim, stamp, last).await.unwrap();
    let Vote::Yours { last, fence } = answer.vote else { panic!("{answer:?}") };
    (last, fence)
}

#[tokio::test]
async fn first_round_locks_what_is_free_or_names_the_holder() {
    let Some((server, member)) = start().await else { return };
    let (a, b) = (long("job").note(Note::new("a note").unwrap()), mutex("job"));
    let answer = member.prepare(&a, stamp(1), None).await.unwrap();
    assert_eq!(answer.vote, Vote::Yours { last: NO_FENCE, fence: None });
    let state = answer.state;
    assert_eq!((state.mark.clone(), state.armed()), (None, None));
    let since = state.unarmed_since.unwrap();
    assert!(since <= state.unix_us && since + 60_000_000 > state.unix_us, "{state:?}");
    assert_eq!(text(&server, &["GET", UNARMED]).await.unwrap(), format!("{since} {}", state.run));
    assert_eq!(text(&server, &["HLEN", VOTE]).await.unwrap(), "4", "id, stamp, since, note");
    assert_eq!(server.command(&["EXISTS", RECORD, MARK]).await.unwrap(), Reply::Int(0));
    assert!(left(&server).await <= 600_000 && left(&server).await > 500_000);

    let answer = member.prepare(&b, stamp(1), None).await.unwrap();
    assert_eq!(answer.state.unarmed_since, Some(since), "the first time counts");
    let Vote::Theirs { granted, ends_in, listeners } = answer.vote else { panic!("{answer:?}") };
    assert!(!granted && listeners == 0 && ends_in <= LONG && ends_in > LONG / 2, "{answer:?}");
    let mut subscription = member.subscribe(&b.resource).await.unwrap();
    server.command(&["HSET", VOTE, "fence", "5 1"]).await.unwrap();
    let answer = member.prepare(&b, stamp(2), None).await.unwrap();
    let Vote::Theirs { granted, listeners, .. } = answer.vote else { panic!("{answer:?}") };
    assert!(granted && listeners == 1, "{answer:?}");
    assert_eq!(field(&server, "id").await.unwrap(), a.id.to_hex());

    let seen = member.read(&a.resource).await.unwrap();
    assert_eq!(seen.last, NO_FENCE);
    let holder = seen.holder.unwrap();
    assert_eq!((holder.id, holder.fence, holder.note.as_str()), (a.id, Some(fence(5, 1)), "a note"));
    assert!(holder.ends_in <= LONG && holder.ends_in > LONG / 2);
    let begun = holder.since_unix_ms.unwrap() * 1000;
    assert!(begun + 60_000_000 > state.unix_us && begun < state.unix_us + 60_000_000, "{holder:?}");
    // Nothing is missed: the lock of a fence that was taken is published when it ends.
    assert!(member.release(&[&a]).await.remove(0).unwrap());
    // A message of the script comes before this one.
    server.command(&["PUBLISH", NEWS, TAKEN]).await.unwrap();
    assert_eq!(subscription.next().await, Notification::Freed);
    assert_eq!(member.read(&a.resource).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_repeated_request_keeps_later_stamp_and_longer_lease() {
    let Some((server, member)) = start().await else { return };
    let claim = long("job");
    yours(&member, &claim, stamp(0x10), None).await;
    let since = field(&server, "since").await;
    let overtaken = claim.clone().ttl(Duration::from_secs(10));
    yours(&member, &overtaken, stamp(0xf), None).await;
    assert_eq!(field(&server, "stamp").await.unwrap(), stamp(0x10).to_string());
    assert!(left(&server).await > 500_000, "it was shortened");
    yours(&member, &claim.clone().ttl(2 * LONG), stamp(0x11), None).await;
    assert_eq!(field(&server, "stamp").await.unwrap(), stamp(0x11).to_string());
    assert!(left(&server).await > 1_100_000, "it was not extended");
    // Another client continues the claim: its stamps are not compared with those of the first.
    let other = RequestStamp::numbered(8, 1);
    yours(&member, &claim, other, None).await;
    assert_eq!(field(&server, "stamp").await.unwrap(), other.to_string());
    assert_eq!(field(&server, "since").await, since);
    assert!(!member.withdraw(&claim, &[]).await.unwrap());
    assert!(!member.withdraw(&claim, &[stamp(0x11)]).await.unwrap());
    assert!(!member.withdraw(&long("job"), &[other]).await.unwrap(), "another claim");
    assert!(member.withdraw(&claim, &[stamp(0x11), other]).await.unwrap());
    assert!(!member.withdraw(&claim, &[other]).await.unwrap());
    assert_eq!(server.counts().await.unwrap().of("publish"), 0, "no fence was taken");
}

#[tokio::test]
async fn second_round_takes_a_fence_if_nothing_has_changed() {
    let Some((server, member, state)) = armed().await else { return };
    let (claim, run) = (long("job"), state.run.as_str());
    let mut subscription = member.subscribe(&claim.resource).await.unwrap();
    assert_eq!(yours(&member, &claim, stamp(1), None).await, (NO_FENCE, None));
    let take = async |claim: &Claim, number, run: &str, fence| {
        member.accept(claim, stamp(number), run, fence).await.unwrap()
    };
    assert!(!take(&claim, 2, run, fence(5, 3)).await, "another stamp");
    assert!(!take(&long("job"), 1, run, fence(5, 3)).await, "another claim");
    assert!(!take(&claim, 1, "0123", fence(5, 3)).await, "another run");
    assert!(!take(&claim, 1, run, fence(4, 3)).await, "an epoch that is over");
    assert_eq!(text(&server, &["GET", RECORD]).await, None);
    let before = server.counts().await.unwrap();
    assert!(take(&claim, 1, run, fence(5, 3)).await);
    let used = server.counts().await.unwrap().since(&before);
    assert_eq!(used.of("set"), 1, "the mark stays as it is: {:?}", used.commands);
    assert_eq!(text(&server, &["GET", RECORD]).await.unwrap(), "5 3");
    server.command(&["PUBLISH", NEWS, FREED]).await.unwrap();
    assert_eq!(subscription.next().await, Notification::Taken { ends_in: Some(LONG) });
    let seen = member.read(&claim.resource).await.unwrap();
    assert_eq!((seen.last, seen.holder.unwrap().fence), (fence(5, 3), Some(fence(5, 3))));
    assert!(take(&claim, 1, run, fence(5, 3)).await, "the same again");
    assert!(!take(&claim, 1, run, fence(5, 2)).await, "below the record");
    assert_eq!(yours(&member, &claim, stamp(1), None).await, (fence(5, 3), Some(fence(5, 3))));

    // A greater epoch raises the mark; a lower number does not matter then.
    assert_eq!(text(&server, &["GET", MARK]).await.unwrap(), format!("5 {run}"));
    assert!(take(&claim, 1, run, fence(6, 1)).await);
    assert_eq!(text(&server, &["GET", MARK]).await.unwrap(), format!("6 {run}"));
    assert!(!take(&claim, 1, run, fence(5, 9)).await, "an epoch that is over");
    set(&server, RECORD, "7 1").await;
    assert!(!take(&claim, 1, run, fence(6, 9)).await, "below the record");
    set(&server, RECORD, "6 1").await;
    set(&server, MARK, "6 0123").await;
    assert!(!take(&claim, 1, run, fence(6, 9)).await, "the mark is of another run");
    assert_eq!(text(&server, &["GET", RECORD]).await.unwrap(), "6 1");
}

/// The only round of a client that was the last holder.
#[tokio::test]
async fn client_that_returns_takes_the_next_fence_if_none_was_taken() {
    let Some((server, member, state)) = armed().await else { return };
    let claim = long("job");
    let armed = format!("5 {}", state.run);
    let last = Some(fence(5, 3));
    for (record, mark, taken) in [
        ("5 3", armed.as_str(), Some(fence(5, 4))),
        ("5 2", &armed, Some(fence(5, 4))),
        ("4 9", &armed, Some(fence(5, 4))),
        ("5 4", &armed, None),
        ("6 0", &armed, None),
        ("5 3", "5 0123", None),
        ("5 3", &format!("6 {}", state.run), None),
        ("5 3", &format!("4 {}", state.run), None),
    ] {
        set(&server, RECORD, record).await;
        set(&server, MARK, mark).await;
        let (seen, own) = yours(&member, &claim, stamp(1), last).await;
        assert_eq!(own, taken, "{record} {mark}");
        assert_eq!(field(&server, "fence").await, taken.map(|_| "5 4".to_owned()), "{record} {mark}");
        let stored = text(&server, &["GET", RECORD]).await.unwrap();
        assert_eq!(stored, if taken.is_some() { "5 4" } else { record }, "{mark}");
        assert_eq!(stored, format!("{} {}", seen.epoch, seen.seq));
        assert!(left(&server).await > 500_000);
        // Asked again, it answers the same and takes no other.
        assert_eq!(yours(&member, &claim, stamp(2), last).await, (seen, own), "{record} {mark}");
        assert!(member.release(&[&claim]).await.remove(0).unwrap());
    }
    set(&server, RECORD, "5 3").await;
    set(&server, MARK, &armed).await;
    assert_eq!(yours(&member, &claim, stamp(1), None).await, (fence(5, 3), None), "it does not return");
}

#[tokio::test]
async fn renewal_extends_what_was_granted_and_names_what_was_not() {
    let Some((server, member, state)) = armed().await else { return };
    let claims: Vec<Claim> =
        ["taken", "asked", "named", "theirs", "free", "string", "hash"].map(long).into_iter().collect();
    for claim in &claims[..3] {
        yours(&member, claim, stamp(1), None).await;
    }
    assert!(member.accept(&claims[0], stamp(1), &state.run, fence(5, 1)).await.unwrap());
    yours(&member, &long("theirs"), stamp(1), None).await;
    set(&server, "{lh:string}:vote", "theirs").await;
    server.command(&["HSET", "{lh:hash}:vote", "owner", "theirs"]).await.unwrap();
    let renew = async |ttl| {
        let claims: Vec<Claim> = claims.iter().map(|claim| claim.clone().ttl(ttl)).collect();
        let known = [None, None, Some(fence(5, 2)), Some(fence(5, 3)), None, None, None];
        let batch: Vec<MemberRenew<'_>> =
            claims.iter().zip(known).map(|(claim, fence)| MemberRenew { claim, fence }).collect();
        member.renew(&batch).await.unwrap()
    };
    use MemberRenewal::{Extended, Free, Refused};
    let expected = [Extended, Refused, Extended, Refused, Free, Refused, Refused];
    let ends = async |name: &str| -> u64 {
        text(&server, &["PTTL", &format!("{{lh:{name}}}:vote")]).await.unwrap().parse().unwrap()
    };
    assert_eq!(renew(Duration::from_secs(10)).await, expected);
    assert!(ends("taken").await > 500_000, "it was shortened");
    assert_eq!(renew(2 * LONG).await, expected);
    for (name, is_extended) in [("taken", true), ("named", true), ("asked", false), ("theirs", false)] {
        assert_eq!(ends(name).await > 1_100_000, is_extended, "{name}");
    }
    let fence = async |name: &str| text(&server, &["HGET", &format!("{{lh:{name}}}:vote"), "fence"]).await;
    assert_eq!(fence("taken").await.unwrap(), "5 1");
    assert_eq!(fence("named").await.unwrap(), "5 2");
    assert_eq!((fence("asked").await, fence("theirs").await), (None, None));
}

#[tokio::test]
async fn a_lock_is_restored_only_where_nothing_is() {
    let Some((server, member)) = start().await else { return };
    let (claim, other) = (long("job").note(Note::new("a note").unwrap()), long("job"));
    assert!(member.repair(&claim, fence(5, 3), stamp(9)).await.unwrap());
    assert!(!member.repair(&claim, fence(5, 3), stamp(9)).await.unwrap());
    assert!(!member.repair(&other, fence(5, 4), stamp(9)).await.unwrap());
    assert!(left(&server).await > 500_000);
    let holder = member.read(&claim.resource).await.unwrap().holder.unwrap();
    assert_eq!((holder.id, holder.fence, holder.note.as_str()), (claim.id, Some(fence(5, 3)), "a note"));
    assert_eq!(field(&server, "stamp").await.unwrap(), stamp(9).to_string());
    assert_eq!(text(&server, &["HLEN", VOTE]).await.unwrap(), "5", "id, since, note, fence, stamp");
    let answers = member.release(&[&other, &claim, &claim]).await;
    assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [false, true, false]);
}

#[tokio::test]
async fn a_name_that_is_stored_as_a_hash_is_kept_beside_it() {
    let Some((server, member, state)) = armed().await else { return };
    let name = "ü".repeat(256);
    let (claim, other) = (long(&name), long("job"));
    yours(&member, &claim, stamp(1), None).await;
    assert!(member.accept(&claim, stamp(1), &state.run, fence(5, 1)).await.unwrap());
    yours(&member, &other, stamp(1), None).await;
    set(&server, "{lh:string}:vote", "theirs").await;
    let mut listed = member.list("").await.unwrap();
    listed.sort();
    let mut expected = vec![(claim.resource.clone(), claim.id), (other.resource.clone(), other.id)];
    expected.sort();
    assert_eq!(listed, expected);
    assert!(member.release(&[&claim]).await.remove(0).unwrap());
    // The record has the name, too: written by each way to take a fence, and compared by each.
    assert_eq!(yours(&member, &claim, stamp(2), Some(fence(5, 1))).await.1, Some(fence(5, 2)));
    assert_eq!(member.read(&claim.resource).await.unwrap().last, fence(5, 2));
    assert!(member.release(&[&claim]).await.remove(0).unwrap());
    assert!(member.repair(&claim, fence(5, 2), stamp(3)).await.unwrap());
    assert_eq!(member.list(&name).await.unwrap(), [(claim.resource.clone(), claim.id)]);
    let keys = server.command(&["KEYS", "*:record"]).await.unwrap().into_texts().unwrap();
    assert_eq!(text(&server, &["GET", &keys[0]]).await.unwrap(), format!("5 2 {name}"));
    set(&server, &keys[0], "5 2 another").await;
    for failure in [
        member.prepare(&claim, stamp(4), None).await.map(drop).unwrap_err(),
        member.accept(&claim, stamp(3), &state.run, fence(5, 3)).await.map(drop).unwrap_err(),
        member.read(&claim.resource).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    }
}

#[tokio::test]
async fn a_mark_is_written_only_over_the_state_that_was_read() {
    let Some((server, member)) = start().await else { return };
    let fresh = member.state().await.unwrap();
    assert_eq!((fresh.mark.clone(), fresh.unarmed_since), (None, None));
    assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), Reply::Int(0), "a look writes nothing");
    let asked = member.prepare(&long("job"), stamp(1), None).await.unwrap().state;
    assert!(asked.unarmed_since.is_some());
    assert_eq!(member.state().await.unwrap().unarmed_since, asked.unarmed_since);
    let mut wrong = asked.clone();
    wrong.unarmed_since = Some(asked.unarmed_since.unwrap() - 1);
    assert!(!member.set_epoch(&wrong, 5).await.unwrap(), "it lost its data since then");
    wrong = MemberState { run: "0123".to_owned(), ..asked.clone() };
    assert!(!member.set_epoch(&wrong, 5).await.unwrap(), "another run");
    wrong = MemberState { mark: Some(Mark { epoch: 1, run: asked.run.clone() }), ..asked.clone() };
    assert!(!member.set_epoch(&wrong, 5).await.unwrap(), "another mark");
    assert!(member.set_epoch(&asked, 5).await.unwrap());
    let armed = member.state().await.unwrap();
    assert_eq!((armed.armed(), armed.unarmed_since), (Some(5), None));
    assert_eq!(server.command(&["EXISTS", UNARMED]).await.unwrap(), Reply::Int(0));
    for epoch in [4, 5] {
        assert!(!member.set_epoch(&armed, epoch).await.unwrap(), "not greater than 5");
    }
    assert!(member.set_epoch(&armed, 6).await.unwrap());
    assert!(!member.set_epoch(&armed, 7).await.unwrap(), "the mark is another now");
    // A server that is armed notes no time, and what an earlier client noted does not count.
    set(&server, UNARMED, &format!("1 {}", asked.run)).await;
    assert_eq!(member.state().await.unwrap().unarmed_since, None);
    server.command(&["DEL", UNARMED]).await.unwrap();
    let state = member.prepare(&long("other"), stamp(1), None).await.unwrap().state;
    assert_eq!((state.armed(), state.unarmed_since), (Some(6), None));
    assert_eq!(server.command(&["EXISTS", UNARMED]).await.unwrap(), Reply::Int(0));
}

/// The time since when a server is not armed is that of this run, and not in the future.
#[tokio::test]
async fn unarmed_time_of_another_run_or_in_the_future_is_replaced() {
    let Some((server, member)) = start().await else { return };
    let state = member.state().await.unwrap();
    let future = format!("{} {}", state.unix_us + 3_600_000_000, state.run);
    let of_another_run = format!("{} 0123", state.unix_us - 3_600_000_000);
    for stored in [future, of_another_run] {
        set(&server, UNARMED, &stored).await;
        assert_eq!(member.state().await.unwrap().unarmed_since, None, "{stored}");
        let answered = member.prepare(&long("job"), stamp(1), None).await.unwrap().state;
        let since = answered.unarmed_since.unwrap();
        assert!(since >= state.unix_us && since <= answered.unix_us, "{stored}: {answered:?}");
        assert_eq!(text(&server, &["GET", UNARMED]).await.unwrap(), format!("{since} {}", answered.run));
    }
    let before = format!("{} {}", state.unix_us - 3_600_000_000, state.run);
    set(&server, UNARMED, &before).await;
    let answered = member.prepare(&long("job"), stamp(1), None).await.unwrap().state;
    assert_eq!(answered.unarmed_since, Some(state.unix_us - 3_600_000_000));
    assert!(answered.unarmed_for() >= Duration::from_secs(3600));
    assert_eq!(text(&server, &["GET", UNARMED]).await.unwrap(), before);
}

/// A time that could not be stored is not reported: the next client would count from another one.
#[tokio::test]
async fn a_server_without_memory_notes_no_time_and_locks_nothing() {
    let Some((server, member)) = start().await else { return };
    let holder = long("job");
    yours(&member, &holder, stamp(1), None).await;
    server.command(&["DEL", UNARMED]).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let answer = member.prepare(&long("job"), stamp(1), None).await.unwrap();
    assert!(matches!(answer.vote, Vote::Theirs { .. }), "{answer:?}");
    assert_eq!(answer.state.unarmed_since, None);
    let failure = member.prepare(&long("other"), stamp(1), None).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    // What is locked stays so, and can be extended and ended.
    yours(&member, &holder.clone().ttl(2 * LONG), stamp(2), None).await;
    assert!(left(&server).await > 1_100_000);
    assert_eq!(field(&server, "stamp").await.unwrap(), stamp(2).to_string());
    assert!(member.release(&[&holder]).await.remove(0).unwrap());
}

#[tokio::test]
async fn what_others_wrote_is_reported_and_left_alone() {
    let Some((server, member, state)) = armed().await else { return };
    let claim = long("job");
    let foreign = async |key: &str, value: &str, reads: bool, recalls: bool| {
        set(&server, key, value).await;
        let failures = [
            member.prepare(&claim, stamp(1), None).await.map(drop).err(),
            member.accept(&claim, stamp(1), &state.run, fence(5, 1)).await.map(drop).err(),
            member.read(&claim.resource).await.map(drop).err(),
            member.state().await.map(drop).err(),
            member.set_epoch(&state, 6).await.map(drop).err(),
        ];
        for (failure, is_met) in failures.into_iter().zip([true, true, reads, recalls, recalls]) {
            assert_eq!(failure.is_some(), is_met, "{key} {value}: {failure:?}");
            let Some(failure) = failure else { continue };
            assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
            let why = if value.contains("name") {
                "belongs to a resource of another name"
            } else {
                "not of leasehold"
            };
            assert!(failure.to_string().contains(why), "{failure}");
        }
        assert_eq!(text(&server, &["GET", key]).await.unwrap(), value);
        assert_eq!(server.command(&["EXISTS", VOTE]).await.unwrap(), Reply::Int(0), "{key}");
    };
    for value in ["theirs", "5 ", "x 5", "5 3 another name"] {
        foreign(RECORD, value, true, false).await;
        // A mark that is readable was raised.
        set(&server, MARK, &format!("5 {}", state.run)).await;
    }
    server.command(&["DEL", RECORD]).await.unwrap();
    foreign(MARK, "theirs", false, true).await;
    server.command(&["DEL", MARK]).await.unwrap();
    set(&server, UNARMED, "theirs").await;
    for failure in [
        member.prepare(&claim, stamp(1), None).await.map(drop).unwrap_err(),
        member.state().await.map(drop).unwrap_err(),
    ] {
        assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    }
    assert_eq!(text(&server, &["GET", UNARMED]).await.unwrap(), "theirs");
    assert_eq!(server.command(&["EXISTS", VOTE]).await.unwrap(), Reply::Int(0));
}
