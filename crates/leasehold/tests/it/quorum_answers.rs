//! The answers of a quorum: which of them it waits for and how long, what it makes of them, and what it leaves behind.
//! The members are kept in memory, and the time is virtual.

use std::collections::HashMap;
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
    Backend, Claim, ClaimId, Effect, Failure, FailureKind, Fence, Note, Patience, Proof, Release, Renew,
    Renewal, Resource, Severity, Share, Step,
};
use tokio::time::Instant;

use crate::common::ms;

pub(crate) const TTL: Duration = ms(30_000);
/// The time to wait for the rest after a majority has answered.
const LATE: Duration = ms(50);

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    State,
    Prepare,
    Accept,
    Renew,
    Repair,
    Withdraw,
    Release,
    Read,
    Subscribe,
}

/// The conduct of a member once it has carried a request out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Conduct {
    AnswersAfter(Duration),
    NeverAnswers,
    /// The answer is lost.
    FailsAfter(Duration),
    /// The request is not sent, and nothing is carried out.
    IsDown,
}
pub(crate) use Conduct::{AnswersAfter, FailsAfter, IsDown, NeverAnswers};

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    id: ClaimId,
    stamp: RequestStamp,
    fence: Option<Fence>,
    ends_in: Duration,
}

/// A member that does what a test says.
#[derive(Debug)]
pub(crate) struct Node {
    name: &'static str,
    pub(crate) lock: Mutex<Option<Lock>>,
    last: Mutex<Fence>,
    conduct: Mutex<HashMap<Ask, Conduct>>,
    /// The requests that it got.
    asked: Mutex<Vec<Ask>>,
    /// The fences that came with requests for the lock.
    returned_with: Mutex<Vec<Option<Fence>>>,
    /// The numbers of stamps of the withdrawals.
    pub(crate) withdrawn: Mutex<Vec<usize>>,
    refuses_fences: Mutex<bool>,
    /// `true` if it has lost its memory.
    is_unarmed: Mutex<bool>,
    /// `true` if the connection of its subscriptions is lost.
    pub(crate) is_cut_off: Mutex<bool>,
    listed: Mutex<Vec<(Resource, ClaimId)>>,
}

impl Node {
    fn new(name: &'static str) -> Arc<Node> {
        Arc::new(Node {
            name,
            lock: Mutex::default(),
            last: Mutex::new(NO_FENCE),
            conduct: Mutex::default(),
            asked: Mutex::default(),
            returned_with: Mutex::default(),
            withdrawn: Mutex::default(),
            refuses_fences: Mutex::default(),
            is_unarmed: Mutex::default(),
            is_cut_off: Mutex::default(),
            listed: Mutex::default(),
        })
    }

    /// Sets what it does with these requests from now on.
    pub(crate) fn does(&self, conduct: Conduct, requests: &[Ask]) {
        self.conduct.lock().unwrap().extend(requests.iter().map(|ask| (*ask, conduct)));
    }

