//! What a user of the library is told when it did not work.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use leasehold_core::{
    Effect, Failure, FailureKind, InvalidResource, InvalidShare, LossCause, NoteTooLong, Resource, Unmet,
};

/// The result of an operation of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not do what was asked.
///
/// «Busy» is not among the reasons: it is the `Ok(None)` of a `try_` operation. The text says what a person
/// can do; [`Error::kind`] is for programs; [`Error::may_have_happened`] answers the question that matters
/// after a failure.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{ErrorKind, Leasehold};
/// use std::time::Duration;
///
/// let locks = Leasehold::open("mem:").await?;
/// let held = locks.mutex("orders/42").lock().await?;
/// match locks.mutex("orders/42").lock_timeout(Duration::from_millis(10)).await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.kind() == ErrorKind::Timeout => {} // somebody else is at it
///     Err(error) if error.may_have_happened() => {} // look before it is tried again
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
    source: Option<Box<Failure>>,
}

/// Kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The wait ended at its limit. Nothing is held.
    ///
    /// Of a lock it says that the store answered, in the last second of the wait or after it, that the lock is not free. Where the
    /// store gives no such answer the wait ends as `Unavailable` or `OutcomeUnknown`: for that it is asked a last time at the
    /// limit, and has two seconds to answer. So a wait takes as long as its limit and the answer of the store together, and at
    /// most two seconds more than its limit. Where another task of this client is what keeps the lock, nothing is asked.
    Timeout,
    /// What was held is held no longer.
    Lost(LossCause),
    /// The server could not be reached for as long as the client puts up with it, or at the end of a wait that has a limit.
    Unavailable,
    /// It may or may not have happened; what may be left behind is being removed in the background. A wait with a limit ends so
    /// where the store is silent: whether the lock is free is not known.
    OutcomeUnknown,
    /// The backend cannot do it; nothing was sent.
    Unsupported,
    /// The request makes no sense as it is; nothing was sent.
    Invalid,
    /// The server, or the file system, refuses this client.
    Denied,
    /// The client was closed, or the runtime that it was opened in ended, or this process is a fork of the one that opened it.
    Closed,
    /// Those who wait for each other would wait for ever, or an owner for itself.
    Deadlock,
    /// Another thread ended the wait. Nothing is held.
    Interrupted,
    /// What was waited for cannot come any more: a barrier that broke, a latch that was taken away.
    Broken,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, op: &'static str, text: impl Into<String>) -> Self {
        Error { kind, op, resource: None, text: text.into(), source: None }
    }

    pub(crate) fn on(mut self, resource: &Resource) -> Self {
        self.resource = Some(resource.clone());
        self
    }

    /// Returns whether the store did not answer, so that what was asked is not known.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
    }

    pub(crate) fn timeout(waited: Duration, resource: &Resource) -> Self {
        let text = format!("not free within {waited:.1?}; nothing is held");
        Error::new(ErrorKind::Timeout, "lock", text).on(resource)
    }

    /// The end of a wait with a limit, when the store did not answer any more.
    pub(crate) fn unheard(waited: Duration) -> Self {
        let text = format!(
            "not granted within {waited:.1?}, and the store does not answer: whether it is free is not known"
        );
        Error::new(ErrorKind::OutcomeUnknown, "lock", text)
    }

    /// The same with the reason why the store was not of use.
    #[must_use]
    pub(crate) fn after(mut self, waited: Duration) -> Self {
        if matches!(self.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown) {
            self.text = format!("not granted within {waited:.1?}, and the store fails: {}", self.text);
        }
        self
    }

    pub(crate) fn lost(op: &'static str, cause: LossCause, resource: &Resource) -> Self {
        Error::new(ErrorKind::Lost(cause), op, format!("the lock was lost: {cause}")).on(resource)
    }

    /// What is said of a client that nobody can use any more.
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
        let text = failure.detail().to_owned();
        Error { kind, op, resource: None, text, source: Some(Box::new(failure)) }
    }

    pub(crate) fn with_op(mut self, op: &'static str) -> Self {
        self.op = op;
        self
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was being done: `open`, `lock`, `release`, `check`, `run`, `inspect`, `list`, `deadlocks`, `break`.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// What it was being done to.
    pub fn resource(&self) -> Option<&Resource> {
        self.resource.as_ref()
    }

    /// Whether the operation may have taken effect although it failed.
    pub fn may_have_happened(&self) -> bool {
        self.kind == ErrorKind::OutcomeUnknown
    }

    /// Whether this is the loss of a lock that was held.
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
        if self.kind == ErrorKind::OutcomeUnknown {
            f.write_str(" (it may have happened; leftovers are removed in the background)")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|failure| failure as &(dyn StdError + 'static))
    }
}

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

    #[test]
    fn the_text_says_what_where_and_whether() {
        let resource = Resource::new("orders/42").unwrap();
        let error = Error::timeout(Duration::from_millis(1500), &resource);
        assert_eq!(error.to_string(), "lock orders/42: not free within 1.5s; nothing is held");
        assert!(!error.may_have_happened());
        let error = Error::failed("lock", Failure::unanswered("no answer in 5 s")).on(&resource);
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert!(error.may_have_happened() && error.to_string().contains("may have happened"));
    }
}
