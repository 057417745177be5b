//! The conclusion from the answers of several members to one question.
//!
//! Pure: it records which member replied what, and concludes as early as it can. Only the locks
//! of *armed* members count. A member that lost its memory would otherwise vote for a second holder, and
//! for an outdated fence.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Vote, next_fence};
use crate::{Effect, Failure, FailureKind, Fence};

/// The replies to the first round, as they arrive.
#[derive(Debug)]
pub struct VoteTally {
    names: Arc<[String]>,
    members: Vec<Reply>,
}

#[derive(Debug)]
enum Reply {
    Pending,
    Answer(Answer),
    Failed(Failure),
}

/// The state of the count: whether more answers may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// More answers may come.
    Open,
    /// Further answers come too late.
    Closed,
}

/// The conclusion from the answers.
#[derive(Debug)]
pub enum Verdict {
    /// Nothing yet.
    Undecided,
    /// The claim was granted before, with this fence.
    Held(Fence),
    /// A majority is locked for the claim. To be granted, this fence is to be written to a majority of
    /// these members.
    Write {
        /// The fence.
        fence: Fence,
        /// The members that may be written to, by their number, with the run that they reported.
        to: Vec<(usize, String)>,
    },
    /// Another claim holds.
    Busy {
        /// The time until a majority is free at the earliest, unless a claim is released.
        free_in: Duration,
        /// The number of connections that are subscribed, the most that a member reported.
        listeners: u32,
    },
    /// Several claims have some of the locks each, and none of them is known to hold.
    Split,
    /// Too few members can vote.
    Failed(Failure),
}

impl VoteTally {
    /// Creates the tally of the members of these names, without replies.
    pub fn new(names: Arc<[String]>) -> VoteTally {
        VoteTally { members: names.iter().map(|_| Reply::Pending).collect(), names }
    }

    /// Returns the fewest members that decide.
    pub fn majority(&self) -> usize {
        majority(self.members.len())
    }

    /// Records the reply of one member. Of two names that lead to one server, only the first that answers
    /// votes.
    pub fn record(&mut self, member: usize, outcome: Result<Answer, Failure>) {
        let same_server = |answer: &Answer| {
            let twin =
                self.answers().find(|(other, twin)| *other != member && twin.state.run == answer.state.run);
            twin.map(|(other, _)| other)
        };
        let reply = match outcome {
            Ok(answer) => match same_server(&answer) {
                None => Reply::Answer(answer),
                Some(other) => Reply::Failed(self.second_vote(member, other)),
            },
            Err(failure) => Reply::Failed(failure),
        };
        if let Some(present) = self.members.get_mut(member) {
            *present = reply;
        }
    }

    fn second_vote(&self, member: usize, other: usize) -> Failure {
        let name = |member: usize| self.names.get(member).map_or("?", String::as_str);
        let text = format!("{} is the same server as {}: name each server once", name(member), name(other));
        // Its answer may have given it the lock.
        Failure::new(FailureKind::Invalid, Effect::Unknown, text)
    }

    /// Returns the number of answers, failures not counted.
    pub fn answered(&self) -> usize {
        self.answers().count()
    }

    /// Returns `true` if the rest need not be waited for: a majority that can vote has answered, or the rest
    /// cannot make one.
    pub fn can_close(&self) -> bool {
        let armed = self.answers().filter(|(_, answer)| answer.state.armed().is_some()).count();
        let pending = self.members.iter().filter(|reply| matches!(reply, Reply::Pending)).count();
        armed >= self.majority() || (self.answered() >= self.majority() && armed + pending < self.majority())
    }

    /// Returns `true` if this member has replied, be it with a failure.
    pub fn has_replied(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(|reply| !matches!(reply, Reply::Pending))
    }

    /// Returns `true` if the claim has a fence from before somewhere, so that it may hold no matter what
    /// the verdict is.
    pub fn saw_earlier_grant(&self) -> bool {
        self.granted_before().next().is_some()
    }

