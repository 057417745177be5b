//! Checks that all stores whose connections hold locks share.

use leasehold_core::{Failure, Finding, Severity};

/// Returns the finding about the user's right to end the connections of others, which `break` needs.
/// `all_users` names the locks that it breaks with that right, and `how_to_grant` begins the statement
/// that grants it.
pub fn break_finding(may_break: Result<bool, Failure>, all_users: &str, how_to_grant: &str) -> Finding {
    match may_break {
        Ok(true) => Finding::new("break", Severity::Good, "this user may end the connections of others")
            .meaning(format!("`leasehold break` works on {all_users}")),
        // A user of locks should have this right, and no more.
        Ok(false) => Finding::new("break", Severity::Good, "this user may end its own connections only")
            .meaning("`leasehold break` works on locks that the same user of the database holds")
            .advice(format!("{how_to_grant} the user that is to break the locks of others")),
        Err(failure) => Finding::new("break", Severity::Unknown, failure.to_string())
            .meaning("whether `leasehold break` works here is not known"),
    }
}