    pub(crate) fn is_asked(&self, ask: Ask) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| **asked == ask).count()
    }

    fn holder(&self) -> Option<ClaimId> {
        self.lock.lock().unwrap().as_ref().map(|lock| lock.id)
    }

    /// Locks it for a claim, with a fence if that was granted.
    pub(crate) fn lock_for(&self, id: ClaimId, fence: Option<Fence>, ends_in: Duration) {
        let stamp = RequestStamp::from_bytes([9; 16]);
        *self.lock.lock().unwrap() = Some(Lock { id, stamp, fence, ends_in });
    }

    /// Carries a request out, and answers it or not.
    async fn handle<T>(&self, ask: Ask, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        self.asked.lock().unwrap().push(ask);
        let conduct = self.conduct.lock().unwrap().get(&ask).copied();
        if let Some(IsDown) = conduct {
            return Err(Failure::unavailable(format!("{} is down", self.name)));
        }
        let done = work();
        match conduct {
            Some(AnswersAfter(pause)) => tokio::time::sleep(pause).await,
            Some(NeverAnswers) => std::future::pending().await,
            Some(FailsAfter(pause)) => {
                tokio::time::sleep(pause).await;
                return Err(Failure::unanswered(format!("{} did not answer", self.name)));
            }
            Some(IsDown) | None => {}
        }
        Ok(done)
    }

    fn state_now(&self) -> MemberState {
        let (run, is_unarmed) = (self.name.to_owned(), *self.is_unarmed.lock().unwrap());
        let mark = (!is_unarmed).then(|| Mark { epoch: 1, run: run.clone() });
        // For an hour, which is longer than any lease.
        let unarmed_since = is_unarmed.then_some(0);
        MemberState { mark, run, unarmed_since, unix_us: 3_600_000_000 }
    }

    fn vote(&self, claim: &Claim, stamp: RequestStamp) -> Vote {
        let last = *self.last.lock().unwrap();
        let mut lock = self.lock.lock().unwrap();
        match &mut *lock {
            Some(lock) if lock.id != claim.id => {
                Vote::Theirs { granted: lock.fence.is_some(), ends_in: lock.ends_in, listeners: 0 }
            }
            Some(lock) => {
                lock.stamp = stamp;
                Vote::Yours { last, fence: lock.fence }
            }
            None => {
                *lock = Some(Lock { id: claim.id, stamp, fence: None, ends_in: claim.ttl });
                Vote::Yours { last, fence: None }
            }
        }
    }
}

#[async_trait]
impl Member for Node {
    fn address(&self) -> String {
        self.name.to_owned()
    }

    async fn state(&self) -> Result<MemberState, Failure> {
        self.handle(Ask::State, || self.state_now()).await
    }

    async fn set_epoch(&self, _: &MemberState, _: u64) -> Result<bool, Failure> {
        *self.is_unarmed.lock().unwrap() = false;
        Ok(true)
    }

    async fn prepare(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        last: Option<Fence>,
    ) -> Result<Answer, Failure> {
        self.returned_with.lock().unwrap().push(last);
        let answer = || Answer { state: self.state_now(), vote: self.vote(claim, stamp) };
        self.handle(Ask::Prepare, answer).await
    }

    async fn accept(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        _: &str,
        fence: Fence,
    ) -> Result<bool, Failure> {
        let accept = || {
            let mut lock = self.lock.lock().unwrap();
            let meant = lock.as_mut().filter(|lock| lock.id == claim.id && lock.stamp == stamp);
            let meant = meant.filter(|_| !*self.refuses_fences.lock().unwrap());
            meant.map(|lock| (lock.fence, *self.last.lock().unwrap()) = (Some(fence), fence)).is_some()
        };
        self.handle(Ask::Accept, accept).await
    }

    async fn renew(&self, batch: &[MemberRenew<'_>]) -> Result<Vec<MemberRenewal>, Failure> {
        let answer = |renew: &MemberRenew<'_>| match self.holder() {
            None => MemberRenewal::Free,
            Some(id) if id == renew.claim.id => MemberRenewal::Extended,
            Some(_) => MemberRenewal::Refused,
        };
        let answers = batch.iter().map(answer).collect();
        self.handle(Ask::Renew, || answers).await
    }

    async fn repair(&self, claim: &Claim, fence: Fence, _: RequestStamp) -> Result<bool, Failure> {
        self.handle(Ask::Repair, || self.lock_for(claim.id, Some(fence), claim.ttl)).await.map(|()| true)
    }

