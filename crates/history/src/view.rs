//! The events of a history put together: calls with their ends, grants with their lives, faults with their spans.
//!
//! Ground rules: nothing is judged here. Times are those of one clock, chosen by [`Stamps`].

use std::collections::{BTreeMap, HashMap};

use crate::event::{Event, Mode, NOBODY, Operation, Stage};
use crate::history::History;

mod times;

pub use times::Stamps;
pub(crate) use times::Times;

/// A history, put together.
#[derive(Debug)]
pub(crate) struct View<'h> {
    pub(crate) events: &'h [Event],
    pub(crate) times: Times,
    /// The calls, in the order of their invocations.
    pub(crate) calls: Vec<Call<'h>>,
    /// The grants, in the order in which they were recorded.
    pub(crate) grants: Vec<GrantLife<'h>>,
    /// Renewals, losses and releases of grants that their process did not have.
    pub(crate) strays: Vec<&'h Event>,
    pub(crate) faults: Vec<Fault<'h>>,
    /// The end of the recording.
    pub(crate) end: u64,
    /// The spans for which a process was stopped.
    pauses: HashMap<u64, Vec<(u64, u64)>>,
    /// The time just before a process was killed.
    deaths: HashMap<u64, u64>,
}

/// An invocation, and its completion if there is one. An unknown outcome is no completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'h> {
    pub(crate) invoke: &'h Event,
    pub(crate) done: Option<&'h Event>,
    /// The event that says that the outcome is unknown.
    pub(crate) unknown: Option<&'h Event>,
}

/// A grant, from its request to its end.
#[derive(Debug)]
pub(crate) struct GrantLife<'h> {
    pub(crate) key: &'h str,
    pub(crate) process: u64,
    pub(crate) mode: Mode,
    pub(crate) asked: &'h Event,
    pub(crate) got: &'h Event,
    /// Renewals, and what the process said of the end of the validity when its clock was changed.
    pub(crate) statements: Vec<&'h Event>,
    pub(crate) lost: Option<&'h Event>,
    /// The release that ended it, or tried to.
    pub(crate) release: Option<Call<'h>>,
    /// The time for which its process relied on it.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// A fault, from its first to its last moment.
#[derive(Debug)]
pub(crate) struct Fault<'h> {
    pub(crate) label: &'h str,
    pub(crate) targets: &'h [u64],
    pub(crate) begun: &'h Event,
    pub(crate) from: u64,
    /// The end; that of the recording if it has none.
    pub(crate) until: u64,
}

impl Fault<'_> {
    /// Returns `true` if it is on one of these processes, or on the store.
    pub(crate) fn is_on(&self, processes: &[u64]) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| processes.contains(target))
    }

    /// Returns `true` if it stops the processes for a while.
    pub(crate) fn is_pause(&self) -> bool {
        self.label.starts_with("pause")
    }

    /// Returns `true` if it ends the processes.
    pub(crate) fn is_death(&self) -> bool {
        self.begun.is_death()
    }

    /// Returns `true` if it is one of the store, and not one of processes or of the whole machine.
    pub(crate) fn is_of_store(&self) -> bool {
        self.targets.is_empty() && self.is_outside_of_processes()
    }

    /// Returns `true` if it is one of the store or of a network, and neither stops nor ends processes.
    pub(crate) fn is_outside_of_processes(&self) -> bool {
        !self.is_pause() && !self.is_death() && !self.label.starts_with("suspend")
    }
}

impl Call<'_> {
    pub(crate) fn succeeded(&self) -> bool {
        self.done.is_some_and(|done| done.stage == Stage::Ok)
    }
}