    /// Returns the conclusion.
    pub fn verdict(&self, counting: Counting) -> Verdict {
        let majority = self.majority();
        let pending = match counting {
            Counting::Open => self.members.len() - self.answered() - self.failures().count(),
            Counting::Closed => 0,
        };
        // A member that restarted with old data may have the lock and the fence of an attempt that was withdrawn.
        let of_armed = || {
            let armed = self.answers().filter(|(_, answer)| answer.state.armed().is_some());
            armed.filter_map(|(_, answer)| answer.granted_before())
        };
        let mut best = 0;
        for fence in of_armed() {
            let same = of_armed().filter(|other| *other == fence).count();
            if same >= majority {
                return Verdict::Held(fence);
            }
            best = best.max(same);
        }
        let locked = self.locked();
        if locked.clone().count() >= majority {
            if best > 0 && best + pending >= majority {
                return Verdict::Undecided;
            }
            return self.write(locked);
        }
        if locked.count() + pending >= majority {
            return Verdict::Undecided;
        }
        self.refusal(counting)
    }

    fn write<'a>(&'a self, locked: impl Iterator<Item = (usize, &'a Answer, u64, Fence)> + Clone) -> Verdict {
        match next_fence(locked.clone().map(|(_, _, epoch, last)| (epoch, last))) {
            Some(fence) => {
                let to = locked.map(|(member, answer, _, _)| (member, answer.state.run.clone())).collect();
                Verdict::Write { fence, to }
            }
            None => Verdict::Undecided,
        }
    }

    /// Returns the reason why it cannot be granted.
    fn refusal(&self, counting: Counting) -> Verdict {
        let silent = self.members.iter().filter(|reply| matches!(reply, Reply::Pending)).count();
        let unarmed = self.answers().filter(|(_, answer)| answer.state.armed().is_none()).count();
        let lost = self.failures().count() + unarmed + if counting == Counting::Closed { silent } else { 0 };
        if self.members.len() - lost < self.majority() {
            // The replies of the rest change nothing: they are waited for because the failure reports all of them.
            let all = silent == 0 || counting == Counting::Closed;
            return if all { Verdict::Failed(self.failure()) } else { Verdict::Undecided };
        }
        let theirs = || {
            self.answers().filter_map(|(_, answer)| match answer.vote {
                Vote::Theirs { granted, ends_in, listeners } => Some((granted, ends_in, listeners)),
                Vote::Yours { .. } => None,
            })
        };
        // Of a holder, the members of a majority have a fence. Those that have not answered, or have forgotten, may
        // be among them.
        let granted = theirs().filter(|(granted, ..)| *granted).count();
        let unknown = self.members.len() - self.answered() + unarmed;
        if granted == 0 || granted + unknown < self.majority() {
            return Verdict::Split;
        }
        let mut ends: Vec<Duration> = theirs().map(|(_, ends_in, _)| ends_in).collect();
        ends.sort_unstable();
        // The members that have not answered may be free by then.
        let yours = self.locked().count();
        let free_in = ends.get(self.majority().saturating_sub(yours + silent + 1)).or(ends.last()).copied();
        let listeners = theirs().map(|(.., listeners)| listeners).max().unwrap_or(0);
        Verdict::Busy { free_in: free_in.unwrap_or_default(), listeners }
    }

