//! What the URLs of SQL databases have in common beyond those of other servers.

use leasehold_core::{Effect, Failure, FailureKind};

use crate::options::invalid;

/// Passes the text of the option `name` where it can be a name in SQL: plain characters only, so that quoting it is all
/// that there is to do before it is written into statements.
///
/// # Errors
/// `Invalid`, with the characters that it may have.
pub fn sql_name(name: &str, value: &str, max: usize) -> Result<String, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if value.len() > max || !value.starts_with(first) || !value.chars().all(plain) {
        return Err(invalid(format!("{name}: write 1 to {max} of A-Z a-z 0-9 _, no digit first")));
    }
    Ok(value.to_owned())
}

/// The table of ShedLock's dialect, as ShedLock's documentation names it.
pub const SHEDLOCK: &str = "shedlock";

/// Refuses options that choose what ShedLock's table leaves no choice of.
///
/// # Errors
/// `Invalid`, with the reason.
pub fn check_shedlock(options: &[(String, String)]) -> Result<(), Failure> {
    match options.iter().find(|(name, _)| matches!(name.as_str(), "wait" | "order" | "method")) {
        Some((name, _)) => Err(invalid(format!(
            "{name} is for the native locks: in ShedLock's table everybody asks again, and whoever asks first has it"
        ))),
        None => Ok(()),
    }
}

/// Why rows other than those of leases are not swept.
pub fn nothing_to_sweep() -> Failure {
    let text = "only leases in rows are swept: locks that connections hold leave no claims behind, and rows of other dialects \
                are for their own programs to remove";
    Failure::new(FailureKind::Unsupported, Effect::None, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_sql_are_plain() {
        assert_eq!(sql_name("table", "_Jobs1", 6).unwrap(), "_Jobs1");
        for bad in ["", "1a", "a-b", "a\"", "a`", "a;", "ä", "Jobs_12"] {
            let refusal = sql_name("table", bad, 6).unwrap_err().to_string();
            assert!(refusal.contains("table: write 1 to 6 of A-Z a-z 0-9 _, no digit first"), "{refusal}");
        }
    }

    #[test]
    fn what_a_dialect_leaves_no_choice_of_is_refused() {
        let option = |name: &str| [("table".to_owned(), "a".to_owned()), (name.to_owned(), "x".to_owned())];
        assert!(check_shedlock(&option("timeout")).is_ok());
        for name in ["wait", "order", "method"] {
            let refusal = check_shedlock(&option(name)).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains("whoever asks first"), "{refusal}");
        }
    }
}
