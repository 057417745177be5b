//! The end of a tree or of a group of processes, which a warden brings about.
//!
//! Ground rules: nothing here returns before all of them have ended that can be found, however long one of them stays
//! in the kernel, and also if it runs as another user and cannot be killed: the warden keeps the lock's descriptor
//! meanwhile. Other wardens are left alone, and end by themselves.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group, kill_process, test_kill_process};
use rustix::time::Timespec;

use crate::system::processes::{self, Identity, Process, descendants};

/// Returns a handle that shows whether the process with this id is still the same; `None` where the system has none.
pub(crate) fn handle(pid: Pid) -> Option<OwnedFd> {
    #[cfg(target_os = "linux")]
    return rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
    #[cfg(not(target_os = "linux"))]
    return None;
}

/// Returns `true` if the process has not ended. Its id may be that of another process afterwards.
pub(crate) fn is_running(pid: Pid, handle: Option<&OwnedFd>) -> bool {
    match handle {
        // It is readable as soon as the process has ended.
        Some(handle) => poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&Timespec::default())) == Ok(0),
        None => test_kill_process(pid) != Err(Errno::SRCH),
    }
}

/// Returns `true` if the process exists, and this process may not signal it: it runs as another user, as under `sudo`.
pub(crate) fn is_out_of_reach(pid: Pid) -> bool {
    test_kill_process(pid) == Err(Errno::PERM)
}

/// Ends a process and its descendants. The process itself is the last, so that they can be found by it.
pub(crate) fn kill_tree(pid: Pid, handle: Option<&OwnedFd>) {
    let mut pause = END_PAUSE;
    let mut found = Vec::new();
    loop {
        let all = processes::all();
        let is_there = is_running(pid, handle);
        found = tree(&all, is_there.then_some(pid), &found);
        if is_there {
            // A process that is stopped starts no others.
            let _ = kill_process(pid, Signal::STOP);
        }
        let killed = found.iter().filter(|found| kill_process(found.pid, Signal::KILL).is_ok()).count();
        let is_left = found.iter().any(|found| is_out_of_reach(found.pid));
        match (killed, is_there) {
            (0, false) if !is_left => return,
            // Its descendants are found without it, once they were found.
            (0, true) if is_running(pid, handle) => drop(kill_process(pid, Signal::KILL)),
            _ => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(KILL_PAUSE);
    }
}

/// Returns the living descendants of a process, and of those that were found before: a process whose parent was killed
/// first is no descendant any more. Wardens end by themselves.
fn tree(all: &[Process], root: Option<Pid>, found: &[Identity]) -> Vec<Identity> {
    let is_alive = |process: &&Process| !process.is_over && found.contains(&process.identity());
    let mut pids: Vec<Pid> = all.iter().filter(is_alive).map(|process| process.pid).collect();
    for above in root.into_iter().chain(pids.clone()) {
        pids.extend(descendants(all, above));
    }
    let is_in = |process: &&Process| pids.contains(&process.pid) && !is_warden_process(process);
    all.iter().filter(is_in).map(Process::identity).collect()
}

/// Ends the group, this process with it: last, because it keeps the lock's descriptor. A member whose
/// write is still in the kernel dies later than it is killed, and so may the group of a nested `run`.
pub(crate) fn kill_group() {
    let mut groups = vec![getpgrp()];
    let mut pause = END_PAUSE;
    while kill_others(&mut groups) {
        std::thread::sleep(pause);
        pause = (pause * 2).min(KILL_PAUSE);
    }
    let _ = kill_current_process_group(Signal::KILL);
}

/// Kills the members of the groups, and of the groups that wardens under them lead. Returns `false` if only
/// wardens are left.
fn kill_others(groups: &mut Vec<Pid>) -> bool {
    let all = processes::all();
    let is_in = |groups: &[Pid], group: Option<Pid>| group.is_some_and(|group| groups.contains(&group));
    let leads = |process: &&Process| process.group == Some(process.pid);
    let wardens: Vec<_> = all.iter().filter(leads).filter(|process| is_warden_process(process)).collect();
    loop {
        let known = groups.len();
        for warden in &wardens {
            let parent = all.iter().find(|process| Some(process.pid) == warden.parent);
            // The run that it belongs to may be gone, and says no longer where it was.
            let leader = leader_above(warden.pid);
            let leader = all.iter().find(|process| Some(process.identity()) == leader);
            let is_below = is_in(groups, parent.and_then(|parent| parent.group))
                || is_in(groups, leader.map(|leader| leader.pid));
            if !groups.contains(&warden.pid) && is_below {
                groups.push(warden.pid);
            }
        }
        if groups.len() == known {
            break;
        }
    }
    let members = all.iter().filter(|process| is_in(groups, process.group));
    let living = members.filter(|process| !process.is_over && !is_warden_process(process));
    // One that this process may not kill is still there.
    let is_left =
        |process: &&Process| kill_process(process.pid, Signal::KILL).is_ok() || is_out_of_reach(process.pid);
    living.filter(is_left).count() > 0
}

/// Returns `true` if the process is a warden. A warden is started under this name, and takes it in the process table a
/// moment later.
pub(crate) fn is_warden_process(process: &Process) -> bool {
    process.is_named(WARDEN_NAME) || argument(process.pid, 0).is_some_and(|name| name == WARDEN_NAME)
}

/// Returns the leader of the group of the leasehold that has started this warden.
fn leader_above(warden: Pid) -> Option<Identity> {
    argument(warden, LEADER)?.parse().ok()
}

/// Returns one of the words with which a process was started; `None` if it has ended.
fn argument(of: Pid, index: usize) -> Option<String> {
    let line = std::fs::read(format!("/proc/{}/cmdline", of.as_raw_pid())).ok()?;
    let word = line.split(|byte| *byte == 0).nth(index)?;
    String::from_utf8(word.to_vec()).ok()
}

/// Takes the name of a warden in the process table, which would otherwise be that of the file.
pub(crate) fn take_name() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(NAME_OF_THREAD);
}

/// The name of a warden.
pub(crate) const WARDEN_NAME: &str = "lh-warden";
#[cfg(target_os = "linux")]
const NAME_OF_THREAD: &std::ffi::CStr = c"lh-warden";
/// The argument of a warden that names the leader of the group of leasehold, after the name and the id of leasehold.
pub(crate) const LEADER: usize = 2;
/// A warden that is killed ends once it has a core.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(5);
/// The bounds of the pause between two checks for killed processes that still exist.
const END_PAUSE: Duration = Duration::from_millis(2);
const KILL_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_whose_parent_was_killed_first_is_still_found() {
        let process = |stat: &str| Process::read(stat).unwrap();
        let (root, middle, last) =
            (process("10 (x) S 1 1"), process("20 (x) S 10 1"), process("30 (x) S 20 1"));
        let before = [root.clone(), middle.clone(), last.clone(), process("31 (lh-warden) S 20 31")];
        let found = tree(&before, Some(root.pid), &[]);
        assert_eq!(found, [middle.identity(), last.identity()]);
        // The last one is still in the kernel. Its parent is the first process by now, which has others.
        let after =
            [root.clone(), process("30 (x) D 1 1"), process("40 (x) S 30 1"), process("50 (x) S 1 1")];
        let found = tree(&after, Some(root.pid), &found);
        assert_eq!(found, [last.identity(), process("40 (x) S 30 1").identity()]);
        assert_eq!(tree(&after, None, &found), found);
        assert_eq!(tree(&[root, process("30 (x) Z 1 1")], None, &found), []);
    }
}
