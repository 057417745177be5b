//! One law applied to one subject: connections, fresh names, claims, and what the profile promises.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Claim, Clock, Liveness, LockSupport, Moment, Note, Patience, Profile, QueueOrder, Resource, Share,
};

use crate::client::{HANG, Taken, TestClient, Waiting};
use crate::clock::{SteadyClock, briefly};
use crate::not_kept::{Checked, NotKept};
use crate::random::{self, Random};
use crate::subject::{Subject, TakerCommand};

/// The tools with which a law works. Its resources have names that no other law uses.
pub(crate) struct Trial {
    pub(crate) clock: Arc<dyn Clock>,
    clients: Vec<TestClient>,
    profile: Profile,
    prefix: String,
    ttl: Duration,
    taker: Option<TakerCommand>,
    writes: fn(&str) -> bool,
}

impl Trial {
    /// Opens the connections.
    pub(crate) async fn open(subject: &dyn Subject) -> Checked<Trial> {
        let clock: Arc<dyn Clock> = Arc::new(SteadyClock::new());
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let backend = subject.open().await.ok_or(NotKept::Absent)?;
            clients.push(TestClient { backend, clock: clock.clone() });
        }
        let profile =
            clients.first().map(|client| client.backend.profile().clone()).ok_or(NotKept::Absent)?;
        let prefix = format!("law-{}/", random::id()?.to_hex().split_at(12).0);
        let (ttl, taker, writes) = (subject.ttl(), subject.taker(), subject.writes());
        Ok(Trial { clock, clients, profile, prefix, ttl, taker, writes })
    }

    /// Returns one of the connections; numbers beyond the last begin again.
    pub(crate) fn client(&self, number: usize) -> &TestClient {
        &self.clients[number % self.clients.len()]
    }

    pub(crate) fn clients(&self) -> &[TestClient] {
        &self.clients
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns `true` if the store can write this name.
    pub(crate) fn writes(&self, name: &str) -> bool {
        (self.writes)(name)
    }

    /// Returns the beginning of the names of this trial.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn resource(&self, tail: &str) -> Checked<Resource> {
        Ok(Resource::new(&format!("{}{tail}", self.prefix))?)
    }

    /// Returns a new claim that does not run out during a law.
    pub(crate) fn claim(&self, resource: &Resource, share: Share) -> Checked<Claim> {
        self.claim_for(resource, share, LONG)
    }

    /// Returns a new claim that is left to run out.
    pub(crate) fn short(&self, resource: &Resource, share: Share) -> Checked<Claim> {
        self.claim_for(resource, share, self.ttl)
    }

    /// Returns a new claim with this ttl, or the nearest that the profile allows.
    pub(crate) fn claim_for(&self, resource: &Resource, share: Share, ttl: Duration) -> Checked<Claim> {
        let ttl = match self.profile.liveness {
            Liveness::Lease { min, max } => ttl.max(min).min(max),
            _ => ttl,
        };
        let note = Note::new(&format!("a claim of {}", self.prefix))?;
        Ok(Claim::new(random::id()?, resource.clone(), share, ttl).note(note))
    }

    /// Returns how long a claim of [`Trial::short`] lives.
    pub(crate) fn ttl(&self) -> Duration {
        match self.profile.liveness {
            Liveness::Lease { min, max } => self.ttl.max(min).min(max),
            _ => self.ttl,
        }
    }

    /// Returns the end of the validity of a claim of [`Trial::short`] that was asked for at this time.
    pub(crate) fn valid_until(&self, asked_at: Moment) -> Moment {
        self.valid_for(self.ttl(), asked_at)
    }

    /// Returns the end of the validity of a claim with this ttl that was asked for at this time.
    pub(crate) fn valid_for(&self, ttl: Duration, asked_at: Moment) -> Moment {
        asked_at.after(ttl).before(self.profile.granularity)
    }

    /// Returns by how much the claim of a dead client may outlive its ttl.
    pub(crate) fn outlives(&self) -> Duration {
        self.profile.granularity + self.profile.overrun
    }

    /// Returns the most that may be shown as left of a claim with this ttl: a store may show when it would free the claim
    /// of a dead client.
    pub(crate) fn shown_at_most(&self, ttl: Duration) -> Duration {
        ttl + self.outlives()
    }

    pub(crate) fn taker(&self) -> Checked<TakerCommand> {
        self.taker
            .clone()
            .ok_or_else(|| NotKept::OptedOut("no other process can reach this store".to_owned()))
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.profile.order >= QueueOrder::Fifo
    }

    pub(crate) fn polls(&self) -> bool {
        self.profile.waiting == leasehold_core::WaitMode::Polls
    }

    pub(crate) fn is_session(&self) -> bool {
        !matches!(self.profile.liveness, Liveness::Lease { .. })
    }

    /// Returns how long a short claim may outlive the last sign of life of its holder at the server; `None`
    /// where its session is seen to end.
    pub(crate) fn lives_without_contact(&self) -> Option<Duration> {
        match self.profile.liveness {
            Liveness::Lease { .. } => Some(self.ttl()),
            Liveness::Heartbeat { .. } => Some(self.profile.place_ttl),
            _ => None,
        }
    }

    pub(crate) fn needs_fifo(&self) -> Checked {
        Ok(self.profile.orders(QueueOrder::Fifo)?)
    }

    pub(crate) fn needs_polling(&self) -> Checked {
        if !self.polls() {
            return Err(NotKept::OptedOut("its callers do not poll".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn needs_share(&self, share: Share) -> Checked {
        Ok(self.profile.admits(share)?)
    }

    pub(crate) fn needs_lease(&self) -> Checked {
        if self.is_session() {
            return Err(NotKept::OptedOut("a session keeps its claims, not a lease".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn needs_session(&self) -> Checked {
        if !self.is_session() {
            return Err(NotKept::OptedOut("a lease keeps its claims, not a session".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn needs_adoption(&self) -> Checked {
        match self.client(0).backend.supports_transfer() {
            true => Ok(()),
            false => Err(NotKept::OptedOut("no other client can adopt a granted claim".to_owned())),
        }
    }

    /// Returns the shares with which one holder is alone, as far as the backend admits them. What holds for
    /// a mutex must hold for each of them.
    pub(crate) fn exclusive_shares(&self) -> Checked<Vec<Share>> {
        let shares = [Share::MUTEX, Share::WRITER, Share::permits(3, 3)?];
        Ok(shares.into_iter().filter(|share| self.profile.admits(*share).is_ok()).collect())
    }

    /// Shares that go together with others, as far as the backend admits them.
    pub(crate) fn concurrent_shares(&self) -> Checked<Vec<Share>> {
        let shares = [Share::READER, Share::permits(1, 3)?];
        Ok(shares.into_iter().filter(|share| self.profile.admits(*share).is_ok()).collect())
    }

    /// Returns `true` if claims of these two shares affect each other on one name.
    pub(crate) fn interact(&self, one: Share, other: Share) -> bool {
        let kind = |share: Share| share.is_counted().then(|| share.capacity());
        self.profile.admission != LockSupport::Permits || kind(one) == kind(other)
    }

    /// Returns the shares that, beside one claim of `share`, fill it until one of the second of these is
    /// not admitted; and that one.
    pub(crate) fn fill(&self, share: Share) -> Checked<(Vec<Share>, Share)> {
        if !share.is_counted() {
            return Ok((Vec::new(), if share.is_exclusive() { share } else { Share::WRITER }));
        }
        let all = Share::permits(share.capacity(), share.capacity())?;
        if self.profile.admits(all).is_ok() {
            return Ok((Vec::new(), all));
        }
        Ok(((share.weight()..share.capacity()).map(|_| share).collect(), share))
    }

    /// Returns how long after an event a waiter may learn of it at the latest. The fallback of a notifying
    /// backend for missing notifications is slower than this, so that it cannot hide a lost wake-up.
    pub(crate) fn promise(&self, longest_hint: Duration) -> Duration {
        if self.polls() { longest_hint + WAKE } else { WAKE }
    }

    /// Releases the holder at about the time at which a waiter's patience ends.
    pub(crate) async fn race(&self, holder: &Claim, patience: &Patience, random: &mut Random) -> Checked {
        let client = self.client(0);
        match random.below(4) {
            // The nearest that the two can be: one directly after the other.
            0 => {
                client.free(holder).await?;
                patience.end();
            }
            1 => {
                patience.end();
                client.free(holder).await?;
            }
            _ => {
                let (ends, delay) = (patience.clone(), Duration::from_micros(random.below(300)));
                let task = tokio::spawn(async move {
                    briefly(delay).await;
                    ends.end();
                });
                briefly(Duration::from_micros(random.below(300))).await;
                client.free(holder).await?;
                task.await?;
            }
        }
        Ok(())
    }

    /// Checks that all of these are granted one after the other, in any order, and releases them.
    pub(crate) async fn drain(&self, waits: Vec<Waiting>, limit: Duration, why: &'static str) -> Checked {
        let mut tasks = Vec::new();
        for waiting in waits {
            let (client, claim) = (waiting.client.clone(), waiting.claim.clone());
            tasks.push(tokio::spawn(async move {
                waiting.granted(limit, why).await?;
                client.free(&claim).await
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    /// Returns when to stop waiting for what was promised: long after, so that late and never are
    /// distinguished.
    pub(crate) fn overdue(&self) -> Duration {
        if self.polls() { HANG } else { WAKE * 3 }
    }

    /// Checks that it was granted within the promise after `since`.
    pub(crate) fn in_time(&self, taken: &Taken, since: Moment, what: &str) -> Checked {
        let (delay, limit) = (taken.at.since(since), self.promise(taken.longest_hint));
        if delay > limit {
            return Err(NotKept::late(format!(
                "{what}: granted {delay:?} after it could be, not in {limit:?}"
            )));
        }
        Ok(())
    }
}

/// Enough that claims of different connections meet in every law.
const CONNECTIONS: usize = 4;
const LONG: Duration = Duration::from_secs(60);
const WAKE: Duration = Duration::from_secs(1);
