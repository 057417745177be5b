//! The laws of every run, and the log of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use simulated::backend::{Failure, Fence, LossCause, Resource, Share, Snapshot};
use simulated::probe::{Head, Seen as Look};
use simulated::{Guard, State, probe};
use tokio::time::Instant;

use crate::store::Store;

/// The observer of a run, with all that it saw.
pub(crate) struct Judge {
    began: Instant,
    state: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    log: Log,
    failure: Option<String>,
    waiting: BTreeMap<u64, Waiting>,
    holding: BTreeMap<u64, Holding>,
    /// Guards of which a task waits for the end, and since when each is seen to be lost.
    listening: BTreeMap<u64, Option<Instant>>,
    fences: BTreeMap<Resource, Vec<(Share, Fence, String)>>,
    /// The time since which a task could be served, by resource.
    idle_since: BTreeMap<Resource, Instant>,
    /// The first waiter of a client's queue that could be served, by client and resource, and the time
    /// since which that is so.
    kept_waiting: BTreeMap<(usize, Resource), (u64, Instant)>,
    /// Public names of claims that were taken away. Their holders rely on them until they hear of the loss.
    taken_away: BTreeSet<String>,
    /// The resources of these.
    taken_from: BTreeSet<Resource>,
    /// Claims of which a renewal was answered with their loss: by client and public name, with the time of the first
    /// such answer.
    lost_at: BTreeMap<(usize, String), Instant>,
    /// Claims that each client keeps alive.
    kept: BTreeMap<usize, i64>,
    closed: BTreeSet<usize>,
    /// Clients that a task closes, or has closed.
    closing: BTreeSet<usize>,
    /// Acquisitions and releases that each client reported.
    reports: BTreeMap<(usize, Resource), (u64, u64)>,
    /// Grants that each client returned to a task.
    returned: BTreeMap<(usize, Resource), u64>,
    next: u64,
    calls: (Option<Instant>, u32),
    /// The number of calls of foreign code before the one that panics.
    panics_in: Option<u64>,
    is_over: bool,
    is_calm: bool,
    last_step: Option<Instant>,
    counts: BTreeMap<&'static str, u64>,
}

/// The events, as text and as a number that represents all of them.
#[derive(Default)]
struct Log {
    is_kept: bool,
    lines: Vec<String>,
    line: String,
    hash: u64,
}

/// A task that waits.
struct Waiting {
    client: usize,
    resource: Resource,
    share: Share,
}

/// A guard that a task has.
struct Holding {
    client: usize,
    resource: Resource,
    share: Share,
    tag: String,
    guard: Weak<Guard>,
}

