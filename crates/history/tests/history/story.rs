//! A history in a few words. Times are in milliseconds, and all is about the lock `job` unless it says so.

use leasehold_history::{
    Checker, Event, FenceValue, History, Invariant, Mode, Operation, Stage, Values, Verdict,
};

#[derive(Clone, Default)]
pub(crate) struct Story {
    events: Vec<Event>,
    key: Option<&'static str>,
    mode: Option<Mode>,
}

fn values(owner: &str, fence: u64) -> Values {
    let mut values = Values::default();
    values.owner = Some(owner.to_owned());
    values.fence = (fence > 0).then(|| FenceValue::new(0, fence, 0));
    values
}

pub(crate) const fn ms(millis: u64) -> u64 {
    millis * 1_000_000
}

impl Story {
    pub(crate) fn new() -> Story {
        let mut values = Values::default();
        (values.seed, values.label, values.grade) = (Some(7), Some("test".into()), Some("strict".into()));
        Story::default().add(0, Event::new(Stage::Info, Operation::Plan).with(values))
    }

    /// Makes all that follows about another lock.
    pub(crate) fn about(mut self, key: &'static str) -> Story {
        self.key = Some(key);
        self
    }

    /// Makes all that follows acquired in this mode.
    pub(crate) fn in_mode(mut self, mode: Mode) -> Story {
        self.mode = Some(mode);
        self
    }

    pub(crate) fn add(mut self, millis: u64, event: Event) -> Story {
        self.events.push(event.at(ms(millis)));
        self
    }

    pub(crate) fn event(
        self,
        millis: u64,
        process: u64,
        stage: Stage,
        operation: Operation,
        values: Values,
    ) -> Story {
        let key = self.key.unwrap_or("job");
        self.add(millis, Event::new(stage, operation).by(process).on(key).with(values))
    }

    fn last_error(mut self, error: &str) -> Story {
        if let Some(last) = self.events.last_mut() {
            last.error = Some(error.to_owned());
        }
        self
    }

    pub(crate) fn ask(self, millis: u64, process: u64) -> Story {
        let mut values = Values::default();
        values.mode = self.mode;
        self.event(millis, process, Stage::Invoke, Operation::Acquire, values)
    }

    /// Asks for a lease of this length.
    pub(crate) fn ask_with(self, millis: u64, process: u64, ttl: u64) -> Story {
        let mut values = Values::default();
        (values.mode, values.ttl) = (self.mode, Some(ms(ttl)));
        self.event(millis, process, Stage::Invoke, Operation::Acquire, values)
    }

    pub(crate) fn ask_for(self, millis: u64, process: u64, limit: u64) -> Story {
        let mut values = Values::default();
        (values.mode, values.limit) = (self.mode, Some(ms(limit)));
        self.event(millis, process, Stage::Invoke, Operation::Acquire, values)
    }

    /// Granted, valid until a time; `0` for a grant that a session keeps alive.
    pub(crate) fn got(self, millis: u64, process: u64, owner: &str, fence: u64, until: u64) -> Story {
        self.got_counted(millis, process, owner, fence, until, None)
    }

    pub(crate) fn got_counted(
        self,
        millis: u64,
        process: u64,
        owner: &str,
        fence: u64,
        until: u64,
        count: Option<u64>,
    ) -> Story {
        let mut values = values(owner, fence);
        (values.mode, values.count) = (self.mode, count);
        values.valid_until = (until > 0).then(|| ms(until));
        self.event(millis, process, Stage::Ok, Operation::Acquire, values)
    }

    /// Makes the last grant one of a claim that its process had already.
    pub(crate) fn handed_on(mut self) -> Story {
        if let Some(fence) = self.events.last_mut().and_then(|last| last.values.fence.as_mut()) {
            fence.sub = 1;
        }
        self
    }

    pub(crate) fn busy(self, millis: u64, process: u64) -> Story {
        self.event(millis, process, Stage::Fail, Operation::Acquire, Values::default()).last_error("busy")
    }