    async fn withdraw(&self, claim: &Claim, stamps: &[RequestStamp]) -> Result<bool, Failure> {
        self.withdrawn.lock().unwrap().push(stamps.len());
        let withdraw = || {
            let mut lock = self.lock.lock().unwrap();
            lock.take_if(|lock| lock.id == claim.id && stamps.contains(&lock.stamp)).is_some()
        };
        self.handle(Ask::Withdraw, withdraw).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Result<bool, Failure>> {
        let mut answers = Vec::new();
        for claim in batch {
            let release = || self.lock.lock().unwrap().take_if(|lock| lock.id == claim.id).is_some();
            answers.push(self.handle(Ask::Release, release).await);
        }
        answers
    }

    async fn read(&self, _: &Resource) -> Result<MemberView, Failure> {
        let read = || {
            let holder = self.lock.lock().unwrap().clone().map(|lock| Seen {
                id: lock.id,
                fence: lock.fence,
                since_unix_ms: None,
                ends_in: lock.ends_in,
                note: Note::default(),
            });
            MemberView { last: *self.last.lock().unwrap(), holder }
        };
        self.handle(Ask::Read, read).await
    }

    async fn list(&self, _: &str) -> Result<Vec<(Resource, ClaimId)>, Failure> {
        Ok(self.listed.lock().unwrap().clone())
    }

    async fn subscribe(&self, _: &Resource) -> Result<Box<dyn Subscription>, Failure> {
        let is_connected = !*self.is_cut_off.lock().unwrap();
        self.handle(Ask::Subscribe, || ()).await?;
        Ok(Box::new(NoNews { is_connected }))
    }
}

/// A subscription that reports nothing.
struct NoNews {
    is_connected: bool,
}

#[async_trait]
impl Subscription for NoNews {
    async fn next(&mut self) -> Notification {
        std::future::pending().await
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }
}

pub(crate) async fn quorum() -> (Arc<Quorum>, [Arc<Node>; 3]) {
    let nodes = ["a", "b", "c"].map(Node::new);
    let members = nodes.iter().map(|node| node.clone() as Arc<dyn Member>).collect();
    let config = QuorumConfig::new(ms(10), TTL);
    (Arc::new(Quorum::over("memory", members, config).await.unwrap()), nodes)
}

pub(crate) fn id(number: u8) -> ClaimId {
    ClaimId::from_bytes([number; 16])
}

pub(crate) fn claim(number: u8) -> Claim {
    Claim::new(id(number), Resource::new("stock").unwrap(), Share::MUTEX, TTL)
}

pub(crate) fn holders(nodes: &[Arc<Node>; 3]) -> [Option<ClaimId>; 3] {
    [0, 1, 2].map(|number: usize| nodes[number].holder())
}

/// Asks for the lock, and waits for it if `waits`. Returns the result, and the time that it took.
pub(crate) async fn contend(
    quorum: &Quorum,
    claim: &Claim,
    waits: bool,
) -> (Result<Step, Failure>, Duration) {
    let clock = Arc::new(TokioClock::new());
    let patience = if waits { Patience::unlimited(clock) } else { Patience::none(clock) };
    let began = Instant::now();
    let step = tokio::time::timeout(ms(3_600_000), quorum.contend(claim, &patience)).await;
    (step.expect("an end"), began.elapsed())
}

/// Acquires the lock, and returns its proof and the time that it took.
pub(crate) async fn granted(quorum: &Quorum, claim: &Claim) -> (Proof, Duration) {
    match contend(quorum, claim, true).await {
        (Ok(Step::Granted(grant)), took) => (grant.proof, took),
        other => panic!("{other:?}"),
    }
}

/// The timers of the runtime are a millisecond late at most.
#[track_caller]
pub(crate) fn took(took: Duration, expected: Duration) {
    assert!((expected..=expected + ms(2)).contains(&took), "{took:?} instead of {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn lock_is_granted_by_a_majority_however_slow_it_is() {
    let (quorum, [_, slow, silent]) = quorum().await;
    slow.does(AnswersAfter(ms(500)), &[Ask::Prepare]);
    silent.does(NeverAnswers, &[Ask::Prepare]);
    took(granted(&quorum, &claim(1)).await.1, ms(500));
}

#[tokio::test(start_paused = true)]
async fn acquisition_fails_after_half_a_lease_without_a_majority() {
    let (quorum, nodes) = quorum().await;
    for node in &nodes[1..] {
        node.does(NeverAnswers, &[Ask::Prepare]);
    }
    let (step, time) = contend(&quorum, &claim(1), true).await;
    assert_eq!(step.unwrap_err().kind, FailureKind::Unavailable);
    took(time, TTL / 2);
    assert_eq!(holders(&nodes), [None; 3]);
}

/// It has the vote that is missing. Of the other two one is ours, and one is another client's that may hold.
#[tokio::test(start_paused = true)]
async fn silent_member_is_not_waited_for_again_until_it_answers() {
    let (quorum, nodes) = quorum().await;
    let rounds = [Ask::Prepare, Ask::Withdraw];
    nodes[1].lock_for(id(2), Some(Fence::new(1, 1, 0)), TTL);
    nodes[2].does(FailsAfter(ms(1_000)), &rounds);
    let tries = async || {
        let (step, time) = contend(&quorum, &claim(1), false).await;
        assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
        tokio::time::sleep(ms(2_000)).await;
        time
    };
    took(tries().await, LATE * 2);
    took(tries().await, Duration::ZERO);
    // It answers once more, too late for this try.
    nodes[2].does(AnswersAfter(ms(10)), &rounds);
    took(tries().await, Duration::ZERO);
    nodes[2].does(NeverAnswers, &rounds);
    took(tries().await, LATE * 2);
}

#[tokio::test(start_paused = true)]
async fn look_waits_for_a_majority_and_not_for_a_silent_member() {
    let (quorum, nodes) = quorum().await;
    let looks = async || {
        let began = Instant::now();
        let patience = Patience::none(Arc::new(TokioClock::new()));
        let seen = quorum.inspect(&claim(1).resource, None, &patience).await.unwrap();
        let time = began.elapsed();
        tokio::time::sleep(ms(2_000)).await;
        (seen, time)
    };
    for node in &nodes {
        node.does(AnswersAfter(ms(500)), &[Ask::Read]);
    }
    took(looks().await.1, ms(500));
    nodes[2].does(FailsAfter(ms(1_500)), &[Ask::Read]);
    took(looks().await.1, ms(500) + LATE);
    took(looks().await.1, ms(500));
    // It is the same if it answered no request for the lock, which was granted without it.
    nodes[2].does(AnswersAfter(Duration::ZERO), &[Ask::Read]);
    looks().await;
    nodes[2].does(FailsAfter(ms(1_000)), &[Ask::Prepare]);
    nodes[2].does(NeverAnswers, &[Ask::Read]);
    granted(&quorum, &claim(1)).await;
    tokio::time::sleep(ms(2_000)).await;
    took(looks().await.1, ms(500));
}

#[tokio::test(start_paused = true)]
async fn fence_is_written_to_a_majority_that_need_not_answer_together() {
    let (silent, at_once) = (NeverAnswers, AnswersAfter(Duration::ZERO));
    for (conducts, time) in [
        ([at_once, at_once, silent], Duration::ZERO),
        ([AnswersAfter(ms(150)); 3], ms(150)),
        // Once one has taken it, the others are soon too late.
        ([at_once, AnswersAfter(ms(60)), silent], ms(60)),
    ] {
        let (quorum, nodes) = quorum().await;
        nodes.iter().zip(conducts).for_each(|(node, conduct)| node.does(conduct, &[Ask::Accept]));
        took(granted(&quorum, &claim(1)).await.1, time);
        assert_eq!(nodes[0].is_asked(Ask::Prepare), 1, "{conducts:?}");
    }
}

/// Another attempt of the claim was granted by this member alone, so all three are asked before a fence is written.
#[tokio::test(start_paused = true)]
async fn fence_is_not_waited_for_on_a_third_member() {
    let (quorum, nodes) = quorum().await;
    nodes[0].lock_for(id(1), Some(Fence::new(1, 1, 0)), TTL);
    nodes[2].does(NeverAnswers, &[Ask::Accept]);
    took(granted(&quorum, &claim(1)).await.1, Duration::ZERO);
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Accept)), [1; 3]);
}

