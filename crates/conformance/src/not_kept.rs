//! The reasons why a law was not found to be kept.

use leasehold_core::{Failure, InvalidResource, InvalidShare, NoteTooLong, Unmet};

/// The reason why the check of a law ends early; the check itself says which of these it is.
#[derive(Debug)]
pub(crate) enum NotKept {
    /// The backend broke the law. This is final: no machine is so slow that it could be the machine's fault.
    Broken(String),
    /// Something came later than promised. Counts as broken unless the machine itself lost time meanwhile.
    Late(String),
    /// Something came later than promised while the store itself answered late, or so late that nothing is
    /// proven, as a trial measured. Counts as broken where it is so each time.
    Delayed(String),
    /// The backend's profile does not promise what the law is about.
    OptedOut(String),
    /// No server to check.
    Absent,
}

impl NotKept {
    pub(crate) fn broken(what: impl Into<String>) -> NotKept {
        NotKept::Broken(what.into())
    }

    pub(crate) fn late(what: impl Into<String>) -> NotKept {
        NotKept::Late(what.into())
    }
}

impl From<Failure> for NotKept {
    fn from(failure: Failure) -> NotKept {
        let text = format!("a call failed ({:?}, effect {:?}): {failure}", failure.kind, failure.effect);
        // A server on a machine that stood still is silent, and its client leaves it in time.
        if failure.is_transient() { NotKept::Late(text) } else { NotKept::Broken(text) }
    }
}

impl From<Unmet> for NotKept {
    fn from(unmet: Unmet) -> NotKept {
        NotKept::OptedOut(unmet.to_string())
    }
}

impl From<InvalidResource> for NotKept {
    fn from(error: InvalidResource) -> NotKept {
        NotKept::Broken(format!("the suite made a bad name: {error}"))
    }
}

impl From<InvalidShare> for NotKept {
    fn from(error: InvalidShare) -> NotKept {
        NotKept::Broken(format!("the suite made a bad share: {error}"))
    }
}

impl From<NoteTooLong> for NotKept {
    fn from(error: NoteTooLong) -> NotKept {
        NotKept::Broken(format!("the suite made a bad note: {error}"))
    }
}

impl From<tokio::task::JoinError> for NotKept {
    fn from(error: tokio::task::JoinError) -> NotKept {
        NotKept::Broken(format!("the backend panicked: {error}"))
    }
}

/// The result of a law, or of one of its steps.
pub(crate) type Checked<T = ()> = Result<T, NotKept>;

/// Ends the law as broken, with a formatted reason, unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::not_kept::NotKept::broken(format!($($why)+)));
        }
    };
}

pub(crate) use ensure;
