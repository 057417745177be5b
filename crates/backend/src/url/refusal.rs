//! Refusals of a URL: what is wrong with it, without what may be a part of a password.

use leasehold_core::{Effect, Failure, FailureKind};

/// Returns a failure of what was written in the URL, or in a file that it names. Nothing was sent anywhere.
pub fn invalid(detail: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, Effect::None, detail)
}

/// Returns `true` if it cannot be known which part of a URL is the password: of `x://me:a?b@host`, whose
/// password has a question mark that is not encoded, `b@host` is taken for an option.
pub fn is_ambiguous(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'))
}

/// Returns what is wrong with a URL, without its text where that may repeat a part of a password.
pub fn redact(url: &str, failure: Failure) -> Failure {
    if failure.kind != FailureKind::Invalid || !is_ambiguous(url) {
        return failure;
    }
    invalid(UNREADABLE)
}

/// The refusal of an ambiguous URL.
pub const UNREADABLE: &str = "this URL cannot be read, and is not repeated because the part before its last @ may be \
     a password: write /, ? and # in a password as %2F, %3F and %23, and an @ that is elsewhere as %40";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_part_of_a_password_is_not_repeated() {
        let of = |url| redact(url, invalid("b@host is not an option")).to_string();
        assert!(of("x://me:a?b@host").contains("%3F") && !of("x://me:a?b@host").contains("b@host"));
        assert!(of("x://me@host?b").contains("not an option"));
        let kept = redact("x://me:a?b@host", Failure::unavailable("away"));
        assert_eq!(kept.kind, FailureKind::Unavailable);
    }
}
