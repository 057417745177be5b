//! Requests to a member of a quorum that are late: what they leave behind, and what they must not end. And events
//! that are late, or do not come: they delay no waiter for long.
//!
//! The members are kept in memory, and the time is virtual, so each test chooses the interleaving. What
//! servers do is tested with servers, in `tests/it/redlock_*.rs`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::TokioClock;
use leasehold::layer::{Quorum, QuorumConfig};
use leasehold_core::quorum::{
    Answer, Mark, Member, MemberRenew, MemberRenewal, MemberState, MemberView, NO_FENCE, Notification,
    RequestStamp, Seen, Subscription, Vote,
};
use leasehold_core::{
    Backend, Claim, ClaimId, Effect, Failure, Fence, Note, Patience, Proof, Release, Renew, Renewal,
    Resource, Share, Step,
};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The lock of one member.
#[derive(Clone, Debug)]
struct Lock {
    id: ClaimId,
    stamp: RequestStamp,
    fence: Option<Fence>,
}

/// The place at which a request for a lock is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// On its way to the member.
    BeforeRequest,
    /// On its way back.
    BeforeAnswer,
    /// On its way to the member, where it locks what the member has forgotten.
    BeforeRepair,
}

/// A member in memory, whose requests for a lock can be held up.
#[derive(Debug)]
struct MemoryMember {
    name: &'static str,
    lock: Mutex<Option<Lock>>,
    gate: watch::Sender<Gate>,
    /// The number of withdrawals that it was asked for.
    withdrawals: AtomicUsize,
    /// The number of releases that it was asked for.
    releases: AtomicUsize,
    /// `true` if it has lost its memory.
    is_unarmed: AtomicBool,
    /// The time for which that has been seen.
    unarmed_for: Mutex<Duration>,
    /// `true` if it takes no epoch, because another client has changed its own.
    refuses_epochs: AtomicBool,
    /// `true` if it takes no fence.
    refuses_fences: AtomicBool,
    /// `true` if its lock is released when it is subscribed to, a moment too early to be reported.
    frees_at_subscription: AtomicBool,
    /// What it reports of the lock of another client: the time that is left, and the number of listeners.
    theirs: Mutex<(Duration, u32)>,
    events: broadcast::Sender<Notification>,
    /// `true` if it answers no renewal and no release.
    is_silent: AtomicBool,
}

impl MemoryMember {
    fn state_now(&self) -> MemberState {
        let run = self.name.to_owned();
        let is_unarmed = self.is_unarmed.load(Ordering::SeqCst);
        let mark = (!is_unarmed).then(|| Mark { epoch: 1, run: run.clone() });
        let (unix_us, seen_for) = (7_200_000_000, self.unarmed_for.lock().unwrap().as_micros());
        let since = unix_us - u64::try_from(seen_for).unwrap();
        MemberState { run, mark, unarmed_since: is_unarmed.then_some(since), unix_us }
    }

    fn holder(&self) -> Option<ClaimId> {
        self.lock.lock().unwrap().as_ref().map(|lock| lock.id)
    }

    /// Makes this claim hold the lock, or none.
    fn set_holder(&self, id: Option<ClaimId>) {
        let fence = Some(Fence::new(1, 1, 0));
        *self.lock.lock().unwrap() =
            id.map(|id| Lock { id, stamp: RequestStamp::from_bytes([9; 16]), fence });
    }

    /// Fails after a while if the member is silent.
    async fn check(&self) -> Result<(), Failure> {
        if self.is_silent.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Err(Failure::unanswered("the member is silent"));
        }
        Ok(())
    }

    /// Waits until nothing is held up at this gate, if it was so when the request was sent.
    async fn pass(&self, sent: Gate, gate: Gate) {
        if sent == gate {
            self.gate.subscribe().wait_for(|now| *now != gate).await.unwrap();
        }
    }
}

#[async_trait]
impl Member for MemoryMember {
    fn address(&self) -> String {
        self.name.to_owned()
    }

    async fn state(&self) -> Result<MemberState, Failure> {
        Ok(self.state_now())
    }

    async fn set_epoch(&self, _seen: &MemberState, _epoch: u64) -> Result<bool, Failure> {
        if self.refuses_epochs.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.is_unarmed.store(false, Ordering::SeqCst);
        Ok(true)
    }

