//! A simulated network connection from one client to the store, with all its faults.
//!
//! Ground rules: a request that takes effect takes effect at one moment, in the store. The fate of each
//! call is drawn for it alone, so that a later call may be answered before an earlier one.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use simulated::backend::{
    AtOnce, Backend, Claim, DirectAnswer, DirectRelease, DirectReply, DirectRequests, Effect, Failure,
    FailureKind, Moment, Patience, Profile, Put, RegisterPromise, Registered, Registers, Release, Renew,
    Renewal, Resource, ResourceSummary, Snapshot, SnapshotVersion, Stamp, Step,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::judge::Judge;
use crate::polled::step_aside;
use crate::store::Store;

/// One client's connection to the store.
pub(crate) struct Wire {
    client: usize,
    store: Arc<Store>,
    judge: Arc<Judge>,
    dice: Dice,
    /// The number of calls in a hundred that fail, until `calm_from`.
    faults: u64,
    calm_from: Instant,
    /// The number of parts of the store. Claims of different parts are never in one call.
    parts: u64,
    /// The number of calls in a hundred that take time.
    slow: u64,
    /// The number of calls in a hundred that are decided at once.
    at_once: u64,
    /// The number of direct requests in a hundred that are sent.
    direct: u64,
    crashed: CancellationToken,
    cut_off: std::sync::Mutex<Instant>,
    has_hung: AtomicU64,
}

/// The fate of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    IsRefused,
    IsDenied,
    LosesRequest,
    LosesReply,
}

impl Wire {
    pub(crate) fn new(
        client: usize,
        store: Arc<Store>,
        judge: Arc<Judge>,
        dice: Dice,
        calm_from: Instant,
    ) -> Wire {
        let faults = dice.one_of(&[0, 0, 5, 20, 50]);
        let slow = dice.one_of(&[0, 20, 60]);
        let parts = dice.one_of(&[1, 1, 3]);
        // Most decline: what is decided at once never meets what the slow path has.
        let at_once = dice.one_of(&[0, 0, 0, 0, 70, 100]);
        let direct = dice.one_of(&[0, 0, 70, 100]);
        let cut_off = std::sync::Mutex::new(Instant::now());
        Wire {
            client,
            store,
            judge,
            dice,
            faults,
            calm_from,
            parts,
            slow,
            at_once,
            direct,
            crashed: CancellationToken::new(),
            cut_off,
            has_hung: AtomicU64::new(0),
        }
    }

    /// Kills the client: no request is answered any more, and its places on the store are gone.
    pub(crate) fn crash(&self) {
        self.crashed.cancel();
    }

    pub(crate) fn is_crashed(&self) -> bool {
        self.crashed.is_cancelled()
    }

    pub(crate) async fn crashed(&self) {
        self.crashed.cancelled().await;
    }

    /// Cuts the connection for `length`.
    pub(crate) fn cut_off(&self, length: Duration) {
        *self.cut_off.lock().unwrap() = Instant::now() + length;
    }

    /// Lets one renewal of a client hang while later ones are answered.
    fn hangs(&self) -> bool {
        let may = self.has_hung.load(Ordering::Relaxed) == 0 && Instant::now() < self.calm_from;
        let hangs = may && self.dice.percent(10);
        self.has_hung.fetch_add(u64::from(hangs), Ordering::Relaxed);
        hangs
    }

    fn fate(&self) -> (Duration, Fate, Duration) {
        let dice = &self.dice;
        let time = |likely: bool| match (likely, dice.below(20)) {
            (false, _) => Duration::ZERO,
            (_, 0) => dice.ms(200, 4_000),
            (_, 1..=4) => dice.ms(10, 200),
            _ => dice.ms(1, 10),
        };
        let noisy = Instant::now() < self.calm_from;
        let (before, after) =
            (time(noisy && dice.percent(self.slow)), time(noisy && dice.percent(self.slow)));
        let fate = match noisy && dice.percent(self.faults) {
            false => Fate::Passes,
            true => match dice.below(10) {
                0 => Fate::IsDenied,
                1..=3 => Fate::IsRefused,
                4..=6 => Fate::LosesRequest,
                _ => Fate::LosesReply,
            },
        };
        (before, fate, after)
    }

    /// Returns `true` if the store is there, and takes a request of a kind that it takes so often.
    fn takes_fast_path(&self, percent: u64) -> bool {
        let is_cut_off = Instant::now() < *self.cut_off.lock().unwrap();
        !is_cut_off && !self.is_crashed() && self.dice.percent(percent)
    }

