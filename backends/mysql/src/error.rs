//! Meaning of an error of the server, or of the way to it: of what kind it is, and whether it may have
//! happened.

use std::ops::RangeInclusive;

use leasehold_backend::connecting::{cannot_connect, cannot_secure, is_of_tls};
use leasehold_core::{Effect, Failure, FailureKind};
use mysql_async::{DriverError, Error, IoError, ServerError};

/// The reason why a statement has no result.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another transaction was first. The server did nothing; another read shows why.
    LostRace,
    /// Another transaction keeps a row locked, and did so for as long as the statement was to wait.
    RowLocked(Failure),
    /// The table, or a part of it, is not there.
    NoTable(Failure),
    /// Anything else.
    Failed(Failure),
}

impl Refusal {
    /// Returns the refusal of a statement that was sent.
    pub(crate) fn of(error: Error) -> Refusal {
        let Error::Server(cause) = &error else {
            let text = format!("the connection to the server ended: {}", root(&error));
            return Refusal::Failed(Failure::unanswered(text).because(error));
        };
        if matches!(cause.code, DEADLOCK | ROLLED_BACK | CHANGED | NO_CONNECTION) {
            return Refusal::LostRace;
        }
        let is_unknown = ENDS_SESSION.contains(&cause.code) || OF_CLIENTS.contains(&cause.code);
        let effect = if is_unknown { Effect::Unknown } else { Effect::None };
        let (code, text) = (cause.code, describe(cause));
        let failure = Failure::new(kind(code), effect, text).because(error);
        match code {
            NO_TABLE | NO_COLUMN => Refusal::NoTable(failure),
            TIMED_OUT | NOT_WAITED => Refusal::RowLocked(failure),
            _ => Refusal::Failed(failure),
        }
    }

    /// Returns the failure of an attempt to connect: nothing was asked yet.
    pub(crate) fn of_login(error: Error, endpoint: &str) -> Failure {
        let error = match error {
            Error::Io(IoError::Io(cause)) if is_of_tls(&cause) => {
                return cannot_secure(cause, endpoint, "check that the server speaks TLS");
            }
            Error::Io(IoError::Io(cause)) => return cannot_connect(cause, endpoint),
            error => error,
        };
        let (kind, text) = match &error {
            Error::Server(cause) => (kind(cause.code), describe(cause)),
            Error::Driver(DriverError::NoClientSslFlagFromServer) => (
                FailureKind::Unsupported,
                "it speaks no TLS: set that up, or write sslmode=disable".to_owned(),
            ),
            Error::Driver(
                cause @ (DriverError::UnknownAuthPlugin { .. } | DriverError::CleartextPluginDisabled),
            ) => (FailureKind::Unsupported, format!("{cause} Give the user another way to log in")),
            other => (FailureKind::Unavailable, root(other)),
        };
        Failure::new(kind, Effect::None, format!("{endpoint}: {text}")).because(error)
    }

    /// Converts it to a failure, where no race can have been lost, or nothing else is left to do about it.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Refusal::LostRace => Failure::unavailable("another transaction was in the way: try again"),
            Refusal::RowLocked(failure) | Refusal::NoTable(failure) | Refusal::Failed(failure) => failure,
        }
    }
}

