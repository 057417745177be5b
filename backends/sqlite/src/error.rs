//! The meaning of an error of SQLite for a lock.
//!
//! Every change here is one transaction, and SQLite answers after its end. So an error means that nothing
//! was changed, with one exception: a disk that fails while a transaction is being written out.

use leasehold_core::{Effect, Failure, FailureKind};
use rusqlite::ErrorCode;

use crate::config::SqliteConfig;

/// Returns the failure behind an error, and what to do about it.
pub(crate) fn failure(config: &SqliteConfig, error: rusqlite::Error) -> Failure {
    let path = config.path.display();
    let (kind, effect, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            FailureKind::Unavailable,
            Effect::None,
            "another program keeps the database locked: look for an open transaction, or raise ?timeout=",
        ),
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            FailureKind::Denied,
            Effect::None,
            "this user has to be able to write the file and its directory",
        ),
        Some(ErrorCode::CannotOpen) => (
            FailureKind::Denied,
            Effect::None,
            "its directory has to exist, and this user has to be able to write it",
        ),
        Some(ErrorCode::DiskFull) => (FailureKind::Unavailable, Effect::None, "free some space on its disk"),
        Some(ErrorCode::NotADatabase) => {
            (FailureKind::Foreign, Effect::None, "the file is no SQLite database: name another")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (FailureKind::Foreign, Effect::None, "the database is damaged: see `PRAGMA integrity_check`")
        }
        Some(ErrorCode::SystemIoFailure) => (FailureKind::Unavailable, Effect::Unknown, "see to its disk"),
        _ => (FailureKind::Unavailable, Effect::None, "see what the text says"),
    };
    Failure::new(kind, effect, format!("{path}: {error}; {advice}")).because(error)
}

/// Returns the failure for a database file that cannot be used where it is.
pub(crate) fn unsupported(config: &SqliteConfig, text: &str) -> Failure {
    Failure::new(FailureKind::Unsupported, Effect::None, format!("{}: {text}", config.path.display()))
}
