//! The store that all clients share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use simulated::TokioClock;
use simulated::backend::{
    Backend, ClaimId, Clock, Grant, LossCause, LossSignal, LossTrigger, Moment, Patience, Profile,
    QueueOrder, Registers, Resource, Snapshot,
};
use simulated::local::MemoryBackend;

use crate::dice::Dice;

/// A store in memory, whose clock runs a little faster or slower than those of its clients.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) memory: MemoryBackend,
    /// The profile that the clients see.
    profile: Profile,
    clock: Arc<Skewed>,
    /// `true` if a claim that is taken away says so at once.
    tells: bool,
    signals: Mutex<BTreeMap<ClaimId, (LossTrigger, LossSignal)>>,
}

/// A clock that runs at another rate.
#[derive(Debug)]
struct Skewed {
    tokio: TokioClock,
    per_mille: u64,
}

impl Clock for Skewed {
    fn now(&self) -> Moment {
        let since = self.tokio.now().since(Moment::START);
        Moment::START.after(since.mul_f64(self.per_mille as f64 / 1000.0))
    }
}

impl Store {
    pub(crate) fn new(dice: &Dice) -> Store {
        let per_mille = dice.one_of(&[1000, 1000, 1008, 992]);
        let clock = Arc::new(Skewed { tokio: TokioClock::new(), per_mille });
        let memory = MemoryBackend::with_clock(clock.clone());
        let memory = if dice.percent(20) { memory.polling() } else { memory };
        let mut profile = memory.profile().clone();
        if dice.percent(20) {
            // The store still keeps an order, but no client relies on it.
            profile.order = QueueOrder::Unordered;
        }
        Store { memory, profile, clock, tells: dice.percent(30), signals: Mutex::default() }
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(crate) fn registers(&self) -> &dyn Registers {
        self.memory.registers().expect("the memory store has registers")
    }

    /// Returns the present state of a resource.
    pub(crate) fn look(&self, resource: &Resource) -> Snapshot {
        let now = Patience::none(self.clock.clone());
        let looked = self.memory.inspect(resource, None, &now).now_or_never();
        looked.expect("memory answers at once").expect("memory does not fail")
    }

    /// Lists all that is held or waited for.
    pub(crate) fn busy(&self) -> Vec<String> {
        let listed = self.memory.list("", None, 100).now_or_never();
        let listed = listed.expect("memory answers at once").expect("memory does not fail");
        listed.into_iter().map(|summary| format!("{summary:?}")).collect()
    }

    /// Adds to a grant the signal of its loss, where this store has one.
    pub(crate) fn signalled(&self, id: ClaimId, grant: Grant) -> Grant {
        if !self.tells {
            return grant;
        }
        let mut signals = self.signals.lock().unwrap();
        let (_, signal) = signals.entry(id).or_insert_with(LossTrigger::new);
        grant.lost(Some(signal.clone()))
    }

    /// Takes a claim away, as an operator does.
    pub(crate) fn take_away(&self, snapshot: &Snapshot, number: usize) -> Option<ClaimId> {
        let standing = snapshot.holders.get(number)?;
        let claim = simulated::backend::Claim::new(
            standing.id,
            snapshot.resource.clone(),
            standing.share,
            Duration::ZERO,
        )
        .note(standing.note.clone());
        let _ = self.memory.release(&[&claim]).now_or_never();
        let signal = self.signals.lock().unwrap().remove(&standing.id);
        if let Some((trigger, _)) = signal {
            trigger.fire(LossCause::Gone);
        }
        Some(standing.id)
    }
}
