//! The number of forks of this process, for descriptors that no fork may have a copy of.
//!
//! Ground rules: a descriptor that is opened for one step may be copied by a fork during that step only. One
//! that stays open is copied by every fork, and a lock on it lasts for as long as a copy is open. So what
//! keeps such descriptors compares the number of forks, and opens them anew after a fork.

#![allow(unsafe_code, reason = "no safe interface calls back after a fork")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns the number of forks of this process since this function was first called, and one more in a fork;
/// `None` if the system does not count them.
///
/// Not counted: a fork by a bare system call, and one that runs another program at once, as
/// [`std::process::Command`] does mostly, whose copies of descriptors are closed by the `exec`.
pub fn forks() -> Option<u64> {
    COUNTS.call_once(|| {
        // SAFETY: the handler is a function of this program without captures, and does nothing but one
        // atomic addition, which is allowed in any state of the process.
        let refused = unsafe { libc::pthread_atfork(None, Some(count), Some(count)) };
        IS_COUNTING.store(refused == 0, Ordering::Release);
    });
    IS_COUNTING.load(Ordering::Acquire).then(|| FORKS.load(Ordering::Acquire))
}

/// Runs in the parent and in the child after each fork. The child must not use what it shares with its parent.
extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::AcqRel);
}

static COUNTS: std::sync::Once = std::sync::Once::new();
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static FORKS: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_is_counted_in_the_parent_and_in_the_child() {
        let before = forks().expect("this system counts forks");
        // SAFETY: the child reads two atomic numbers and calls `_exit`, which is allowed after a fork of several
        // threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_counted = forks() > Some(before);
            // SAFETY: ends the child at once, without running anything of this program.
            unsafe { libc::_exit(i32::from(!is_counted)) };
        }
        assert!(child > 0, "the fork failed");
        let mut status = 0;
        // SAFETY: the child was made above, and `status` is a number that outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(forks() > Some(before));
        assert_eq!(status, 0, "the child has not counted it");
    }
}
