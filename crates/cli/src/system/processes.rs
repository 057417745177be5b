//! The processes of this machine, as the kernel lists them.
//!
//! Ground rules: a list is outdated when it is read, so the caller checks again before it acts on it.
//! Without `/proc`, the list is empty.

use std::fmt;
use std::str::FromStr;

use rustix::process::Pid;

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// `None` if the process has no parent that this process may see.
    pub(crate) parent: Option<Pid>,
    pub(crate) group: Option<Pid>,
    /// `true` if the process has ended; it may still have to be reaped.
    pub(crate) is_over: bool,
    name: String,
    /// The time of its start, in ticks of the kernel since the boot.
    began: u64,
    /// The address of its stack: a fork has that of its parent, and a new program another one. Zero if this process may
    /// not see it.
    stack: u64,
}

/// A process, which is not mistaken for a later one that has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: Pid,
    began: u64,
}

impl Process {
    /// Returns the process of this entry of `/proc`; `None` if there is none, or it has ended.
    fn at(entry: &str) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{entry}/stat")).ok()?;
        Process::read(&stat).filter(|process| !process.is_over)
    }

    pub(crate) fn read(stat: &str) -> Option<Process> {
        // The name may hold anything, parentheses and spaces included.
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let is_over = matches!(fields.next()?, "Z" | "X");
        // The kernel writes -1 for what a process that is being reaped no longer has, and 0 for what this
        // process may not see.
        let id = |text: &str| text.parse().ok().filter(|id| *id > 0).and_then(Pid::from_raw);
        let (parent, group) = (fields.next().and_then(id), fields.next().and_then(id));
        let mut after = |skipped| fields.nth(skipped).and_then(|number| number.trim_end().parse().ok());
        let began = after(BETWEEN_GROUP_AND_START).unwrap_or_default();
        let stack = after(BETWEEN_START_AND_STACK).unwrap_or_default();
        Some(Process { pid: id(pid)?, parent, group, is_over, name: name.to_owned(), began, stack })
    }

    /// Returns what distinguishes it from every other process since the boot.
    pub(crate) fn identity(&self) -> Identity {
        Identity { pid: self.pid, began: self.began }
    }

    /// Returns `true` if one of the two was certainly started as a program of its own since they were the same
    /// process. Without random addresses of stacks nothing is certain.
    pub(crate) fn is_no_fork_of(&self, other: &Process) -> bool {
        self.stack != 0 && other.stack != 0 && self.stack != other.stack
    }

    /// Returns `true` if its program has this name in the process table.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }
}

impl Identity {
    /// Returns that of the process that has this id now; `None` if there is none.
    pub(crate) fn of(pid: Pid) -> Option<Identity> {
        Process::at(&pid.as_raw_pid().to_string()).map(|process| process.identity())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid.as_raw_pid(), self.began)
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Identity, ()> {
        let (pid, began) = text.split_once('.').ok_or(())?;
        let pid = pid.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(())?;
        Ok(Identity { pid, began: began.parse().map_err(drop)? })
    }
}

/// Lists all that this process may see.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_process = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    entries
        .flatten()
        .filter(|entry| is_process(&entry.file_name()))
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| Process::read(&stat))
        .collect()
}

/// Returns the leader of the group of this process; `None` if it is gone, or in another namespace of processes.
pub(crate) fn leader() -> Option<Identity> {
    Identity::of(Process::at("self")?.group?)
}

/// Finds the processes that `pid` descends from, among `all`.
pub(crate) fn ancestors(all: &[Process], pid: Pid) -> Vec<Pid> {
    let mut line = Vec::new();
    let mut below = pid;
    while let Some(parent) =
        all.iter().find(|process| process.pid == below).and_then(|process| process.parent)
        && !line.contains(&parent)
    {
        line.push(parent);
        below = parent;
    }
    line
}

/// Returns a process and those that it descends from, among `all`.
pub(crate) fn lineage(all: &[Process], pid: Pid) -> Vec<Identity> {
    let line: Vec<Pid> = std::iter::once(pid).chain(ancestors(all, pid)).collect();
    all.iter().filter(|process| line.contains(&process.pid)).map(Process::identity).collect()
}

