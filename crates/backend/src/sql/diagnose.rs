//! Checks that SQL databases share.

use leasehold_core::{Finding, Severity};

/// The rights of the user of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// To read and write the rows of locks.
    Rows,
    /// Also to create tables.
    Create,
    /// Everything.
    Everything,
}

/// Returns the finding about the rights of `user`, who needs no more than rows to read and write.
///
/// `create_user` is the statement that creates a user for the locks alone, `needed` are the grants to the user
/// of [`user_for_locks`], and `also` is what else follows from having all rights.
pub fn privileges_finding(
    user: &str,
    rights: Rights,
    create_user: &str,
    needed: &str,
    also: &str,
) -> Finding {
    let finding = |severity, found: String| Finding::new("privileges", severity, found);
    // No right can be taken from a user that may do anything by granting it less.
    let first = match rights {
        Rights::Everything => format!("{create_user}, name it in the URL, "),
        _ => String::new(),
    };
    let needed = needed.replace('\n', " ");
    let advice = format!(
        "{first}create the tables by `leasehold schema`, add create=no to the URL, and: {}",
        needed.trim()
    );
    match rights {
        Rights::Everything => finding(Severity::Notice, format!("{user} may do anything on this server"))
            .meaning(format!("so may anyone who reads this URL{also}"))
            .advice(advice),
        Rights::Create => finding(Severity::Notice, format!("{user} may create tables"))
            .meaning("that is needed for the first use only")
            .advice(advice),
        Rights::Rows => finding(Severity::Good, format!("{user} may create nothing"))
            .meaning("the locks need no more than rows to read and write"),
    }
}

/// Returns the user that needs the grants: that of the URL, or `leasehold` where that one may do anything.
pub fn user_for_locks(user: &str, rights: Rights) -> &str {
    if rights == Rights::Everything { OWN_USER } else { user }
}

/// Returns the finding that `what` could not be checked.
pub fn unexamined_finding(failure: impl Into<String>, what: &str) -> Finding {
    Finding::new("server", Severity::Unknown, failure)
        .meaning(format!("could not check {what}"))
        .advice("run it again when the server answers")
}

/// A user for the locks alone, as an example.
const OWN_USER: &str = "leasehold";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_more_rights_than_rows_gets_advice() {
        let finding = |rights| privileges_finding("app", rights, "CREATE ROLE x", "GRANT a;\nGRANT b;\n", "");
        let all = finding(Rights::Everything);
        assert!(
            all.severity == Severity::Notice && all.advice.starts_with("CREATE ROLE x, name it"),
            "{all:?}"
        );
        let create = finding(Rights::Create);
        assert!(
            create.severity == Severity::Notice && create.advice.ends_with("GRANT a; GRANT b;"),
            "{create:?}"
        );
        let rows = finding(Rights::Rows);
        assert!(rows.severity == Severity::Good && rows.advice.is_empty(), "{rows:?}");
        assert_eq!(user_for_locks("app", Rights::Everything), OWN_USER);
        assert_eq!(user_for_locks("app", Rights::Create), "app");
    }
}
