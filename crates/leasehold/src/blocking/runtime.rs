//! The runtime that carries out the calls of blocking threads.
//!
//! Ground rules: each process has a runtime of its own, also a fork of one that has one. It is made with
//! the first call and never ends, so that a dropped guard is always released. A thread that waits for an
//! answer waits on a plain channel, which no asynchronous runtime forbids. A closure of the user may block,
//! and call this library: it runs under [`may_block`], so that leases are renewed meanwhile. Each closure
//! that blocks has a thread, of which there are enough: as many as threads of the user wait here, and
//! [`ACTIONS_MAX`] for actions, of which there may be one for each lock.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, PoisonError, mpsc};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold_core::Effect;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

use super::Interrupt;
use crate::error::{Error, ErrorKind, Result};
use crate::per_process::{CHAIN, PerProcess};

/// Runs a future and blocks until it is done. Panics if it panics.
pub(super) fn wait<T: Send + 'static>(
    op: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    run(op, None, erase(work)).map(restore)
}

/// Runs a future likewise, until the interrupt is triggered. If the future is dropped then, `effect` is known of what
/// it did.
pub(super) fn wait_unless<T: Send + 'static>(
    interrupt: Option<Interrupt>,
    op: &'static str,
    effect: Effect,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    run(op, interrupt.map(|interrupt| (interrupt, effect)), erase(work)).map(restore)?
}

/// The result of a call, without its type. Each of some hundred calls has its own type, and a task and a channel for each type
/// would be half of the compiled library.
type Erased = Box<dyn Any + Send>;

fn erase<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, Erased> {
    Box::pin(async move { Box::new(work.await) as Erased })
}

fn restore<T: 'static>(value: Erased) -> T {
    match value.downcast() {
        Ok(value) => *value,
        Err(_) => unreachable!("the value has the type of the future that returned it"),
    }
}

/// Runs a future and blocks until it is done or interrupted. Panics if it panics.
fn run(
    op: &'static str,
    interrupt: Option<(Interrupt, Effect)>,
    work: BoxFuture<'static, Erased>,
) -> Result<Erased> {
    let interrupted = move |effect| match effect {
        Effect::None => Error::new(ErrorKind::Interrupted, op, "the wait was interrupted; nothing is held"),
        Effect::Unknown => {
            Error::new(ErrorKind::Interrupted, op, "the wait was interrupted").of_unknown_effect()
        }
    };
    let work = async move {
        let Some((interrupt, effect)) = interrupt else { return Ok(work.await) };
        if interrupt.is_interrupted() {
            // Nothing has been sent.
            return Err(interrupted(Effect::None));
        }
        tokio::select! {
            biased;
            () = interrupt.interrupted() => Err(interrupted(effect)),
            value = work => Ok(value),
        }
    };
    let (done, receiver) = mpsc::sync_channel(1);
    handle(op)?.spawn(async move {
        // No receiver is left only if the waiting thread was ended with its process.
        drop(done.send(AssertUnwindSafe(work).catch_unwind().await));
    });
    let outcome = receiver.recv().map_err(|_| Error::closed(op))?;
    outcome.unwrap_or_else(|payload| resume_unwind(payload))
}

/// Runs code of the user on a thread of the runtime, whose other tasks continue elsewhere meanwhile.
pub(super) fn may_block<T>(code: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(code)
}

/// Calls an action of the user with the result of `awaited`, if there is one.
///
/// A limited number may block at a time; the others wait for them, and block no other task.
pub(super) fn act_on<T: Send + 'static>(
    op: &'static str,
    awaited: impl Future<Output = Option<T>> + Send + 'static,
    act: impl FnOnce(T) + Send + 'static,
) -> Result<()> {
    let actions = &shared(op)?.actions;
    drop(handle(op)?.spawn(async move {
        if let Some(news) = awaited.await {
            // The semaphore is never closed.
            let _permit = actions.acquire().await;
            may_block(|| act(news));
        }
    }));
    Ok(())
}

/// The values that all calls of one process share.
struct Shared {
    /// The runtime, once it is made.
    handle: Mutex<Option<Handle>>,
    /// The permits of actions.
    actions: Semaphore,
}

fn shared(op: &'static str) -> Result<&'static Shared> {
    static SHARED: [PerProcess<Shared>; CHAIN] = [const {
        PerProcess::new(Shared { handle: Mutex::new(None), actions: Semaphore::const_new(ACTIONS_MAX) })
    }; CHAIN];
    PerProcess::of_this(&SHARED).ok_or_else(|| {
        let text = format!(
            "this process is a fork of a fork, and so on, of {CHAIN} that used leasehold: use it in fewer of them"
        );
        Error::new(ErrorKind::Closed, op, text)
    })
}

fn handle(op: &'static str) -> Result<Handle> {
    let mut shared = shared(op)?.handle.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*shared {
        return Ok(handle.clone());
    }
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(THREADS_MAX).thread_name("leasehold").enable_all();
    let runtime = runtime.build();
    let runtime = runtime.map_err(|error| {
        Error::new(ErrorKind::Unavailable, op, format!("the operating system gives no thread: {error}"))
    })?;
    let handle = runtime.handle().clone();
    *shared = Some(handle.clone());
    // It has to outlive every guard, also those in static variables.
    std::mem::forget(runtime);
    Ok(handle)
}

/// The most actions that are called at a time.
const ACTIONS_MAX: usize = 128;
/// The maximum number of threads: each thread that blocks in here has at most one. Without a free one
/// the runtime would stop.
const THREADS_MAX: usize = 32_768;
