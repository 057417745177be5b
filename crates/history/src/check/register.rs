//! I1 and I3: what the protected register accepted.
//!
//! The register's own log, in the order of its index, is the truth. Without such a log, the answers that the
//! processes got have to do.

use std::collections::{BTreeMap, HashMap};

use crate::event::{Event, FenceValue, Operation, Stage};
use crate::report::Report;
use crate::verdict::Invariant;
use crate::view::View;

pub(super) fn check(view: &View<'_>, report: &mut Report<'_, '_>) {
    let mut registers: BTreeMap<&str, RegisterLog> = BTreeMap::new();
    for event in view.events {
        let Some(key) = event.key.as_deref() else { continue };
        if matches!(event.operation, Operation::ServedRead | Operation::ServedWrite) {
            registers.entry(key).or_default().serve(key, event, report);
        }
    }
    let mut writes: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for call in view.calls.iter().filter(|call| call.invoke.operation == Operation::Write) {
        if let (Some(key), Some(done)) = (call.invoke.key.as_deref(), call.done)
            && done.stage == Stage::Ok
        {
            writes.entry(key).or_default().push(done);
        }
    }
    if registers.is_empty() {
        report.unjudged(Invariant::I1, "the register kept no log of its own");
    } else if registers.values().all(|register| register.highest.is_none()) {
        report.unjudged(Invariant::I1, "no request to the register had a fence");
    }
    if registers.is_empty() && writes.is_empty() {
        report.unjudged(Invariant::I3, "nothing was written");
    }
    for (key, acknowledged) in writes {
        match registers.get(key) {
            Some(register) => register.compare(key, &acknowledged, report),
            None => repeated(key, &acknowledged, report),
        }
    }
}

/// The content of one register's log.
#[derive(Default)]
struct RegisterLog<'h> {
    highest: Option<(FenceValue, &'h Event)>,
    /// The last accepted write.
    last: Option<&'h Event>,
    value: u64,
    accepted: HashMap<(u64, Option<&'h str>), u64>,
    /// The last accepted read of each owner, which its write builds on.
    read: HashMap<Option<&'h str>, &'h Event>,
}

impl<'h> RegisterLog<'h> {
    fn serve(&mut self, key: &str, event: &'h Event, report: &mut Report<'_, '_>) {
        if event.stage != Stage::Ok {
            return;
        }
        if let Some(fence) = event.values.fence {
            match self.highest {
                Some((highest, by)) if fence < highest => {
                    let what = format!("the register accepted the fence {fence} after {highest}");
                    report.violated(Invariant::I1, Some(key), what, [by, event]);
                }
                _ => self.highest = Some((fence, event)),
            }
        } else if let Some((highest, by)) = self.highest {
            let what = format!("the register accepted a request without a fence after {highest}");
            report.violated(Invariant::I1, Some(key), what, [by, event]);
        }
        let owner = event.values.owner.as_deref();
        if event.operation == Operation::ServedRead {
            self.read.insert(owner, event);
            return;
        }
        let written = event.values.val.unwrap_or(0);
        if self.value.checked_add(1) != Some(written) {
            let what = format!(
                "the counter went from {} to {written}: {}",
                self.value,
                match written <= self.value {
                    true => "an increment that the register had accepted is lost",
                    false => "a value appeared that no accepted write had left",
                }
            );
            let base = self.read.get(&owner).copied();
            report.violated(Invariant::I3, Some(key), what, base.into_iter().chain(self.last).chain([event]));
        }
        self.value = written;
        self.last = Some(event);
        *self.accepted.entry((written, owner)).or_default() += 1;
    }

    /// Compares the answers that processes got with what the register did.
    fn compare(&self, key: &str, acknowledged: &[&'h Event], report: &mut Report<'_, '_>) {
        let mut seen: HashMap<(u64, Option<&str>), u64> = HashMap::new();
        for done in acknowledged {
            let write = (done.values.val.unwrap_or(0), done.values.owner.as_deref());
            let acknowledged = seen.entry(write).or_default();
            *acknowledged += 1;
            let accepted = self.accepted.get(&write).copied().unwrap_or(0);
            if *acknowledged > accepted {
                let what = match accepted {
                    0 => format!(
                        "the write of {} was acknowledged, and the register has no such write",
                        write.0
                    ),
                    _ => format!(
                        "the write of {} was acknowledged {acknowledged} times, and the register accepted {accepted}",
                        write.0
                    ),
                };
                report.violated(Invariant::I3, Some(key), what, [*done]);
            }
        }
    }
}

/// Finds increments that two processes made from the same value.
fn repeated(key: &str, acknowledged: &[&Event], report: &mut Report<'_, '_>) {
    let mut seen: HashMap<u64, &Event> = HashMap::new();
    for done in acknowledged {
        let Some(value) = done.values.val else { continue };
        if let Some(first) = seen.insert(value, done) {
            let what = format!("two increments to {value} were acknowledged: one of them is lost");
            report.violated(Invariant::I3, Some(key), what, [first, *done]);
        }
    }
}
