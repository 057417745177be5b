//! The common parts of the URLs of lock servers: hosts, a login, options, and the files of TLS.
//!
//! Ground rules: parsing does no I/O; certificates and passwords in files are read when a connection is
//! made, so that they may be renewed while a program runs. No error and no `Debug` output repeats a
//! password, nor a URL, which may hold one. What only one kind of server has, its backend reads by itself.

mod credentials;
mod host;
mod options;
mod parts;
mod sql;
#[cfg(feature = "rustls")]
mod tls;
mod tls_files;

pub use credentials::{Credentials, reveal};
pub use host::Host;
pub use options::{duration_between, invalid, number_up_to, plain_text, redact};
pub use parts::Parts;
pub use sql::{Create, SHEDLOCK, SqlOptions, check_shedlock, nothing_to_sweep, sql_name};
#[cfg(feature = "rustls")]
pub use tls::{client_settings, trusted_authorities};
pub use tls_files::{Identity, TlsFiles};

pub use secrecy::SecretString;
