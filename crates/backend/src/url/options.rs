//! Options of a URL that several servers share, and complaints about them.

use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind};

/// Returns a failure of what was written in the URL, or in a file that it names. Nothing was sent anywhere.
pub fn invalid(detail: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, Effect::None, detail)
}

/// Returns what is wrong with a URL, without its text where that may repeat a part of a password: of
/// `x://me:a?b@host`, whose password has a question mark that is not encoded, `b@host` is taken for an
/// option.
pub fn redact(url: &str, failure: Failure) -> Failure {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let is_ambiguous = rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'));
    if failure.kind != FailureKind::Invalid || !is_ambiguous {
        return failure;
    }
    invalid(
        "this URL cannot be read: write /, ? and # in a password as %2F, %3F and %23, and an @ that is elsewhere as %40",
    )
}

/// Reads the duration of the option `name`, in these bounds.
///
/// # Errors
/// `Invalid`, with how it is written, or with the bounds.
pub fn duration_between(name: &str, value: &str, min: Duration, max: Duration) -> Result<Duration, Failure> {
    let duration = humantime::parse_duration(value)
        .map_err(|error| invalid(format!("{name}={value}: {error}; write {name}=5s")))?;
    if !(min..=max).contains(&duration) {
        let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
        return Err(invalid(format!("{name}: write a duration between {min} and {max}")));
    }
    Ok(duration)
}

/// Passes the text of the option `name`, which is 1 to `max` of ASCII letters, digits and `others`.
///
/// # Errors
/// `Invalid`, with the characters that it may have.
pub fn plain_text(name: &str, value: &str, max: usize, others: &str) -> Result<String, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    if value.is_empty() || value.len() > max || !value.chars().all(plain) {
        let others: Vec<String> = others.chars().map(String::from).collect();
        let others = others.join(" ");
        return Err(invalid(format!("{name}: write 1 to {max} of the characters A-Z a-z 0-9 {others}")));
    }
    Ok(value.to_owned())
}

/// Reads the number of the option `name`, from 1 to `max`.
///
/// # Errors
/// `Invalid`, with the bounds.
pub fn number_up_to(name: &str, value: &str, max: usize) -> Result<usize, Failure> {
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| invalid(format!("{name}: write a number from 1 to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(number_up_to("connections", "8", 100).unwrap(), 8);
        for bad in ["0", "101", "-1", "x", ""] {
            let refusal = number_up_to("connections", bad, 100).unwrap_err().to_string();
            assert!(refusal.contains("connections: write a number from 1 to 100"), "{refusal}");
        }
    }

    #[test]
    fn refusal_names_bounds_and_form() {
        let (min, max) = (Duration::from_millis(10), Duration::from_secs(300));
        let read = |value| duration_between("timeout", value, min, max);
        assert_eq!(read("2s").unwrap(), Duration::from_secs(2));
        assert!(read("soon").unwrap_err().to_string().contains("timeout=5s"));
        assert!(read("1h").unwrap_err().to_string().contains("between 10ms and 5m"));
        assert_eq!(plain_text("prefix", "a/b", 3, "/").unwrap(), "a/b");
        for bad in ["", "a/bc", "a b", "ä"] {
            let refusal = plain_text("prefix", bad, 3, "._/").unwrap_err().to_string();
            assert!(
                refusal.contains("prefix: write 1 to 3 of the characters A-Z a-z 0-9 . _ /"),
                "{refusal}"
            );
        }
    }
}