    /// Makes a call that is decided at once, where this one is.
    fn decide<T>(&self, verb: &str, request: impl FnOnce() -> Option<T>) -> Option<T> {
        if !self.takes_fast_path(self.at_once) {
            return None;
        }
        self.judge.note(format_args!("c{} -> {verb} at once", self.client));
        self.judge.foreign();
        let answer = request();
        self.judge.note(format_args!("c{} <- {verb} at once: {}", self.client, answer.is_some()));
        if answer.is_some() {
            self.judge.count("decided at once");
        }
        // Also after it has taken effect.
        self.judge.foreign();
        answer
    }

    /// Sends a direct request, where one is sent. It takes effect when it is sent, if at all: a later call of this
    /// client takes effect later, even if the answer was dropped.
    fn send_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        let memory = self.store.memory.at_once()?;
        if !self.takes_fast_path(self.direct) {
            return None;
        }
        self.judge.note(format_args!("c{} -> direct request", self.client));
        self.judge.count("requested directly");
        self.judge.foreign();
        let (before, fate, after) = self.fate();
        let reply = match fate {
            Fate::IsRefused | Fate::IsDenied => DirectReply::Declined,
            Fate::LosesRequest => DirectReply::Unknown,
            Fate::Passes | Fate::LosesReply => match memory.grant_now(claim, asked_at) {
                DirectReply::Granted(grant) => DirectReply::Granted(self.store.signalled(claim.id, grant)),
                reply => reply,
            },
        };
        let reply = if fate == Fate::LosesReply { DirectReply::Unknown } else { reply };
        let (crashed, pause) = (self.crashed.clone(), before + after);
        Some(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            if crashed.is_cancelled() {
                std::future::pending::<()>().await;
            }
            reply
        }))
    }

    /// Sends a release directly, where one is. It takes effect some time later, and later requests may overtake it.
    fn send_release(&self, claim: &Claim) -> Option<DirectRelease> {
        if !self.takes_fast_path(self.direct) {
            return None;
        }
        self.judge.note(format_args!("c{} -> direct release", self.client));
        self.judge.count("released directly");
        self.judge.foreign();
        let (before, fate, after) = self.fate();
        let unknown = |text| Release::Unknown(Failure::unanswered(text));
        let (store, claim) = (self.store.clone(), claim.clone());
        // It is on its way, also if its caller leaves.
        let effect = tokio::spawn(async move {
            if !before.is_zero() {
                sleep(before).await;
            }
            match fate {
                Fate::IsRefused => Release::Unknown(Failure::unavailable("refused")),
                Fate::IsDenied => Release::Unknown(Failure::new(FailureKind::Denied, Effect::None, "denied")),
                Fate::LosesRequest => unknown("the request was lost"),
                Fate::Passes | Fate::LosesReply => {
                    let released = store.memory.release(&[&claim]).await.pop();
                    match released.filter(|_| fate == Fate::Passes) {
                        Some(release) => release,
                        None => unknown("the answer was lost"),
                    }
                }
            }
        });
        let crashed = self.crashed.clone();
        Some(Box::pin(async move {
            let release = effect.await;
            if !after.is_zero() {
                sleep(after).await;
            }
            if crashed.is_cancelled() {
                std::future::pending::<()>().await;
            }
            release.unwrap_or_else(|_| Release::Unknown(Failure::unanswered("the world ended")))
        }))
    }

    /// Releases what was granted, as a backend does for which the grant is not safe enough. The release arrives some
    /// time later, without an answer.
    fn release_later(&self, claim: &Claim, failure: Failure) -> Failure {
        self.judge.note(format_args!("c{} -> releases a grant itself", self.client));
        self.judge.count("released by the store");
        let (store, claim, delay) = (self.store.clone(), claim.clone(), self.dice.ms(1, 4_000));
        tokio::spawn(async move {
            sleep(delay).await;
            store.memory.release(&[&claim]).await;
        });
        failure.with_release_unanswered()
    }

    /// Brings one call to the store, and its answer back.
    async fn call<T>(&self, verb: &str, request: impl Future<Output = T>) -> Result<T, Failure> {
        self.judge.called(self.client, verb);
        self.judge.foreign();
        let open = Open { judge: &self.judge, verb, is_done: AtomicBool::new(false) };
        let (before, fate, mut after) = self.fate();
        if verb == "renew" && fate == Fate::Passes && self.hangs() {
            after = HUNG;
        }
        let work = async {
            step_aside(&self.dice).await;
            let cut_off = *self.cut_off.lock().unwrap();
            if Instant::now() < cut_off {
                sleep_until(cut_off).await;
                return Err(Failure::unanswered("the network was cut"));
            }
            if !before.is_zero() {
                sleep(before).await;
            }
            match fate {
                Fate::IsRefused => return Err(Failure::unavailable("refused")),
                Fate::IsDenied => return Err(Failure::new(FailureKind::Denied, Effect::None, "denied")),
                Fate::LosesRequest => return Err(Failure::unanswered("the request was lost")),
                Fate::Passes | Fate::LosesReply => {}
            }
            let answer = request.await;
            step_aside(&self.dice).await;
            if !after.is_zero() {
                sleep(after).await;
            }
            match fate {
                Fate::Passes if after == HUNG => Err(Failure::unanswered("the connection was dead")),
                Fate::LosesReply => Err(Failure::unanswered("the answer was lost")),
                _ => Ok(answer),
            }
        };
        let answer = tokio::select! {
            biased;
            () = self.crashed.cancelled() => None,
            answer = work => Some(answer),
        };
        let Some(answer) = answer else { return std::future::pending().await };
        open.is_done.store(true, Ordering::Relaxed);
        self.judge.answered(self.client, verb, answer.as_ref().err());
        answer
    }
}