    /// An acquisition that failed, and nothing of it happened.
    pub(crate) fn failed(self, millis: u64, process: u64) -> Story {
        let story = self.event(millis, process, Stage::Fail, Operation::Acquire, Values::default());
        story.last_error("the server cannot be reached")
    }

    /// An acquisition whose caller dropped it.
    pub(crate) fn cancelled(self, millis: u64, process: u64) -> Story {
        let story = self.event(millis, process, Stage::Fail, Operation::Acquire, Values::default());
        story.last_error(leasehold_history::CANCELLED)
    }

    pub(crate) fn no_answer(self, millis: u64, process: u64) -> Story {
        self.event(millis, process, Stage::Info, Operation::Acquire, Values::default())
            .last_error("timed out")
    }

    pub(crate) fn renewed(self, millis: u64, process: u64, owner: &str, until: u64) -> Story {
        self.renewal(millis, process, owner, until, Stage::Ok)
    }

    pub(crate) fn renewal(self, millis: u64, process: u64, owner: &str, until: u64, stage: Stage) -> Story {
        let mut values = values(owner, 0);
        values.valid_until = Some(ms(until));
        self.event(millis, process, stage, Operation::Renew, values)
    }

    /// The clock of the process was changed, so that the validity ends at another time.
    pub(crate) fn restated(self, millis: u64, process: u64, owner: &str, until: u64) -> Story {
        let mut values = values(owner, 0);
        values.valid_until = Some(ms(until));
        self.event(millis, process, Stage::Ok, Operation::Restate, values)
    }

    pub(crate) fn lost(self, millis: u64, process: u64, owner: &str, cause: &str) -> Story {
        self.event(millis, process, Stage::Ok, Operation::Lost, values(owner, 0)).last_error(cause)
    }

    pub(crate) fn release(self, millis: u64, process: u64, owner: &str) -> Story {
        self.event(millis, process, Stage::Invoke, Operation::Release, values(owner, 0))
    }

    pub(crate) fn released(self, millis: u64, process: u64, owner: &str) -> Story {
        self.released_counted(millis, process, owner, None)
    }

    pub(crate) fn released_counted(
        self,
        millis: u64,
        process: u64,
        owner: &str,
        count: Option<u64>,
    ) -> Story {
        let mut values = values(owner, 0);
        values.count = count;
        self.event(millis, process, Stage::Ok, Operation::Release, values)
    }

    pub(crate) fn not_released(self, millis: u64, process: u64, owner: &str, error: &str) -> Story {
        self.event(millis, process, Stage::Fail, Operation::Release, values(owner, 0)).last_error(error)
    }

    pub(crate) fn release_unanswered(self, millis: u64, process: u64, owner: &str) -> Story {
        self.event(millis, process, Stage::Info, Operation::Release, values(owner, 0)).last_error("timed out")
    }

    /// A release of the grant `a` of process 1, which finds that it was lost.
    pub(crate) fn not_released_after(self, millis: u64) -> Story {
        self.release(millis, 1, "a").not_released(millis + 1, 1, "a", "the lock was lost")
    }

    /// A grant and its release: `got` at the first time, `release` at the second one, which takes a millisecond.
    pub(crate) fn held(self, from: u64, until: u64, process: u64, owner: &str, fence: u64) -> Story {
        self.ask(from - 1, process)
            .got(from, process, owner, fence, until + 1_000)
            .release(until, process, owner)
            .released(until + 1, process, owner)
    }

    pub(crate) fn read(self, millis: u64, process: u64, owner: &str, fence: u64) -> Story {
        self.event(millis, process, Stage::Invoke, Operation::Read, values(owner, fence))
    }

    pub(crate) fn was(self, millis: u64, process: u64, owner: &str, fence: u64, val: u64) -> Story {
        let mut values = values(owner, fence);
        values.val = Some(val);
        self.event(millis, process, Stage::Ok, Operation::Read, values)
    }