    async fn prepare(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        _last: Option<Fence>,
    ) -> Result<Answer, Failure> {
        let sent = *self.gate.borrow();
        self.pass(sent, Gate::BeforeRequest).await;
        let vote = {
            let mut lock = self.lock.lock().unwrap();
            match &mut *lock {
                Some(lock) if lock.id != claim.id => {
                    let (ends_in, listeners) = *self.theirs.lock().unwrap();
                    Vote::Theirs { granted: lock.fence.is_some(), ends_in, listeners }
                }
                Some(lock) => {
                    if !stamp.precedes(lock.stamp) {
                        lock.stamp = stamp;
                    }
                    Vote::Yours { last: NO_FENCE, fence: lock.fence }
                }
                None => {
                    *lock = Some(Lock { id: claim.id, stamp, fence: None });
                    Vote::Yours { last: NO_FENCE, fence: None }
                }
            }
        };
        self.pass(sent, Gate::BeforeAnswer).await;
        Ok(Answer { state: self.state_now(), vote })
    }

    async fn accept(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        _run: &str,
        fence: Fence,
    ) -> Result<bool, Failure> {
        if self.refuses_fences.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let mut lock = self.lock.lock().unwrap();
        let meant = lock.as_mut().filter(|lock| lock.id == claim.id && lock.stamp == stamp);
        Ok(meant.map(|lock| lock.fence = Some(fence)).is_some())
    }

    async fn renew(&self, batch: &[MemberRenew<'_>]) -> Result<Vec<MemberRenewal>, Failure> {
        self.check().await?;
        let sent = *self.gate.borrow();
        let answers = {
            let lock = self.lock.lock().unwrap();
            let answer = |renew: &MemberRenew<'_>| match &*lock {
                None => MemberRenewal::Free,
                Some(lock) if lock.id == renew.claim.id => MemberRenewal::Extended,
                Some(_) => MemberRenewal::Refused,
            };
            batch.iter().map(answer).collect()
        };
        self.pass(sent, Gate::BeforeAnswer).await;
        Ok(answers)
    }

    async fn repair(&self, claim: &Claim, fence: Fence, stamp: RequestStamp) -> Result<bool, Failure> {
        let sent = *self.gate.borrow();
        self.pass(sent, Gate::BeforeRepair).await;
        let mut lock = self.lock.lock().unwrap();
        Ok(lock.is_none() && lock.insert(Lock { id: claim.id, stamp, fence: Some(fence) }).fence.is_some())
    }

    async fn withdraw(&self, claim: &Claim, stamps: &[RequestStamp]) -> Result<bool, Failure> {
        self.withdrawals.fetch_add(1, Ordering::Relaxed);
        let mut lock = self.lock.lock().unwrap();
        Ok(lock.take_if(|lock| lock.id == claim.id && stamps.contains(&lock.stamp)).is_some())
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Result<bool, Failure>> {
        self.releases.fetch_add(batch.len(), Ordering::Relaxed);
        if let Err(failure) = self.check().await {
            return batch.iter().map(|_| Err(failure.clone())).collect();
        }
        let mut lock = self.lock.lock().unwrap();
        batch.iter().map(|claim| Ok(lock.take_if(|lock| lock.id == claim.id).is_some())).collect()
    }

    async fn read(&self, _resource: &Resource) -> Result<MemberView, Failure> {
        let sent = *self.gate.borrow();
        let holder = self.lock.lock().unwrap().as_ref().map(|lock| Seen {
            id: lock.id,
            fence: lock.fence,
            since_unix_ms: None,
            ends_in: Duration::from_secs(30),
            note: Note::default(),
        });
        self.pass(sent, Gate::BeforeAnswer).await;
        Ok(MemberView { last: NO_FENCE, holder })
    }

    async fn list(&self, _prefix: &str) -> Result<Vec<(Resource, ClaimId)>, Failure> {
        let sent = *self.gate.borrow();
        let listed = self.holder().map(|id| (claim(0).resource, id));
        self.pass(sent, Gate::BeforeAnswer).await;
        Ok(listed.into_iter().collect())
    }

    async fn subscribe(&self, _resource: &Resource) -> Result<Box<dyn Subscription>, Failure> {
        if self.frees_at_subscription.load(Ordering::SeqCst) {
            self.set_holder(None);
        }
        Ok(Box::new(Events(self.events.subscribe())))
    }
}

/// A subscription to the events of a test.
struct Events(broadcast::Receiver<Notification>);

#[async_trait]
impl Subscription for Events {
    async fn next(&mut self) -> Notification {
        self.0.recv().await.unwrap()
    }