/// Finds the living processes that descend from `pid`, among `all`.
pub(crate) fn descendants(all: &[Process], pid: Pid) -> Vec<Pid> {
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        // A process that has ended has no children any more.
        let children = all.iter().filter(|process| process.parent == Some(parent) && !process.is_over);
        let new: Vec<Pid> = children.map(|process| process.pid).filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
        at += 1;
    }
    found.split_off(1)
}

/// The number of fields between the group and the time of the start.
const BETWEEN_GROUP_AND_START: usize = 16;
/// The number of fields between the time of the start and the address of the stack.
const BETWEEN_START_AND_STACK: usize = 5;
/// The name of a process that keeps the lock of a section.
pub(crate) const KEEPER_NAME: &str = "lh-keeper";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let process = Process::read("12 (a) S 1) Z 7 9 9 0 -1").unwrap();
        let ids = (
            process.pid.as_raw_pid(),
            process.parent.map(Pid::as_raw_pid),
            process.group.map(Pid::as_raw_pid),
        );
        assert_eq!(ids, (12, Some(7), Some(9)));
        assert!(process.is_over && process.is_named("a) S 1"));
        assert_eq!(Process::read("12 (a) S 0 0 0").unwrap().parent, None);
        assert_eq!(Process::read("nonsense"), None);
        // A process that is being reaped.
        let reaped = Process::read("12 (a) X 0 -1 -1 0 -1").unwrap();
        assert_eq!((reaped.parent, reaped.group), (None, None));
        assert_eq!(Process::read("-1 (a) X 0 -1 -1 0 -1"), None);
    }

    #[test]
    fn start_is_part_of_the_identity() {
        let stat = |pid, began| format!("{pid} (a b) S 7 9 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 {began} 99 1");
        let of = |began| Process::read(&stat(12, began)).unwrap().identity();
        assert_eq!(of(345).to_string(), "12.345");
        assert_eq!("12.345".parse(), Ok(of(345)));
        assert_ne!(of(345), of(346));
        for nonsense in ["", "12", "12.", ".3", "0.3", "-1.3", "x.3"] {
            assert!(nonsense.parse::<Identity>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn stack_tells_a_new_program_from_a_fork() {
        let of = |stack| {
            let stat = format!("12 (a b) S 7 9 9 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 345 99 1 2 3 4 {stack} 6 7");
            Process::read(&stat).unwrap()
        };
        assert_eq!((of(77).stack, of(77).began), (77, 345));
        assert!(of(77).is_no_fork_of(&of(78)));
        for (one, other) in [(77, 77), (0, 77), (77, 0)] {
            assert!(!of(one).is_no_fork_of(&of(other)));
        }
        let own = Identity::of(rustix::process::getpid()).unwrap();
        let all = all();
        let own = all.iter().find(|process| process.identity() == own).unwrap();
        assert_ne!(own.stack, 0, "a process sees its own");
    }

    #[test]
    fn ancestors_end_at_the_root_or_at_a_cycle() {
        let process = |pid, parent| Process::read(&format!("{pid} (x) S {parent} 1 1")).unwrap();
        let all = [process(5, 4), process(4, 3), process(3, 0), process(8, 9), process(9, 8)];
        let of = |pid| {
            ancestors(&all, Pid::from_raw(pid).unwrap())
                .iter()
                .map(|pid| pid.as_raw_pid())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(5), [4, 3]);
        assert_eq!(of(8), [9, 8]);
        assert!(of(7).is_empty());
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_a_cycle_ends() {
        let process = |pid, parent| Process::read(&format!("{pid} (x) S {parent} 1 1")).unwrap();
        let all = [process(3, 2), process(4, 3), process(5, 4), process(8, 1), process(2, 5)];
        let mut found: Vec<_> =
            descendants(&all, Pid::from_raw(3).unwrap()).iter().map(|pid| pid.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 4, 5]);
        assert!(descendants(&all, Pid::from_raw(8).unwrap()).is_empty());
    }
}
