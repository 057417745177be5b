//! The meaning of a server's error: try another server, log in again, or report it to the caller.
//!
//! Ground rules: a request that may have reached a server that could have carried it out is
//! `Effect::Unknown`, unless the server says that it did not. etcd's errors differ by text only, so the
//! texts are matched here and nowhere else.

use std::error::Error;

use leasehold_core::{Effect, Failure, FailureKind};
use tonic::{Code, ConnectError, Status};

use crate::net::member::{OTHER_CLUSTER, WENT_BACK};

/// An answer that is not a yes, after all that could be tried was tried.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The lease ran out, was revoked, or never was.
    NoSuchLease,
    /// The id of a new lease is taken: most likely by this very request, sent before.
    LeaseExists,
    /// The server allows fewer operations in one transaction.
    TooManyOperations,
    /// The database has reached its quota. The request was refused, or was carried out all the same; no server
    /// will carry it out later.
    NoSpace(Failure),
    /// Anything else.
    Failed(Failure),
}

impl Refusal {
    /// Returns the failure that the caller of the seam sees.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Refusal::Failed(failure) | Refusal::NoSpace(failure) => failure,
            Refusal::NoSuchLease => Failure::unavailable("the lease ended while the request was under way"),
            Refusal::LeaseExists => Failure::unavailable("no free number for a lease was found"),
            Refusal::TooManyOperations => Failure::new(
                FailureKind::Unsupported,
                Effect::None,
                "the server allows too few operations in one transaction: raise its --max-txn-ops to 8 at least",
            ),
        }
    }

    /// Returns `true` if it is the answer of another cluster than the one that this client uses.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, Refusal::Failed(failure) if failure.kind == FailureKind::Foreign)
    }

    /// Returns the failure with an unknown effect, for a request that followed one that has, or may have, changed
    /// something.
    pub(crate) fn into_uncertain(self) -> Failure {
        self.into_failure().with_effect(Effect::Unknown)
    }

    /// Returns the failure of a request that changes nothing, whatever its outcome.
    pub(crate) fn without_effect(self) -> Failure {
        self.into_failure().with_effect(Effect::None)
    }
}

/// The advice about one answer of one server.
#[derive(Clone, Debug)]
pub(crate) enum Advice {
    /// Another server, or the same one later, may do better.
    TryElsewhere(Failure),
    /// The token is not valid any more.
    LogInAgain(Failure),
    /// The same request will be refused by every server.
    GiveUp(Refusal),
}

