//! Meaning of an error of PostgreSQL, or of the way to it: of what kind it is, and whether it may have
//! happened.

use leasehold_core::{Effect, Failure, FailureKind};
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The reason why a statement has no result.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another transaction was first. The server did nothing; another read shows why.
    LostRace,
    /// The table, or a part of it, is not there.
    NoTable(Failure),
    /// The statement was ended by its time limit, or cancelled by the client that waited for it.
    Cancelled(Failure),
    /// Anything else.
    Failed(Failure),
}

impl Refusal {
    /// Returns the refusal of a statement that was sent.
    pub(crate) fn of(error: Error) -> Refusal {
        let Some(cause) = error.as_db_error() else {
            let failure = if error.is_closed() || was_sent(&error) {
                Failure::unanswered(format!("the connection to PostgreSQL ended: {}", root(&error)))
            } else {
                let text = format!("PostgreSQL answered what cannot be read: {}", root(&error));
                Failure::new(FailureKind::Unsupported, Effect::Unknown, text)
            };
            return Refusal::Failed(failure.because(error));
        };
        let code = cause.code().clone();
        if [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ]
        .contains(&code)
        {
            return Refusal::LostRace;
        }
        // An ERROR undoes its statement; a worse one ends the session, at an unknown instant. A pooler reports the end of
        // its connection to the server as an ERROR, too.
        let is_undone = is_error(cause) && !code.code().starts_with(CONNECTION_EXCEPTION);
        let effect = if is_undone { Effect::None } else { Effect::Unknown };
        let text = describe(&code, cause.message());
        let failure = Failure::new(kind(&code), effect, text).because(error);
        match code {
            SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
                Refusal::NoTable(failure)
            }
            SqlState::QUERY_CANCELED => Refusal::Cancelled(failure),
            _ => Refusal::Failed(failure),
        }
    }

    /// Returns the failure of an attempt to connect: nothing was asked yet.
    pub(crate) fn of_login(error: Error, endpoint: &str) -> Failure {
        let (kind, text) = match error.as_db_error() {
            Some(cause) => (kind(cause.code()), describe(cause.code(), cause.message())),
            // The client has no kind of its own for it: it says so before anything of the login is sent.
            None if root(&error).contains("password missing") => {
                (FailureKind::Denied, format!("the server asks for a password; {A_PASSWORD}"))
            }
            None => (FailureKind::Unavailable, root(&error)),
        };
        Failure::new(kind, Effect::None, format!("{endpoint}: {text}")).because(error)
    }

    /// Returns `true` if the server did nothing that lasts, and the session is as before.
    pub(crate) fn is_without_effect(&self) -> bool {
        match self {
            Refusal::LostRace => true,
            Refusal::NoTable(failure) | Refusal::Cancelled(failure) | Refusal::Failed(failure) => {
                failure.effect == Effect::None
            }
        }
    }

    /// Converts it to a failure, where no race can have been lost, or nothing else is left to do about it.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Refusal::LostRace => Failure::unavailable("another transaction was in the way: try again"),
            Refusal::NoTable(failure) | Refusal::Cancelled(failure) | Refusal::Failed(failure) => failure,
        }
    }
}

/// The class of errors of a connection.
const CONNECTION_EXCEPTION: &str = "08";

/// Checks that it is a plain error. The severity for people is in the language of the server's messages; the
/// other one is missing in the messages of a pooler, which are in English.
fn is_error(cause: &DbError) -> bool {
    cause.parsed_severity().map_or(cause.severity() == "ERROR", |severity| severity == Severity::Error)
}

/// The advice on where a password can come from.
const A_PASSWORD: &str = "check the user and the password, from the URL, password-file or PGPASSWORD";

fn kind(code: &SqlState) -> FailureKind {
    match code.code().get(..2).unwrap_or_default() {
        "28" => FailureKind::Denied,
        "42" if *code == SqlState::INSUFFICIENT_PRIVILEGE => FailureKind::Denied,
        "3D" | "3F" | "42" => FailureKind::Unsupported,
        "0A" | "22" | "23" => FailureKind::Invalid,
        _ => FailureKind::Unavailable,
    }
}

