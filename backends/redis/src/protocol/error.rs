//! The meaning of the server's and the network's refusals, and advice about them.
//!
//! An answer is known to have changed nothing when the server refused it: scripts read before they
//! write or take back what they wrote, what they write first is what may be refused, and a refusal to notify
//! others at the end is ignored. A request that was sent and not answered is of unknown effect. So is one whose
//! error is not known as a refusal: a proxy answers in place of a server that it has lost.

use std::io;

#[cfg(feature = "tls")]
use leasehold_backend::connecting::cannot_secure;
use leasehold_core::{Effect, Failure, FailureKind};
use redis::RedisError;

use crate::config::Endpoint;

/// The rules of an ACL user that may do all that leasehold asks for, under the prefix `lh`.
///
/// One constant, so that the documentation, the failures and the test that logs in with it say the same.
pub(crate) const ACL_RULES: &str = "resetkeys ~{lh:* resetchannels &{lh:* -@all +ping +select +eval +evalsha \
+script|load +time +get +mget +set +del +exists +pexpireat +pttl +zadd +zrem +zscore +zrank +zcard +zcount +zrange \
+zrangebyscore +hset +hget +hmget +hdel +publish +subscribe +unsubscribe +scan +info +config|get";

/// The advice if TLS could not be agreed on, and no certificate was refused.
#[cfg(feature = "tls")]
pub(crate) const TLS_ADVICE: &str =
    "check that the server speaks TLS on this port, and whether it needs a certificate (?cert=path&key=path)";

/// Explains why a connection ended before the server had answered on it.
pub(crate) fn of_greeting(error: io::Error, endpoint: &Endpoint) -> Failure {
    #[cfg(feature = "tls")]
    if let Endpoint::Tls { .. } = endpoint {
        return cannot_secure(error, &endpoint.to_string(), TLS_ADVICE);
    }
    Failure::unavailable(format!(
        "{endpoint} ended the connection during login ({error}): check that it speaks Redis, and without TLS as redis:// does"
    ))
    .because(error)
}

/// Explains why the server refuses a login.
pub(crate) fn of_login(text: &str, address: &str) -> Failure {
    let (kind, advice) = if text.contains("without any password configured") {
        let advice =
            "the server has no password: leave it out of the URL, the file and LEASEHOLD_REDIS_PASSWORD";
        (FailureKind::Denied, advice)
    } else if text.contains("DB index") {
        (FailureKind::Unsupported, "the server has fewer databases: correct the number in the URL")
    } else if text.contains("WRONGPASS") {
        (FailureKind::Denied, "check user and password")
    } else {
        return of_answer(text, address);
    };
    Failure::new(kind, Effect::None, format!("{address} refuses the login ({text}): {advice}"))
}

/// Returns the error of a request that never left this process: a connection that is refused is the one error of
/// the client library that says so.
pub(crate) fn unsent() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionRefused, "the connection ended").into()
}

/// Returns the error of a request that was sent, and is not answered any more.
pub(crate) fn broken() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection ended").into()
}

/// Explains why a request failed.
pub(crate) fn of_request(error: &RedisError, address: &str) -> Failure {
    if error.is_connection_refusal() {
        let text = format!("the connection to {address} broke before this was sent");
        return Failure::unavailable(text).because(error.clone());
    }
    if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
        return Failure::unanswered(format!(
            "the connection to {address} broke before the answer came ({error})"
        ))
        .because(error.clone());
    }
    let text = text_of(error);
    let mut failure = of_text(&text, address);
    if code_of(&text) == GENERIC && HALFWAY.iter().any(|part| without_echo(&text).contains(part)) {
        failure = Failure::unanswered(format!(
            "{address} gave the keys away while a script ran on them ({text}): the slot is being moved"
        ));
    }
    match error.kind() {
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => Failure::new(
            FailureKind::Unsupported,
            Effect::Unknown,
            format!("the answer of {address} is not one of Redis ({error}): check that it is a Redis server"),
        ),
        _ => failure,
    }
    .because(error.clone())
}

