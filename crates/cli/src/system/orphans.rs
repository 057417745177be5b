//! Orphaned processes: this process inherits them if it is the first process of a container.
//!
//! Ground rules: only processes that have ended are waited for, by their ids, and never a process that
//! this one has started itself.

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::system::processes;

/// Reaps those that have ended, except `own`, which are waited for elsewhere.
pub(crate) fn reap(own: &[Pid]) {
    // Any other process inherits orphans only on request, and this one does not request it.
    if !getpid().is_init() {
        return;
    }
    for process in processes::all() {
        if process.is_over && process.parent == Some(getpid()) && !own.contains(&process.pid) {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}
