//! Failures of connections that could not be opened, with what a person can do about them.

use std::io;

use leasehold_core::{Effect, Failure, FailureKind};

/// Returns the failure of an attempt to open a socket to `address`. Nothing was sent.
pub fn cannot_connect(error: io::Error, address: &str) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing listens there: start the server, or correct the URL",
        io::ErrorKind::NotFound => "the socket does not exist: start the server, or correct the path",
        io::ErrorKind::PermissionDenied => {
            let text = format!("{address} may not be opened by this user: {error}");
            return Failure::new(FailureKind::Denied, Effect::None, text).because(error);
        }
        io::ErrorKind::TimedOut => "check for a firewall in between",
        _ => "check the host name, the network and the server",
    };
    Failure::unavailable(format!("cannot connect to {address} ({error}): {advice}")).because(error)
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
        let failure = cannot_connect(io::Error::from(io::ErrorKind::PermissionDenied), "/run/db.sock");
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None));
    }
}