#[tokio::test(start_paused = true)]
async fn claim_whose_fence_no_majority_takes_is_withdrawn() {
    let (quorum, nodes) = quorum().await;
    for node in &nodes[1..] {
        *node.refuses_fences.lock().unwrap() = true;
        node.does(NeverAnswers, &[Ask::Accept]);
    }
    let (step, time) = contend(&quorum, &claim(1), false).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    // Four tries of three rounds, which wait for a fence twice as long as for a lock.
    let rounds = LATE * 2 * 12;
    assert!((rounds..rounds + ms(1_000)).contains(&time), "{time:?}");
    assert_eq!(holders(&nodes), [None; 3]);
    let (quorum, nodes) = self::quorum().await;
    for node in &nodes[1..] {
        *node.refuses_fences.lock().unwrap() = true;
        node.does(AnswersAfter(ms(10)), &[Ask::Accept]);
    }
    let (step, time) = contend(&quorum, &claim(1), false).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    assert!(time < ms(10 * 12 + 1_000), "what cannot be is not waited for: {time:?}");
    assert_eq!(holders(&nodes), [None; 3]);
    let (quorum, nodes) = self::quorum().await;
    *nodes[0].refuses_fences.lock().unwrap() = true;
    nodes[1].does(NeverAnswers, &[Ask::Accept]);
    let (_, time) = contend(&quorum, &claim(1), false).await;
    assert!(time < ms(1_000), "nor is the other one, after a refusal: {time:?}");
}