/// Returns the message of PostgreSQL, and what the person can do.
fn describe(code: &SqlState, message: &str) -> String {
    let advice = match *code {
        SqlState::READ_ONLY_SQL_TRANSACTION => "it is a standby or set read-only: connect to the primary",
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "grant what `leasehold schema --store` prints, to the user of the URL"
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            "create what `leasehold schema --store` prints"
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => A_PASSWORD,
        SqlState::TOO_MANY_CONNECTIONS => "lower connections= of the URL, or raise max_connections",
        SqlState::QUERY_CANCELED => "it took longer than timeout= of the URL",
        SqlState::OUT_OF_MEMORY => {
            "where it is the memory for locks, raise max_locks_per_transaction, or use method=row"
        }
        SqlState::DISK_FULL => "make room on the server's disk",
        _ => "",
    };
    match advice {
        "" => message.to_owned(),
        advice => format!("{message}; {advice}"),
    }
}

/// Returns `true` if the way to the server broke, rather than the reading of its answer.
fn was_sent(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn root(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// Returns what a client makes of an error of this severity and code, in the bytes of the wire.
    async fn refused(severity: &str, code: &str) -> Refusal {
        let (near, mut far) = duplex(4096);
        let fields = format!("S{severity}\0V{severity}\0C{code}\0Mno\0\0");
        let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        let refusal = [&b"E"[..], &length, fields.as_bytes()].concat();
        let server = tokio::spawn(async move {
            // The login, and then one statement.
            for answer in [&b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"[..], &*refusal] {
                assert_ne!(far.read(&mut [0; 1024]).await.unwrap(), 0);
                far.write_all(answer).await.unwrap();
            }
        });
        let login = tokio_postgres::Config::new().user("u").connect_raw(near, tokio_postgres::NoTls).await;
        let (client, connection) = login.unwrap();
        let connection = tokio::spawn(connection);
        let refusal = Refusal::of(client.simple_query("SELECT 1").await.unwrap_err());
        server.await.unwrap();
        drop(connection);
        refusal
    }

    #[tokio::test]
    async fn each_error_says_whether_it_happened_and_what_to_do() {
        for code in ["40001", "40P01", "55P03"] {
            assert!(matches!(refused("ERROR", code).await, Refusal::LostRace), "{code}");
        }
        for code in ["42P01", "42703", "3F000"] {
            let refusal = refused("ERROR", code).await;
            assert!(refusal.is_without_effect() && matches!(refusal, Refusal::NoTable(_)), "{code}");
        }
        assert!(matches!(refused("ERROR", "57014").await, Refusal::Cancelled(_)));
        for (severity, code, kind, effect, hint) in [
            ("ERROR", "57014", FailureKind::Unavailable, Effect::None, "timeout="),
            ("ERROR", "25006", FailureKind::Unavailable, Effect::None, "the primary"),
            ("ERROR", "53100", FailureKind::Unavailable, Effect::None, "make room"),
            ("ERROR", "42501", FailureKind::Denied, Effect::None, "leasehold schema"),
            ("ERROR", "28P01", FailureKind::Denied, Effect::None, "PGPASSWORD"),
            ("ERROR", "42P01", FailureKind::Unsupported, Effect::None, "leasehold schema"),
            ("ERROR", "3D000", FailureKind::Unsupported, Effect::None, "no"),
            ("ERROR", "22021", FailureKind::Invalid, Effect::None, "no"),
            // What ends the session, or a pooler's connection to the server, may have come after a commit.
            ("FATAL", "57P01", FailureKind::Unavailable, Effect::Unknown, "no"),
            ("PANIC", "XX000", FailureKind::Unavailable, Effect::Unknown, "no"),
            ("ERROR", "08006", FailureKind::Unavailable, Effect::Unknown, "no"),
            ("ERROR", "08P01", FailureKind::Unavailable, Effect::Unknown, "no"),
        ] {
            let refusal = refused(severity, code).await;
            assert_eq!(refusal.is_without_effect(), effect == Effect::None, "{code}");
            let failure = refusal.into_failure();
            assert_eq!((failure.kind, failure.effect), (kind, effect), "{code}");
            assert!(failure.detail().contains(hint), "{code}: {failure}");
        }
    }
}