/// The remains of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) failure: Option<String>,
    pub(crate) hash: u64,
    pub(crate) log: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Judge {
    pub(crate) fn new(keeps_log: bool, panics_in: Option<u64>) -> Judge {
        let log = Log { is_kept: keeps_log, hash: 0xcbf2_9ce4_8422_2325, ..Log::default() };
        Judge { began: Instant::now(), state: Mutex::new(Seen { log, panics_in, ..Seen::default() }) }
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        let at = self.began.elapsed();
        self.seen().log.note(at, what);
    }

    /// Counts something that shows what the runs reach.
    pub(crate) fn count(&self, what: &'static str) {
        *self.seen().counts.entry(what).or_default() += 1;
    }

    /// Records a failure; the first one stays.
    pub(crate) fn fail(&self, what: String) {
        let at = self.began.elapsed();
        let mut seen = self.seen();
        if seen.is_over {
            return;
        }
        seen.log.note(at, format_args!("FAILURE: {what}"));
        seen.failure.get_or_insert_with(|| format!("after {at:?}: {what}"));
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.seen().failure.is_some()
    }

    /// Ends the judging: everything is torn down from here on.
    pub(crate) fn end(&self) {
        self.seen().is_over = true;
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let mut seen = self.seen();
        let log = std::mem::take(&mut seen.log.lines);
        Verdict {
            failure: seen.failure.take(),
            hash: seen.log.hash,
            log,
            counts: std::mem::take(&mut seen.counts),
        }
    }

    /// Counts a call of the engine into a clock, an event subscriber or a store, and panics where it is
    /// the chosen one.
    pub(crate) fn foreign(&self) {
        // While the judge itself asks for the time, nothing panics.
        let Ok(mut seen) = self.state.try_lock() else { return };
        let Some(left) = &mut seen.panics_in else { return };
        if *left > 0 {
            *left -= 1;
            return;
        }
        seen.panics_in = None;
        drop(seen);
        self.note(format_args!("a foreign call panics"));
        self.count("panicked");
        panic!("{INJECTED}");
    }

    // Calls of the store.

    pub(crate) fn called(&self, client: usize, verb: &str) {
        self.note(format_args!("c{client} -> {verb}"));
        let now = Instant::now();
        let mut seen = self.seen();
        let (at, count) = &mut seen.calls;
        *count = if *at == Some(now) { *count + 1 } else { 0 };
        *at = Some(now);
        let many = *count > CALLS_AT_ONCE;
        drop(seen);
        assert!(!many, "more than {CALLS_AT_ONCE} calls in one moment: a client asks without a pause");
    }

    pub(crate) fn answered(&self, client: usize, verb: &str, failure: Option<&Failure>) {
        match failure {
            None => self.note(format_args!("c{client} <- {verb}")),
            Some(failure) => self.note(format_args!("c{client} <- {verb}: {}", failure.detail())),
        }
    }

    pub(crate) fn dropped_midway(&self, verb: &str) {
        self.fail(format!("the engine dropped a call of `{verb}` midway"));
    }

    /// Records that a renewal of a claim was answered with its loss.
    pub(crate) fn answered_lost(&self, client: usize, tag: String) {
        self.note(format_args!("c{client} learns that {tag} is lost"));
        self.count("answered lost");
        self.seen().lost_at.entry((client, tag)).or_insert_with(Instant::now);
    }

    pub(crate) fn kept(&self, client: usize, by: i64) {
        *self.seen().kept.entry(client).or_default() += by;
    }

    /// Records that a grant was returned to a task, and checks that it was reported before.
    pub(crate) fn returned(&self, client: usize, resource: &Resource) {
        let mut seen = self.seen();
        let key = (client, resource.clone());
        let acquired = seen.reports.get(&key).map_or(0, |(acquired, _)| *acquired);
        let returned = seen.returned.entry(key).or_default();
        *returned += 1;
        let is_wrong = *returned > acquired;
        drop(seen);
        if is_wrong {
            self.fail(format!("c{client} returned a grant of {resource} and reported no acquisition"));
        }
    }

    /// Records that a client reports an acquisition or a release.
    pub(crate) fn reported(&self, client: usize, resource: &Resource, is_acquired: bool) {
        let mut seen = self.seen();
        let (acquired, released) = seen.reports.entry((client, resource.clone())).or_default();
        *(if is_acquired { &mut *acquired } else { &mut *released }) += 1;
        let is_wrong = released > acquired;
        drop(seen);
        if is_wrong {
            self.fail(format!(
                "c{client} reports a release of {resource} of which it reported no acquisition"
            ));
        }
    }

    pub(crate) fn keeps(&self, client: usize) -> i64 {
        self.seen().kept.get(&client).copied().unwrap_or_default()
    }

    /// Records that a lock of a client is suspect.
    pub(crate) fn suspected(&self, client: usize) {
        let seen = self.seen();
        // A renewal that panicked was not answered.
        let is_wrong = seen.is_calm && !seen.counts.contains_key("panicked");
        drop(seen);
        if is_wrong {
            self.fail(format!("c{client} suspects a lock, although each renewal is answered at once"));
        }
    }

    // Waits and holds.

    pub(crate) fn waits(&self, client: usize, resource: &Resource, share: Share) -> u64 {
        let mut seen = self.seen();
        seen.next += 1;
        let number = seen.next;
        seen.waiting.insert(number, Waiting { client, resource: resource.clone(), share });
        drop(seen);
        self.note(format_args!("w{number} c{client} wants {share} of {resource}"));
        number
    }

    pub(crate) fn waits_no_more(&self, number: u64, why: fmt::Arguments<'_>) {
        self.note(format_args!("w{number} ends: {why}"));
        let mut seen = self.seen();
        seen.last_step = Some(Instant::now());
        if let Some(waiting) = seen.waiting.remove(&number) {
            seen.idle_since.remove(&waiting.resource);
        }
    }

    /// Returns the highest fence of the grants that were returned by now.
    pub(crate) fn highest_fence(&self, resource: &Resource) -> Option<Fence> {
        let seen = self.seen();
        seen.fences.get(resource)?.iter().map(|(_, fence, _)| *fence).max()
    }

    /// Checks the fence of a task that began to wait when `before` was the highest one. Only a claim that was handed on
    /// inside its process has its fence from before.
    pub(crate) fn granted_after(&self, number: u64, before: Option<Fence>, guard: &Guard) {
        // No other claim is granted beside an exclusive one, unless an operator took it away; its answer may come late.
        if guard.share().is_exclusive() && self.seen().taken_away.contains(&guard.tag()) {
            return;
        }
        let fence = guard.fence();
        if fence <= before && fence.is_none_or(|fence| fence.sub == 0) {
            let fence = fence.map_or_else(String::new, |fence| fence.to_string());
            let before = before.map_or_else(String::new, |before| before.to_string());
            self.fail(format!("w{number} has fence {fence}, below {before} that was granted before it came"));
        }
    }

    /// Checks a guard that the engine returned.
    pub(crate) fn granted(&self, client: usize, guard: &Arc<Guard>, owned: bool) -> u64 {
        self.returned(client, guard.resource());
        let (resource, share, tag) = (guard.resource().clone(), guard.share(), guard.tag());
        let (fence, look) = (guard.fence(), probe::look(guard));
        let mut seen = self.seen();
        seen.next += 1;
        let number = seen.next;
        let taken_away = seen.taken_away.contains(&tag);
        let relies_on_it = taken_away && !seen.must_know_of_loss(client, &tag);
        let is_closed = seen.closed.contains(&client);
        let mut failures = Vec::new();
        if !look.is_valid() && !taken_away && !is_closed {
            failures.push(format!("h{number} of {resource} was lost when it was returned: {look:?}"));
        }
        if look.is_valid() && is_closed {
            failures.push(format!("h{number} of {resource} is valid, and c{client} has been closed"));
        }
        if look.is_valid() && seen.must_know_of_loss(client, &tag) {
            failures.push(format!("h{number} of {resource} is {IGNORED}"));
        }
        let others: Vec<_> = seen.holding.values().filter(|other| other.resource == resource).collect();
        if look.is_valid() && !relies_on_it {
            failures.extend(seen.two_holders(&tag, share, &others));
        }
        for other in others.iter().filter(|other| conflict(other.share, share) && other.tag != tag) {
            let Some(theirs) = other.guard.upgrade().map(|guard| probe::look(&guard)) else { continue };
            // A store grants a claim that was taken away before the lease ends, and a re-entrant guard of the
            // next holder may come in the very moment of that end, before the timer of the first one runs.
            let was_taken_away = seen.taken_away.contains(&other.tag);
            let is_over = if was_taken_away { theirs.now > theirs.until } else { theirs.now >= theirs.until };
            if is_over && !matches!(theirs.marked, State::Lost(_)) {
                failures.push(format!(
                    "h{number} was granted {resource} before another heard of its loss: {theirs:?}"
                ));
            }
        }
        let fences = seen.fences.get(&resource).map(Vec::as_slice).unwrap_or_default();
        let Some(fence) = fence else { unreachable!("the memory store gives fences") };
        // An owner has what it has once more, with the fence that it has.
        let is_again = |last: &Fence, theirs: &str| owned && *last == fence && theirs == tag;
        let above = |(theirs, last, of): &&(Share, Fence, String)| {
            conflict(*theirs, share) && *last >= fence && !is_again(last, of)
        };
        // A client that has not yet seen the loss of its claim still holds it, below its successor.
        let has_to_hear = relies_on_it || taken_away && !look.is_valid();
        if let Some((_, last, _)) = fences.iter().find(above).filter(|_| !has_to_hear) {
            failures.push(format!("h{number} was granted {resource} with fence {fence} after {last}"));
        }
        seen.fences.entry(resource.clone()).or_default().push((share, fence, tag.clone()));
        seen.idle_since.remove(&resource);
        let guard = Arc::downgrade(guard);
        seen.holding.insert(number, Holding { client, resource: resource.clone(), share, tag, guard });
        drop(seen);
        self.note(format_args!("h{number} c{client} has {share} of {resource} with fence {fence}"));
        failures.into_iter().for_each(|failure| self.fail(failure));
        number
    }

    /// Records the fence of a reader that has become a writer: no later grant is below it. If its claim was taken away,
    /// others may hold as readers beside the writer that has not seen the loss yet.
    pub(crate) fn upgraded(&self, resource: &Resource, fence: Option<Fence>) {
        let Some(fence) = fence else { unreachable!("the memory store gives fences") };
        let of_writer = (Share::WRITER, fence, String::new());
        let mut seen = self.seen();
        if seen.taken_from.contains(resource) {
            return;
        }
        seen.fences.entry(resource.clone()).or_default().push(of_writer);
        drop(seen);
        self.note(format_args!("an upgrade of {resource} has fence {fence}"));
    }

    /// Checks a guard at the end of a hold. Returns how it looks.
    pub(crate) fn looks_a_last_time(&self, number: u64, guard: &Guard) -> Look {
        let (look, seen) = (probe::look(guard), self.seen());
        let client = seen.holding.get(&number).map(|holding| holding.client);
        let ignores_it =
            look.is_valid() && client.is_some_and(|client| seen.must_know_of_loss(client, &guard.tag()));
        drop(seen);
        if ignores_it {
            self.fail(format!("h{number} is {IGNORED}"));
        }
        look
    }

    /// Records that a task releases its guard.
    pub(crate) fn lets_go(&self, number: u64, how: &str) {
        self.note(format_args!("h{number} {how}"));
        let mut seen = self.seen();
        seen.last_step = Some(Instant::now());
        seen.holding.remove(&number);
    }

    pub(crate) fn took_away(&self, resource: &Resource, tag: String) {
        let mut seen = self.seen();
        seen.taken_away.insert(tag);
        seen.taken_from.insert(resource.clone());
    }

    pub(crate) fn crashed(&self, client: usize) {
        self.note(format_args!("c{client} crashes"));
        let mut seen = self.seen();
        seen.holding.retain(|_, holding| holding.client != client);
        seen.waiting.retain(|_, waiting| waiting.client != client);
    }

    /// Records that a task begins to close a client.
    pub(crate) fn closes(&self, client: usize) {
        self.seen().closing.insert(client);
    }

    /// Checks that a client that reports to be closed was closed by a task.
    pub(crate) fn says_closed(&self, client: usize) {
        let is_closing = self.seen().closing.contains(&client);
        if !is_closing {
            self.fail(format!("c{client} says that it is closed, and was never closed"));
        }
    }

    /// Records that `close` returned.
    pub(crate) fn closed(&self, client: usize, answered: bool) {
        self.note(format_args!("c{client} is closed: {answered}"));
        let mut seen = self.seen();
        seen.closed.insert(client);
        let ours = seen.holding.iter().filter(|(_, holding)| holding.client == client);
        let valid = ours.filter_map(|(number, holding)| {
            let look = probe::look(&*holding.guard.upgrade()?);
            look.is_valid().then_some(*number)
        });
        let valid: Vec<_> = valid.collect();
        drop(seen);
        if !valid.is_empty() {
            self.fail(format!("c{client} was closed, and {valid:?} are still valid"));
        }
    }

    pub(crate) fn is_closed(&self, client: usize) -> bool {
        self.seen().closed.contains(&client)
    }

    /// Looks for tasks that wait although one could be served, while nothing is wrong with any wire.
    pub(crate) fn look_for_sleepers(&self, store: &Store, calm: bool) {
        let now = Instant::now();
        let mut seen = self.seen();
        seen.is_calm = calm;
        let resources: BTreeSet<_> = seen.waiting.values().map(|waiting| waiting.resource.clone()).collect();
        let mut failure = None;
        for resource in &resources {
            if !(calm && seen.could_be_served(store, resource)) {
                seen.idle_since.remove(resource);
                continue;
            }
            let since = *seen.idle_since.entry(resource.clone()).or_insert(now);
            if now - since > BOUND {
                let who: Vec<_> =
                    seen.waiting.iter().filter(|(_, waiting)| waiting.resource == *resource).collect();
                let who: Vec<_> = who
                    .iter()
                    .map(|(number, waiting)| format!("w{number} c{} {}", waiting.client, waiting.share))
                    .collect();
                failure = Some(format!(
                    "for {:?} {who:?} sleep, although {resource} has room for any of them: {:?}",
                    now - since,
                    store.look(resource).holders.iter().map(|holder| holder.share).collect::<Vec<_>>()
                ));
            }
        }
        seen.idle_since.retain(|resource, _| resources.contains(resource));
        drop(seen);
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Records the first waiter of a client's queue. Fails where the server has had room for it for long and
    /// no other claim waits there: then it sleeps for no reason, independent of the others of its queue.
    pub(crate) fn look_at_head(
        &self,
        client: usize,
        resource: &Resource,
        head: Option<Head>,
        look: &Snapshot,
    ) {
        let is_alone = |asks| look.waiting.iter().all(|standing| Some(standing.id) == asks);
        let could = |head: &Head| {
            // By the order of arrival: a claim that is queued on the server keeps its place when another
            // becomes first by priority.
            head.came_first && is_alone(head.contender) && has_room(look, head.share)
        };
        let key = (client, resource.clone());
        let mut seen = self.seen();
        let Some(head) = head.filter(|head| seen.is_calm && could(head)) else {
            seen.kept_waiting.remove(&key);
            return;
        };
        let (ticket, since) = *seen
            .kept_waiting
            .entry(key)
            .and_modify(|kept| {
                *kept = if kept.0 == head.ticket { *kept } else { (head.ticket, Instant::now()) }
            })
            .or_insert((head.ticket, Instant::now()));
        drop(seen);
        if since.elapsed() > BOUND {
            let waits = look.waiting.len();
            self.fail(format!(
                "the first of c{client} sleeps, although {resource} has had room for {} for {:?}: ticket {ticket}, and {waits} \
                 claims wait",
                head.share,
                since.elapsed()
            ));
        }
    }

    /// Records that a task waits for the end of a guard.
    pub(crate) fn listens(&self, number: u64) {
        self.seen().listening.insert(number, None);
    }

    /// Records that this task was told of the end.
    pub(crate) fn hears(&self, number: u64) {
        self.seen().listening.remove(&number);
    }

    /// Looks for guards that are valid, although a renewal was answered with their loss some time ago.
    pub(crate) fn look_for_ignored_losses(&self) {
        let seen = self.seen();
        let ignores_it = |holding: &&Holding| {
            seen.must_know_of_loss(holding.client, &holding.tag)
                && holding.guard.upgrade().is_some_and(|guard| probe::look(&guard).is_valid())
        };
        let ignoring = seen.holding.iter().filter(|(_, holding)| ignores_it(holding));
        let ignoring: Vec<u64> = ignoring.map(|(number, _)| *number).collect();
        drop(seen);
        if !ignoring.is_empty() {
            self.fail(format!("{ignoring:?}: {IGNORED}"));
        }
    }

    /// Looks for guards that were marked as lost some time ago, of which nobody told the task that waits for it.
    pub(crate) fn look_for_unheard_losses(&self) {
        let states: BTreeMap<u64, State> = self.states().into_iter().collect();
        let mut seen = self.seen();
        seen.listening.retain(|number, _| states.contains_key(number));
        let is_lost = |number| matches!(states.get(number), Some(State::Lost(_)));
        let lost = seen.listening.iter_mut().filter(|(number, _)| is_lost(*number));
        let since = lost.map(|(number, since)| (*number, *since.get_or_insert_with(Instant::now)));
        let unheard: Vec<_> = since.filter(|(_, since)| since.elapsed() > UNHEARD).collect();
        drop(seen);
        if !unheard.is_empty() {
            let unheard: Vec<u64> = unheard.into_iter().map(|(number, _)| number).collect();
            self.fail(format!("{unheard:?} are lost, and nobody told those that wait for that"));
        }
    }

    /// Returns the marked state of each guard.
    pub(crate) fn states(&self) -> Vec<(u64, State)> {
        let seen = self.seen();
        let marked = |(number, holding): (&u64, &Holding)| {
            Some((*number, probe::look(&*holding.guard.upgrade()?).marked))
        };
        seen.holding.iter().filter_map(marked).collect()
    }

    /// Returns for how long no wait and no hold has begun or ended.
    pub(crate) fn still_for(&self) -> Duration {
        self.seen().last_step.unwrap_or(self.began).elapsed()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Returns `true` if a client must know that its claim is lost: a renewal was answered so, and everything that was
    /// to be done at that time is done. Where foreign code panicked, an answer may have been lost in the client.
    fn must_know_of_loss(&self, client: usize, tag: &str) -> bool {
        let lost_at = self.lost_at.get(&(client, tag.to_owned()));
        lost_at.is_some_and(|at| Instant::now() > *at) && !self.counts.contains_key("panicked")
    }

    /// Compares what valid guards hold with what there is.
    fn two_holders(&self, tag: &str, share: Share, others: &[&Holding]) -> Option<String> {
        let mut tags = BTreeSet::from([tag.to_owned()]);
        let (mut load, mut capacity) = (u64::from(share.weight()), share.capacity());
        for other in others {
            let valid = other.guard.upgrade().is_some_and(|guard| probe::look(&guard).is_valid());
            let relies_on_it =
                self.taken_away.contains(&other.tag) && !self.must_know_of_loss(other.client, &other.tag);
            if !valid || relies_on_it || !tags.insert(other.tag.clone()) {
                continue;
            }
            load += u64::from(other.share.weight());
            capacity = capacity.min(other.share.capacity());
        }
        let shares: Vec<_> = others.iter().map(|other| other.share.to_string()).collect();
        (load > u64::from(capacity))
            .then(|| format!("{load} of {capacity} are held at once: {share} beside {shares:?}"))
    }

    /// Returns whether what is free is enough for each waiter, in any order.
    fn could_be_served(&self, store: &Store, resource: &Resource) -> bool {
        let waiting = self.waiting.values().filter(|waiting| waiting.resource == *resource);
        let waiting: Vec<_> = waiting.map(|waiting| waiting.share).collect();
        let look = store.look(resource);
        let held: Vec<_> = look.holders.iter().map(|holder| holder.share).collect();
        let all = waiting.iter().chain(&held);
        let capacity = all.map(|share| share.capacity()).min().unwrap_or_default();
        let most =
            waiting.iter().map(|share| u64::from(share.weight().min(capacity))).max().unwrap_or_default();
        let load: u64 = held.iter().map(|share| u64::from(share.weight())).sum();
        load + most <= u64::from(capacity)
    }
}

impl Log {
    fn note(&mut self, at: Duration, what: fmt::Arguments<'_>) {
        self.line.clear();
        let _ = write!(self.line, "{:>9.3} {what}", at.as_secs_f64() * 1000.0);
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.is_kept {
            self.lines.push(self.line.clone());
        }
    }
}

/// Returns whether a share could be had beside the holders.
fn has_room(look: &Snapshot, share: Share) -> bool {
    let held = || look.holders.iter().map(|holder| holder.share);
    let capacity = held().map(Share::capacity).fold(share.capacity(), u32::min);
    let load: u64 = held().map(|held| u64::from(held.weight())).sum();
    load + u64::from(share.weight()) <= u64::from(capacity)
}

fn conflict(one: Share, other: Share) -> bool {
    let capacity = one.capacity().min(other.capacity());
    u64::from(one.weight()) + u64::from(other.weight()) > u64::from(capacity)
}

/// Returns whether a guard reports a loss after it was released.
pub(crate) fn says_too_much(ended: Option<LossCause>, given_back: bool) -> bool {
    ended.is_some() && given_back
}

/// The longest time in which a healthy store serves a task: beyond each pause of the engine, and each
/// that a dead waiter costs.
const BOUND: Duration = Duration::from_secs(12);
/// The time after which a loss is late for those that wait for it: no time passes between the two.
const UNHEARD: Duration = Duration::from_millis(100);
/// The number of calls in one moment that no run can reach for a good reason.
const CALLS_AT_ONCE: u32 = 3_000;
/// The end of a failure about a guard that continues after the answer that it is lost.
const IGNORED: &str = "valid, although a renewal was answered with its loss";
/// The text of an injected panic.
pub(crate) const INJECTED: &str = "injected";
