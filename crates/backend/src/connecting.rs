//! Failures of connections that could not be opened, with what a person can do about them.

use std::io;

use leasehold_core::{Effect, Failure, FailureKind};

/// Returns the failure of an attempt to connect to `address` over the network. Nothing was sent.
///
/// It may pass, also where a rule of this machine or of the network forbids the connection.
pub fn cannot_connect(error: io::Error, address: &str) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing listens there: start the server, or correct the URL",
        io::ErrorKind::TimedOut | io::ErrorKind::PermissionDenied => "check for a firewall in between",
        _ => "check the host name, the network and the server",
    };
    Failure::unavailable(format!("cannot connect to {address} ({error}): {advice}")).because(error)
}

/// Returns the failure of an attempt to open the Unix socket at `path`. Nothing was sent.
pub fn cannot_open_socket(error: io::Error, path: &str) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "the socket does not exist: start the server, or correct the path",
        io::ErrorKind::PermissionDenied => {
            let text = format!("{path} may not be opened by this user: {error}");
            return Failure::new(FailureKind::Denied, Effect::None, text).because(error);
        }
        _ => "nothing listens there: start the server, or correct the path",
    };
    Failure::unavailable(format!("cannot connect to {path} ({error}): {advice}")).because(error)
}

/// Returns `true` if TLS is the cause of an error.
#[cfg(feature = "rustls")]
pub fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Returns the failure of an attempt to agree on TLS with `address`. `advice` is what to check if no certificate
/// was refused. Nothing was sent.
#[cfg(feature = "rustls")]
pub fn cannot_secure(error: io::Error, address: &str, advice: &str) -> Failure {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let is_refused = cause.is_some_and(|cause| {
        matches!(cause, rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
    });
    let (kind, advice) = match is_refused {
        true => (
            FailureKind::Denied,
            "name the authority that signed the server's certificate with ?ca=path; where the server asks for a \
             certificate too, add ?cert=path&key=path",
        ),
        false => (FailureKind::Unavailable, advice),
    };
    Failure::new(kind, Effect::None, format!("no TLS with {address} ({error}): {advice}")).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_says_where_and_what_to_do() {
        let failure = cannot_connect(io::Error::from(io::ErrorKind::ConnectionRefused), "h:6379");
        assert!(failure.detail().contains("h:6379") && failure.detail().contains("start the server"));
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None));
    }

    #[test]
    fn a_socket_of_another_user_is_denied() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let failure = cannot_open_socket(denied(), "/run/db.sock");
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None));
        // A firewall says the same of a connection over the network, and may change its mind.
        assert_eq!(cannot_connect(denied(), "h:1").kind, FailureKind::Unavailable);
    }
}