/// Returns the text of an error of the client without those around it, which repeat it.
fn root(error: &Error) -> String {
    let mut root: &dyn std::error::Error = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

fn kind(code: u16) -> FailureKind {
    match code {
        // Access denied to: a database, a user, a host, a user by another way, a table, a column, for want
        // of a privilege; expired.
        1044 | 1045 | 1130 | 1698 | 1142 | 1143 | 1227 | NOT_OWNER | 1820 | 1862 | 3118 | 3159 => {
            FailureKind::Denied
        }
        // No such database; what a proxy or an old server does not know.
        1049 | NO_TABLE | NO_COLUMN | 1064 | 1193 | 1235 | 1305 => FailureKind::Unsupported,
        // A name that no named lock of the server may have.
        3057 => FailureKind::Unsupported,
        // A character that a column of a foreign table has not.
        1366 | 1267 | 3854 => FailureKind::Unsupported,
        _ => FailureKind::Unavailable,
    }
}

/// Returns the message of the server, and what the person can do.
fn describe(cause: &ServerError) -> String {
    let advice = match cause.code {
        1045 | 1698 => "check the user and the password, from the URL, password-file or MYSQL_PWD",
        1044 | 1142 | 1143 | 1227 => "grant what `leasehold schema --store` prints, to the user of the URL",
        NOT_OWNER => {
            "another user of the database holds it, whose connections this one may not end: run it as that user, or GRANT \
             CONNECTION_ADMIN (MySQL), CONNECTION ADMIN (MariaDB) or SUPER (older servers) ON *.* TO the user of the URL"
        }
        1130 => "let the user of the URL log in from this machine",
        1049 => "create the database, or name another one in the URL",
        NO_TABLE | NO_COLUMN => "create what `leasehold schema --store` prints",
        1047 => {
            "it has lost most servers of its cluster, or was not yet taken in: name another one as well, or let an operator \
             decide that the others are gone"
        }
        1040 | 1203 | 1226 => "lower connections= of the URL, or raise max_connections",
        TIMED_OUT | NOT_WAITED => "another transaction keeps the row of this lock: let it end",
        1290 | 1792 | 1836 => "it is a replica or set read-only: connect to the primary",
        1021 | 1114 | 3 | 28 => "make room on the server's disk",
        1153 => "raise max_allowed_packet of the server",
        1366 | 1267 | 3854 => "take a name of plain characters, or convert the table to utf8mb4",
        1969 | 3024 => "it took longer than timeout= of the URL",
        _ => "",
    };
    let message = &cause.message;
    match advice {
        "" => format!("{message} (error {})", cause.code),
        advice => format!("{message} (error {}); {advice}", cause.code),
    }
}

const DEADLOCK: u16 = 1213;
/// A group of servers refused the change at its commit, because another server was first.
const ROLLED_BACK: u16 = 3101;
/// Another transaction has changed the row since this one first read, which MariaDB refuses under
/// `innodb_snapshot_isolation`.
const CHANGED: u16 = 1020;
/// A wait for a lock ended without it; or the lock was not waited for, which only MySQL distinguishes.
const TIMED_OUT: u16 = 1205;
const NOT_WAITED: u16 = 3572;
/// The connection to be ended has ended already.
const NO_CONNECTION: u16 = 1094;
/// The connection to be ended is of another user.
const NOT_OWNER: u16 = 1095;
const NO_COLUMN: u16 = 1054;
const NO_TABLE: u16 = 1146;
/// The server goes away, ends this connection, or (with replicas or Galera) cannot say what became of the
/// statement.
const ENDS_SESSION: [u16; 5] = [1053, 1047, 1180, 1317, 1927];
/// Errors of clients. Only a proxy sends one, about its own connection to the server.
const OF_CLIENTS: RangeInclusive<u16> = 2000..=2999;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> Refusal {
        Refusal::of(Error::Server(ServerError { code, message: "no".to_owned(), state: String::new() }))
    }

    #[test]
    fn each_error_says_whether_it_happened_and_what_to_do() {
        assert!(matches!(refused(1213), Refusal::LostRace));
        for code in [1020, 1094, 3101] {
            assert!(matches!(refused(code), Refusal::LostRace), "{code}");
        }
        assert!(matches!(refused(1146), Refusal::NoTable(_)));
        assert!(matches!((refused(1205), refused(3572)), (Refusal::RowLocked(_), Refusal::RowLocked(_))));
        for (code, kind, effect, hint) in [
            (1205, FailureKind::Unavailable, Effect::None, "let it end"),
            (1290, FailureKind::Unavailable, Effect::None, "the primary"),
            (1045, FailureKind::Denied, Effect::None, "MYSQL_PWD"),
            (1142, FailureKind::Denied, Effect::None, "leasehold schema"),
            (1095, FailureKind::Denied, Effect::None, "CONNECTION ADMIN"),
            (1049, FailureKind::Unsupported, Effect::None, "create the database"),
            (3057, FailureKind::Unsupported, Effect::None, "error 3057"),
            (1047, FailureKind::Unavailable, Effect::Unknown, "its cluster"),
            (1053, FailureKind::Unavailable, Effect::Unknown, "error 1053"),
            (1180, FailureKind::Unavailable, Effect::Unknown, "error 1180"),
            (1317, FailureKind::Unavailable, Effect::Unknown, "error 1317"),
            (1927, FailureKind::Unavailable, Effect::Unknown, "error 1927"),
            (2003, FailureKind::Unavailable, Effect::Unknown, "error 2003"),
            (2013, FailureKind::Unavailable, Effect::Unknown, "error 2013"),
        ] {
            let failure = refused(code).into_failure();
            assert_eq!((failure.kind, failure.effect), (kind, effect), "{code}");
            assert!(failure.detail().contains(hint), "{failure}");
        }
        let broken = Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        assert_eq!(Refusal::of(broken).into_failure().effect, Effect::Unknown);
    }
}