/// Returns `true` if the server does not know a script (any more): it then did nothing.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Returns `true` if the server refused because it is not, or no longer, the primary.
pub(crate) fn is_not_primary(error: &RedisError) -> bool {
    matches!(code_of(&text_of(error)), "READONLY" | "STALE_EPOCH" | "MASTERDOWN")
}

/// The answer of a cluster's server to a request that it does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another server serves the slot, as the one that was asked sees it. An empty host is its own.
    Moved { host: String, port: u16 },
    /// The slot is being moved, and these keys have arrived at the other server already.
    Referred { host: String, port: u16 },
    /// The slot is being moved, with some of the keys here and some there.
    Migrating,
    /// No server serves the slot for now.
    Unserved,
    /// It is not the primary any more.
    Deposed,
    /// The view under which it was asked is older than a failover.
    Outdated,
}

/// Returns where else a refused request should be sent, if anywhere.
pub(crate) fn redirect_of(error: &RedisError) -> Option<Redirect> {
    let text = text_of(error);
    match code_of(&text) {
        "READONLY" | "MASTERDOWN" => return Some(Redirect::Deposed),
        "STALE_EPOCH" => return Some(Redirect::Outdated),
        GENERIC if without_echo(&text).contains(CLUSTER_IS_DOWN) => return Some(Redirect::Unserved),
        _ => {}
    }
    let address = || {
        let (host, port) = error.detail()?.split_once(' ')?.1.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    match error.code()? {
        "MOVED" => address().map(|(host, port)| Redirect::Moved { host, port }),
        "ASK" => address().map(|(host, port)| Redirect::Referred { host, port }),
        "TRYAGAIN" => Some(Redirect::Migrating),
        "CLUSTERDOWN" => Some(Redirect::Unserved),
        _ => None,
    }
}

/// Returns `true` if a refused subscription belongs to another server of the cluster, or to this one at
/// another time.
pub(crate) fn is_redirect(reason: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN"].iter().any(|code| reason.starts_with(code))
}

/// Returns `true` if the server refused a subscription because it has no channels of slots.
pub(crate) fn has_no_slot_channels(reason: &str) -> bool {
    let refused = without_echo(reason);
    refused.contains("unknown command") && refused.contains("SSUBSCRIBE")
}

/// Explains a refusal that came as a text, of what changes nothing.
pub(crate) fn of_answer(text: &str, address: &str) -> Failure {
    of_text(text, address).with_effect(Effect::None)
}

fn text_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

/// Returns the code of a refusal: its first word, or that of the error inside it, if an older server reports a failed
/// script: `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM …`, or `@user_script: 1:
/// -OOM …` where the script returns what it has caught. The text behind the code may contain names that users chose.
fn code_of(text: &str) -> &str {
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut inner = match code {
        GENERIC => {
            let wrapped = rest.strip_prefix("Error running script (call to ");
            let Some((_, inner)) = wrapped.and_then(|rest| rest.split_once("): ")) else { return code };
            inner
        }
        IN_SCRIPT => text,
        _ => return code,
    };
    while let Some(rest) = inner.strip_prefix(IN_SCRIPT) {
        inner = rest.trim_start_matches([' ', ':']).trim_start_matches(|c: char| c.is_ascii_digit());
        inner = inner.trim_start_matches([' ', ':']);
    }
    let inner = inner.strip_prefix('-').unwrap_or(inner);
    let first = inner.split(' ').next().unwrap_or_default();
    let is_code = first.len() > 2 && first.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    if is_code { first } else { GENERIC }
}

/// The place of an error in a script, before its line.
const IN_SCRIPT: &str = "@user_script:";

/// The code of what has no code of its own.
const GENERIC: &str = "ERR";

/// Returns a refusal without the arguments of the request, which some servers repeat.
fn without_echo(text: &str) -> &str {
    text.split("with args beginning with").next().unwrap_or(text)
}

/// Classifies an error of the server.
fn of_text(text: &str, address: &str) -> Failure {
    let code = code_of(text);
    let known = KNOWN.iter().find(|known| match known.mark {
        Mark::Code(known) => known == code,
        Mark::Text(part) => (code == GENERIC || code == "NOPERM") && without_echo(text).contains(part),
    });
    let (kind, effect, advice) = match known {
        Some(known) => (known.kind, Effect::None, known.advice),
        None if is_lost(text) => {
            let advice =
                "a proxy has lost the server behind it, or does not reach it: see the log of the proxy";
            (FailureKind::Unavailable, Effect::Unknown, advice)
        }
        None => (FailureKind::Unsupported, Effect::Unknown, OTHER_SERVER),
    };
    let mut advice = advice.to_owned();
    if kind == FailureKind::Denied {
        advice = format!("{advice}; as an ACL, with your prefix for lh: {ACL_RULES}");
    }
    Failure::new(kind, effect, format!("{address} refuses ({text}): {advice}"))
}

/// Returns `true` if a proxy answers in place of a server that it has lost. It may have sent the request.
fn is_lost(text: &str) -> bool {
    let Some((GENERIC, reason)) = text.split_once(' ') else { return false };
    reason == LOST_WITHOUT_REASON || LOST.iter().any(|start| reason.starts_with(start))
}

/// The beginnings of such answers: the texts of the C library for broken connections in twemproxy, and the one of
/// codis.
const LOST: [&str; 8] = [
    "Broken pipe",
    "Connection refused",
    "Connection reset by peer",
    "Connection timed out",
    "Host is ",
    "Network ",
    "No route to host",
    "handle response, ",
];

/// The whole answer of twemproxy where the server ended the connection.
const LOST_WITHOUT_REASON: &str = "unknown";

/// The errors in a script whose keys its server has given away since the script began: it may have
/// written.
const HALFWAY: [&str; 2] = ["non local key", "slot not served"];

/// The refusal of a script's first write, where `cluster-allow-reads-when-down` lets the script begin.
const CLUSTER_IS_DOWN: &str = "while the cluster is down";

struct Known {
    mark: Mark,
    kind: FailureKind,
    advice: &'static str,
}

/// The mark of a refusal.
enum Mark {
    Code(&'static str),
    /// A part of the text, for errors that share the general code.
    Text(&'static str),
}

const fn known(code: &'static str, kind: FailureKind, advice: &'static str) -> Known {
    Known { mark: Mark::Code(code), kind, advice }
}

const fn known_text(part: &'static str, kind: FailureKind, advice: &'static str) -> Known {
    Known { mark: Mark::Text(part), kind, advice }
}

const OTHER_SERVER: &str = "check that it is Redis 6.2 or later, or Valkey";

const OF_A_CLUSTER: &str = "this is a server of a cluster: connect by redis+cluster://";

const KNOWN: &[Known] = &[
    known(
        "FOREIGN",
        FailureKind::Foreign,
        "another program uses this key, or two names collide; choose another ?prefix=",
    ),
    known("WRONGTYPE", FailureKind::Foreign, "another program uses this key; choose another ?prefix="),
    known("WRONGPASS", FailureKind::Denied, "check user and password"),
    known(
        "NOAUTH",
        FailureKind::Denied,
        "give a password: redis://user:password@host, or LEASEHOLD_REDIS_PASSWORD",
    ),
    known("NOPERM", FailureKind::Denied, "give the user this right"),
    known_text("ACL failure in script", FailureKind::Denied, "give the user this right"),
    known_text("The user executing the script can't", FailureKind::Denied, "give the user this right"),
    known(
        "OOM",
        FailureKind::Unavailable,
        "the server's memory is full: raise maxmemory; what is held stays held",
    ),
    known(
        "STALE_EPOCH",
        FailureKind::Unavailable,
        "this client's view is from before a failover: it asks again for the primary",
    ),
    known(
        "NEEDS_EPOCH",
        FailureKind::Unsupported,
        "its primary is elected: connect by redis+sentinel:// or redis+cluster://, as those who hold it do",
    ),
    known("READONLY", FailureKind::Unavailable, "this is a replica: connect to the primary"),
    known(
        "MASTERDOWN",
        FailureKind::Unavailable,
        "this is a replica without its primary: connect to the primary",
    ),
    // A server that becomes a replica answers so: the first to a `WAIT` that is under way, the second to a later one.
    known("UNBLOCKED", FailureKind::Unavailable, "the server has become a replica: connect to the primary"),
    known_text(
        "WAIT cannot be used with replica",
        FailureKind::Unavailable,
        "this is a replica: connect to the primary",
    ),
    known(
        "NOREPLICAS",
        FailureKind::Unavailable,
        "min-replicas-to-write is not met: bring the replicas back",
    ),
    known(
        "MISCONF",
        FailureKind::Unavailable,
        "the server cannot save to disk and refuses writes: see its log",
    ),
    known("LOADING", FailureKind::Unavailable, "the server is loading its data: try again shortly"),
    known(
        "BUSY",
        FailureKind::Unavailable,
        "a script of another client blocks the server: wait, or SCRIPT KILL",
    ),
    // Seen by clients that take a server of a cluster for a single one. A client that knows the cluster
    // deals with them.
    known("CROSSSLOT", FailureKind::Unsupported, OF_A_CLUSTER),
    known("MOVED", FailureKind::Unsupported, OF_A_CLUSTER),
    known("TRYAGAIN", FailureKind::Unsupported, OF_A_CLUSTER),
    known("CLUSTERDOWN", FailureKind::Unsupported, OF_A_CLUSTER),
    known_text(
        CLUSTER_IS_DOWN,
        FailureKind::Unavailable,
        "the cluster is down: bring back the primaries that are missing",
    ),
    known_text(
        "cluster support disabled",
        FailureKind::Unsupported,
        "this server is not in cluster mode: connect by redis://",
    ),
    known_text("unknown command", FailureKind::Unsupported, OTHER_SERVER),
    known_text("max number of clients", FailureKind::Unavailable, "raise maxclients"),
    known("NOSCRIPT", FailureKind::Unavailable, "the server forgot a script again at once: try again"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str, detail: &str) -> RedisError {
        let text = format!("-{code} {detail}\r\n");
        let value = redis::parse_redis_value(text.as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn codes_are_found_where_older_servers_wrap_them() {
        let old = "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed";
        assert_eq!(of_text(old, "h:1").kind, FailureKind::Unavailable);
        for (caught, kind) in [
            (
                "@user_script: 127: -OOM command not allowed when used memory > 'maxmemory'.",
                FailureKind::Unavailable,
            ),
            (
                "@user_script: 12: -READONLY You can't write against a read only replica.",
                FailureKind::Unavailable,
            ),
            ("@user_script: 22: The user executing the script can't run this command", FailureKind::Denied),
        ] {
            let failure = of_text(caught, "h:1");
            assert_eq!((failure.kind, failure.effect), (kind, Effect::None), "{caught}");
        }
        let new =
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 1, on @user_script:2.";
        assert_eq!(of_text(new, "h:1").kind, FailureKind::Foreign);
        assert!(of_text("NOPERM no", "h:1").detail().contains("+evalsha"));
        assert!(of_text("what is this", "h:1").detail().contains("6.2"));
        let old = "ERR Error running script (call to f_1): @user_script:3: The user executing the script can't run this \
                   command or subcommand";
        assert_eq!(of_text(old, "h:1").kind, FailureKind::Denied);
        assert_eq!(of_text("ERR max number of clients reached", "h:1").kind, FailureKind::Unavailable);
    }

    #[test]
    fn what_is_not_known_as_a_refusal_may_have_happened() {
        for text in [
            "ERR Connection refused",
            "ERR Connection reset by peer",
            "ERR Connection timed out",
            "ERR Host is down",
            "ERR unknown",
            "ERR handle response, backend conn reset",
        ] {
            let lost = of_text(text, "h:1");
            assert_eq!((lost.kind, lost.effect), (FailureKind::Unavailable, Effect::Unknown), "{text}");
            assert_eq!(of_login(text, "h:1").effect, Effect::None, "a login changes nothing");
        }
        for text in ["ERR what is this", "upstream failure"] {
            assert_eq!(of_text(text, "h:1").effect, Effect::Unknown, "{text}");
        }
        for text in
            ["ERR unknown command 'evalsha', with args beginning with: 'Connection refused'", "NOAUTH no"]
        {
            assert_eq!(of_text(text, "h:1").effect, Effect::None, "{text}");
        }
    }

    #[test]
    fn first_write_of_a_script_is_refused_while_the_cluster_is_down() {
        let text = "Script attempted to execute a write command while the cluster is down and readonly";
        let old = format!("Error running script (call to f_1): @user_script:1: @user_script: 1: {text}");
        let (caught, caught_text) = ("@user_script:", format!("1: {text}"));
        for (code, detail) in [("ERR", text), ("ERR", &old), (caught, &caught_text)] {
            let refused = refused(code, detail);
            assert_eq!(redirect_of(&refused), Some(Redirect::Unserved), "{detail}");
            let failure = of_request(&refused, "h:1");
            assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
        }
    }

    #[test]
    fn each_refusal_says_whether_it_passes() {
        for (codes, kind) in [
            (&["OOM", "STALE_EPOCH", "READONLY", "MASTERDOWN", "UNBLOCKED"][..], FailureKind::Unavailable),
            (&["NOREPLICAS", "MISCONF", "LOADING", "BUSY", "NOSCRIPT"], FailureKind::Unavailable),
            (&["WRONGPASS", "NOAUTH", "NOPERM"], FailureKind::Denied),
            (&["FOREIGN", "WRONGTYPE"], FailureKind::Foreign),
            (&["NEEDS_EPOCH", "CROSSSLOT", "MOVED", "TRYAGAIN", "CLUSTERDOWN"], FailureKind::Unsupported),
        ] {
            for code in codes {
                let failure = of_request(&refused(code, "no"), "h:1");
                assert_eq!((failure.kind, failure.effect), (kind, Effect::None), "{code}: {failure}");
                let deposes = ["READONLY", "STALE_EPOCH", "MASTERDOWN"].contains(code);
                assert_eq!(is_not_primary(&refused(code, "no")), deposes, "{code}");
            }
        }
    }

    #[test]
    fn wait_that_a_new_replica_refuses_passes() {
        for text in [
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is \
             configured to be writable (which is not the default) writes to replicas are just local and are not \
             propagated.",
        ] {
            assert!(of_text(text, "h:1").is_transient(), "{text}");
        }
    }

    #[test]
    fn names_in_a_refusal_are_not_taken_for_codes() {
        for (text, kind) in [
            (
                "STALE_EPOCH {lh:x-NOAUTH}:fence was granted in epoch 3, this is epoch 2",
                FailureKind::Unavailable,
            ),
            ("FOREIGN {lh:ROOM-42}:fence belongs to a resource of another name", FailureKind::Foreign),
            ("FOREIGN {lh:READONLY}:fence belongs to a resource of another name", FailureKind::Foreign),
            ("NEEDS_EPOCH {lh:BUSY}:fence was granted in epoch 3", FailureKind::Unsupported),
            (
                "ERR unknown command 'evalsha', with args beginning with: 'max number of clients' 'NOAUTH'",
                FailureKind::Unsupported,
            ),
        ] {
            assert_eq!(of_text(text, "h:1").kind, kind, "{text}");
        }
        let foreign = refused("FOREIGN", "{lh:READONLY}:fence belongs to a resource of another name");
        assert!(!is_not_primary(&foreign) && redirect_of(&foreign).is_none());
        assert_eq!(of_request(&foreign, "h:1").kind, FailureKind::Foreign);
        let stale = refused("STALE_EPOCH", "{lh:x-NOAUTH}:fence was granted in epoch 3, this is epoch 2");
        assert_eq!(redirect_of(&stale), Some(Redirect::Outdated));
        let halfway =
            refused("ERR", "Script attempted to access a non local key in a cluster node script: 1");
        assert_eq!(of_request(&halfway, "h:1").effect, Effect::Unknown);
        let named = refused("FOREIGN", "{lh:non local key}:fence belongs to a resource of another name");
        assert_eq!(of_request(&named, "h:1").effect, Effect::None);
        let deposed = refused("READONLY", "You can't write against a read only replica.");
        assert_eq!(redirect_of(&deposed), Some(Redirect::Deposed));
        let old = refused(
            "ERR",
            "Error running script (call to f_1): @user_script:2: @user_script: 2: -READONLY You can't write against a \
             read only replica.",
        );
        assert_eq!(redirect_of(&old), Some(Redirect::Deposed));
    }
}
