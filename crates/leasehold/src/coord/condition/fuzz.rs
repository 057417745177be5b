//! A fuzz target: the stored queue of a condition, which another client has written.

use std::collections::HashSet;

use leasehold_core::Resource;
use leasehold_fuzz::Target;

use super::WaitQueue;
use crate::coord::fuzz::{check_refusal, register};
use crate::engine::Change;

/// Returns the bytes that are written for a queue; none for one that is removed.
fn written(queue: &WaitQueue) -> Vec<u8> {
    match queue.clone().written(()) {
        Change::Write(value, ..) => value,
        Change::Remove(()) | Change::Leave(()) => Vec::new(),
    }
}

#[test]
fn condition() {
    let queue = |lock: &str, notified: &[u64], waiting: &[u64]| {
        let (notified, waiting) = (notified.to_vec(), waiting.to_vec());
        written(&WaitQueue { lock: lock.to_owned(), notified, waiting })
    };
    let seeds = [queue("a:b ü", &[1], &[2, u64::MAX]), queue("x", &[], &[5]), queue("x", &[5, 6], &[])];
    let words = ["\0\0\0\0\0\0\0\x01", "c", "\x1b[2J", "\n", "\0\0\0\0\0\0\0\0"];
    Target::new("condition", env!("CARGO_MANIFEST_DIR")).seeds(seeds).words(&words).run(|input| {
        match WaitQueue::read(register(), Some(input)) {
            Ok(queue) => {
                assert_eq!(written(&queue), input, "written otherwise than it was read");
                assert_eq!(queue.size(), input.len());
                // The lock is named in errors, so it must be a name.
                assert_eq!(Resource::new(&queue.lock).map(|at| at.as_str().len()), Ok(queue.lock.len()));
                // A waiter is notified when it waits no longer.
                let mut next = queue.clone();
                next.notify_next(1);
                let first = queue.waiting.first();
                assert!(first.is_none_or(|id| !next.waiting.contains(id)), "it waits in two places");
                let ids: HashSet<u64> = queue.waiting.iter().chain(&queue.notified).copied().collect();
                assert_eq!(ids.len(), queue.waiting.len() + queue.notified.len());
                assert_eq!(WaitQueue::read(register(), Some(&written(&next))).unwrap(), next);
                format!("{} notified, {} waiting", queue.notified.len().min(3), queue.waiting.len().min(3))
            }
            Err(error) => {
                check_refusal(&error, "condition");
                "refused".to_owned()
            }
        }
    });
}