/// Reads one error of one server.
pub(crate) fn judge(status: &Status) -> Advice {
    if was_never_sent(status) {
        let detail = format!("no etcd server can be reached: {}", root_cause(status));
        return Advice::TryElsewhere(Failure::unavailable(detail));
    }
    // An error that did not come from a server: the connection broke, or something else listens there. Its code is
    // made up from the cause, and says nothing about what the server did.
    if status.source().is_some() {
        let detail = format!(
            "the connection to an etcd server broke ({}): check that it speaks etcd, and TLS where the URL says etcds://",
            root_cause(status)
        );
        return Advice::TryElsewhere(Failure::unanswered(detail));
    }
    let has = |part: &str| status.message().contains(part);
    let unable =
        |advice| Advice::TryElsewhere(failure_of(status, FailureKind::Unavailable, Effect::None, advice));
    match status.code() {
        // The server says these before it does anything. The code of the first two is another one since 3.6.
        _ if has("not supported for learner") => unable("name the members that vote"),
        _ if has("not capable") => unable("the cluster has no quorum"),
        Code::Unavailable if has("no leader") => unable("the cluster has no quorum"),
        Code::ResourceExhausted if has("too many requests") => unable(""),
        Code::NotFound if has("requested lease not found") => Advice::GiveUp(Refusal::NoSuchLease),
        Code::FailedPrecondition if has("lease already exists") => Advice::GiveUp(Refusal::LeaseExists),
        Code::InvalidArgument if has("too many operations") => Advice::GiveUp(Refusal::TooManyOperations),
        Code::Unauthenticated => Advice::LogInAgain(denied(status, "the login was not accepted")),
        Code::InvalidArgument if has("revision of auth store is old") => {
            Advice::LogInAgain(denied(status, "roles changed while this was under way"))
        }
        // A request that was agreed on before the quota was reached is carried out, and is answered like this, too.
        Code::ResourceExhausted if has("database space exceeded") => {
            let advice = "compact and defragment the cluster, then `etcdctl alarm disarm`";
            Advice::GiveUp(Refusal::NoSpace(failure_of(
                status,
                FailureKind::Unavailable,
                Effect::Unknown,
                advice,
            )))
        }
        // If the request was carried out, it was carried out by the other one.
        Code::DataLoss if has(OTHER_CLUSTER) => {
            let advice =
                "name the servers of one cluster only, and open the store anew where it was replaced";
            Advice::GiveUp(Refusal::Failed(failure_of(status, FailureKind::Foreign, Effect::Unknown, advice)))
        }
        // Every member of a cluster that was wiped or restored says this. A member of an old version may also have
        // answered with old data: another one does better.
        Code::DataLoss if has(WENT_BACK) => Advice::TryElsewhere(failure_of(
            status,
            FailureKind::Foreign,
            Effect::Unknown,
            "it was wiped or restored from a backup, so open the store anew",
        )),
        Code::DataLoss if has("corrupt") => {
            let advice =
                "its servers hold different data: see `etcdctl alarm list` and etcd's page on corruption";
            Advice::GiveUp(Refusal::Failed(failure_of(
                status,
                FailureKind::Unavailable,
                Effect::None,
                advice,
            )))
        }
        Code::PermissionDenied
        | Code::Unimplemented
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange => Advice::GiveUp(Refusal::Failed(refused(status))),
        _ => Advice::TryElsewhere(failure_of(status, FailureKind::Unavailable, Effect::Unknown, "")),
    }
}

/// Returns the failure for a refusal that every server makes, without any effect.
fn refused(status: &Status) -> Failure {
    let has = |part: &str| status.message().contains(part);
    match status.code() {
        Code::PermissionDenied => denied(status, "give the user's role readwrite permission on the prefix"),
        Code::InvalidArgument if has("user name is empty") => {
            denied(status, "this cluster wants a login: write etcd://user:password@host")
        }
        Code::InvalidArgument if has("authentication failed") => denied(status, "check user and password"),
        Code::FailedPrecondition if has("authentication is not enabled") => {
            denied(status, "this cluster knows no users: leave the user out of the URL")
        }
        Code::Unimplemented => {
            failure_of(status, FailureKind::Unsupported, Effect::None, "etcd 3.4 or later is needed")
        }
        _ => failure_of(status, FailureKind::Invalid, Effect::None, ""),
    }
}

fn denied(status: &Status, advice: &str) -> Failure {
    failure_of(status, FailureKind::Denied, Effect::None, advice)
}

fn failure_of(status: &Status, kind: FailureKind, effect: Effect, advice: &str) -> Failure {
    let text = status.message();
    let detail = if advice.is_empty() { format!("etcd: {text}") } else { format!("etcd: {text}: {advice}") };
    Failure::new(kind, effect, detail)
}