    pub(crate) fn write(self, millis: u64, process: u64, owner: &str, fence: u64, val: u64) -> Story {
        self.wrote(millis, process, owner, fence, val, Stage::Invoke)
    }

    pub(crate) fn wrote(
        self,
        millis: u64,
        process: u64,
        owner: &str,
        fence: u64,
        val: u64,
        stage: Stage,
    ) -> Story {
        let mut values = values(owner, fence);
        values.val = Some(val);
        let story = self.event(millis, process, stage, Operation::Write, values);
        if stage == Stage::Fail { story.last_error("refused: a higher fence was seen") } else { story }
    }

    /// The register's own record.
    pub(crate) fn served(
        self,
        millis: u64,
        owner: &str,
        fence: u64,
        operation: Operation,
        val: u64,
        stage: Stage,
    ) -> Story {
        let mut values = values(owner, fence);
        values.val = Some(val);
        let key = self.key.unwrap_or("job");
        self.add(millis, Event::new(stage, operation).on(key).with(values))
    }

    /// A whole read of `val` and write of `val + 1`, which the register records and accepts. Takes 6 ms.
    pub(crate) fn increment(self, millis: u64, process: u64, owner: &str, fence: u64, val: u64) -> Story {
        self.read(millis, process, owner, fence)
            .served(millis + 1, owner, fence, Operation::ServedRead, val, Stage::Ok)
            .was(millis + 2, process, owner, fence, val)
            .write(millis + 3, process, owner, fence, val + 1)
            .served(millis + 4, owner, fence, Operation::ServedWrite, val + 1, Stage::Ok)
            .wrote(millis + 5, process, owner, fence, val + 1, Stage::Ok)
    }

    pub(crate) fn fault(self, millis: u64, label: &str, stage: Stage, targets: &[u64]) -> Story {
        let mut values = Values::default();
        (values.label, values.target) = (Some(label.to_owned()), targets.to_vec());
        self.add(millis, Event::new(stage, Operation::Fault).with(values))
    }

    pub(crate) fn residue(self, millis: u64, count: u64) -> Story {
        let mut values = Values::default();
        (values.label, values.count) = (Some("claims".to_owned()), Some(count));
        let stage = if count == 0 { Stage::Ok } else { Stage::Fail };
        let key = self.key.unwrap_or("job");
        self.add(millis, Event::new(stage, Operation::Residue).on(key).with(values))
    }

    /// The recording continues until then.
    pub(crate) fn until(self, millis: u64) -> Story {
        self.add(millis, Event::new(Stage::Info, Operation::Drain))
    }

    /// Replaces the first event, which describes the recording.
    pub(crate) fn first(mut self, event: Event) -> Story {
        self.events[0] = event.at(0);
        self
    }

    pub(crate) fn history(&self) -> History {
        let mut events = self.events.clone();
        events.sort_by_key(|event| event.received);
        let history = History::new(events);
        history.validate().unwrap();
        history
    }

    pub(crate) fn verdict(&self) -> Verdict {
        Checker::new().check(&self.history())
    }

    /// Returns the invariants that are violated, each once.
    pub(crate) fn broken(&self) -> Vec<Invariant> {
        let mut broken: Vec<Invariant> = self.verdict().violations.iter().map(|one| one.invariant).collect();
        broken.sort_unstable();
        broken.dedup();
        broken
    }

    #[track_caller]
    pub(crate) fn is_clean(&self) {
        let verdict = self.verdict();
        assert!(verdict.is_clean(), "{:#?}", verdict.violations);
    }

    /// Exactly these are violated, and the store does not explain any of it.
    #[track_caller]
    pub(crate) fn breaks(&self, expected: &[Invariant]) {
        let violations = self.verdict().violations;
        assert_eq!(self.broken(), expected, "{violations:#?}");
        assert!(violations.iter().all(|one| one.explained.is_none()), "{violations:#?}");
    }

    pub(crate) fn is_unjudged(&self, invariant: Invariant) -> bool {
        self.verdict().unjudged.iter().any(|one| one.invariant == invariant)
    }
}
