//! The options that several kinds of stores have, by the same names.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::QueueOrder;

use crate::url::option::UrlOption;

/// The option `timeout`.
pub const TIMEOUT: UrlOption<Duration> =
    UrlOption::duration("timeout", Duration::from_millis(10), Duration::from_secs(300))
        .about("how long to wait for a connection, and for an answer")
        .default("5s");

/// The option `password-file`.
pub const PASSWORD_FILE: UrlOption<PathBuf> =
    UrlOption::file("password-file").about("file that holds the password, read again at each login");

/// The option `ca`.
pub const CA: UrlOption<PathBuf> = UrlOption::file("ca")
    .about("PEM file of the authorities to trust instead of the system's, read again for each connection");

/// The option `cert`.
pub const CERT: UrlOption<PathBuf> = UrlOption::file("cert")
    .about("PEM file of the client's certificate, read again for each connection")
    .only_with(&[("key", &[])]);

/// The option `key`.
pub const KEY: UrlOption<PathBuf> =
    UrlOption::file("key").about("PEM file of the certificate's key").only_with(&[("cert", &[])]);

/// The option `order`, of waiters.
pub const ORDER: UrlOption<QueueOrder> =
    UrlOption::choice("order", &[("fifo", QueueOrder::Fifo), ("unordered", QueueOrder::Unordered)])
        .about(
            "waiters are served in queue order, or the first client that asks after a release gets the lock",
        )
        .default("fifo");

/// The option `create`.
pub const CREATE: UrlOption<Create> =
    UrlOption::choice("create", &[("yes", Create::Yes), ("no", Create::No)])
        .about("whether missing tables are created")
        .default("yes");

/// The choice whether what is missing is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It is made.
    Yes,
    /// It is an error.
    No,
}

/// The options that more than one kind of store has: one that does not have such an option says so.
pub const COMMON: &[&str] = &[
    "ca",
    "cert",
    "connections",
    "create",
    "dialect",
    "key",
    "method",
    "order",
    "password-file",
    "prefix",
    "silence",
    "sslmode",
    "table",
    "timeout",
    "transactions",
    "wait",
];