/// Returns `true` if no connection existed that the request could have left on.
fn was_never_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn root_cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_errors_have_unknown_effect() {
        let effect = |code, text: &str| match judge(&Status::new(code, text)) {
            Advice::TryElsewhere(failure) => failure.effect,
            other => panic!("{other:?}"),
        };
        assert_eq!(effect(Code::Unavailable, "etcdserver: request timed out"), Effect::Unknown);
        assert_eq!(effect(Code::Unavailable, "etcdserver: leader changed"), Effect::Unknown);
        assert_eq!(effect(Code::Unknown, "transport error"), Effect::Unknown);
        assert_eq!(effect(Code::Internal, "h2 protocol error"), Effect::Unknown);
        assert_eq!(effect(Code::Unavailable, "etcdserver: no leader"), Effect::None);
        assert_eq!(effect(Code::ResourceExhausted, "etcdserver: too many requests"), Effect::None);
    }

    #[test]
    fn a_member_that_cannot_serve_is_left_for_another_under_every_code() {
        for text in ["etcdserver: rpc not supported for learner", "etcdserver: not capable"] {
            for code in [Code::Unavailable, Code::FailedPrecondition] {
                let advice = judge(&Status::new(code, text));
                let Advice::TryElsewhere(failure) = &advice else { panic!("{code:?} {text}: {advice:?}") };
                assert_eq!(
                    (failure.kind, failure.effect),
                    (FailureKind::Unavailable, Effect::None),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn what_is_refused_for_lack_of_space_may_have_been_carried_out() {
        let status = Status::new(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        let Advice::GiveUp(refusal) = judge(&status) else { panic!("every server refuses it") };
        assert_eq!(refusal.into_failure().effect, Effect::Unknown);
    }

    #[test]
    fn a_broken_connection_has_unknown_effect_under_every_code() {
        let codes = [
            Code::ResourceExhausted,
            Code::PermissionDenied,
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::OutOfRange,
            Code::Unauthenticated,
            Code::Unavailable,
            Code::Cancelled,
        ];
        for code in codes {
            // The text of the cause may be any.
            let mut status = Status::new(code, "h2 protocol error: no leader");
            status.set_source(std::sync::Arc::new(std::io::Error::other(
                "connection error received: enhance your calm",
            )));
            let advice = judge(&status);
            let Advice::TryElsewhere(failure) = &advice else { panic!("{code:?}: {advice:?}") };
            assert_eq!(failure.effect, Effect::Unknown, "{code:?}");
        }
    }

    #[test]
    fn an_answer_that_was_too_large_has_unknown_effect() {
        let text = "grpc: trying to send message larger than max (3000000 vs. 2097152)";
        let Advice::TryElsewhere(failure) = judge(&Status::new(Code::ResourceExhausted, text)) else {
            panic!()
        };
        assert_eq!(failure.effect, Effect::Unknown);
    }

    #[test]
    fn what_a_person_has_to_do_is_said() {
        for (code, text, kind, hint) in [
            (Code::PermissionDenied, "etcdserver: permission denied", FailureKind::Denied, "readwrite"),
            (Code::InvalidArgument, "etcdserver: user name is empty", FailureKind::Denied, "user:password"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                FailureKind::Denied,
                "check user",
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                FailureKind::Unavailable,
                "defragment",
            ),
            (Code::Unimplemented, "unknown method", FailureKind::Unsupported, "3.4"),
        ] {
            let Advice::GiveUp(refusal) = judge(&Status::new(code, text)) else { panic!("{text}") };
            let failure = refusal.into_failure();
            assert_eq!(failure.kind, kind, "{text}");
            assert!(failure.detail().contains(hint), "{failure}");
        }
    }

    #[test]
    fn errors_with_a_remedy_are_distinguished() {
        let advice = |code, text: &str| judge(&Status::new(code, text));
        assert!(matches!(
            advice(Code::NotFound, "etcdserver: requested lease not found"),
            Advice::GiveUp(Refusal::NoSuchLease)
        ));
        assert!(matches!(
            advice(Code::FailedPrecondition, "etcdserver: lease already exists"),
            Advice::GiveUp(Refusal::LeaseExists)
        ));
        assert!(matches!(
            advice(Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            Advice::GiveUp(Refusal::TooManyOperations)
        ));
        assert!(matches!(
            advice(Code::Unauthenticated, "etcdserver: invalid auth token"),
            Advice::LogInAgain(_)
        ));
        assert!(matches!(
            advice(Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            Advice::LogInAgain(_)
        ));
    }
}
