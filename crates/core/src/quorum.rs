//! One of several independent servers that decide together: the seam below a quorum.
//!
//! A member keeps, per resource, a **lock** that expires and a **record** that does not: the greatest fence
//! that it has taken. Beside them it keeps one **mark** for all of its resources: an epoch, and the run of
//! the server under which the mark was written. A member whose mark is of its present run is *armed*: it
//! has forgotten nothing since, so a resource without a record of that epoch has had no fence in it.
//!
//! Members know nothing of each other. Which answers are enough is decided by a [`VoteTally`].

mod vote_tally;

use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;

use crate::{Claim, ClaimId, Failure, Fence, Note, Resource};

pub use vote_tally::{Counting, Verdict, VoteTally, common_kind, majority};

/// One server of several. Each call is carried out by the server in one step, and has a time limit of the
/// member's own.
#[async_trait]
pub trait Member: Debug + Send + Sync {
    /// Returns its address, for a person.
    fn address(&self) -> String;

    /// Reads the state of the member.
    ///
    /// # Errors
    /// It cannot be reached, or may not be used.
    async fn state(&self) -> Result<MemberState, Failure>;

    /// Writes a mark of `epoch` under the run in `seen`, if both that run and the mark are still as in
    /// `seen`, and the epoch is greater than the mark's. Returns whether it did.
    ///
    /// # Errors
    /// As [`Member::state`]; one of unknown effect may have written it.
    async fn set_epoch(&self, seen: &MemberState, epoch: u64) -> Result<bool, Failure>;

    /// Locks the resource in the first round, if it is free or the claim's own already, for at least
    /// the claim's ttl, and gives the lock the value `stamp`. A lock of the claim with a later stamp of the
    /// same series keeps that stamp: this message was overtaken.
    ///
    /// `last` is the fence of the client's last grant of this resource. If the resource was free, the member is
    /// armed in the epoch of that fence, and the record holds no greater one, the member also takes the fence that
    /// follows it in that epoch, as in the second round, and the answer has it.
    ///
    /// # Errors
    /// As [`Member::state`]; one of unknown effect may have locked it.
    async fn prepare(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        last: Option<Fence>,
    ) -> Result<Answer, Failure>;

    /// Writes in the second round: takes the fence if the lock still has the value `stamp`, the run is
    /// still `run`, the mark is of that run and of no greater epoch, and the record holds no greater fence.
    /// Also raises a mark of a lower epoch. Returns whether the fence is taken now.
    ///
    /// # Errors
    /// As [`Member::state`]; one of unknown effect may have taken it.
    async fn accept(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        run: &str,
        fence: Fence,
    ) -> Result<bool, Failure>;

    /// Extends locks; never shortens. Returns the outcomes in order.
    ///
    /// # Errors
    /// As [`Member::state`].
    async fn renew(&self, batch: &[MemberRenew<'_>]) -> Result<Vec<MemberRenewal>, Failure>;

    /// Locks a free resource for a claim that is known to hold. `stamp` is one that no second round names.
    ///
    /// # Errors
    /// As [`Member::state`].
    async fn repair(&self, claim: &Claim, fence: Fence, stamp: RequestStamp) -> Result<bool, Failure>;

    /// Ends the lock of a claim if it still has one of these values, so that a lock which a later message
    /// has given the claim stays. Without values it ends nothing. Returns whether it ended one.
    ///
    /// # Errors
    /// As [`Member::state`]; one of unknown effect may have ended it.
    async fn withdraw(&self, claim: &Claim, stamps: &[RequestStamp]) -> Result<bool, Failure>;

    /// Ends locks. Returns whether each existed, in order.
    async fn release(&self, batch: &[&Claim]) -> Vec<Result<bool, Failure>>;

    /// Reads what the member knows of a resource.
    ///
    /// # Errors
    /// As [`Member::state`].
    async fn read(&self, resource: &Resource) -> Result<MemberView, Failure>;

    /// Returns the resources that are locked and whose names begin with `prefix`, with their holders.
    ///
    /// # Errors
    /// As [`Member::state`].
    async fn list(&self, prefix: &str) -> Result<Vec<(Resource, ClaimId)>, Failure>;

    /// Subscribes to the events of a resource. Returns when no more events can be missed, or when it is known
    /// that none can be received for now.
    ///
    /// # Errors
    /// The server does not permit it.
    async fn subscribe(&self, resource: &Resource) -> Result<Box<dyn Subscription>, Failure>;
}

/// A subscription to the events of one resource on one member.
#[async_trait]
pub trait Subscription: Send {
    /// Returns the next event.
    async fn next(&mut self) -> Notification;

    /// Returns `true` if events can be received at present.
    fn is_connected(&self) -> bool;
}

/// An event of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// A granted claim was released here.
    Freed,
    /// A claim was granted here.
    Taken {
        /// The time after which its lease ends unless it is extended; `None` where the member does not say.
        ends_in: Option<Duration>,
    },
    /// Events may have been missed.
    Unknown,
}

/// The value of a lock: another one for each message, so that no message can act in another's place. The
/// stamps of one client are ordered, so that a message which a later one has overtaken is recognized.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestStamp(u128);

impl RequestStamp {
    /// Returns the stamp made of these bytes, which must come from the operating system's random source.
    pub const fn from_bytes(bytes: [u8; 16]) -> RequestStamp {
        RequestStamp(u128::from_be_bytes(bytes))
    }

