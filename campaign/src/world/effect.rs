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
}

/// The target of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The store, and so everybody.
    Store,
    /// These workers, and not what the store has.
    Workers(Vec<usize>),
}

impl Effect {
    /// Creates the effect of a fault on the store.
    pub fn new(what: impl Into<String>, count: impl TryInto<u64>) -> Effect {
        Effect { what: what.into(), count: count.try_into().unwrap_or(u64::MAX), target: Target::Store }
    }

    /// Changes the target to these workers.
    #[must_use]
    pub fn on(mut self, workers: impl IntoIterator<Item = usize>) -> Effect {
        self.target = Target::Workers(workers.into_iter().collect());
        self
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
}