impl<'h> View<'h> {
    pub(crate) fn of(history: &'h History, stamps: Stamps) -> View<'h> {
        let events = history.events();
        let times = Times::of(events, stamps);
        let end = events.iter().map(|event| times.at(event)).max().unwrap_or(0);
        let calls = calls(events);
        let (grants, strays) = Gathering::of(events, &calls);
        let mut faults = faults(events, &times, end);
        // One on nobody, as a step of a clock that no lease follows, explains nothing.
        faults.retain(|fault| fault.targets != [NOBODY]);
        let (mut pauses, mut deaths): (HashMap<u64, Vec<_>>, HashMap<u64, u64>) = Default::default();
        for fault in &faults {
            for process in fault.targets {
                if fault.is_pause() {
                    pauses.entry(*process).or_default().push((fault.from, fault.until));
                } else if fault.is_death() {
                    let death = deaths.entry(*process).or_insert(fault.from);
                    *death = fault.from.min(*death);
                }
            }
        }
        let mut view = View { events, times, calls, grants, strays, faults, end, pauses, deaths };
        view.measure();
        view
    }

    /// Sets for each grant the time for which its process relied on it.
    fn measure(&mut self) {
        let signs = match self.times.stamps {
            Stamps::Recorder => self.last_signs(),
            _ => HashMap::new(),
        };
        let spans: Vec<(u64, u64)> = self.grants.iter().map(|grant| self.belief(grant, &signs)).collect();
        for (grant, (from, until)) in self.grants.iter_mut().zip(spans) {
            (grant.from, grant.until) = (from, until);
        }
    }

    fn belief(&self, grant: &GrantLife<'h>, signs: &HashMap<Use<'h>, u64>) -> (u64, u64) {
        let at = |event: &Event| self.times.at(event);
        let from = at(grant.got);
        let valid = match self.times.stamps {
            Stamps::Recorder => used_by(grant.got).and_then(|user| signs.get(&user).copied()),
            _ => grant.valid_until().map(|(event, until)| self.times.shift(event, until)),
        };
        let ends = [
            grant.release.map(|release| at(release.invoke)),
            grant.lost.map(at),
            valid,
            self.death_of(grant.process),
        ];
        let until = ends.into_iter().flatten().min().unwrap_or(self.end);
        (from, until.max(from))
    }

    /// Returns the time of the last event about each grant.
    fn last_signs(&self) -> HashMap<Use<'h>, u64> {
        let mut signs = HashMap::new();
        for event in self.events {
            if let Some(user) = used_by(event) {
                let sign = signs.entry(user).or_insert(0);
                *sign = self.times.at(event).max(*sign);
            }
        }
        signs
    }

    /// Returns when a process was killed, just before it could notice.
    pub(crate) fn death_of(&self, process: u64) -> Option<u64> {
        self.deaths.get(&process).copied()
    }

    /// Returns for how long a process was stopped between two times.
    pub(crate) fn paused(&self, process: u64, from: u64, until: u64) -> u64 {
        let pauses = self.pauses.get(&process).map_or(&[][..], Vec::as_slice);
        pauses
            .iter()
            .map(|(begin, end)| (*end).min(until).saturating_sub((*begin).max(from)))
            .fold(0, u64::saturating_add)
    }

    /// Returns the faults that touch a span of time.
    pub(crate) fn faults_in(&self, from: u64, until: u64) -> impl Iterator<Item = &Fault<'h>> {
        self.faults.iter().filter(move |fault| fault.from <= until && fault.until >= from)
    }

    /// Returns the acquisitions of each lock, in the order of their requests.
    pub(crate) fn requests_by_key(&self) -> BTreeMap<&'h str, Vec<&Call<'h>>> {
        let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.invoke.operation == Operation::Acquire) {
            if let Some(key) = call.invoke.key.as_deref() {
                keys.entry(key).or_default().push(call);
            }
        }
        keys
    }

    /// Returns the grants of each lock, in the order in which their holders learnt of them.
    pub(crate) fn grants_by_key(&self) -> BTreeMap<&'h str, Vec<&GrantLife<'h>>> {
        let mut keys: BTreeMap<&str, Vec<&GrantLife>> = BTreeMap::new();
        for grant in &self.grants {
            keys.entry(grant.key).or_default().push(grant);
        }
        for grants in keys.values_mut() {
            grants.sort_by_key(|grant| (grant.from, grant.got.index));
        }
        keys
    }
}

impl<'h> GrantLife<'h> {
    /// Returns the renewals that the store confirmed.
    pub(crate) fn renewals(&self) -> impl Iterator<Item = &'h Event> {
        let is_one = |event: &&Event| event.operation == Operation::Renew && event.stage == Stage::Ok;
        self.statements.iter().copied().filter(is_one)
    }

    /// Returns the last end of the validity that was confirmed, or stated anew since, with the event that says it.
    pub(crate) fn valid_until(&self) -> Option<(&'h Event, u64)> {
        let mut last: Option<(&Event, u64)> = None;
        for event in std::iter::once(self.got).chain(self.statements.iter().copied()) {
            let Some(until) = event.values.valid_until.filter(|_| event.stage == Stage::Ok) else { continue };
            // An answer that comes late does not take back what a later request was granted.
            let is_later = last.is_none_or(|(_, before)| until >= before);
            if is_later || event.operation == Operation::Restate {
                last = Some((event, until));
            }
        }
        last
    }

    pub(crate) fn name(&self) -> String {
        match &self.got.values.owner {
            Some(owner) => format!("grant {owner} of process {}", self.process),
            None => format!("the grant of process {}", self.process),
        }
    }
}

/// A process, a lock and a grant.
type Use<'h> = (u64, &'h str, Option<&'h str>);

fn used_by(event: &Event) -> Option<Use<'_>> {
    Some((event.process?, event.key.as_deref()?, event.values.owner.as_deref()))
}

/// Pairs invocations with what ends them.
fn calls(events: &[Event]) -> Vec<Call<'_>> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    for event in events {
        let Some(process) = event.process else { continue };
        if event.is_invocation() {
            open.insert(process, calls.len());
            calls.push(Call { invoke: event, done: None, unknown: None });
            continue;
        }
        let Some(&place) = open.get(&process) else { continue };
        // Observations come between, about other operations.
        if calls[place].invoke.operation != event.operation {
            continue;
        }
        open.remove(&process);
        match event.stage {
            Stage::Info => calls[place].unknown = Some(event),
            _ => calls[place].done = Some(event),
        }
    }
    calls
}

