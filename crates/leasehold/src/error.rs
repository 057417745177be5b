//! The error that the library returns when an operation fails.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use leasehold_core::{
    Effect, Failure, FailureKind, InvalidResource, InvalidShare, LossCause, NoteTooLong, Resource, Unmet,
};

/// The result of an operation of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed.
///
/// Contention is not an error: a `try_` operation then returns `Ok(None)`. The text of an error says what
/// failed and what a person can do. [`Error::kind`] is for programs, and [`Error::may_have_happened`] says
/// whether the operation may have taken effect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Client;
/// use std::time::Duration;
///
/// let locks = Client::open("mem:").await?;
/// let held = locks.mutex("orders/42").lock().await?;
/// match locks.mutex("orders/42").try_lock_for(Duration::from_millis(10)).await {
///     Ok(Some(guard)) => guard.release().await?,
///     Ok(None) => {} // another client holds the lock
///     Err(error) if error.may_have_happened() => {} // check the store before you try again
///     Err(error) => return Err(error),
/// }
/// # held.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    op: &'static str,
    resource: Option<Resource>,
    text: String,
    failure: Option<Box<Failure>>,
    /// The effect of the operation, as far as it is known.
    effect: Effect,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A wait that ended at its limit. Nothing is held. A lock that is not free within the limit of a
    /// `try_*_for` is not an error: see [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// [`Barrier::wait_for`](crate::Barrier::wait_for) returns it, and so does an update with too many
    /// conflicts. In an [`AcquireFailure`](crate::AcquireFailure) it stands for `Ok(None)`.
    Timeout,
    /// The loss of a lock that was held.
    Lost(LossCause),
    /// A server that was unreachable for longer than the configured outage tolerance, or at the end of
    /// a wait that has a limit.
    Unavailable,
    /// An operation that may have taken effect, or not, because no answer came; what it left behind is
    /// removed in the background. A wait with a limit ends with this kind if the store does not answer: it
    /// is not known whether the lock is free.
    OutcomeUnknown,
    /// An operation that the backend does not support. Nothing took effect, unless the error
    /// [says otherwise](Error::may_have_happened): an earlier attempt may have been sent.
    Unsupported,
    /// An invalid request, or a value or a table of another program in the place of one of this library. Nothing
    /// took effect, unless the error [says otherwise](Error::may_have_happened).
    Invalid,
    /// A refusal by the server or the file system.
    Denied,
    /// A call on a client that was closed, whose runtime has ended, or that was opened by the process
    /// from which this one was forked.
    Closed,
    /// A circle of waiters that would wait for each other for ever, or an owner that would wait for itself.
    Deadlock,
    /// A wait that another thread ended. Nothing is held. A call that changes a value in the store may have
    /// changed it, and [says so](Error::may_have_happened).
    Interrupted,
    /// A wait for something that cannot come any more: a barrier that broke, or a latch that was removed.
    Broken,
}