    fn is_connected(&self) -> bool {
        true
    }
}

async fn quorum() -> (Arc<Quorum>, [Arc<MemoryMember>; 3]) {
    quorum_of(["a", "b", "c"]).await
}

async fn quorum_of<const N: usize>(names: [&'static str; N]) -> (Arc<Quorum>, [Arc<MemoryMember>; N]) {
    let members = names.map(|name| {
        Arc::new(MemoryMember {
            name,
            lock: Mutex::default(),
            gate: watch::Sender::new(Gate::Open),
            withdrawals: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            is_unarmed: AtomicBool::new(false),
            unarmed_for: Mutex::new(Duration::from_secs(3_600)),
            refuses_epochs: AtomicBool::new(false),
            refuses_fences: AtomicBool::new(false),
            frees_at_subscription: AtomicBool::new(false),
            theirs: Mutex::new((Duration::from_millis(50), 0)),
            events: broadcast::Sender::new(16),
            is_silent: AtomicBool::new(false),
        })
    });
    let terms = QuorumConfig::new(Duration::from_millis(10), Duration::from_secs(60));
    let all = members.iter().map(|member| member.clone() as Arc<dyn Member>).collect();
    (Arc::new(Quorum::over("memory", all, terms).await.unwrap()), members)
}

fn claim(id: u8) -> Claim {
    let resource = Resource::new("stock").unwrap();
    Claim::new(ClaimId::from_bytes([id; 16]), resource, Share::MUTEX, Duration::from_secs(30))
}

fn patience() -> Patience {
    Patience::unlimited(Arc::new(TokioClock::new()))
}

/// Lets all tasks run, and the late limit pass.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test(start_paused = true)]
async fn request_overtaken_by_its_release_leaves_no_lock() {
    for gate in [Gate::BeforeRequest, Gate::BeforeAnswer] {
        let (quorum, [first, second, late]) = quorum().await;
        late.gate.send_replace(gate);
        let ours = claim(1);
        assert!(matches!(quorum.contend(&ours, &patience()).await, Ok(Step::Granted(_))));
        settle().await;
        assert!(matches!(quorum.release(&[&ours]).await[..], [Release::Freed]));
        // The request, or its answer, arrives only now.
        late.gate.send_replace(Gate::Open);
        settle().await;
        assert_eq!([first.holder(), second.holder(), late.holder()], [None; 3], "nobody holds it");
    }
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_an_answer_that_comes_soon() {
    for gate in [Gate::BeforeRequest, Gate::BeforeAnswer] {
        let (quorum, [first, second, late]) = quorum().await;
        late.gate.send_replace(gate);
        let ours = claim(1);
        assert!(matches!(quorum.contend(&ours, &patience()).await, Ok(Step::Granted(_))));
        let open = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(late.releases.load(Ordering::Relaxed), 0, "it waits");
            late.gate.send_replace(Gate::Open);
        };
        let began = Instant::now();
        let ((), released) = tokio::join!(open, async { quorum.release(&[&ours]).await });
        assert!(matches!(released[..], [Release::Freed]));
        assert!(began.elapsed() < Duration::from_millis(4), "it is sent at once: {:?}", began.elapsed());
        settle().await;
        assert_eq!([first.holder(), second.holder(), late.holder()], [None; 3], "nobody holds it");
        assert_eq!(late.withdrawals.load(Ordering::Relaxed), 0, "the release has ended it");
    }
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_those_alone_that_have_not_answered() {
    for (late, later) in [(3, 4), (4, 3)] {
        let (quorum, members) = quorum_of(["a", "b", "c", "d", "e"]).await;
        let (late, later) = (&members[late], &members[later]);
        late.gate.send_replace(Gate::BeforeRequest);
        later.gate.send_replace(Gate::BeforeRequest);
        let ours = claim(1);
        granted(&quorum, &ours).await;
        late.gate.send_replace(Gate::Open);
        settle().await;
        let open = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let asked = [late, later].map(|member| member.releases.load(Ordering::Relaxed));
            assert_eq!(asked, [1, 0]);
            later.gate.send_replace(Gate::Open);
        };
        let ((), released) = tokio::join!(open, async { quorum.release(&[&ours]).await });
        assert!(matches!(released[..], [Release::Freed]));
    }
}

/// The release lies behind the request then, also if this process ends.
#[tokio::test(start_paused = true)]
async fn release_is_sent_to_a_member_that_never_answers() {
    let (quorum, [_, _, late]) = quorum().await;
    late.gate.send_replace(Gate::BeforeRequest);
    let ours = claim(1);
    assert!(matches!(quorum.contend(&ours, &patience()).await, Ok(Step::Granted(_))));
    assert!(matches!(quorum.release(&[&ours]).await[..], [Release::Freed]));
    assert_eq!(late.releases.load(Ordering::Relaxed), 1);
}

/// A second release of the claim, after the first was not answered by all, finds the request still under way.
#[tokio::test(start_paused = true)]
async fn repeated_release_ends_the_lock_of_a_late_request() {
    let (quorum, [_, _, late]) = quorum().await;
    late.gate.send_replace(Gate::BeforeRequest);
    let ours = claim(1);
    assert!(matches!(quorum.contend(&ours, &patience()).await, Ok(Step::Granted(_))));
    for _ in 0..2 {
        quorum.release(&[&ours]).await;
    }
    late.gate.send_replace(Gate::Open);
    settle().await;
    assert_eq!(late.holder(), None);
    // Nothing of the claim is waited for any more.
    let began = tokio::time::Instant::now();
    quorum.release(&[&ours]).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn late_request_of_a_held_claim_keeps_its_lock() {
    let (quorum, [_, _, late]) = quorum().await;
    late.gate.send_replace(Gate::BeforeRequest);
    let ours = claim(1);
    assert!(matches!(quorum.contend(&ours, &patience()).await, Ok(Step::Granted(_))));
    late.gate.send_replace(Gate::Open);
    settle().await;
    assert_eq!(late.holder(), Some(ours.id), "the claim holds, and one more member knows it");
    quorum.release(&[&ours]).await;
    assert_eq!(late.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn late_request_of_a_refused_claim_leaves_no_lock() {
    let (quorum, [first, second, late]) = quorum().await;
    let theirs = claim(2).id;
    first.set_holder(Some(theirs));
    second.set_holder(Some(theirs));
    late.gate.send_replace(Gate::BeforeRequest);
    let step = quorum.contend(&claim(1), &Patience::none(Arc::new(TokioClock::new()))).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    late.gate.send_replace(Gate::Open);
    settle().await;
    assert_eq!(late.holder(), None);
}

/// Holds up the requests of the first attempts for the third lock at `gate`, until a later attempt is granted.
async fn late_attempt_ends_no_later_lock(gate: Gate) {
    let (quorum, [first, second, late]) = quorum().await;
    let (ours, theirs) = (claim(1), claim(2).id);
    first.set_holder(Some(theirs));
    second.set_holder(Some(theirs));
    // The first attempts come to nothing, before their requests for this lock are answered.
    late.gate.send_replace(gate);
    let waits = tokio::spawn({
        let (quorum, ours) = (quorum.clone(), ours.clone());
        async move { quorum.contend(&ours, &patience()).await }
    });
    settle().await;
    // The requests of later attempts are not held up; the earlier ones are not woken.
    late.gate.send_if_modified(|gate| {
        *gate = Gate::Open;
        false
    });
    first.set_holder(None);
    assert!(matches!(waits.await.unwrap(), Ok(Step::Granted(_))));
    settle().await;
    let holds = || [&first, &second, &late].map(|member| member.holder() == Some(ours.id));
    assert_eq!(holds(), [true, false, true], "a majority has it");
    // Now the first requests continue.
    late.gate.send_modify(|_| {});
    settle().await;
    assert_eq!(holds(), [true, false, true], "a late request ended a lock of the claim that holds");
    quorum.release(&[&ours]).await;
    settle().await;
    assert_eq!(holds(), [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn late_answer_of_one_attempt_keeps_the_lock_of_the_next() {
    late_attempt_ends_no_later_lock(Gate::BeforeAnswer).await;
}

#[tokio::test(start_paused = true)]
async fn overtaken_request_of_one_attempt_keeps_the_lock_of_the_next() {
    late_attempt_ends_no_later_lock(Gate::BeforeRequest).await;
}

/// Holds the claim, and returns what a renewal of it needs.
async fn granted(quorum: &Quorum, claim: &Claim) -> Proof {
    match quorum.contend(claim, &patience()).await {
        Ok(Step::Granted(grant)) => grant.proof,
        other => panic!("{other:?}"),
    }
}

/// A majority decides without it each time.
#[tokio::test(start_paused = true)]
async fn renewal_restores_the_lock_of_a_member_that_is_always_the_slowest() {
    let (quorum, [_, _, slow]) = quorum().await;
    let ours = claim(1);
    let proof = granted(&quorum, &ours).await;
    settle().await;
    slow.set_holder(None);
    slow.gate.send_replace(Gate::BeforeAnswer);
    let renew = Renew { claim: &ours, proof: &proof };
    assert!(matches!(quorum.renew(&[renew]).await[..], [Renewal::Renewed]));
    assert_eq!(slow.holder(), None);
    slow.gate.send_replace(Gate::Open);
    settle().await;
    assert_eq!(slow.holder(), Some(ours.id));
    assert!(matches!(quorum.release(&[&ours]).await[..], [Release::Freed]));
    settle().await;
    assert_eq!(slow.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn renewal_writes_no_lock_back_after_the_release() {
    let (quorum, [first, second, third]) = quorum().await;
    let ours = claim(1);
    let proof = granted(&quorum, &ours).await;
    settle().await;
    // The third has forgotten it, and says so before a majority has answered; or after that.
    for held_up in [&first, &third] {
        granted(&quorum, &ours).await;
        third.set_holder(None);
        held_up.gate.send_replace(Gate::BeforeAnswer);
        let renewing = {
            let (quorum, ours, proof) = (quorum.clone(), ours.clone(), proof.clone());
            tokio::spawn(async move { quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(matches!(quorum.release(&[&ours]).await[..], [Release::Freed]));
        held_up.gate.send_replace(Gate::Open);
        renewing.await.unwrap();
        settle().await;
        assert_eq!([first.holder(), second.holder(), third.holder()], [None; 3]);
        assert_eq!(third.withdrawals.load(Ordering::Relaxed), 0, "nothing was written that had to go again");
    }
}

#[tokio::test(start_paused = true)]
async fn lock_written_back_after_the_release_is_withdrawn() {
    let (quorum, [first, second, third]) = quorum().await;
    let ours = claim(1);
    let proof = granted(&quorum, &ours).await;
    settle().await;
    third.set_holder(None);
    third.gate.send_replace(Gate::BeforeRepair);
    let renewing = {
        let (quorum, ours) = (quorum.clone(), ours.clone());
        tokio::spawn(async move { quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(matches!(quorum.release(&[&ours]).await[..], [Release::Freed]));
    third.gate.send_replace(Gate::Open);
    renewing.await.unwrap();
    settle().await;
    assert_eq!([first.holder(), second.holder(), third.holder()], [None; 3]);
}

/// Its locks stay, as it may hold: it asks again, or is released.
#[tokio::test(start_paused = true)]
async fn claim_granted_before_may_hold_although_a_majority_forgot_it() {
    let (quorum, members) = quorum().await;
    let ours = claim(1);
    granted(&quorum, &ours).await;
    settle().await;
    for member in &members[1..] {
        member.is_unarmed.store(true, Ordering::SeqCst);
    }
    let failure = quorum.contend(&ours, &patience()).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    assert_eq!(members.map(|member| member.holder()), [Some(ours.id); 3]);
}

#[tokio::test(start_paused = true)]
async fn slowest_member_that_has_lost_its_memory_is_armed_again() {
    let (quorum, [_, _, slow]) = quorum().await;
    slow.is_unarmed.store(true, Ordering::SeqCst);
    slow.gate.send_replace(Gate::BeforeAnswer);
    let ours = claim(1);
    granted(&quorum, &ours).await;
    settle().await;
    assert!(slow.is_unarmed.load(Ordering::SeqCst), "nobody knows yet");
    slow.gate.send_replace(Gate::Open);
    settle().await;
    assert!(!slow.is_unarmed.load(Ordering::SeqCst));
}

/// Its earlier locks may still hold, and it has forgotten them.
#[tokio::test(start_paused = true)]
async fn member_is_armed_again_only_after_the_longest_lease() {
    let longest = Duration::from_secs(60);
    // The server's clock may run a little faster than that of a holder.
    for (seen_for, is_armed) in [(longest, false), (longest + longest / 50, true)] {
        let (quorum, [_, _, forgetful]) = quorum().await;
        *forgetful.unarmed_for.lock().unwrap() = seen_for;
        forgetful.is_unarmed.store(true, Ordering::SeqCst);
        granted(&quorum, &claim(1)).await;
        settle().await;
        assert_eq!(!forgetful.is_unarmed.load(Ordering::SeqCst), is_armed, "seen for {seen_for:?}");
    }
}

/// Only a client that raised a majority knows that no other client has decided in the older epoch since.
#[tokio::test(start_paused = true)]
async fn member_is_armed_only_in_an_epoch_of_a_majority() {
    for refusing in 0..=2 {
        let (quorum, members) = quorum().await;
        let [armed @ .., forgetful] = &members;
        for member in &armed[..refusing] {
            member.refuses_epochs.store(true, Ordering::SeqCst);
        }
        forgetful.is_unarmed.store(true, Ordering::SeqCst);
        granted(&quorum, &claim(1)).await;
        settle().await;
        assert_eq!(forgetful.is_unarmed.load(Ordering::SeqCst), refusing > 0, "{refusing} refuse it");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_is_granted_only_if_a_majority_takes_its_fence() {
    for refusing in 0..8_u32 {
        let (quorum, members) = quorum().await;
        for (number, member) in members.iter().enumerate() {
            member.refuses_fences.store(refusing & (1 << number) != 0, Ordering::SeqCst);
        }
        let step = quorum.contend(&claim(1), &Patience::none(clock())).await;
        let is_granted = matches!(step, Ok(Step::Granted(_)));
        assert_eq!(is_granted, refusing.count_ones() <= 1, "{refusing:03b} refuse it: {step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn grant_counts_from_before_the_first_request() {
    let (quorum, members) = quorum().await;
    for member in &members {
        member.gate.send_replace(Gate::BeforeAnswer);
    }
    let (ours, patience) = (claim(1), patience());
    let asked_at = patience.now();
    let open = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        for member in &members {
            member.gate.send_replace(Gate::Open);
        }
    };
    let (step, ()) = tokio::join!(quorum.contend(&ours, &patience), open);
    assert!(matches!(&step, Ok(Step::Granted(grant)) if grant.asked_at == asked_at), "{step:?}");
}

/// It is released after the waiter has asked, and before the waiter would get a message of that.
#[tokio::test(start_paused = true)]
async fn release_just_before_the_subscription_is_not_missed() {
    let (quorum, members) = quorum().await;
    for member in &members {
        *member.theirs.lock().unwrap() = (Duration::from_secs(60), 0);
        member.set_holder(Some(claim(2).id));
        member.frees_at_subscription.store(true, Ordering::SeqCst);
    }
    let began = Instant::now();
    granted(&quorum, &claim(1)).await;
    assert!(began.elapsed() < SPREAD, "after {:?}", began.elapsed());
}

/// Waits while another client holds a lease of a minute.
async fn waiter(quorum: &Arc<Quorum>, members: &[Arc<MemoryMember>; 3]) -> JoinHandle<Instant> {
    for member in members {
        *member.theirs.lock().unwrap() = (Duration::from_secs(60), 100);
        member.set_holder(Some(claim(2).id));
    }
    let quorum = quorum.clone();
    let waits = tokio::spawn(async move {
        granted(&quorum, &claim(1)).await;
        Instant::now()
    });
    settle().await;
    waits
}

/// The time that waiters may take to ask one after the other.
const SPREAD: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn holder_that_dies_right_after_its_grant_delays_a_waiter_by_its_lease_alone() {
    let (quorum, members) = quorum().await;
    let waits = waiter(&quorum, &members).await;
    let lease = Duration::from_secs(2);
    for member in &members {
        member.set_holder(Some(claim(3).id));
        member.events.send(Notification::Taken { ends_in: Some(lease) }).unwrap();
    }
    tokio::time::sleep(lease).await;
    let ended_at = Instant::now();
    for member in &members {
        member.set_holder(None);
    }
    let granted_at = waits.await.unwrap();
    assert!(granted_at - ended_at < SPREAD, "after {:?}", granted_at - ended_at);
}

#[tokio::test(start_paused = true)]
async fn late_report_of_a_grant_takes_back_no_release_of_a_majority() {
    let (quorum, members) = quorum().await;
    let waits = waiter(&quorum, &members).await;
    let released_at = Instant::now();
    let [one, two, late] = &members;
    for member in &members {
        member.set_holder(None);
    }
    for member in [one, two] {
        member.events.send(Notification::Freed).unwrap();
    }
    late.events.send(Notification::Taken { ends_in: None }).unwrap();
    let granted_at = waits.await.unwrap();
    assert!(granted_at - released_at < SPREAD, "after {:?}", granted_at - released_at);
}

/// Of five members, some have the lock, some do not, and the others are silent.
#[tokio::test(start_paused = true)]
async fn renewal_and_release_are_decided_by_what_a_majority_answers() {
    for (has, has_not) in (0..=5).flat_map(|has| (0..=5 - has).map(move |has_not| (has, has_not))) {
        let (quorum, members) = quorum_of(["a", "b", "c", "d", "e"]).await;
        let (ours, proof, silent) = (claim(1), Proof::none(), 5 - has - has_not);
        for (number, member) in members.iter().enumerate() {
            member.set_holder((number < has).then_some(ours.id));
            member.is_silent.store(number >= has + has_not, Ordering::SeqCst);
        }
        let seen = format!("{has} have it, {has_not} do not, {silent} are silent");
        let began = tokio::time::Instant::now();
        let renewal = quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await.pop().unwrap();
        assert_eq!(
            began.elapsed().is_zero(),
            has >= 3 || has_not >= 3,
            "{seen}: the silent are not waited for"
        );
        match (has >= 3, has_not >= 3) {
            (true, _) => assert!(matches!(renewal, Renewal::Renewed), "{seen}: {renewal:?}"),
            (_, true) => assert!(matches!(renewal, Renewal::Lost), "{seen}: {renewal:?}"),
            _ => assert!(matches!(renewal, Renewal::Unknown(_)), "{seen}: {renewal:?}"),
        }
        let release = quorum.release(&[&ours]).await.pop().unwrap();
        // The silent ones may have been of the majority that held it.
        match (silent <= 2, has + silent >= 3) {
            (true, true) => assert!(matches!(release, Release::Freed), "{seen}: {release:?}"),
            (true, false) => assert!(matches!(release, Release::Gone), "{seen}: {release:?}"),
            (false, _) => assert!(matches!(release, Release::Unknown(_)), "{seen}: {release:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holder_is_seen_although_one_member_lacks_it_and_another_is_late() {
    let (quorum, [_, lacks, late]) = quorum().await;
    let ours = claim(1);
    granted(&quorum, &ours).await;
    settle().await;
    lacks.set_holder(None);
    late.gate.send_replace(Gate::BeforeAnswer);
    let looking = {
        let (quorum, resource) = (quorum.clone(), ours.resource.clone());
        tokio::spawn(async move { quorum.inspect(&resource, None, &Patience::none(clock())).await.unwrap() })
    };
    settle().await;
    assert!(!looking.is_finished(), "the late member may have the lock that makes a majority");
    late.gate.send_replace(Gate::Open);
    let holders = looking.await.unwrap().holders;
    assert_eq!(holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [ours.id]);
    // Nobody waits for one whose answer changes nothing.
    lacks.set_holder(Some(ours.id));
    late.gate.send_replace(Gate::BeforeAnswer);
    let seen = quorum.inspect(&ours.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_is_listed_although_one_member_lacks_it() {
    let (quorum, [_, lacks, late]) = quorum().await;
    let ours = claim(1);
    granted(&quorum, &ours).await;
    settle().await;
    let list = || {
        let quorum = quorum.clone();
        tokio::spawn(async move { quorum.list("", None, 10).await.unwrap() })
    };
    lacks.set_holder(None);
    late.gate.send_replace(Gate::BeforeAnswer);
    let listing = list();
    settle().await;
    assert!(!listing.is_finished(), "the late member may have the lock that makes a majority");
    late.gate.send_replace(Gate::Open);
    assert_eq!(listing.await.unwrap().len(), 1);
    // Nobody waits for one whose answer changes nothing.
    late.gate.send_replace(Gate::BeforeAnswer);
    lacks.set_holder(Some(ours.id));
    assert_eq!(list().await.unwrap().len(), 1);
    let (quorum, members) = quorum_of(["a", "b", "c", "d", "e"]).await;
    members[0].set_holder(Some(ours.id));
    members[4].gate.send_replace(Gate::BeforeAnswer);
    assert!(quorum.list("", None, 10).await.unwrap().is_empty());
}

fn clock() -> Arc<TokioClock> {
    Arc::new(TokioClock::new())
}