/// Gathers grants while the events pass by.
struct Gathering<'h> {
    grants: Vec<GrantLife<'h>>,
    strays: Vec<&'h Event>,
    /// The latest grant of a process on a lock.
    latest: HashMap<(u64, &'h str), usize>,
    /// The grant of an owner.
    owners: HashMap<(&'h str, &'h str), usize>,
}

impl<'h> Gathering<'h> {
    fn of(events: &'h [Event], calls: &[Call<'h>]) -> (Vec<GrantLife<'h>>, Vec<&'h Event>) {
        let mut gathering = Gathering {
            grants: Vec::new(),
            strays: Vec::new(),
            latest: HashMap::new(),
            owners: HashMap::new(),
        };
        let by_invoke: HashMap<u64, &Call> = calls.iter().map(|call| (call.invoke.index, call)).collect();
        let by_done: HashMap<u64, &Call> =
            calls.iter().filter_map(|call| Some((call.done?.index, call))).collect();
        for event in events {
            let (Some(process), Some(key)) = (event.process, event.key.as_deref()) else { continue };
            match (event.operation, event.stage) {
                (Operation::Acquire, Stage::Ok) => {
                    if let Some(call) = by_done.get(&event.index) {
                        gathering.granted(process, key, call.invoke, event);
                    }
                }
                (Operation::Renew | Operation::Restate, Stage::Ok | Stage::Fail | Stage::Info) => {
                    if let Some(grant) = gathering.find(process, key, event) {
                        grant.statements.push(event);
                    }
                }
                (Operation::Lost, _) => {
                    if let Some(grant) = gathering.find(process, key, event) {
                        grant.lost.get_or_insert(event);
                    }
                }
                (Operation::Release, Stage::Invoke) => {
                    let call = by_invoke.get(&event.index).map(|call| **call);
                    // A release of a count that is not the last leaves the grant.
                    let is_last = call.and_then(|call| call.done?.values.count).is_none_or(|left| left == 0);
                    if let Some(grant) = gathering.find(process, key, event)
                        && is_last
                    {
                        grant.release = grant.release.or(call);
                    }
                }
                _ => {}
            }
        }
        (gathering.grants, gathering.strays)
    }

    fn granted(&mut self, process: u64, key: &'h str, asked: &'h Event, got: &'h Event) {
        let owner = got.values.owner.as_deref();
        if let Some(place) = owner.and_then(|owner| self.owners.get(&(key, owner)).copied())
            && self.grants[place].process == process
            && self.grants[place].release.is_none()
            && got.values.count.is_some_and(|count| count > 1)
        {
            // The owner has it already: this only counts.
            self.latest.insert((process, key), place);
            return;
        }
        let mode = got.values.mode.or(asked.values.mode).unwrap_or(Mode::Exclusive);
        let place = self.grants.len();
        let (statements, lost, release) = (Vec::new(), None, None);
        self.grants.push(GrantLife {
            key,
            process,
            mode,
            asked,
            got,
            statements,
            lost,
            release,
            from: 0,
            until: 0,
        });
        self.latest.insert((process, key), place);
        if let Some(owner) = owner {
            self.owners.insert((key, owner), place);
        }
    }

    /// Returns the grant that an event of a process is about; if it is not one of that process, it is a stray.
    fn find(&mut self, process: u64, key: &'h str, event: &'h Event) -> Option<&mut GrantLife<'h>> {
        let place = match event.values.owner.as_deref() {
            Some(owner) => self.owners.get(&(key, owner)),
            None => self.latest.get(&(process, key)),
        };
        match place.copied() {
            Some(place) if self.grants[place].process == process => self.grants.get_mut(place),
            _ => {
                self.strays.push(event);
                None
            }
        }
    }
}

fn faults<'h>(events: &'h [Event], times: &Times, end: u64) -> Vec<Fault<'h>> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for event in events.iter().filter(|event| event.operation == Operation::Fault) {
        let label = event.values.label.as_deref().unwrap_or("fault");
        let targets = event.values.target.as_slice();
        let at = times.at(event);
        match event.stage {
            Stage::Ok | Stage::Fail => {
                let is_its =
                    |place: &usize| faults[*place].label == label && faults[*place].targets == targets;
                if let Some(found) = open.iter().position(is_its) {
                    let fault = &mut faults[open.swap_remove(found)];
                    fault.until = at.max(fault.from);
                }
            }
            stage => {
                let until = if stage == Stage::Invoke { end } else { at };
                if stage == Stage::Invoke {
                    open.push(faults.len());
                }
                faults.push(Fault { label, targets, begun: event, from: at, until });
            }
        }
    }
    faults
}
