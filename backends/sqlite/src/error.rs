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

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn only_a_disk_that_fails_leaves_a_change_in_doubt() {
        let config = SqliteConfig::parse("sqlite:locks.db").unwrap();
        for (code, kind, effect, hint) in [
            (ffi::SQLITE_BUSY, FailureKind::Unavailable, Effect::None, "open transaction"),
            (ffi::SQLITE_LOCKED, FailureKind::Unavailable, Effect::None, "open transaction"),
            (ffi::SQLITE_READONLY, FailureKind::Denied, Effect::None, "write the file"),
            (ffi::SQLITE_PERM, FailureKind::Denied, Effect::None, "write the file"),
            (ffi::SQLITE_CANTOPEN, FailureKind::Denied, Effect::None, "directory has to exist"),
            (ffi::SQLITE_FULL, FailureKind::Unavailable, Effect::None, "space"),
            (ffi::SQLITE_NOTADB, FailureKind::Foreign, Effect::None, "name another"),
            (ffi::SQLITE_CORRUPT, FailureKind::Foreign, Effect::None, "integrity_check"),
            (ffi::SQLITE_IOERR, FailureKind::Unavailable, Effect::Unknown, "disk"),
            (ffi::SQLITE_IOERR_FSYNC, FailureKind::Unavailable, Effect::Unknown, "disk"),
            (ffi::SQLITE_ERROR, FailureKind::Unavailable, Effect::None, "what the text says"),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let failure = failure(&config, error);
            assert_eq!((failure.kind, failure.effect), (kind, effect), "{code}: {failure}");
            assert!(failure.detail().contains(hint), "{code}: {failure}");
        }
    }
}
