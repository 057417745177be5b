//! Why a law stopped before its end.

use leasehold_core::{Failure, InvalidResource, InvalidShare, NoteTooLong, Unmet};

/// The reason for which the check of a law ends early; the check itself says which of these it is.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The backend broke the law. This is final: no machine is so slow that it could be the machine's fault.
    Broken(String),
    /// Something came later than promised. Counts as broken unless the machine itself lost time meanwhile.
    Late(String),
    /// Something came later than promised while the store itself answered late, as a trial measured.
    /// Counts as broken where it is so each time.
    Delayed(String),
    /// The backend's profile does not promise what the law is about.
    OptedOut(String),
    /// No server to check.
    Absent,
}

impl Stop {
    pub(crate) fn broken(what: impl Into<String>) -> Stop {
        Stop::Broken(what.into())
    }

    pub(crate) fn late(what: impl Into<String>) -> Stop {
        Stop::Late(what.into())
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        let text = format!("a call failed ({:?}, effect {:?}): {failure}", failure.kind, failure.effect);
        // A server on a machine that stood still is silent, and its client leaves it in time.
        if failure.is_transient() { Stop::Late(text) } else { Stop::Broken(text) }
    }
}

impl From<Unmet> for Stop {
    fn from(unmet: Unmet) -> Stop {
        Stop::OptedOut(unmet.to_string())
    }
}

impl From<InvalidResource> for Stop {
    fn from(error: InvalidResource) -> Stop {
        Stop::Broken(format!("the suite made a bad name: {error}"))
    }
}

impl From<InvalidShare> for Stop {
    fn from(error: InvalidShare) -> Stop {
        Stop::Broken(format!("the suite made a bad share: {error}"))
    }
}

impl From<NoteTooLong> for Stop {
    fn from(error: NoteTooLong) -> Stop {
        Stop::Broken(format!("the suite made a bad note: {error}"))
    }
}

impl From<tokio::task::JoinError> for Stop {
    fn from(error: tokio::task::JoinError) -> Stop {
        Stop::Broken(format!("the backend panicked: {error}"))
    }
}

/// The result of a law, or of one of its steps.
pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// Ends the law as broken, with a formatted reason, unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::stop::Stop::broken(format!($($why)+)));
        }
    };
}

pub(crate) use ensure;