/// It needs the first round only: the members take the fence after this one at once.
#[tokio::test(start_paused = true)]
async fn client_that_returns_to_a_lock_says_which_fence_it_had() {
    let (quorum, nodes) = quorum().await;
    for _ in 0..2 {
        granted(&quorum, &claim(1)).await;
        assert!(matches!(quorum.release(&[&claim(1)]).await[..], [Release::Freed]));
    }
    for node in &nodes {
        assert_eq!(*node.returned_with.lock().unwrap(), [None, Some(Fence::new(1, 1, 0))]);
    }
}

#[tokio::test(start_paused = true)]
async fn withdrawn_acquisition_without_answers_has_no_effect() {
    for withdraws in [true, false] {
        let (quorum, nodes) = quorum().await;
        for node in &nodes[1..] {
            node.does(FailsAfter(ms(100)), &[Ask::Prepare]);
        }
        if !withdraws {
            nodes[2].does(FailsAfter(ms(10)), &[Ask::Withdraw]);
        }
        let failure = contend(&quorum, &claim(1), true).await.0.unwrap_err();
        assert_eq!(failure.effect, if withdraws { Effect::None } else { Effect::Unknown }, "{failure}");
        assert_eq!(holders(&nodes), [None; 3]);
    }
}

/// The member that is armed and answers at once does not decide alone.
#[tokio::test(start_paused = true)]
async fn slow_member_decides_where_another_one_is_not_armed() {
    let (quorum, nodes) = quorum().await;
    *nodes[1].is_unarmed.lock().unwrap() = true;
    // So that it stays unarmed.
    nodes[1].does(NeverAnswers, &[Ask::State]);
    nodes[2].does(AnswersAfter(LATE + ms(30)), &[Ask::Prepare]);
    took(granted(&quorum, &claim(1)).await.1, LATE + ms(30));
}

#[tokio::test(start_paused = true)]
async fn slow_member_decides_a_renewal_where_another_has_forgotten() {
    let (quorum, nodes) = quorum().await;
    let ours = claim(1);
    let (proof, _) = granted(&quorum, &ours).await;
    tokio::time::sleep(ms(100)).await;
    *nodes[1].lock.lock().unwrap() = None;
    nodes[2].does(AnswersAfter(LATE + ms(30)), &[Ask::Renew]);
    let renew = async || {
        let began = Instant::now();
        let renewal = quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await.remove(0);
        (renewal, began.elapsed())
    };
    let (renewal, time) = renew().await;
    assert!(matches!(renewal, Renewal::Renewed), "{renewal:?}");
    took(time, LATE + ms(30));
    tokio::time::sleep(ms(1)).await;
    assert_eq!(holders(&nodes), [Some(ours.id); 3], "it is locked again");
    // Two that have forgotten decide as well, if one of them is slow.
    nodes[1..].iter().for_each(|node| *node.lock.lock().unwrap() = None);
    let (renewal, time) = renew().await;
    assert!(matches!(renewal, Renewal::Lost), "{renewal:?}");
    took(time, LATE + ms(30));
    // One that never answers is waited for once: it holds up the other claims of the request.
    nodes[0].lock_for(ours.id, Some(Fence::new(1, 1, 0)), TTL);
    nodes[2].does(FailsAfter(ms(1_000)), &[Ask::Renew]);
    for expected in [ms(1_000), Duration::ZERO] {
        let (renewal, time) = renew().await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{renewal:?}");
        took(time, expected);
    }
}

