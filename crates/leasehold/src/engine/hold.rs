//! The right to use a granted claim, owned by exactly one user of the process at a time.
//!
//! Ground rules: it cannot be copied and cannot be forgotten. Whoever drops the last handle gives it back,
//! to the next task in the local line or to the server; drop never blocks.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use leasehold_core::{Fence, LossCause, Moment, Proof};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::held::{Held, State};
use super::reaper::Released;
use super::{Engine, queue::Lines};
use crate::mutant::mutant;
use crate::witness::Event;

/// The right to use a granted claim.
#[derive(Debug)]
pub(crate) struct Hold {
    engine: Arc<Engine>,
    held: Option<Arc<Held>>,
    /// How often it was handed on since the server granted it.
    passed: u32,
    /// When this user got it, where somebody wants to know.
    since: Option<Moment>,
    /// How many handles it has.
    pub(super) users: AtomicUsize,
    /// The end of its last handle, where somebody wants to hear of it.
    end: Option<Arc<End>>,
}

/// The end of one handle. The claim may have another user afterwards, of whom listeners of this handle hear nothing.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The cause of its loss, or `None` where it was released before.
    pub(super) how: OnceLock<Option<LossCause>>,
    pub(super) ended: CancellationToken,
}

impl End {
    /// It ends in this state.
    pub(super) fn come(&self, state: State) {
        if mutant!("a hold ends with its lease") {
            return;
        }
        // There is one end of each handle.
        let _ = self.how.set(match state {
            State::Lost(cause) => Some(cause),
            _ => None,
        });
        self.ended.cancel();
    }
}

impl Hold {
    pub(super) fn new(engine: Arc<Engine>, held: Arc<Held>, passed: u32) -> Hold {
        let since = engine.telling.is_heard().then(|| engine.clock.now());
        Hold { engine, held: Some(held), passed, since, users: AtomicUsize::new(0), end: None }
    }

    /// The granted claim.
    pub(crate) fn held(&self) -> &Arc<Held> {
        // Invariant: `held` is taken only by what consumes the hold.
        match &self.held {
            Some(held) => held,
            None => unreachable!("a hold that was given back is not reachable any more"),
        }
    }

    /// The engine that it was granted through.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns whether somebody holds by it. Else it is only kept for a minimum of time, or being given back.
    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    /// The same hold, whose end is signalled so.
    pub(super) fn ending_as(mut self, end: Arc<End>) -> Hold {
        self.end = Some(end);
        self
    }

    /// Returns what the backend keeps with the grant. A condition made of it holds for as long as the claim does, so from here on
    /// the claim has no other user.
    pub(crate) fn proof(&self) -> &Proof {
        let held = self.held();
        if !held.proof.is_none() && held.pin() {
            Lines::stays(&self.engine, &held.claim.resource, held.claim.id);
        }
        &held.proof
    }

    /// Ends it, and signals that. Returns the claim, and the state in which it ended.
    fn finish(&mut self) -> Option<(Arc<Held>, State)> {
        let held = self.held.take()?;
        let state = held.end_use();
        if let Some(end) = &self.end {
            end.come(state);
        }
        Some((held, state))
    }

    /// Takes the claim out of the hold, to be marked as lost. Listeners of the hold hear of that loss.
    pub(super) fn into_held(mut self) -> Option<Arc<Held>> {
        self.held.take()
    }

    /// Ends the hold without giving anything back: the claim is somebody else's by now.
    pub(super) fn defuse(mut self) {
        self.held = None;
    }

    /// The same, of whose end nobody is told: it is of no user.
    pub(super) fn untold(mut self) -> Hold {
        self.since = None;
        self
    }

    /// Whether it was there before `moment`, as far as that is remembered.
    pub(super) fn is_older_than(&self, moment: Moment) -> bool {
        self.since.is_some_and(|since| since < moment)
    }

    /// Whether another task of this process had it before.
    pub(super) fn was_handed_over(&self) -> bool {
        self.passed > 0
    }

    /// Tells for how long it was held, unless it was lost, which was told.
    pub(super) fn tell_end(&self, held: &Held) {
        if let Some(since) = self.since
            && !matches!(held.state(), State::Lost(_))
        {
            let held_for = self.engine.clock.now().since(since);
            self.engine.telling.tell(|| Event::Released { resource: &held.claim.resource, held: held_for });
        }
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.held().fence(self.passed)
    }

    /// Leaves it to its lease: it is neither renewed nor given back, and ends on the server when its ttl is over. `false`
    /// where it had been lost, and was given back, before.
    pub(crate) fn spend(mut self) -> bool {
        let Some((held, _)) = self.finish() else { return false };
        let ours = held.retire();
        if ours {
            Lines::spend(&self.engine, &held);
        }
        ours
    }

    /// The time of the engine's clock.
    pub(crate) fn now(&self) -> Moment {
        self.engine.clock().now()
    }

    /// Waits until `moment`; not longer than it is held, nor than the client is open.
    pub(crate) async fn lingered(&self, moment: Moment) {
        let left = self.now().until(moment);
        if left.is_zero() {
            return;
        }
        let mut changes = self.held().watch();
        tokio::select! {
            _ = self.engine.sleep(left) => {}
            _ = changes.lost() => {}
        }
    }

    /// Keeps it until `moment`, without making anybody wait for that.
    pub(crate) fn linger(self: Arc<Self>, moment: Moment) {
        let engine = self.engine.clone();
        engine.spawn(async move { self.lingered(moment).await });
    }

    /// Gives it back and tells what became of it. The work is done even where the future is dropped.
    pub(crate) fn give_back(mut self) -> impl Future<Output = Released> {
        let (done, told) = oneshot::channel();
        let carried = self.finish().and_then(|(held, state)| {
            self.tell_end(&held);
            Lines::give_back(&self.engine, held, state, self.passed, Some(done))
        });
        // A runtime that is shut down takes the reaper with it, and nobody can tell any more.
        async {
            if let Some(carried) = carried {
                carried.await;
            }
            told.await.unwrap_or(Released::unknown("the runtime ended before the release was confirmed"))
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((held, state)) = self.finish() {
            self.tell_end(&held);
            // Nobody waits for it, so nobody carries it out.
            drop(Lines::give_back(&self.engine, held, state, self.passed, None));
        }
    }
}