    /// Returns the failure to report where too few can vote, with the reply of each member.
    fn failure(&self) -> Failure {
        let needed = self.majority();
        let count = self.members.len();
        let failed = count - self.answered();
        let unsure = |reply: &Reply| match reply {
            Reply::Pending => true,
            Reply::Answer(_) => false,
            Reply::Failed(failure) => failure.effect == Effect::Unknown,
        };
        let effect = if self.members.iter().any(unsure) { Effect::Unknown } else { Effect::None };
        let report = self.report();
        let unarmed =
            || self.answers().map(|(_, answer)| &answer.state).filter(|state| state.armed().is_none());
        let armed = self.answered() - unarmed().count();
        if unarmed().next().is_none() {
            let kind = common_kind(self.failures());
            let text =
                format!("{} of {count} servers answered, {needed} are needed: {report}", self.answered());
            return Failure::new(kind, effect, text);
        }
        let text = format!("cannot issue a fence: {armed} of {count} servers are armed, {needed} are needed");
        // A member that is known to have served before could have forgotten anything.
        let unused = armed == 0 && unarmed().all(|state| state.mark.is_none());
        let advice = if unused {
            "servers that never served are armed once all of them answer and max-ttl has passed since they were first asked; to \
             begin at once: leasehold redlock rearm"
        } else if armed + failed >= needed {
            "it passes when those come back that do not answer"
        } else {
            "a majority may have forgotten what was granted: when no lock of before is held any more, arm the servers \
             by leasehold redlock rearm"
        };
        let kind = if unused || armed + failed >= needed {
            FailureKind::Unavailable
        } else {
            FailureKind::Unsupported
        };
        Failure::new(kind, effect, format!("{text}: {report}; {advice}"))
    }

    /// Describes the reply of each member.
    fn report(&self) -> String {
        let reports = self.names.iter().zip(&self.members).map(|(name, reply)| match reply {
            Reply::Pending => format!("{name} is silent"),
            Reply::Failed(failure) => failure.detail().to_owned(),
            Reply::Answer(answer) => answer.state.trouble(name).unwrap_or_else(|| format!("{name} is armed")),
        });
        reports.collect::<Vec<_>>().join("; ")
    }

    /// Returns the armed members whose lock the claim has: number, answer, epoch, and greatest fence.
    fn locked(&self) -> impl Iterator<Item = (usize, &Answer, u64, Fence)> + Clone {
        self.answers().filter_map(|(member, answer)| match answer.vote {
            Vote::Yours { last, .. } => Some((member, answer, answer.state.armed()?, last)),
            Vote::Theirs { .. } => None,
        })
    }

    fn granted_before(&self) -> impl Iterator<Item = Fence> {
        self.answers().filter_map(|(_, answer)| answer.granted_before())
    }

    fn answers(&self) -> impl Iterator<Item = (usize, &Answer)> + Clone {
        self.members.iter().enumerate().filter_map(|(member, reply)| match reply {
            Reply::Answer(answer) => Some((member, answer)),
            _ => None,
        })
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.members.iter().filter_map(|reply| match reply {
            Reply::Failed(failure) => Some(failure),
            _ => None,
        })
    }
}

/// Returns the fewest of so many members that decide: any two such groups have a member in common.
pub const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// Returns the kind that all failures share; where they differ, or one may pass, the whole may pass.
pub fn common_kind<'a>(mut failures: impl Iterator<Item = &'a Failure>) -> FailureKind {
    let first = failures.next().map_or(FailureKind::Unavailable, |failure| failure.kind);
    if failures.all(|failure| failure.kind == first) { first } else { FailureKind::Unavailable }
}

#[cfg(test)]
mod tests {
    use super::super::{Mark, MemberState, NO_FENCE};
    use super::*;

    fn state(armed: Option<u64>) -> MemberState {
        let mark = armed.map(|epoch| Mark { epoch, run: "run".to_owned() });
        MemberState { run: "run".to_owned(), mark, unarmed_since: None, unix_us: 0 }
    }

    fn yours(seq: u64) -> Answer {
        let last = if seq == 0 { NO_FENCE } else { Fence::new(1, seq, 0) };
        Answer { state: state(Some(1)), vote: Vote::Yours { last, fence: None } }
    }

    fn held(seq: u64) -> Answer {
        let fence = Fence::new(1, seq, 0);
        Answer { state: state(Some(1)), vote: Vote::Yours { last: fence, fence: Some(fence) } }
    }

    fn theirs(granted: bool, millis: u64) -> Answer {
        let ends_in = Duration::from_millis(millis);
        Answer { state: state(Some(1)), vote: Vote::Theirs { granted, ends_in, listeners: 3 } }
    }

    fn forgot(mut answer: Answer, mark: Option<Mark>) -> Answer {
        answer.state.mark = mark;
        answer
    }