/// It has answered, so it is not left to the next renewal.
#[tokio::test(start_paused = true)]
async fn renewal_locks_a_forgetful_member_and_does_not_wait_for_it() {
    let (quorum, nodes) = quorum().await;
    let ours = claim(1);
    let (proof, _) = granted(&quorum, &ours).await;
    tokio::time::sleep(ms(100)).await;
    *nodes[0].lock.lock().unwrap() = None;
    nodes[1].does(AnswersAfter(ms(10)), &[Ask::Renew]);
    nodes[2].does(AnswersAfter(ms(10)), &[Ask::Renew]);
    nodes[0].does(AnswersAfter(ms(5)), &[Ask::Repair]);
    let began = Instant::now();
    assert!(matches!(quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await[..], [Renewal::Renewed]));
    took(began.elapsed(), ms(10));
    tokio::time::sleep(ms(6)).await;
    assert_eq!(holders(&nodes), [Some(ours.id); 3]);
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Repair)), [1, 0, 0]);
    // A claim that a majority has forgotten is lost.
    nodes[..2].iter().for_each(|node| *node.lock.lock().unwrap() = None);
    assert!(matches!(quorum.renew(&[Renew { claim: &ours, proof: &proof }]).await[..], [Renewal::Lost]));
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Repair)), [1, 0, 0]);
}

/// A restarted member has forgotten all of them, and each takes a request of its own.
#[tokio::test(start_paused = true)]
async fn renewal_does_not_wait_until_many_locks_are_written_back() {
    let (quorum, nodes) = quorum().await;
    let ours = claim(1);
    let (proof, _) = granted(&quorum, &ours).await;
    tokio::time::sleep(ms(100)).await;
    // A member of this test has one lock for all names.
    *nodes[0].lock.lock().unwrap() = None;
    nodes[0].does(AnswersAfter(ms(100)), &[Ask::Repair]);
    let batch: Vec<_> = (0..100).map(|_| Renew { claim: &ours, proof: &proof }).collect();
    let began = Instant::now();
    let renewals = quorum.renew(&batch).await;
    assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewed)), "{renewals:?}");
    took(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(ms(11_000)).await;
    assert_eq!(nodes[0].is_asked(Ask::Repair), 100);
}

/// So the locks of the last batches do not end while the first ones are renewed.
#[tokio::test(start_paused = true)]
async fn batches_of_renewals_are_sent_at_once_up_to_a_limit() {
    let (quorum, nodes) = quorum().await;
    let (ours, theirs) = (claim(1), claim(2));
    let (proof, _) = granted(&quorum, &ours).await;
    tokio::time::sleep(ms(100)).await;
    nodes.iter().for_each(|node| node.does(AnswersAfter(ms(100)), &[Ask::Renew]));
    for (count, sent_first, expected) in [(1_200, 3, ms(100)), (9_000, 16, ms(200))] {
        let asked = || nodes.each_ref().map(|node| node.is_asked(Ask::Renew));
        let before = asked()[0];
        let is_ours = |number: usize| number.is_multiple_of(7);
        let batch: Vec<_> = (0..count)
            .map(|number| Renew { claim: if is_ours(number) { &ours } else { &theirs }, proof: &proof })
            .collect();
        let began = Instant::now();
        let first = async {
            tokio::time::sleep(ms(50)).await;
            assert_eq!(asked(), [before + sent_first; 3], "{count} locks");
        };
        let (renewals, ()) = tokio::join!(quorum.renew(&batch), first);
        took(began.elapsed(), expected);
        assert_eq!(renewals.len(), count);
        for (number, renewal) in renewals.iter().enumerate() {
            assert_eq!(matches!(renewal, Renewal::Renewed), is_ours(number), "{number}: {renewal:?}");
        }
    }
}

