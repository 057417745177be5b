//! The common parts of the URLs of lock servers: hosts, a login, options, and the files of TLS.
//!
//! Ground rules: parsing does no I/O; certificates and passwords in files are read when a connection is
//! made, so that they may be renewed while a program runs. No error and no `Debug` output repeats a
//! password, nor a URL, which may hold one. What only one kind of server has, its backend reads by itself.
//!
//! Each option is declared once, as a [`UrlOption`] in the [`StoreUrls`] of its store. The parser, the errors
//! and the documentation are made of these declarations.

mod common;
mod credentials;
mod host;
mod option;
mod options;
mod parts;
mod refusal;
mod shape;
pub mod sql;
mod store_urls;
#[cfg(feature = "rustls")]
mod tls;
mod tls_files;
mod typo;

pub use common::{CA, CERT, COMMON, CREATE, Create, KEY, ORDER, PASSWORD_FILE, TIMEOUT};
pub use credentials::{Credentials, is_exposed, reveal, warn_of_exposed_password};
pub use host::Host;
pub use option::{AnyOption, Requirement, UrlOption};
pub use options::Options;
pub use parts::Parts;
pub use refusal::{UNREADABLE, invalid, is_ambiguous, redact};
pub use sql::SqlOptions;
pub use store_urls::{Lack, Scheme, StoreUrls};
#[cfg(feature = "rustls")]
pub use tls::{client_settings, trusted_authorities};
pub use tls_files::{Identity, TlsFiles};
pub use typo::meant;

pub use secrecy::SecretString;
