//! The processes that the command has started: everything that this process has inherited or started since.
//!
//! Ground rules: a shell may have started others before it became this process (`exec leasehold run …`). They belong
//! to the caller, with all that they start: they are neither waited for nor ended.

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::system::processes::{self, Identity, KEEPER_NAME, Process, descendants};

/// The living descendants of this process, from a moment on.
#[derive(Debug)]
pub(crate) struct Descendants {
    /// Those that began before, and what descends from them.
    others: Vec<Identity>,
    warden: Pid,
}

impl Descendants {
    /// Counts those that begin from now on, and not the warden.
    pub(crate) fn from_now_on(warden: Pid) -> Descendants {
        let all = processes::all();
        let before = descendants(&all, getpid());
        let others = all.iter().filter(|process| before.contains(&process.pid)).map(Process::identity);
        Descendants { others: others.collect(), warden }
    }

    /// Returns `true` if one lives, or a child has ended that was not reaped yet: a process that it has started
    /// shortly before may be missing in the list, which the kernel made earlier.
    pub(crate) fn may_live(&mut self) -> bool {
        let (all, own) = (processes::all(), getpid());
        !self.among(&all, own).is_empty() || self.has_ended_child(&all, own)
    }

    /// Returns those that live, among `all`.
    pub(crate) fn living(&mut self, all: &[Process]) -> Vec<Pid> {
        self.among(all, getpid())
    }

    fn has_ended_child(&self, all: &[Process], own: Pid) -> bool {
        let is_it = |process: &Process| {
            let is_child = process.is_over && process.parent == Some(own) && process.pid != self.warden;
            is_child && !self.others.contains(&process.identity())
        };
        all.iter().any(is_it)
    }

    fn among(&mut self, all: &[Process], own: Pid) -> Vec<Pid> {
        self.others.retain(|other| all.iter().any(|process| process.identity() == *other));
        // An orphan among these is adopted like one of the command's, so they are noted while the parent lives.
        let mut others: Vec<Pid> = self.others.iter().map(|other| other.pid).collect();
        others.extend(others.clone().into_iter().flat_map(|other| descendants(all, other)));
        let is_other = |process: &&Process| others.contains(&process.pid);
        self.others = all.iter().filter(is_other).map(Process::identity).collect();
        let mut living = descendants(all, own);
        living.retain(|pid| *pid != self.warden && !others.contains(pid));
        living
    }

    /// Sends a signal to each of them, and returns `true` if there may be more. Keepers and their wardens get none: they
    /// follow the script of their section, and a keeper that is killed would leave its lock to the store.
    pub(crate) fn signal(&mut self, signal: Signal) -> bool {
        let all = processes::all();
        let mut living = self.among(&all, getpid());
        let keepers: Vec<Pid> =
            all.iter().filter(|process| process.is_named(KEEPER_NAME)).map(|process| process.pid).collect();
        let is_for_keeper =
            |process: &Process| process.parent.is_some_and(|parent| keepers.contains(&parent));
        living.retain(|pid| !keepers.contains(pid));
        living.retain(|pid| !all.iter().any(|process| process.pid == *pid && is_for_keeper(process)));
        let signalled = living.iter().filter(|process| kill_process(**process, signal).is_ok()).count();
        signalled > 0 || self.has_ended_child(&all, getpid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, began: u64) -> Process {
        let stat = format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {began} 0");
        Process::read(&stat).unwrap()
    }

    #[test]
    fn earlier_children_and_what_they_start_are_others() {
        let pid = |pid| Pid::from_raw(pid).unwrap();
        let before = process(20, 10, 5);
        let mut found = Descendants { others: vec![before.identity()], warden: pid(11) };
        let all = [before, process(11, 10, 6), process(30, 10, 7), process(31, 30, 8), process(21, 20, 9)];
        assert_eq!(found.among(&all, pid(10)), [pid(30), pid(31)]);
        // Both orphans are children now, and the id of the other's parent is used again.
        assert!(!found.has_ended_child(&all, pid(10)));
        // It may have started another one after the list was made.
        let ended = Process::read("30 (x) Z 10 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0").unwrap();
        assert!(found.among(std::slice::from_ref(&ended), pid(10)).is_empty());
        assert!(found.has_ended_child(&[ended], pid(10)));
        let mut found = Descendants { others: vec![process(20, 10, 5).identity()], warden: pid(11) };
        assert_eq!(found.among(&all, pid(10)), [pid(30), pid(31)]);
        let later = [process(21, 10, 9), process(31, 10, 8), process(20, 10, 11)];
        assert_eq!(found.among(&later, pid(10)), [pid(31), pid(20)]);
    }
}
