//! The effect of a round of a fault, and its target: a fault without an effect shows nothing.

use super::Network;

/// The effect of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The deed, as a clause.
    pub what: String,
    /// The things that it did it to: processes, connections, sessions, keys. With zero of them it had no effect.
    pub count: u64,
    /// The target.
    pub target: Target,
    /// `true` if the count is what the proxies did to what passed until the end of the round, and so is not known at
    /// its beginning.
    pub is_of_traffic: bool,
}

/// The target of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The store, and so everybody.
    Store,
    /// These workers, and not what the store has.
    Workers(Vec<usize>),
    /// The locks of nobody: what a step of a clock that no lease is measured by does to them. Nothing that is wrong with
    /// a lock has such a fault as its reason.
    Nobody,
}

impl Effect {
    /// Creates the effect of a fault on the store.
    pub fn new(what: impl Into<String>, count: impl TryInto<u64>) -> Effect {
        let count = count.try_into().unwrap_or(u64::MAX);
        Effect { what: what.into(), count, target: Target::Store, is_of_traffic: false }
    }

    /// Creates the effect of a fault on the network, which its end counts.
    pub fn of_traffic(what: impl Into<String>) -> Effect {
        Effect { is_of_traffic: true, ..Effect::new(what, 0_u64) }
    }

    /// Returns the effect at the end of its round, by what the proxies had touched before the round and have now.
    #[must_use]
    pub fn counted(self, before: u64, now: u64) -> Effect {
        let count = if self.is_of_traffic { now.saturating_sub(before) } else { self.count };
        Effect { count, ..self }
    }

    /// Changes the target to these workers.
    #[must_use]
    pub fn on(mut self, workers: impl IntoIterator<Item = usize>) -> Effect {
        self.target = Target::Workers(workers.into_iter().collect());
        self
    }

    /// Changes the target to the locks of nobody.
    #[must_use]
    pub fn on_nobody(self) -> Effect {
        Effect { target: Target::Nobody, ..self }
    }

    /// Changes the target to the workers of a network.
    #[must_use]
    pub fn on_network(self, network: Network, workers: usize) -> Effect {
        self.on((0..workers).filter(|worker| Network::of(*worker) == network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_that_of_half_of_the_workers() {
        let effect = Effect::new("cut off", 3_usize).on_network(Network::Odd, 4);
        assert_eq!((effect.count, effect.target), (3, Target::Workers(vec![1, 3])));
    }

    #[test]
    fn a_fault_of_the_network_is_as_large_as_what_the_proxies_did() {
        assert_eq!(Effect::of_traffic("cut off").counted(7, 7).count, 0);
        assert_eq!(Effect::of_traffic("cut off").counted(7, 9).count, 2);
        assert_eq!(Effect::new("stopped", 1_u64).counted(7, 7).count, 1);
    }
}
