//! The failure of a call to a backend, and whether it may have taken effect all the same.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The failure of a call to a backend.
///
/// Every failure says two things: its kind, and its [`Effect`]. A backend that cannot be sure reports
/// [`Effect::Unknown`]; the engine then repeats the call with the same claim, or releases it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The effect that the call may have had.
    pub effect: Effect,
    detail: Arc<str>,
    cause: Option<Arc<dyn Error + Send + Sync>>,
    release_unanswered: bool,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The server cannot be reached or does not answer in time. May pass.
    Unavailable,
    /// The server refuses this client: credentials, access list, file permissions.
    Denied,
    /// The request can never succeed as it is.
    Invalid,
    /// The operation is not supported by this backend or this server.
    Unsupported,
    /// The client was closed, or the runtime that it was opened in ended.
    Closed,
    /// Data under this name that is not ours, or is damaged. It is left untouched.
    Foreign,
}

/// The effect that a failed call may have had. No variant will be added, so a match is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The call did not take effect.
    None,
    /// The call may have taken effect.
    Unknown,
}

impl Failure {
    /// Creates a failure of `kind`. Its `detail` describes it, and says what the person can do if that is
    /// known.
    pub fn new(kind: FailureKind, effect: Effect, detail: impl Into<String>) -> Self {
        Failure { kind, effect, detail: detail.into().into(), cause: None, release_unanswered: false }
    }

    /// Creates the failure of a request that was never sent because the server could not be reached.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Failure::new(FailureKind::Unavailable, Effect::None, detail)
    }

    /// Creates the failure of a request that was sent and not answered.
    pub fn unanswered(detail: impl Into<String>) -> Self {
        Failure::new(FailureKind::Unavailable, Effect::Unknown, detail)
    }

    /// Adds the error behind the failure, for programs. Its text for a person belongs in the detail.
    #[must_use]
    pub fn because(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// Returns the same failure with another effect, for a caller that knows more than the request that failed.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Returns the failure as that of a request without an answer: `Unavailable`, and of unknown effect.
    #[must_use]
    pub fn into_unanswered(mut self) -> Self {
        self.kind = FailureKind::Unavailable;
        self.effect = Effect::Unknown;
        self
    }

    /// Marks the failure of a [`contend`](crate::Backend::contend) whose backend has sent a release of the claim and
    /// got no answer to it. The effect is unknown then.
    ///
    /// The release may still arrive, and would end a later grant of the same claim. So the engine releases the
    /// claim, and contends for another one.
    #[must_use]
    pub fn with_release_unanswered(mut self) -> Self {
        self.effect = Effect::Unknown;
        self.release_unanswered = true;
        self
    }

    /// Returns the failure of a [`contend`](crate::Backend::contend) that gave its claim up, from the failure of that
    /// release: marked as [unanswered](Failure::with_release_unanswered) unless the release had no effect.
    #[must_use]
    pub fn of_release(self) -> Self {
        match self.effect {
            Effect::None => self,
            Effect::Unknown => self.with_release_unanswered(),
        }
    }

    /// Returns `true` if a [release of the claim](Failure::with_release_unanswered) may still arrive.
    pub fn is_release_unanswered(&self) -> bool {
        self.release_unanswered
    }

    /// Returns the error behind the failure.
    ///
    /// It is not the [`source`](Error::source), which a failure does not have: the text of a failure says
    /// what its causes do, and a report of the whole chain would say it twice.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// Returns the text for a person.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns `true` if the same call may succeed later without any change.
    pub fn is_transient(&self) -> bool {
        self.kind == FailureKind::Unavailable
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        if self.effect == Effect::Unknown {
            f.write_str(" (the request may have taken effect)")?;
        }
        Ok(())
    }
}

impl Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_says_if_the_effect_is_unknown() {
        assert_eq!(Failure::unavailable("no route").to_string(), "no route");
        assert_eq!(
            Failure::unanswered("no reply").to_string(),
            "no reply (the request may have taken effect)"
        );
    }

    #[test]
    fn a_store_that_is_away_may_come_back() {
        assert!(Failure::unavailable("no route").is_transient());
        assert!(!Failure::new(FailureKind::Invalid, Effect::None, "no name").is_transient());
    }

    #[test]
    fn unanswered_release_is_of_unknown_effect() {
        let failure = Failure::unavailable("too few replicas");
        assert!(!failure.is_release_unanswered());
        let failure = failure.with_release_unanswered();
        assert_eq!((failure.is_release_unanswered(), failure.effect), (true, Effect::Unknown));
    }

    #[test]
    fn release_without_effect_does_not_count_as_unanswered() {
        assert!(!Failure::unavailable("no route").of_release().is_release_unanswered());
        assert!(Failure::unanswered("no reply").of_release().is_release_unanswered());
    }

    #[test]
    fn another_effect_leaves_text_and_cause_as_they_are() {
        let refused = Failure::new(FailureKind::Denied, Effect::None, "a node belongs to another user")
            .because(std::io::Error::other("no rights"));
        let uncertain = refused.clone().with_effect(Effect::Unknown);
        assert_eq!((uncertain.kind, uncertain.effect), (FailureKind::Denied, Effect::Unknown));
        assert_eq!(uncertain.detail(), refused.detail());
        let again = uncertain.into_unanswered();
        assert_eq!((again.kind, again.effect), (FailureKind::Unavailable, Effect::Unknown));
        let text = again.to_string();
        assert_eq!(text.matches("may have taken effect").count(), 1, "{text}");
        assert_eq!(again.cause().map(ToString::to_string), Some("no rights".to_owned()));
    }

    #[test]
    fn cause_is_for_programs_and_is_not_printed_again() {
        let failure = Failure::unanswered("no reply (reset)").because(std::io::Error::other("reset"));
        assert_eq!(failure.cause().map(ToString::to_string), Some("reset".to_owned()));
        assert!(failure.source().is_none());
    }
}