/// A call that is under way: the engine must not drop it.
struct Open<'a> {
    judge: &'a Judge,
    verb: &'a str,
    is_done: AtomicBool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::Relaxed) {
            self.judge.dropped_midway(self.verb);
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("client", &self.client).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Wire {
    fn profile(&self) -> &Profile {
        self.store.profile()
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        (self.at_once > 0).then_some(self)
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        (self.direct > 0).then_some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn supports_transfer(&self) -> bool {
        true
    }

    fn part(&self, claim: &Claim) -> u64 {
        u64::from(claim.id.as_bytes()[0]) % self.parts
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let is_granted = AtomicBool::new(false);
        let request = async {
            let step = self.store.memory.contend(claim, patience).await;
            is_granted.store(matches!(step, Ok(Step::Granted(_))), Ordering::Relaxed);
            step
        };
        let step = self.call("contend", request).await.map_err(|failure| {
            match is_granted.load(Ordering::Relaxed) && self.dice.percent(50) {
                true => self.release_later(claim, failure),
                false => failure,
            }
        })??;
        Ok(match step {
            Step::Granted(grant) => Step::Granted(self.store.signalled(claim.id, grant)),
            busy => busy,
        })
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        match self.call("renew", self.store.memory.renew(batch)).await {
            Ok(renewals) => {
                let lost =
                    batch.iter().zip(&renewals).filter(|(_, renewal)| matches!(renewal, Renewal::Lost));
                lost.for_each(|(renew, _)| self.judge.answered_lost(self.client, renew.claim.id.tag()));
                renewals
            }
            Err(failure) => Renewal::unknown_for(batch.len(), &failure),
        }
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let answered = self.call("release", self.store.memory.release(batch)).await;
        answered.unwrap_or_else(|failure| Release::unknown_for(batch.len(), &failure))
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.call("inspect", self.store.memory.inspect(resource, seen, patience)).await?
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.call("list", self.store.memory.list(prefix, after, limit)).await?
    }
}

impl DirectRequests for Wire {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        self.send_directly(claim, asked_at)
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        self.send_release(claim)
    }
}

impl AtOnce for Wire {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        let grant = || match self.store.memory.at_once()?.grant_now(claim, asked_at) {
            DirectReply::Granted(grant) => Some(grant),
            _ => None,
        };
        match self.decide("grant", grant) {
            Some(grant) => DirectReply::Granted(self.store.signalled(claim.id, grant)),
            None => DirectReply::Declined,
        }
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        let memory = self.store.memory.at_once()?;
        self.decide("release", || memory.release_now(claim))
    }
}

#[async_trait]
impl Registers for Wire {
    fn promise(&self) -> &RegisterPromise {
        self.store.registers().promise()
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        self.call("read", self.store.registers().read(at)).await?
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        self.call("swap", self.store.registers().swap(at, seen, put)).await?
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        self.call("changed", self.store.registers().changed(at, seen, patience)).await?
    }
}

/// A connection that is dead for longer than anything else of a run.
const HUNG: Duration = Duration::from_secs(120);
