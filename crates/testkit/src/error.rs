//! The errors of the kit when it cannot do what a test asked for.
//!
//! Every text names what failed and what a person can do about it. Tests only distinguish one kind, a
//! program that is not installed, because that one alone may end a test as skipped.

use std::fmt;

/// Why a server could not be started, asked or harmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    text: String,
}

/// The kinds of errors that the kit itself must distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    PortTaken,
    Unanswered,
    Failed,
}

impl Error {
    /// Returns `true` if the server's program is not installed, so that a test may end as skipped.
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    pub(crate) fn missing(program: &str, package: &str) -> Self {
        let text = format!("{program} is not installed (apt-get install {package})");
        Self { kind: Kind::Missing, text }
    }

    /// Returns the error of something that is missing for another reason, and need not exist.
    pub(crate) fn absent(text: impl Into<String>) -> Self {
        Self { kind: Kind::Missing, text: text.into() }
    }

    /// Returns the error of a port that another program took between the choice and the server's start:
    /// another port is worth trying.
    pub(crate) fn port_taken(text: impl Into<String>) -> Self {
        Self { kind: Kind::PortTaken, text: text.into() }
    }

    /// Returns the error of a question that a server did not answer in time: it may be slow, and the question is
    /// worth repeating.
    pub(crate) fn unanswered(text: impl Into<String>) -> Self {
        Self { kind: Kind::Unanswered, text: text.into() }
    }

    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, text: text.into() }
    }

    pub(crate) fn is_unanswered(&self) -> bool {
        self.kind == Kind::Unanswered
    }

    pub(crate) fn is_port_taken(&self) -> bool {
        self.kind == Kind::PortTaken
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

/// Puts the doing and the path or name before a system error: `cannot <doing> <what>: <cause>`.
pub(crate) fn cannot<E: fmt::Display>(doing: &str, what: impl fmt::Display) -> impl FnOnce(E) -> Error {
    let text = format!("cannot {doing} {what}");
    move |cause| Error::failed(format!("{text}: {cause}"))
}