/// Its batch is not sent yet then.
#[tokio::test(start_paused = true)]
async fn lock_that_is_released_during_a_renewal_is_not_written_back() {
    let (quorum, nodes) = quorum().await;
    let (ours, theirs) = (claim(1), claim(2));
    let (proof, _) = granted(&quorum, &ours).await;
    tokio::time::sleep(ms(100)).await;
    *nodes[0].lock.lock().unwrap() = None;
    nodes.iter().for_each(|node| {
        node.does(AnswersAfter(ms(100)), &[Ask::Renew]);
        // So that the others extend it.
        node.does(IsDown, &[Ask::Release]);
    });
    let mut batch: Vec<_> = (0..8_000).map(|_| Renew { claim: &theirs, proof: &proof }).collect();
    batch.push(Renew { claim: &ours, proof: &proof });
    let released = async {
        tokio::time::sleep(ms(50)).await;
        quorum.release(&[&ours]).await;
    };
    let (renewals, ()) = tokio::join!(quorum.renew(&batch), released);
    assert!(matches!(renewals.last(), Some(Renewal::Renewed)), "{:?}", renewals.last());
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(holders(&nodes), [None, Some(ours.id), Some(ours.id)]);
}

/// A member that is down now may have been asked before, and have ended the lock.
#[tokio::test(start_paused = true)]
async fn release_without_a_majority_may_have_happened() {
    let (quorum, nodes) = quorum().await;
    granted(&quorum, &claim(1)).await;
    for node in &nodes[1..] {
        node.does(IsDown, &[Ask::Release]);
    }
    match &quorum.release(&[&claim(1)]).await[..] {
        [Release::Unknown(failure)] => assert_eq!(failure.effect, Effect::Unknown, "{failure}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn holder_is_shown_with_its_fence_and_the_end_of_its_majority() {
    let (quorum, nodes) = quorum().await;
    let resource = claim(1).resource;
    let looks = async || {
        let patience = Patience::none(Arc::new(TokioClock::new()));
        quorum.inspect(&resource, None, &patience).await.unwrap()
    };
    let free = looks().await;
    assert_eq!((free.holders.len(), free.fence), (0, None));
    for (ends, expected) in [([10, 30, 20], 20), ([30, 10, 10], 10), ([10, 20, 20], 20)] {
        for (node, seconds) in nodes.iter().zip(ends) {
            node.lock_for(id(2), Some(Fence::new(1, 4, 0)), Duration::from_secs(seconds));
        }
        *nodes[1].last.lock().unwrap() = Fence::new(1, 4, 0);
        let held = looks().await;
        assert_eq!(held.holders[0].remaining, Some(Duration::from_secs(expected)), "{ends:?}");
        assert_eq!(held.fence, Some(Fence::new(1, 4, 0)));
    }
    // Locks of a majority without a fence are of a claim that is not granted.
    nodes.iter().for_each(|node| node.lock_for(id(2), None, TTL));
    assert_eq!(looks().await.holders.len(), 0);
}

/// Returns one of two permits.
fn permit() -> Share {
    Share::permits(1, 2).unwrap()
}

#[tokio::test(start_paused = true)]
async fn share_that_cannot_be_granted_has_a_reason() {
    let (quorum, _) = quorum().await;
    assert_eq!(quorum.unsupported_reason(Share::MUTEX), None);
    let reason = |share| quorum.unsupported_reason(share).unwrap();
    assert!(reason(Share::READER).contains("readers") && reason(permit()).contains("it does not count"));
}

#[tokio::test(start_paused = true)]
async fn claim_that_a_majority_cannot_keep_is_refused_unsent() {
    let (quorum, nodes) = quorum().await;
    let of = |share, ttl| Claim::new(id(1), claim(1).resource, share, ttl);
    for (refused, kind) in [
        (of(Share::READER, TTL), FailureKind::Unsupported),
        (of(permit(), TTL), FailureKind::Unsupported),
        (of(Share::MUTEX, ms(9)), FailureKind::Invalid),
        (of(Share::MUTEX, TTL + ms(1)), FailureKind::Invalid),
    ] {
        assert_eq!(contend(&quorum, &refused, true).await.0.unwrap_err().kind, kind);
    }
    assert!(!quorum.supports_transfer());
    assert!(nodes.iter().all(|node| node.is_asked(Ask::Prepare) == 0));
    granted(&quorum, &of(Share::MUTEX, ms(10))).await;
}

#[tokio::test(start_paused = true)]
async fn list_continues_after_a_name() {
    let (quorum, nodes) = quorum().await;
    let names = ["a", "b", "c", "d"].map(|name| Resource::new(name).unwrap());
    for node in &nodes[1..] {
        *node.listed.lock().unwrap() = names.iter().map(|name| (name.clone(), id(2))).collect();
    }
    let list = async |after: Option<&Resource>, limit| {
        let found = quorum.list("", after, limit).await.unwrap();
        found.into_iter().map(|row| row.resource).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, names);
    assert_eq!(list(None, 2).await, names[..2]);
    assert_eq!(list(Some(&names[1]), 10).await, names[2..]);
}

/// It is slower than the others, which decide without it.
#[tokio::test(start_paused = true)]
async fn slow_member_that_has_lost_its_memory_is_armed_again() {
    let (quorum, nodes) = quorum().await;
    *nodes[2].is_unarmed.lock().unwrap() = true;
    nodes[2].does(AnswersAfter(ms(200)), &[Ask::State]);
    granted(&quorum, &claim(1)).await;
    tokio::time::sleep(ms(1_000)).await;
    assert!(!*nodes[2].is_unarmed.lock().unwrap());
}

/// To arm it by hand would let a second holder in, since the others have forgotten nothing.
#[tokio::test(start_paused = true)]
async fn diagnosis_waits_for_a_slow_member_before_it_advises() {
    let (quorum, nodes) = quorum().await;
    let looks = async || {
        let findings = quorum.diagnose(TTL).await;
        (findings[0].severity, findings[0].found.clone(), findings[0].advice.contains("redlock rearm"))
    };
    nodes[2].does(AnswersAfter(LATE + ms(30)), &[Ask::State]);
    assert_eq!(looks().await, (Severity::Good, "all 3 servers are armed".to_owned(), false));
    *nodes[1].is_unarmed.lock().unwrap() = true;
    let (severity, found, advises) = looks().await;
    assert_eq!((severity, advises), (Severity::Risk, false), "{found}");
    // One that does not answer may have forgotten nothing.
    nodes[2].does(IsDown, &[Ask::State]);
    let (severity, found, advises) = looks().await;
    assert_eq!((severity, advises), (Severity::Broken, false), "{found}");
    nodes[0].does(IsDown, &[Ask::State]);
    nodes[2].does(AnswersAfter(Duration::ZERO), &[Ask::State]);
    *nodes[2].is_unarmed.lock().unwrap() = true;
    let (severity, found, advises) = looks().await;
    assert_eq!((severity, advises), (Severity::Broken, true), "{found}");
}

#[tokio::test(start_paused = true)]
async fn member_that_cannot_be_armed_is_tried_again_now_and_then() {
    let (quorum, nodes) = quorum().await;
    *nodes[2].is_unarmed.lock().unwrap() = true;
    nodes[2].does(FailsAfter(Duration::ZERO), &[Ask::State]);
    let before = nodes[2].is_asked(Ask::State);
    for _ in 0..1_000 {
        granted(&quorum, &claim(1)).await;
        quorum.release(&[&claim(1)]).await;
        tokio::time::sleep(ms(10)).await;
    }
    // Every 250 ms to 750 ms, whenever it is asked for a lock.
    let tries = nodes[2].is_asked(Ask::State) - before;
    assert!((13..=40).contains(&tries), "{tries}");
}
