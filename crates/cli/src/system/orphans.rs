//! Orphaned processes: this process inherits them if it is the first process of a container, or on request.
//!
//! Ground rules: only processes that have ended are waited for, by their ids, and never a process whose id another part
//! of this one relies on. The spare process of `run` has a handle, and may be reaped here if it is killed.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

use crate::system::processes;

/// Requests that descendants whose parents have ended become children of this process.
pub(crate) fn adopt() {
    #[cfg(target_os = "linux")]
    if rustix::process::set_child_subreaper(Some(getpid())).is_ok() {
        ADOPTED.store(true, Ordering::Relaxed);
    }
}

/// Returns `true` if this process inherits its orphaned descendants.
pub(crate) fn are_adopted() -> bool {
    getpid().is_init() || ADOPTED.load(Ordering::Relaxed)
}

/// Reaps those that have ended, except `own`, which are waited for elsewhere.
pub(crate) fn reap(own: &[Pid]) {
    if !are_adopted() {
        return;
    }
    for process in processes::all() {
        if process.is_over && process.parent == Some(getpid()) && !own.contains(&process.pid) {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}

static ADOPTED: AtomicBool = AtomicBool::new(false);
