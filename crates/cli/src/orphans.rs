//! Processes that were left to this one by their parents: it has them where it is the first process of
//! a container.
//!
//! Ground rules: only what has ended is waited for, by its id, and never a process that this one
//! started itself.

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::processes;

/// Reaps those that have ended, except `own`, which are waited for elsewhere.
pub(crate) fn reap(own: &[Pid]) {
    // Nothing is left to another process, unless it asked for that; this one does not.
    if !getpid().is_init() {
        return;
    }
    for process in processes::all() {
        if process.is_over && process.parent == Some(getpid()) && !own.contains(&process.pid) {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}
