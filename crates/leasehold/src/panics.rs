//! Panics of code that is not ours, caught where it is called.
//!
//! Ground rules: the tasks of the engine serve all locks of a client, so nothing foreign that they call
//! may end them: an event subscriber, a `tracing` subscriber, a clock, a backend. A panic there ends
//! that one call. The panic hook has reported it by then.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::CatchUnwind;
use leasehold_core::{Effect, Failure, FailureKind};
use leasehold_machine::{Process, Unforked};
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tracing::Span;

use crate::mutant::mutant;

/// Calls foreign code; `None` if it panics.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    if mutant!("a panic of foreign code passes") {
        return Some(call());
    }
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            discard(payload);
            None
        }
    }
}

/// Runs a future of a backend; a panic is a failure of unknown effect.
///
/// A fork of the process has a copy of it, and of its connection, on which every action would affect
/// the parent: there it is left as it is, neither polled nor dropped.
pub(crate) async fn contained_request<T>(call: impl Future<Output = T>) -> Result<T, Failure> {
    if mutant!("a contender ends in silence" | "a release ends in silence") {
        return Ok(call.await);
    }
    let process = Process::this();
    let mut call = Unforked::new(AssertUnwindSafe(call).catch_unwind());
    let answer = poll_fn(|context| match process.is_this() {
        true => call.poll_unpin(context).map(Some),
        false => Poll::Ready(None),
    });
    let Some(answer) = answer.await else {
        return Err(Failure::new(
            FailureKind::Closed,
            Effect::Unknown,
            "this process is a fork of the one that asked",
        ));
    };
    answer.map_err(|payload| {
        let text = format!("the backend panicked: {}", text_of(&*payload));
        discard(payload);
        Failure::unanswered(text)
    })
}

/// Runs a future inside the span that is made here, even if the subscriber panics.
///
/// `Instrument` enters the span once more to drop the future, so there a subscriber that panics twice
/// would end the process.
pub(crate) fn spanned<W: Future>(span: impl FnOnce() -> Span, work: W) -> Spanned<W> {
    ContainedSpan(contained(span)).around(work)
}

/// Returns `true` if this thread can enter a runtime. One that is ending cannot, once the values that tokio keeps for it
/// are gone: an attempt panics.
pub(crate) fn can_enter_a_runtime() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Makes a call of a backend inside the span that is made here, and inside the runtime, where the backend has its timers
/// and connections. Returns `None` if it panics. What is called may have sent a request, so it returns the span for the wait,
/// too.
pub(crate) fn called_in<T>(
    span: impl FnOnce() -> Span,
    runtime: &Handle,
    call: impl FnOnce() -> T,
) -> (Option<T>, ContainedSpan) {
    let span = ContainedSpan(contained(span));
    let entered = span.0.as_ref().and_then(|span| contained(|| span.enter()));
    let outcome = contained(|| {
        let _entered = runtime.enter();
        call()
    });
    contained(|| drop(entered));
    (outcome, span)
}

/// Runs a future inside the span that is current now.
pub(crate) fn in_this_span<W: Future>(work: W) -> Spanned<W> {
    // The subscriber is called for it now, and again when it ends, even if the future is never polled.
    spanned(Span::current, work)
}

/// A span whose end is foreign code as well.
#[derive(Debug)]
pub(crate) struct ContainedSpan(Option<Span>);

impl ContainedSpan {
    /// Runs a future inside the span, as [`spanned`].
    pub(crate) fn around<W: Future>(self, work: W) -> Spanned<W> {
        Spanned { work: AssertUnwindSafe(work).catch_unwind(), span: self }
    }

    fn close(&mut self) {
        let span = self.0.take();
        contained(|| drop(span));
    }
}

impl Drop for ContainedSpan {
    fn drop(&mut self) {
        self.close();
    }
}

pin_project! {
    #[project = Projected]
    /// A future that runs inside a span. An `async fn` would have room for the inner future twice: as its argument, and
    /// where it is pinned.
    pub(crate) struct Spanned<W> {
        #[pin]
        work: CatchUnwind<AssertUnwindSafe<W>>,
        span: ContainedSpan,
    }
}

impl<W: Future> Future for Spanned<W> {
    type Output = W::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        let Projected { work, span } = self.project();
        let entered = span.0.as_ref().and_then(|span| contained(|| span.enter()));
        let polled = work.poll(context);
        contained(|| drop(entered));
        let Poll::Ready(outcome) = polled else { return Poll::Pending };
        span.close();
        Poll::Ready(outcome.unwrap_or_else(|payload| resume_unwind(payload)))
    }
}

/// Returns the message of a panic.
fn text_of(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "it does not say why",
    }
}

fn discard(payload: Box<dyn Any + Send>) {
    // Its drop is foreign code as well.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// Logs, even if the subscriber panics: `logged!(warn, ...)` is `tracing::warn!(...)`.
macro_rules! logged {
    ($level:ident, $($event:tt)+) => {
        _ = $crate::panics::contained(|| tracing::$level!($($event)+))
    };
}

pub(crate) use logged;

#[cfg(test)]
mod tests {
    use super::*;

    struct Spiteful;

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("even this");
        }
    }

    #[test]
    fn a_panic_ends_the_call_and_nothing_else() {
        assert_eq!(contained(|| 7), Some(7));
        assert_eq!(contained(|| -> u32 { panic!("no") }), None);
        assert_eq!(contained(|| -> u32 { std::panic::panic_any(Spiteful) }), None);
    }

    #[tokio::test]
    async fn a_backend_that_panics_may_have_done_it() {
        let failure = contained_request::<()>(async { panic!("row {}", 7) }).await.unwrap_err();
        assert_eq!(failure.to_string(), "the backend panicked: row 7 (the request may have taken effect)");
        assert!(failure.is_transient());
        assert_eq!(contained_request(async { 7 }).await.unwrap(), 7);
    }
}
