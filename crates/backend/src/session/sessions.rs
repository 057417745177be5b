//! The interface that a server has to implement: sessions that can be opened, and locks that a session
//! holds.
//!
//! Ground rules: nothing here decides which task of a client may send a request; that is done before. A
//! session answers one request at a time, and leaves nothing behind if it says that the request did not
//! happen.

use std::any::Any;
use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Claim, ClaimInfo, Failure, Fence, Finding, Profile, Resource, ResourceSummary, Severity,
};

/// A server whose sessions hold locks: a lock lives as long as the connection that took it, and no longer.
///
/// # What the implementer promises
/// - Dropping a [`Session`] closes its connection, and the server ends all of its locks then. Nothing else closes the
///   connection of a session that holds a lock, even if it is over: its holders know of the loss before the drop.
/// - The server keeps a silent session for longer than the `valid` of the profile's
///   [`Liveness::Heartbeat`](leasehold_core::Liveness), counted from the last statement that it answered.
///   Settings that make the server give up sooner, such as its own for dead connections, are set for each
///   session when it is opened. The server keeps a session for at most the profile's `place_ttl`.
/// - Fences are drawn *after* the lock was given, and are not taken back with a transaction.
#[async_trait]
pub trait Sessions: Any + Debug + Send + Sync {
    /// One open session.
    type Session: Session;

    /// Returns the promises of this connection. Its liveness is a heartbeat.
    fn profile(&self) -> &Profile;

    /// Returns how many locks one session may hold.
    fn capacity(&self) -> Capacity;

    /// Returns the time in which the server answers, or counts as silent.
    fn answer_limit(&self) -> Duration;

    /// Returns the number of servers that are dialled one after the other until one answers.
    fn endpoints(&self) -> usize {
        1
    }

    /// Returns the server's key for the lock of this resource. Where two resources have the same key, a
    /// request for one while the other is held fails with that reason.
    fn key(&self, resource: &Resource) -> String;

    /// Opens one session, with all that must be set for it.
    ///
    /// # Errors
    /// A [`Failure`] without effect: nothing was asked yet.
    async fn open(&self) -> Result<Self::Session, Failure>;

    /// Reads the present holders of the resource, in the order of grants. `None` if another client is about to
    /// show one, see [`Session::show`]: it is called again then. In the last call, what is seen counts.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn holders(&self, resource: &Resource, is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure>;

    /// Returns names for the locks whose holders other clients have not shown yet, as far as this client can know
    /// of them; see [`Session::show`]. A name stays the same until the holder is shown.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn unshown(&self) -> Result<HashSet<String>, Failure>;

    /// Lists the resources whose name begins with `prefix` and that are held, in the order of their names,
    /// beginning behind `after`, at most `limit`.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure>;

    /// Ends the session of another client that holds this claim, if it still does, and answers the
    /// other resources that it held; `None` where no session holds it, and none was ended then.
    ///
    /// The server checks in the step that ends the session that it holds, so no other session that has
    /// taken its place is hit. It returns when the lock is free.
    ///
    /// # Errors
    /// `Denied` where this user may not, `Unsupported` where it is of another program. A [`Failure`] whose
    /// effect is `Unknown` may have ended it.
    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure>;

    /// Examines the server, as [`Backend::diagnose`](leasehold_core::Backend::diagnose) does.
    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        Vec::new()
    }
}

/// The number of locks that one session may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Any number: all locks of a client share one connection.
    Many,
    /// One lock per session: each lock, and each that waits in the server, has a connection of its own.
    One {
        /// Connections of one client at most. A claim that would need one more is refused at once.
        sessions: usize,
        /// The option of the URL that sets this number, for the message of a refusal.
        option: &'static str,
    },
}

impl Capacity {
    /// Returns the finding about the connections that this takes, of `most` that the server has, where that
    /// is known. Nothing where all locks share one.
    pub fn cost(self, most: Option<u64>) -> Option<Finding> {
        let Capacity::One { sessions, option } = self else { return None };
        let sessions = u64::try_from(sessions).unwrap_or(u64::MAX);
        let of = most.map(|most| format!(" of the server's {most}")).unwrap_or_default();
        let severity = match most {
            Some(most) if sessions.saturating_mul(2) > most => Severity::Risk,
            Some(_) => Severity::Notice,
            None => Severity::Unknown,
        };
        let found =
            format!("one for each lock and for each that waits: up to {sessions}{of} for this client");
        let finding = Finding::new("connections", severity, found)
            .meaning("other clients have as many of their own; when none is left, nobody else can log in to the database")
            .advice(format!("keep {option} times the number of clients far below that, or use method=row, which needs none to hold"));
        Some(finding)
    }
}

