//! Which members of a quorum are armed, and in which epoch. The members are kept in memory, and the time is virtual.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::layer::{Quorum, QuorumConfig};
use leasehold_core::quorum::{
    Answer, Mark, Member, MemberRenew, MemberRenewal, MemberState, MemberView, RequestStamp, Subscription,
};
use leasehold_core::{Backend, Claim, ClaimId, Effect, Failure, FailureKind, Fence, Resource, Severity};

/// Longer than any lease of the tests, in microseconds.
const LONG: u64 = 3_600_000_000;
const MAX_TTL: Duration = Duration::from_secs(60);

/// A member that remembers its mark, and is asked for no lock.
#[derive(Debug)]
struct Node {
    state: Mutex<MemberState>,
    /// A change before the second time that it is read.
    changes: Mutex<Option<fn(&mut MemberState)>>,
    reads: AtomicUsize,
    is_silent: AtomicBool,
    /// `true` if nothing listens at its address.
    is_down: AtomicBool,
    refuses_epochs: AtomicBool,
}

impl Node {
    /// Creates one that has never been marked, and was seen so for long.
    fn new(run: &str, unix_us: u64) -> Arc<Node> {
        let state =
            MemberState { run: run.to_owned(), mark: None, unarmed_since: Some(unix_us - LONG), unix_us };
        Arc::new(Node {
            state: Mutex::new(state),
            changes: Mutex::default(),
            reads: AtomicUsize::new(0),
            is_silent: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
            refuses_epochs: AtomicBool::new(false),
        })
    }

    fn change(&self, change: impl FnOnce(&mut MemberState)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Marks it under `run`.
    fn mark(&self, epoch: u64, run: &str) {
        self.change(|state| state.mark = Some(Mark { epoch, run: run.to_owned() }));
    }

    fn armed(&self) -> Option<u64> {
        self.state.lock().unwrap().armed()
    }
}

fn unasked<T>() -> Result<T, Failure> {
    Err(Failure::unanswered("no lock is asked for here"))
}

#[async_trait]
impl Member for Node {
    fn address(&self) -> String {
        self.state.lock().unwrap().run.clone()
    }

    async fn state(&self) -> Result<MemberState, Failure> {
        if self.is_silent.load(Ordering::SeqCst) {
            return Err(Failure::unanswered("the member is silent"));
        }
        if self.is_down.load(Ordering::SeqCst) {
            return Err(Failure::unavailable("the member is down"));
        }
        if self.reads.fetch_add(1, Ordering::SeqCst) == 1
            && let Some(change) = self.changes.lock().unwrap().take()
        {
            self.change(change);
        }
        Ok(self.state.lock().unwrap().clone())
    }

    async fn set_epoch(&self, seen: &MemberState, epoch: u64) -> Result<bool, Failure> {
        let mut state = self.state.lock().unwrap();
        let is_later = state.mark.as_ref().is_none_or(|mark| epoch > mark.epoch);
        let is_set = !self.refuses_epochs.load(Ordering::SeqCst)
            && (&state.run, &state.mark) == (&seen.run, &seen.mark)
            && is_later;
        if is_set {
            (state.mark, state.unarmed_since) = (Some(Mark { epoch, run: state.run.clone() }), None);
        }
        Ok(is_set)
    }

    async fn prepare(&self, _: &Claim, _: RequestStamp, _: Option<Fence>) -> Result<Answer, Failure> {
        unasked()
    }

    async fn accept(&self, _: &Claim, _: RequestStamp, _: &str, _: Fence) -> Result<bool, Failure> {
        unasked()
    }

