//! The common parts of the URLs of SQL databases beyond those of other servers.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Effect, Failure, FailureKind, QueueOrder};

use crate::url::common::{self, Create};
use crate::url::option::UrlOption;
use crate::url::options::Options;
use crate::url::refusal::invalid;
use crate::url::tls_files::TlsFiles;

/// The option `sslmode`. Its words are those of PostgreSQL; those of MySQL and MariaDB are taken as well.
pub const SSLMODE: UrlOption<Tls> =
    UrlOption::choice("sslmode", &[("disable", Tls::Off), ("verify-full", Tls::Verified)])
        .also(&[
            ("disabled", "disable"),
            ("require", "verify-full"),
            ("required", "verify-full"),
            ("verify-ca", "verify-full"),
            ("verify-identity", "verify-full"),
        ])
        .about(
            "whether the connection has TLS, with a verified certificate and host name; weaker modes that require TLS \
             are taken as `verify-full`",
        )
        .default("disable")
        .hint("a mode that prefers TLS would continue without it if an attacker on the way asks for that");

/// The option `ca` of a database.
pub const CA: UrlOption<PathBuf> = common::CA.only_with(&[("sslmode", &["verify-full"])]);

/// The option `cert` of a database.
pub const CERT: UrlOption<PathBuf> = common::CERT.only_with(&[("key", &[]), ("sslmode", &["verify-full"])]);

/// The option `key` of a database.
pub const KEY: UrlOption<PathBuf> = common::KEY.only_with(&[("cert", &[]), ("sslmode", &["verify-full"])]);

/// The option `order` of leases in rows.
pub const ORDER: UrlOption<QueueOrder> = common::ORDER.only_with(&[("method", &["row"])]);

/// The option `silence`.
pub const SILENCE: UrlOption<Duration> = UrlOption::duration(
    "silence",
    Duration::from_secs(1),
    Duration::from_secs(300),
)
.about(
    "how long a connection may be silent before its locks count as lost; the server keeps them for twice as \
             long",
)
.default("10s");

/// The option `transactions`.
pub const TRANSACTIONS: UrlOption<usize> = UrlOption::number("transactions", 1, 1000)
    .about("connections that may hold or wait for a lock")
    .default("20")
    .only_with(&[("method", &["for-update"])]);

/// The option `connections`.
pub const CONNECTIONS: UrlOption<usize> = UrlOption::number("connections", 1, 100)
    .about("connections at most, beside those of `transactions`")
    .default("8");

/// The choice whether connections have TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// They have none.
    Off,
    /// Certificate and host name are verified.
    Verified,
}

/// The options that all SQL databases with a server have, by the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlOptions {
    /// `sslmode`: whether connections have TLS.
    pub tls: Tls,
    /// The files of TLS.
    pub tls_files: TlsFiles,
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

impl SqlOptions {
    /// Reads them.
    ///
    /// # Errors
    /// `Invalid` if one has a value that is not allowed.
    pub fn of(options: &Options) -> Result<SqlOptions, Failure> {
        Ok(SqlOptions {
            tls: options.get(&SSLMODE)?,
            tls_files: TlsFiles::of(options)?,
            create: options.get(&common::CREATE)?,
            order: options.get(&ORDER)?,
            silence: options.get(&SILENCE)?,
            transactions: options.get(&TRANSACTIONS)?,
            connections: options.get(&CONNECTIONS)?,
            timeout: options.get(&common::TIMEOUT)?,
        })
    }

    /// Refuses TLS if one of the endpoints is a unix socket.
    ///
    /// # Errors
    /// `Invalid`, with what to write instead.
    pub fn check_sockets<E>(&self, endpoints: &[E], is_socket: impl Fn(&E) -> bool) -> Result<(), Failure> {
        if self.tls == Tls::Verified && endpoints.iter().any(is_socket) {
            return Err(invalid("a unix socket has no TLS: take sslmode away"));
        }
        Ok(())
    }

    /// Returns how long the server keeps a silent session, at least as well as at most.
    pub fn server_timeout(&self) -> Duration {
        self.silence * 2
    }
}

/// The table of ShedLock's dialect, as ShedLock's documentation names it.
pub const SHEDLOCK: &str = "shedlock";

/// Refuses options that choose what ShedLock's table leaves no choice of.
///
/// # Errors
/// `Invalid`, with the reason.
pub fn check_shedlock(options: &Options) -> Result<(), Failure> {
    match ["wait", "order", "method"].into_iter().find(|name| options.has(name)) {
        Some(name) => Err(invalid(format!(
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

    fn given(name: &'static str, value: &str) -> Options {
        Options { given: vec![(name, value.to_owned())] }
    }

    #[test]
    fn common_options_are_read() {
        let options = SqlOptions::of(&Options { given: Vec::new() }).unwrap();
        assert_eq!((options.tls, options.create, options.order), (Tls::Off, Create::Yes, QueueOrder::Fifo));
        assert_eq!((options.transactions, options.connections), (20, 8));
        assert_eq!(
            (options.timeout, options.server_timeout()),
            (Duration::from_secs(5), Duration::from_secs(20))
        );
        assert_eq!(SqlOptions::of(&given("silence", "3s")).unwrap().server_timeout(), Duration::from_secs(6));
        for (mode, tls) in [
            ("disable", Tls::Off),
            ("DISABLED", Tls::Off),
            ("verify-full", Tls::Verified),
            ("VERIFY_IDENTITY", Tls::Verified),
            ("require", Tls::Verified),
            ("required", Tls::Verified),
            ("verify-ca", Tls::Verified),
        ] {
            assert_eq!(SqlOptions::of(&given("sslmode", mode)).unwrap().tls, tls, "{mode}");
        }
        for mode in ["prefer", "preferred", "allow", "yes", ""] {
            let refusal = SqlOptions::of(&given("sslmode", mode)).unwrap_err().to_string();
            assert!(
                refusal.contains("sslmode=disable or sslmode=verify-full; a mode that prefers"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn options_that_a_dialect_fixes_are_refused() {
        assert!(check_shedlock(&given("timeout", "x")).is_ok());
        for name in ["wait", "order", "method"] {
            let refusal = check_shedlock(&given(name, "x")).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains("the first client that asks"), "{refusal}");
        }
    }
}