/// One open session. Dropping it closes the connection.
#[async_trait]
pub trait Session: Debug + Send + Sync + 'static {
    /// Asks for a lock, once.
    ///
    /// A deadlock, or a race that was lost, is [`Answer::Busy`]: a repeated request may succeed.
    ///
    /// # Errors
    /// A failure without effect leaves nothing of the claim on the server, and the session as it was. After
    /// one whose effect is not known the session is closed. The method must return within the session's own
    /// time limit also where the server does not answer; a request that waits has `wait` and the limit.
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure>;

    /// Writes down for other clients that these claims hold, so that `holders`, `list` and `evict` find
    /// them: claims whose [`Answer::Taken`] said that they are not shown. None of them is released
    /// before this has returned.
    ///
    /// # Errors
    /// A failure after which they are not shown, and hold all the same.
    async fn show(&self, holders: &[Holder]) -> Result<(), Failure>;

    /// Releases a lock, and removes what shows its holder, if `is_shown`; `false` where the server says
    /// that the session did not have it, which is never right.
    ///
    /// # Errors
    /// A failure after which the session is closed.
    async fn unlock(&self, claim: &Claim, sharing: Sharing, is_shown: bool) -> Result<bool, Failure>;

    /// Sends any request, so that each side has a sign of life of the other.
    ///
    /// # Errors
    /// A failure after which the session is closed.
    async fn ping(&self) -> Result<(), Failure>;

    /// Makes a [`Session::lock`] that has begun return soon, with any answer. Without effect where none
    /// has; in particular it never ends what is asked afterwards.
    async fn cancel(&self);

    /// Waits until the connection has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    async fn closed(&self);

    /// Returns `true` if the connection has not ended yet, as far as is known here.
    fn is_open(&self) -> bool;
}

/// One request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest<'a> {
    /// The claim that asks. Its share is exclusive or a reader's.
    pub claim: &'a Claim,
    /// The time for which the server may let it wait; zero where it must answer at once. Never longer than
    /// [`LONGEST_WAIT`].
    pub wait: Duration,
    /// The other holders in this session.
    pub sharing: Sharing,
}

/// The other claims that hold the same lock in the same session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// None: the server decides.
    None,
    /// Readers, alongside a reader: the server has given the lock to the session already, and keeps it for
    /// the others.
    Readers,
}

/// The answer of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is the session's.
    Taken {
        /// Its fence, where there are fences.
        fence: Option<Fence>,
        /// `true` if other clients can see the holder already. Otherwise [`Session::show`] follows when it
        /// has held for a while.
        is_shown: bool,
    },
    /// Another session has it.
    Busy,
}

/// A claim that holds, as other clients are to see it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The claim.
    pub claim: Claim,
    /// Its fence, where there are fences.
    pub fence: Option<Fence>,
    /// The time for which it has held.
    pub held_for: Duration,
}

/// The longest time for which one request waits in a server. The request is repeated afterwards, so that a
/// dead connection is noticed of which the client was not notified.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The time after which a holder is shown to other clients, see [`Session::show`]. Most locks are released
/// before, and cost the server nothing for it.
pub const SHOWN_AFTER: Duration = Duration::from_millis(10);

/// Returns the failure for two names that this server cannot distinguish, as long as one of them is held.
pub fn collision(wanted: &Resource, held: &str) -> Failure {
    Failure::new(
        leasehold_core::FailureKind::Foreign,
        leasehold_core::Effect::None,
        format!(
            "{wanted:?} and {held:?}, which is held, have the same key on this server, so they would exclude each other \
             without anybody having meant it: rename one of them"
        ),
    )
}

/// Returns the failure for a lock that is held by a program other than leasehold, whose sessions are not
/// ended here.
pub fn foreign_holder(whose: &str) -> Failure {
    Failure::new(
        leasehold_core::FailureKind::Unsupported,
        leasehold_core::Effect::None,
        format!(
            "another program holds it, by {whose}: let that program go, or end its connection on the server by hand"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_finding_depends_on_the_maximum_of_the_server() {
        let severity = |capacity: Capacity, most| capacity.cost(most).map(|finding| finding.severity);
        let capacity = Capacity::One { sessions: 20, option: "transactions=" };
        assert_eq!(severity(capacity, Some(100)), Some(Severity::Notice));
        assert_eq!(severity(capacity, Some(40)), Some(Severity::Notice));
        assert_eq!(severity(capacity, Some(39)), Some(Severity::Risk));
        assert_eq!(severity(capacity, None), Some(Severity::Unknown));
        assert_eq!(severity(Capacity::Many, Some(1)), None);
    }
}