    /// Returns the stamp with this number of a client, whose `series` must come from the operating system's
    /// random source.
    pub const fn numbered(series: u64, number: u64) -> RequestStamp {
        RequestStamp(((series as u128) << 64) | number as u128)
    }

    /// Returns `true` if this is an earlier stamp of the same series.
    pub const fn precedes(self, other: RequestStamp) -> bool {
        self.0 >> 64 == other.0 >> 64 && self.0 < other.0
    }
}

impl fmt::Display for RequestStamp {
    /// Writes 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Debug for RequestStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestStamp(…)")
    }
}

/// The state of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The name of the running server; another one after each restart.
    pub run: String,
    /// Its mark, of any run.
    pub mark: Option<Mark>,
    /// The moment at which it was first seen without a mark of its run, in microseconds by its own clock;
    /// `None` where it is armed, and where no client has asked it for a lock since.
    pub unarmed_since: Option<u64>,
    /// Its wall clock, in microseconds of the Unix epoch.
    pub unix_us: u64,
}

/// The mark that arms a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The epoch of its fences.
    pub epoch: u64,
    /// The run under which it was written.
    pub run: String,
}

impl MemberState {
    /// Returns the epoch of a member that is armed.
    pub fn armed(&self) -> Option<u64> {
        self.mark.as_ref().filter(|mark| mark.run == self.run).map(|mark| mark.epoch)
    }

    /// Returns for how long it is known that the member is not armed, by its own clock.
    pub fn unarmed_for(&self) -> Duration {
        let since = self.unarmed_since.unwrap_or(self.unix_us);
        Duration::from_micros(self.unix_us.saturating_sub(since))
    }

    /// Explains why the member of this name has no vote; `None` where it is armed.
    pub fn trouble(&self, name: &str) -> Option<String> {
        match (self.armed(), self.unarmed_since) {
            (Some(_), _) => None,
            (None, None) => Some(format!("{name} is not armed")),
            (None, Some(_)) => {
                Some(format!("{name} is not armed, first seen so {} s ago", self.unarmed_for().as_secs()))
            }
        }
    }
}

/// The answer to the first round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The state of the member.
    pub state: MemberState,
    /// The claim that has the lock on this member now.
    pub vote: Vote,
}

impl Answer {
    /// Returns the fence that the asker's claim has here.
    pub(crate) fn granted_before(&self) -> Option<Fence> {
        match self.vote {
            Vote::Yours { fence, .. } => fence,
            Vote::Theirs { .. } => None,
        }
    }
}

/// The claim that has the lock on a member, from the view of the asker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The claim of the asker.
    Yours {
        /// The greatest fence in the member's record, of any epoch; [`NO_FENCE`] without one.
        last: Fence,
        /// The fence that this claim has here, if one was taken for it.
        fence: Option<Fence>,
    },
    /// Another claim.
    Theirs {
        /// `true` if a fence was taken for its claim here, which a majority need not have done.
        granted: bool,
        /// The time until the lock ends unless it is extended.
        ends_in: Duration,
        /// The number of connections that are subscribed; zero where the member does not say.
        listeners: u32,
    },
}

