//! The common parts of the URLs of SQL databases beyond those of other servers.

use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind, QueueOrder};

use crate::url::options::{duration_between, invalid, number_up_to};

/// The options that all SQL databases with a server have, by the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlOptions {
    /// `create`: whether missing tables are made.
    pub create: Create,
    /// The `order` of the waiters for a lease.
    pub order: QueueOrder,
    /// `silence`: for how long a connection that holds locks may be silent before they count as lost.
    pub silence: Duration,
    /// `transactions`: connections that may hold or wait for a lock of their own.
    pub transactions: usize,
    /// `connections` at most for everything else.
    pub connections: usize,
    /// `timeout`: how long to wait for a connection, and for an answer.
    pub timeout: Duration,
}

/// The choice whether missing tables are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// Missing tables are made.
    Yes,
    /// Missing tables are not made.
    No,
}

impl Default for SqlOptions {
    fn default() -> SqlOptions {
        SqlOptions {
            create: Create::Yes,
            order: QueueOrder::Fifo,
            silence: Duration::from_secs(10),
            transactions: 20,
            connections: 8,
            timeout: Duration::from_secs(5),
        }
    }
}

impl SqlOptions {
    /// The names of these options.
    pub const NAMES: [&str; 6] = ["create", "order", "silence", "transactions", "connections", "timeout"];

    /// Takes an option that is one of these; `false` for all others.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, Failure> {
        let (second, longest) = (Duration::from_secs(1), Duration::from_secs(300));
        match (name, value) {
            ("create", "yes") => self.create = Create::Yes,
            ("create", "no") => self.create = Create::No,
            ("create", _) => return Err(invalid("create: write create=yes or create=no")),
            ("order", "fifo") => self.order = QueueOrder::Fifo,
            ("order", "unordered") => self.order = QueueOrder::Unordered,
            ("order", _) => return Err(invalid("order: write order=fifo or order=unordered")),
            ("silence", value) => self.silence = duration_between(name, value, second, longest)?,
            ("transactions", number) => self.transactions = number_up_to(name, number, 1000)?,
            ("connections", number) => self.connections = number_up_to(name, number, 100)?,
            ("timeout", value) => {
                self.timeout = duration_between(name, value, Duration::from_millis(10), longest)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reports a statement that was not sent: for as long as it may wait, others used all connections to
    /// `server`.
    pub fn all_busy(&self, server: &str) -> Failure {
        let SqlOptions { connections, timeout, .. } = self;
        Failure::unavailable(format!(
            "all {connections} connections to {server} were busy for {timeout:?}: raise connections= of the URL"
        ))
    }

    /// Returns how long the server keeps a silent session, at least as well as at most.
    pub fn server_timeout(&self) -> Duration {
        self.silence * 2
    }
}

/// Passes the text of the option `name` where it can be a name in SQL: plain characters only, so that
/// quoting it is all that there is to do before it is written into statements.
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
            "{name} is for the native locks: in ShedLock's table all waiters poll, and the first client that asks gets \
             the lock"
        ))),
        None => Ok(()),
    }
}

/// Returns the reason why rows other than those of leases are not swept.
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
    fn common_options_are_taken_and_others_left() {
        let mut options = SqlOptions::default();
        for (name, value) in [
            ("create", "no"),
            ("order", "unordered"),
            ("silence", "3s"),
            ("transactions", "7"),
            ("connections", "3"),
            ("timeout", "250ms"),
        ] {
            assert!(SqlOptions::NAMES.contains(&name) && options.take(name, value).unwrap(), "{name}");
        }
        let taken = SqlOptions {
            create: Create::No,
            order: QueueOrder::Unordered,
            silence: Duration::from_secs(3),
            transactions: 7,
            connections: 3,
            timeout: Duration::from_millis(250),
        };
        assert_eq!(options, taken);
        assert_eq!(options.server_timeout(), Duration::from_secs(6));
        assert!(!options.take("table", "x").unwrap());
        for (name, hint) in [
            ("create", "create=yes or create=no"),
            ("order", "order=fifo or order=unordered"),
            ("silence", "silence"),
            ("transactions", "1 to 1000"),
            ("connections", "1 to 100"),
            ("timeout", "timeout"),
        ] {
            let refusal = options.take(name, "0").unwrap_err().to_string();
            assert!(refusal.contains(hint), "{refusal}");
        }
    }

    #[test]
    fn options_that_a_dialect_fixes_are_refused() {
        let option = |name: &str| [("table".to_owned(), "a".to_owned()), (name.to_owned(), "x".to_owned())];
        assert!(check_shedlock(&option("timeout")).is_ok());
        for name in ["wait", "order", "method"] {
            let refusal = check_shedlock(&option(name)).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains("the first client that asks"), "{refusal}");
        }
    }
}
