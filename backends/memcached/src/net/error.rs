//! Meaning of the server's and the network's refusals, and what a person can do about them.

use std::io;

use leasehold_backend::connection::NoAnswer;
use leasehold_core::{Effect, Failure, FailureKind, Resource};

/// Explains why a connection came to nothing before anything was asked of it.
pub(crate) fn of_greeting(error: io::Error, address: &str) -> Failure {
    let text = format!(
        "{address} ended the connection before it said what it is ({error}): check that it is memcached, without TLS as \
         memcached:// says"
    );
    Failure::unavailable(text).because(error)
}

/// Describes what came in place of a greeting.
pub(crate) fn of_strange(what: &str, address: &str) -> Failure {
    let text = format!("{address} is not a usable memcached ({what}): version 1.6 or later is needed");
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}

/// Explains why an answer is missing. A request that only reads has no effect, no matter what became of it.
pub(crate) fn of_no_answer(no_answer: NoAnswer, changes: bool, address: &str, limit: &str) -> Failure {
    let text = match no_answer {
        NoAnswer::Unsent => format!("the connection to {address} broke before this was sent"),
        NoAnswer::Broken => format!("the connection to {address} broke before the answer came"),
        NoAnswer::Late => {
            format!(
                "{address} did not answer within {limit}: check whether the server hangs, and the network"
            )
        }
    };
    if changes && no_answer != NoAnswer::Unsent {
        Failure::unanswered(text)
    } else {
        Failure::unavailable(text)
    }
}

/// Explains what an error of the server means. It did nothing.
pub(crate) fn of_text(text: &str, address: &str) -> Failure {
    let (kind, advice) = if text.contains("out of memory") {
        (
            FailureKind::Unavailable,
            "its memory is full: give it more (-m), or let it evict what is not a lock (without -M, with \
             -o temporary_ttl=86400)",
        )
    } else if text.contains("too large") {
        (FailureKind::Unsupported, "let items be larger (-I 1m)")
    } else if text.contains("authenticat") {
        (
            FailureKind::Denied,
            "write user:password@host, or password-file, or set LEASEHOLD_MEMCACHED_PASSWORD",
        )
    } else {
        (
            FailureKind::Unsupported,
            "check that it is memcached 1.6 or later, and not a proxy that knows fewer commands",
        )
    };
    Failure::new(kind, Effect::None, format!("{address} refuses ({text}): {advice}"))
}

/// Describes what came in place of an answer that makes sense here.
pub(crate) fn of_nonsense(address: &str) -> Failure {
    let text = format!(
        "{address} answered what does not belong to the request: check that it is memcached 1.6 or later"
    );
    Failure::new(FailureKind::Unsupported, Effect::Unknown, text)
}

/// Returns the failure of two names with the same key.
pub(crate) fn of_collision(asked: &Resource, stored: &Resource) -> Failure {
    let text = format!("{asked:?} and {stored:?} have the same key in memcached: rename one of them");
    Failure::new(FailureKind::Foreign, Effect::None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sent_changes_have_an_unknown_effect() {
        let effect = |no_answer, changes| of_no_answer(no_answer, changes, "a:1", "5s").effect;
        assert_eq!(effect(NoAnswer::Unsent, true), Effect::None);
        assert_eq!(effect(NoAnswer::Broken, true), Effect::Unknown);
        assert_eq!(effect(NoAnswer::Late, true), Effect::Unknown);
        assert_eq!(effect(NoAnswer::Late, false), Effect::None);
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (text, kind, hint) in [
            ("SERVER_ERROR out of memory storing object", FailureKind::Unavailable, "-m"),
            ("SERVER_ERROR object too large for cache", FailureKind::Unsupported, "-I"),
            ("CLIENT_ERROR unauthenticated", FailureKind::Denied, "user:password@host"),
            ("ERROR", FailureKind::Unsupported, "1.6"),
        ] {
            let failure = of_text(text, "a:1");
            assert_eq!((failure.kind, failure.effect), (kind, Effect::None));
            assert!(failure.detail().contains(hint), "{failure}");
        }
    }
}