    /// Makes it the answer of a server of its own.
    fn of_server(number: usize, mut answer: Answer) -> Answer {
        let run = format!("run {number}");
        if let Some(mark) = answer.state.mark.as_mut().filter(|mark| mark.run == answer.state.run) {
            mark.run.clone_from(&run);
        }
        answer.state.run = run;
        answer
    }

    fn silent() -> Failure {
        Failure::unanswered("x did not answer")
    }

    fn tally_of(answers: Vec<Option<Result<Answer, Failure>>>) -> VoteTally {
        let names: Vec<String> = (0..answers.len()).map(|member| format!("m{member}")).collect();
        let mut tally = VoteTally::new(names.into());
        for (member, answer) in answers.into_iter().enumerate() {
            if let Some(answer) = answer {
                tally.record(member, answer.map(|answer| of_server(member, answer)));
            }
        }
        tally
    }

    fn verdict(answers: Vec<Option<Result<Answer, Failure>>>) -> Verdict {
        tally_of(answers).verdict(Counting::Open)
    }

    #[test]
    fn a_majority_decides_without_the_rest() {
        let Verdict::Write { fence, to } =
            verdict(vec![Some(Ok(yours(4))), None, Some(Ok(yours(6))), None, Some(Ok(yours(0)))])
        else {
            panic!()
        };
        assert_eq!(fence, Fence::new(1, 7, 0));
        assert_eq!(to.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(matches!(verdict(vec![Some(Ok(yours(4))), None, None]), Verdict::Undecided));
    }

    #[test]
    fn unarmed_member_does_not_vote() {
        let old = Some(Mark { epoch: 9, run: "before".to_owned() });
        for mark in [None, old] {
            let answers = || vec![Some(Ok(yours(1))), Some(Ok(forgot(yours(0), mark.clone()))), None];
            assert!(matches!(verdict(answers()), Verdict::Undecided));
            let Verdict::Failed(failure) = tally_of(answers()).verdict(Counting::Closed) else { panic!() };
            assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown));
            assert!(
                failure.detail().contains("m1 is not armed") && failure.detail().contains("m2 is silent")
            );
        }
    }

    #[test]
    fn rest_is_waited_for_while_it_may_make_a_majority() {
        let unarmed = || Some(Ok(forgot(yours(0), None)));
        let armed = || Some(Ok(yours(1)));
        let failed = || Some(Err(silent()));
        for (answers, can_close) in [
            (vec![armed(), None, None], false),
            (vec![armed(), armed(), None], true),
            (vec![armed(), unarmed(), None], false),
            (vec![armed(), unarmed(), armed()], true),
            // The third one does not decide alone.
            (vec![unarmed(), unarmed(), None], true),
            (vec![unarmed(), failed(), None], false),
            (vec![armed(), unarmed(), unarmed(), armed(), None], false),
        ] {
            assert_eq!(tally_of(answers.clone()).can_close(), can_close, "{answers:?}");
        }
    }

    #[test]
    fn majority_without_memory_needs_an_operator_unless_all_are_new() {
        let old = || Some(Mark { epoch: 9, run: "before".to_owned() });
        let lost = verdict(vec![
            Some(Ok(yours(1))),
            Some(Ok(forgot(yours(0), None))),
            Some(Ok(forgot(yours(0), old()))),
        ]);
        let Verdict::Failed(failure) = lost else { panic!("{lost:?}") };
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unsupported, Effect::None));
        let fresh = || Some(Ok(forgot(yours(0), None)));
        let Verdict::Failed(failure) = verdict(vec![fresh(), fresh(), fresh()]) else { panic!() };
        assert_eq!(failure.kind, FailureKind::Unavailable);
        let Verdict::Failed(failure) = verdict(vec![fresh(), fresh(), Some(Ok(forgot(yours(0), old())))])
        else {
            panic!()
        };
        assert_eq!(failure.kind, FailureKind::Unsupported);
    }

    #[test]
    fn earlier_grant_is_found_again_before_a_new_decision() {
        let answers = vec![Some(Ok(held(5))), Some(Ok(yours(4))), Some(Ok(yours(0))), None, None];
        let tally = tally_of(answers);
        assert!(matches!(tally.verdict(Counting::Open), Verdict::Undecided));
        assert!(matches!(tally.verdict(Counting::Closed), Verdict::Write { .. }));
        let answers = vec![Some(Ok(held(5))), Some(Ok(held(5))), None];
        assert!(matches!(verdict(answers), Verdict::Held(fence) if fence == Fence::new(1, 5, 0)));
    }

    #[test]
    fn fence_of_a_member_that_restarted_makes_no_majority() {
        // It came back with the lock of an attempt that was withdrawn; another member takes that fence only now.
        let old = Some(Mark { epoch: 1, run: "before".to_owned() });
        let answers =
            || vec![Some(Ok(forgot(held(6), old.clone()))), Some(Ok(held(6))), Some(Ok(theirs(true, 30)))];
        let lost = verdict(answers());
        assert!(!matches!(lost, Verdict::Held(_) | Verdict::Write { .. }), "{lost:?}");
        assert!(tally_of(answers()).saw_earlier_grant(), "it may hold as far as this client knows");
    }

    #[test]
    fn fences_of_a_minority_are_no_holder() {
        let theirs = |granted| Some(Ok(theirs(granted, 20)));
        let split = vec![theirs(true), theirs(false), theirs(false), Some(Ok(yours(1))), Some(Ok(yours(1)))];
        assert!(matches!(verdict(split), Verdict::Split));
        // The other two may have it as well.
        let busy = vec![theirs(true), theirs(false), theirs(false), None, None];
        assert!(matches!(verdict(busy), Verdict::Busy { .. }));
        let forgotten = || Some(Ok(forgot(yours(0), None)));
        let busy = vec![theirs(true), theirs(false), theirs(true), Some(Ok(yours(1))), forgotten()];
        assert!(matches!(verdict(busy), Verdict::Busy { .. }));
    }

    #[test]
    fn busy_and_split_votes_are_distinguished() {
        let busy = verdict(vec![
            Some(Ok(theirs(true, 30))),
            Some(Ok(theirs(false, 10))),
            Some(Ok(theirs(true, 20))),
        ]);
        let Verdict::Busy { free_in, listeners } = busy else { panic!("{busy:?}") };
        assert_eq!((free_in, listeners), (Duration::from_millis(20), 3));
        let split = verdict(vec![Some(Ok(theirs(false, 30))), Some(Ok(theirs(false, 9))), None]);
        assert!(matches!(split, Verdict::Split));
        let some = verdict(vec![Some(Ok(yours(1))), Some(Ok(theirs(false, 9))), None]);
        assert!(matches!(some, Verdict::Undecided));
    }

    #[test]
    fn members_without_an_answer_may_be_free_sooner() {
        let end_of = |answers| {
            let Verdict::Busy { free_in, .. } = tally_of(answers).verdict(Counting::Open) else { panic!() };
            free_in.as_millis()
        };
        let theirs = |ends_in| Some(Ok(theirs(true, ends_in)));
        // Two members have locks that a late request has left for a minute.
        assert_eq!(end_of(vec![theirs(20), theirs(60_000), theirs(60_000), None, None]), 20);
        assert_eq!(end_of(vec![theirs(20), theirs(60_000), theirs(60_000), theirs(30), None]), 30);
        assert_eq!(end_of(vec![theirs(20), theirs(60_000), theirs(60_000), theirs(30), theirs(25)]), 30);
        // Without the silent one, a majority needs the last of those that answered.
        let failed = || Some(Err(Failure::unavailable("down")));
        assert_eq!(end_of(vec![theirs(20), theirs(60_000), theirs(30), failed(), failed()]), 60_000);
    }

    #[test]
    fn a_server_with_two_names_has_one_vote() {
        let tally = |answers: [(usize, Answer); 3]| {
            let mut tally = VoteTally::new(["m0", "m1", "m2"].map(str::to_owned).to_vec().into());
            for (member, (server, answer)) in answers.into_iter().enumerate() {
                tally.record(member, Ok(of_server(server, answer)));
            }
            tally.verdict(Counting::Open)
        };
        let Verdict::Write { to, .. } = tally([(0, yours(1)), (0, yours(1)), (2, yours(1))]) else {
            panic!()
        };
        assert_eq!(to.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [0, 2]);
        // The fence that one server took is not one of a majority.
        let lost = tally([(0, held(5)), (0, held(5)), (2, theirs(true, 30))]);
        assert!(!matches!(lost, Verdict::Held(_) | Verdict::Write { .. }), "{lost:?}");
        let all_one = tally([(0, yours(1)), (0, yours(1)), (0, yours(1))]);
        let Verdict::Failed(failure) = all_one else { panic!("{all_one:?}") };
        assert!(failure.detail().contains("m2 is the same server as m0"), "{failure}");
    }

    #[test]
    fn advice_names_what_arms_the_servers() {
        let old = || Some(Mark { epoch: 9, run: "before".to_owned() });
        let forgetful = |mark| Some(Ok(forgot(yours(0), mark)));
        let down = || Some(Err(Failure::unavailable("down")));
        let failure = |answers| {
            let Verdict::Failed(failure) = verdict(answers) else { panic!("no failure") };
            (failure.kind, failure.detail().to_owned())
        };
        let (kind, text) = failure(vec![forgetful(None), forgetful(None), down()]);
        assert_eq!(kind, FailureKind::Unavailable);
        assert!(text.contains("0 of 3 servers are armed, 2 are needed"), "{text}");
        assert!(text.contains("servers that never served are armed once all of them answer"), "{text}");
        // One that is armed, and one that is down and may be.
        let (kind, text) = failure(vec![forgetful(None), Some(Ok(yours(1))), down()]);
        assert_eq!(kind, FailureKind::Unavailable);
        assert!(text.ends_with("it passes when those come back that do not answer"), "{text}");
        // Even if the one that is down is armed, it is not enough.
        let (kind, text) = failure(vec![forgetful(old()), forgetful(None), down()]);
        assert_eq!(kind, FailureKind::Unsupported);
        assert!(text.contains("a majority may have forgotten what was granted"), "{text}");
    }

    #[test]
    fn failure_of_all_is_of_their_kind_and_any_other_may_pass() {
        let of_kind = |kind| Failure::new(kind, Effect::None, "no");
        let kind = |kinds: &[FailureKind]| {
            let failures: Vec<Failure> = kinds.iter().map(|kind| of_kind(*kind)).collect();
            common_kind(failures.iter())
        };
        assert_eq!(kind(&[FailureKind::Denied, FailureKind::Denied]), FailureKind::Denied);
        assert_eq!(kind(&[FailureKind::Denied, FailureKind::Invalid]), FailureKind::Unavailable);
        assert_eq!(kind(&[]), FailureKind::Unavailable);
    }

    #[test]
    fn failure_is_reported_when_all_have_replied() {
        let answers = || vec![Some(Err(silent())), Some(Err(silent())), None];
        assert!(matches!(verdict(answers()), Verdict::Undecided), "the report is better with all replies");
        assert!(matches!(tally_of(answers()).verdict(Counting::Closed), Verdict::Failed(_)));
        let tally = tally_of(answers());
        assert!(tally.has_replied(0) && !tally.has_replied(2) && !tally.has_replied(3));
        assert!(!tally.saw_earlier_grant());
    }

    #[test]
    fn failure_lists_the_reply_of_each_member() {
        let lost = verdict(vec![Some(Err(silent())), Some(Ok(yours(1))), Some(Err(silent()))]);
        let Verdict::Failed(failure) = lost else { panic!("{lost:?}") };
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown));
        assert!(failure.detail().starts_with("1 of 3 servers answered, 2 are needed: x did not answer; m1"));
    }
}
