//! Which process this is, and work that only the process that began it may carry out.
//!
//! Ground rules: a fork has a copy of everything in memory, and shares the open files and connections of
//! its parent. Any work on them would affect its parent, so there such work is left as it was copied: it is
//! neither polled nor dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use crate::process_id::process_id;

/// A process, distinguished from its forks.
///
/// Not promised: a fork that is the first process of a PID namespace is not distinguished from a parent
/// that is the first of another. Nor is any fork under an emulator that accepts `MADV_WIPEONFORK` and
/// ignores it, as old versions of QEMU's user mode do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Names this process.
    pub fn this() -> Process {
        Process(process_id())
    }

    /// Returns `true` if this code runs in that process, and not in a fork of it.
    #[inline]
    pub fn is_this(self) -> bool {
        process_id() == self.0
    }
}

/// A future that belongs to the process that made it. In a fork it never ends: it is neither polled nor
/// dropped.
pub struct Unforked<F: ?Sized> {
    process: Process,
    work: Option<Pin<Box<F>>>,
}

impl<F> Unforked<F> {
    /// Binds a future to this process.
    pub fn new(work: F) -> Unforked<F> {
        Unforked { process: Process::this(), work: Some(Box::pin(work)) }
    }
}

impl<F: Future + ?Sized> Future for Unforked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if !self.process.is_this() {
            return Poll::Pending;
        }
        match &mut self.work {
            Some(work) => work.as_mut().poll(context),
            // Only a drop takes it.
            None => Poll::Pending,
        }
    }
}

impl<F: ?Sized> Drop for Unforked<F> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.work.take());
        }
    }
}

impl<F: ?Sized> fmt::Debug for Unforked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unforked").field("process", &self.process).finish_non_exhaustive()
    }
}

/// Spawns a task that a fork of this process leaves as it is. Needs a tokio runtime, as [`tokio::spawn`]
/// does.
///
/// # Cancel safety
/// As [`tokio::spawn`]: dropping the handle does not end the task.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    // Without its type, because tokio compiles some two thousand lines for each type that is spawned.
    let work: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(work);
    tokio::spawn(Unforked { process: Process::this(), work: Some(work) })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct DropNotice(std::sync::mpsc::Sender<()>);

    impl Drop for DropNotice {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_copy_in_another_process_is_neither_polled_nor_dropped() {
        for is_fork in [false, true] {
            let (sender, dropped) = std::sync::mpsc::channel();
            let held = DropNotice(sender);
            let mut work = Unforked::new(async move { drop(held) });
            if is_fork {
                work.process = Process(std::process::id() + 1);
            }
            let polled = Pin::new(&mut work).poll(&mut Context::from_waker(std::task::Waker::noop()));
            assert_eq!(polled.is_pending(), is_fork);
            drop(work);
            assert_eq!(dropped.try_recv().is_err(), is_fork);
        }
    }

    #[test]
    fn unpolled_future_is_dropped_by_its_own_process() {
        let (sender, dropped) = std::sync::mpsc::channel();
        let held = DropNotice(sender);
        drop(Unforked::new(async move { drop(held) }));
        dropped.try_recv().unwrap();
    }
}