/// Returns `None` for a wait for a lock that ended at its limit: the lock is held, which is not an error. A
/// wait that ended without an answer of the store stays an error.
pub(crate) fn none_if_timed_out<T>(waited: Result<T>) -> Result<Option<T>> {
    match waited {
        Ok(granted) => Ok(Some(granted)),
        Err(error) if error.kind == ErrorKind::Timeout => Ok(None),
        Err(error) => Err(error),
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, op: &'static str, text: impl Into<String>) -> Self {
        let effect = if kind == ErrorKind::OutcomeUnknown { Effect::Unknown } else { Effect::None };
        Error { kind, op, resource: None, text: text.into(), failure: None, effect }
    }

    /// Marks the effect of the operation as unknown.
    #[must_use]
    pub(crate) fn of_unknown_effect(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    pub(crate) fn on(mut self, resource: &Resource) -> Self {
        self.resource = Some(resource.clone());
        self
    }

    /// Returns `true` if the store did not answer, so that the outcome of the request is not known.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
    }

    pub(crate) fn timeout(waited: Duration, resource: &Resource) -> Self {
        let text = format!("not free within {waited:.1?}; nothing is held");
        Error::new(ErrorKind::Timeout, "lock", text).on(resource)
    }

    /// Returns the error of a wait with a limit that ended while the store did not answer.
    pub(crate) fn no_answer(waited: Duration) -> Self {
        let text = format!(
            "not granted within {waited:.1?}: the store does not answer; check the connection to the store"
        );
        Error::new(ErrorKind::OutcomeUnknown, "lock", text)
    }

    /// Puts the wait in front of the text if it ended because the store could not be used.
    #[must_use]
    pub(crate) fn after_wait(mut self, waited: Duration) -> Self {
        if matches!(self.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) {
            self.text = format!("not granted within {waited:.1?}, and the store failed: {}", self.text);
        }
        self
    }

    pub(crate) fn lost(op: &'static str, cause: LossCause, resource: &Resource) -> Self {
        let text = format!(
            "the lock was lost: {cause}; another client may hold it now: stop the work under it, and acquire it again"
        );
        Error::new(ErrorKind::Lost(cause), op, text).on(resource)
    }

    /// The text for a client that cannot be used any more.
    pub(crate) const CLOSED: &str =
        "the client was closed, or the runtime that it was opened in ended; open a new one";

    pub(crate) fn closed(op: &'static str) -> Self {
        Error::new(ErrorKind::Closed, op, Error::CLOSED)
    }

    pub(crate) fn failed(op: &'static str, failure: Failure) -> Self {
        let kind = match failure.kind {
            FailureKind::Denied => ErrorKind::Denied,
            FailureKind::Invalid | FailureKind::Foreign => ErrorKind::Invalid,
            FailureKind::Unsupported => ErrorKind::Unsupported,
            FailureKind::Closed => ErrorKind::Closed,
            _ if failure.effect == Effect::Unknown => ErrorKind::OutcomeUnknown,
            _ => ErrorKind::Unavailable,
        };
        let (text, effect) = (failure.detail().to_owned(), failure.effect);
        Error { kind, op, resource: None, text, failure: Some(Box::new(failure)), effect }
    }

    pub(crate) fn with_op(mut self, op: &'static str) -> Self {
        self.op = op;
        self
    }

    /// Returns the kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the operation, as a word for people: `open`, `lock`, `release`, `inspect`, `count down`. Programs
    /// use [`kind`](Error::kind).
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Returns the resource of the operation.
    pub fn resource(&self) -> Option<&Resource> {
        self.resource.as_ref()
    }

    /// Returns the failure of the store behind this error, with its kind and the error of the driver; `None`
    /// if the store did not fail.
    ///
    /// The text of this error says what the failure does, so it is not the `source`, which an error of this
    /// library does not have: a report of the whole chain would say it twice.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Returns `true` if the operation may have taken effect although it failed. The kind does not say it: a
    /// server may refuse the second attempt, for instance, after it has carried out the first.
    pub fn may_have_happened(&self) -> bool {
        self.effect == Effect::Unknown
    }

    /// Returns `true` if the store has something that is not of leasehold, or is not the one that the client knew: no
    /// mistake of the caller, although the kind is `Invalid`.
    pub fn is_foreign(&self) -> bool {
        self.failure().is_some_and(|failure| failure.kind == FailureKind::Foreign)
    }

    /// Returns `true` if this is the loss of a lock that was held.
    pub fn is_lost(&self) -> bool {
        matches!(self.kind, ErrorKind::Lost(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resource {
            Some(resource) => write!(f, "{} {resource}: {}", self.op, self.text)?,
            None => write!(f, "{}: {}", self.op, self.text)?,
        }
        if self.may_have_happened() {
            f.write_str(
                " (it may have taken effect: check that before you repeat it; leftovers are removed in the background)",
            )?;
        }
        Ok(())
    }
}

/// Returns the resource of this name, or the error of an operation for which no resource can have it.
pub(crate) fn resource_for(op: &'static str, name: &str) -> Result<Resource> {
    Resource::new(name).map_err(|error| Error::from(error).with_op(op))
}

impl StdError for Error {}

impl From<InvalidResource> for Error {
    fn from(error: InvalidResource) -> Self {
        Error::new(ErrorKind::Invalid, "lock", error.to_string())
    }
}

impl From<InvalidShare> for Error {
    fn from(error: InvalidShare) -> Self {
        Error::new(ErrorKind::Invalid, "lock", error.to_string())
    }
}

impl From<NoteTooLong> for Error {
    fn from(error: NoteTooLong) -> Self {
        Error::new(ErrorKind::Invalid, "lock", error.to_string())
    }
}

impl From<Unmet> for Error {
    fn from(error: Unmet) -> Self {
        Error::new(ErrorKind::Unsupported, "lock", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier attempt may have arrived, although the last one was refused.
    #[test]
    fn any_kind_of_error_says_that_it_may_have_happened() {
        let kinds =
            [FailureKind::Denied, FailureKind::Foreign, FailureKind::Unsupported, FailureKind::Closed];
        for kind in kinds {
            for effect in [Effect::None, Effect::Unknown] {
                let error = Error::failed("update", Failure::new(kind, effect, "no"));
                assert_eq!(error.may_have_happened(), effect == Effect::Unknown, "{error:?}");
                assert_eq!(error.to_string().contains("may have taken effect"), effect == Effect::Unknown);
            }
        }
    }

    #[test]
    fn error_text_names_operation_resource_and_effect() {
        let resource = Resource::new("orders/42").unwrap();
        let error = Error::timeout(Duration::from_millis(1500), &resource);
        assert_eq!(error.to_string(), "lock orders/42: not free within 1.5s; nothing is held");
        assert!(!error.may_have_happened());
        let error = Error::failed("lock", Failure::unanswered("no answer in 5 s")).on(&resource);
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert!(error.may_have_happened());
        let text = error.to_string();
        assert!(text.contains("it may have taken effect: check that before you repeat it"), "{text}");
        let error = Error::no_answer(Duration::from_secs(2)).on(&resource);
        assert!(error.to_string().contains("the store does not answer"), "{error}");
        assert!(error.to_string().contains("check the connection to the store"), "{error}");
        let error = Error::lost("check", LossCause::Expired, &resource);
        assert!(error.to_string().contains("stop the work under it, and acquire it again"), "{error}");
    }
}
