//! URLs of stores: a password in one is in no error.

use std::fmt::Display;

/// The password of the URLs that a target begins at.
const PASSWORD: &str = "s3cretword";

/// Returns the kind of a URL that was parsed: `valid`, or what `kind` says of the error.
///
/// # Panics
/// If the error has the password of the URL.
pub fn kind_of_url<T, E: Display>(
    text: &str,
    parsed: Result<T, E>,
    kind: impl FnOnce(&E) -> String,
) -> String {
    match parsed {
        Ok(_) => "valid".to_owned(),
        Err(error) => {
            // The word may be another part of the URL as well, which an error may name.
            let is_password = text.contains(&format!(":{PASSWORD}@")) && text.matches(PASSWORD).count() == 1;
            let kept = is_password && error.to_string().contains(PASSWORD);
            assert!(!kept, "an error repeats a password: {error}");
            kind(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str, error: &str) -> String {
        kind_of_url(text, Err::<(), _>(error.to_owned()), |_| "refused".to_owned())
    }

    #[test]
    fn error_without_the_password_is_a_kind() {
        assert_eq!(kind_of_url("x://h", Ok::<_, String>(()), |_| String::new()), "valid");
        assert_eq!(kind("x://u:s3cretword@h", "no such host"), "refused");
        assert_eq!(kind("x://s3cretword", "s3cretword is no host"), "refused");
    }

    #[test]
    #[should_panic = "an error repeats a password"]
    fn error_with_the_password_fails() {
        kind("x://u:s3cretword@h", "cannot read x://u:s3cretword@h");
    }
}