/// Below every fence that is granted.
pub const NO_FENCE: Fence = Fence::new(0, 0, 0);

/// A claim to renew on a member.
#[derive(Clone, Copy, Debug)]
pub struct MemberRenew<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// Its fence, where the caller knows that it was granted.
    pub fence: Option<Fence>,
}

/// The answer of a member to a claim to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRenewal {
    /// The lock runs for another ttl.
    Extended,
    /// The lock does not exist.
    Free,
    /// The lock is another's, or of a claim that was not granted.
    Refused,
}

/// The view that a member has of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// The greatest fence in its record; [`NO_FENCE`] without one.
    pub last: Fence,
    /// The holder of the lock.
    pub holder: Option<Seen>,
}

/// A claim that has a member's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The claim.
    pub id: ClaimId,
    /// Its fence, where a second round was carried out.
    pub fence: Option<Fence>,
    /// The beginning, in milliseconds of the Unix epoch.
    pub since_unix_ms: Option<u64>,
    /// The time until the lock ends unless it is extended.
    pub ends_in: Duration,
    /// The note of the holder.
    pub note: Note,
}

/// Returns the fence of an acquisition that has the locks of these armed members: each with its epoch and
/// the greatest fence of its record.
///
/// The greatest epoch counts, and members behind it count as zero: a member that is armed in a lower epoch
/// has forgotten nothing, so it has taken nothing in the greater one. `None` of no members at all.
pub fn next_fence(members: impl Iterator<Item = (u64, Fence)> + Clone) -> Option<Fence> {
    let epoch = members.clone().map(|(epoch, _)| epoch).max()?;
    let seq = members.filter(|(_, last)| last.epoch == epoch).map(|(_, last)| last.seq).max().unwrap_or(0);
    Some(Fence::new(epoch, seq + 1, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_one_client_are_ordered() {
        let stamp = RequestStamp::numbered;
        assert!(stamp(7, 1).precedes(stamp(7, 2)));
        assert!(!stamp(7, 2).precedes(stamp(7, 2)) && !stamp(7, 3).precedes(stamp(7, 2)));
        assert!(!stamp(6, 1).precedes(stamp(7, 2)), "of another client");
        assert_eq!(stamp(0xa, 0x1f).to_string(), "000000000000000a000000000000001f");
    }

    #[test]
    fn a_mark_of_another_run_does_not_arm() {
        let mark = |run: &str| Some(Mark { epoch: 4, run: run.to_owned() });
        let state =
            |mark| MemberState { run: "new".to_owned(), mark, unarmed_since: None, unix_us: 0 }.armed();
        assert_eq!(state(mark("new")), Some(4));
        assert_eq!(state(mark("old")), None);
        assert_eq!(state(None), None);
    }

    #[test]
    fn unarmed_time_counts_from_when_it_was_first_seen() {
        let state = |unarmed_since| MemberState {
            run: "a".to_owned(),
            mark: None,
            unarmed_since,
            unix_us: 9_000_000,
        };
        assert_eq!(state(None).unarmed_for(), Duration::ZERO);
        assert_eq!(state(Some(2_000_000)).unarmed_for(), Duration::from_secs(7));
        assert_eq!(state(Some(10_000_000)).unarmed_for(), Duration::ZERO, "its clock was set back");
        assert_eq!(state(Some(2_000_000)).trouble("b").unwrap(), "b is not armed, first seen so 7 s ago");
    }

    #[test]
    fn records_of_a_lower_epoch_count_for_nothing() {
        let fence = |members: &[(u64, Fence)]| next_fence(members.iter().copied());
        assert_eq!(fence(&[]), None);
        assert_eq!(fence(&[(3, NO_FENCE), (3, NO_FENCE)]), Some(Fence::new(3, 1, 0)));
        assert_eq!(fence(&[(3, Fence::new(3, 7, 0)), (3, Fence::new(3, 5, 0))]), Some(Fence::new(3, 8, 0)));
        assert_eq!(fence(&[(3, Fence::new(3, 7, 0)), (4, Fence::new(3, 9, 0))]), Some(Fence::new(4, 1, 0)));
    }
}