    async fn renew(&self, _: &[MemberRenew<'_>]) -> Result<Vec<MemberRenewal>, Failure> {
        unasked()
    }

    async fn repair(&self, _: &Claim, _: Fence, _: RequestStamp) -> Result<bool, Failure> {
        unasked()
    }

    async fn withdraw(&self, _: &Claim, _: &[RequestStamp]) -> Result<bool, Failure> {
        unasked()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Result<bool, Failure>> {
        batch.iter().map(|_| unasked()).collect()
    }

    async fn read(&self, _: &Resource) -> Result<MemberView, Failure> {
        unasked()
    }

    async fn list(&self, _: &str) -> Result<Vec<(Resource, ClaimId)>, Failure> {
        unasked()
    }

    async fn subscribe(&self, _: &Resource) -> Result<Box<dyn Subscription>, Failure> {
        unasked()
    }
}

/// Returns three new members, whose clocks differ.
fn nodes() -> [Arc<Node>; 3] {
    [("c", 2 * LONG), ("a", 4 * LONG), ("b", 3 * LONG)].map(|(run, unix_us)| Node::new(run, unix_us))
}

/// Opens a quorum, which reads all members, and arms those that may be armed.
async fn open(nodes: &[Arc<Node>; 3]) -> Result<Quorum, Failure> {
    let members = nodes.iter().map(|node| node.clone() as Arc<dyn Member>).collect();
    Quorum::over("memory", members, QuorumConfig::new(Duration::from_millis(10), MAX_TTL)).await
}

fn armed(nodes: &[Arc<Node>; 3]) -> [Option<u64>; 3] {
    [0, 1, 2].map(|number: usize| nodes[number].armed())
}

#[tokio::test(start_paused = true)]
async fn new_members_are_armed_in_the_latest_of_their_clocks() {
    let nodes = nodes();
    open(&nodes).await.unwrap();
    assert_eq!(armed(&nodes), [Some(4 * LONG); 3]);
}

#[tokio::test(start_paused = true)]
async fn new_members_are_not_armed_in_doubt() {
    let doubts: [fn(&Node); 6] = [
        // A lease of it may last.
        |node| node.change(|state| state.unarmed_since = Some(state.unix_us - 61_000_000)),
        |node| node.change(|state| state.unarmed_since = None),
        // It may be the only one that remembers.
        |node| node.is_silent.store(true, Ordering::SeqCst),
        |node| node.mark(1, "the run before"),
        // It served, and has forgotten that, after another one was read.
        |node| *node.changes.lock().unwrap() = Some(|state| state.unarmed_since = Some(state.unix_us)),
        |node| *node.changes.lock().unwrap() = Some(|state| "another run".clone_into(&mut state.run)),
    ];
    for (number, doubt) in doubts.into_iter().enumerate() {
        for concerned in 0..3 {
            let nodes = nodes();
            doubt(&nodes[concerned]);
            open(&nodes).await.unwrap();
            assert_eq!(armed(&nodes), [None; 3], "doubt {number} about member {concerned}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn member_comes_back_in_the_next_epoch_of_a_majority() {
    let nodes = nodes();
    nodes[0].mark(7, "c");
    nodes[1].mark(8, "a");
    open(&nodes).await.unwrap();
    assert_eq!(armed(&nodes), [Some(9); 3]);
    // Without one that comes back, nothing is raised.
    open(&nodes).await.unwrap();
    assert_eq!(armed(&nodes), [Some(9); 3]);
    nodes[2].mark(9, "the run before");
    open(&nodes).await.unwrap();
    assert_eq!(armed(&nodes), [Some(9), Some(9), None], "it was not seen unarmed yet");
    // One armed member is not a majority.
    nodes[1].mark(9, "the run before");
    for node in &nodes[1..] {
        node.change(|state| state.unarmed_since = Some(state.unix_us - LONG));
    }
    open(&nodes).await.unwrap();
    assert_eq!(armed(&nodes), [Some(9), None, None]);
}

#[tokio::test(start_paused = true)]
async fn operator_arms_a_majority_beyond_all_epochs_and_clocks() {
    let nodes = nodes();
    nodes[0].mark(9 * LONG, "the run before");
    nodes[1].is_silent.store(true, Ordering::SeqCst);
    let quorum = open(&nodes).await.unwrap();
    let report = quorum.rearm().await.unwrap();
    assert_eq!((report.epoch, report.armed), (9 * LONG + 1, vec!["c".to_owned(), "b".to_owned()]));
    assert_eq!(report.missed, ["a did not answer"]);
    assert_eq!(armed(&nodes), [Some(9 * LONG + 1), None, Some(9 * LONG + 1)]);
    nodes[1].is_silent.store(false, Ordering::SeqCst);
    nodes[2].refuses_epochs.store(true, Ordering::SeqCst);
    let report = quorum.rearm().await.unwrap();
    assert_eq!(report.armed, ["c", "a"]);
    assert_eq!(report.missed, ["b: it changed meanwhile"]);
    // Less than a majority is an error, which says so.
    nodes[1].refuses_epochs.store(true, Ordering::SeqCst);
    let failure = quorum.rearm().await.unwrap_err();
    assert!(failure.detail().starts_with("1 of 3 servers were armed, 2 are needed"), "{failure}");
    nodes[1].is_silent.store(true, Ordering::SeqCst);
    nodes[2].is_silent.store(true, Ordering::SeqCst);
    assert_eq!(quorum.rearm().await.unwrap_err().kind, FailureKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn operator_arms_no_member_that_changes_while_it_is_read() {
    let changes: [fn(&mut MemberState); 3] = [
        |state| "another run".clone_into(&mut state.run),
        |state| state.mark = Some(Mark { epoch: 1, run: "the run before".to_owned() }),
        |state| state.unarmed_since = Some(state.unix_us),
    ];
    for change in changes {
        let nodes = nodes();
        // In doubt, so that opening it arms nothing.
        nodes[1].mark(1, "the run before");
        let quorum = open(&nodes).await.unwrap();
        nodes[0].reads.store(0, Ordering::SeqCst);
        *nodes[0].changes.lock().unwrap() = Some(change);
        let report = quorum.rearm().await.unwrap();
        assert_eq!((report.armed.len(), report.missed.len()), (2, 1), "{report:?}");
        assert_eq!(armed(&nodes), [None, Some(4 * LONG), Some(4 * LONG)]);
    }
}

#[tokio::test(start_paused = true)]
async fn quorum_opens_with_a_majority_of_different_servers() {
    let nodes = nodes();
    nodes[0].is_silent.store(true, Ordering::SeqCst);
    assert!(open(&nodes).await.is_ok());
    nodes[2].is_silent.store(true, Ordering::SeqCst);
    assert_eq!(open(&nodes).await.unwrap_err().kind, FailureKind::Unavailable);
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let nodes = self::nodes();
        let run = nodes[other].address();
        nodes[one].change(|state| state.run = run);
        assert_eq!(open(&nodes).await.unwrap_err().kind, FailureKind::Invalid, "{one} is {other}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_without_an_answer_is_unsure() {
    let nodes = nodes();
    nodes[0].is_down.store(true, Ordering::SeqCst);
    nodes[1].is_down.store(true, Ordering::SeqCst);
    let failure = open(&nodes).await.unwrap_err();
    assert_eq!(failure.effect, Effect::None, "{failure}");
    assert!(failure.detail().starts_with("1 of 3 servers answered, 2 are needed: "), "{failure}");
    nodes[2].is_silent.store(true, Ordering::SeqCst);
    assert_eq!(open(&nodes).await.unwrap_err().effect, Effect::Unknown);
}

#[tokio::test(start_paused = true)]
async fn diagnosis_says_how_many_more_may_fail() {
    let nodes = nodes();
    let quorum = open(&nodes).await.unwrap();
    let expected = [
        (Severity::Good, "all 3 servers are armed"),
        (Severity::Risk, "2 of 3 servers are armed: the member is down"),
        (Severity::Broken, "1 of 3 servers are armed: the member is down; the member is down"),
    ];
    for (node, (severity, found)) in nodes.iter().zip(expected) {
        let findings = quorum.diagnose(MAX_TTL).await;
        assert_eq!((findings[0].severity, findings[0].found.as_str()), (severity, found));
        node.is_down.store(true, Ordering::SeqCst);
    }
}
