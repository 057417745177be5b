//! The rounds of one request: in each, every server of the URL is asked once.

use leasehold_core::{Failure, FailureKind};

/// The knowledge after one more server did not do what was asked.
#[derive(Debug)]
pub(crate) enum Round {
    /// Others were not asked yet.
    Open,
    /// All were asked. With `is_answered`, one answered as another cluster than the one that this client knows.
    Over { is_answered: bool },
    /// One did so in this round and in the one before it, and no other one did better.
    Foreign(Failure),
}

/// A count of the servers that were asked.
///
/// A member of an old version may answer with old data, while the others fail for a moment. So one round is not enough
/// to recognize a cluster that was wiped or restored.
#[derive(Debug)]
pub(crate) struct Rounds {
    members: usize,
    tries: usize,
    /// The answer of another cluster in this round.
    foreign: Option<Failure>,
    /// `true` if the round before had one.
    was_foreign: bool,
}

impl Rounds {
    /// Begins to count for so many servers.
    pub(crate) fn of(members: usize) -> Rounds {
        Rounds { members, tries: 0, foreign: None, was_foreign: false }
    }

    pub(crate) fn tries(&self) -> usize {
        self.tries
    }

    /// Counts a server that did not do what was asked.
    pub(crate) fn failed(&mut self, failure: &Failure) -> Round {
        self.tries += 1;
        if failure.kind == FailureKind::Foreign {
            self.foreign = Some(failure.clone());
        }
        if !self.tries.is_multiple_of(self.members) {
            return Round::Open;
        }
        let was_foreign = std::mem::replace(&mut self.was_foreign, self.foreign.is_some());
        match self.foreign.take() {
            Some(foreign) if was_foreign => Round::Foreign(foreign),
            found => Round::Over { is_answered: found.is_some() },
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::Effect;

    use super::*;

    /// Counts failures of the servers, and returns what is known after each: nothing, the end of a round, the end of one
    /// in which another cluster answered, and another cluster.
    fn known(members: usize, kinds: &[FailureKind]) -> String {
        let mut rounds = Rounds::of(members);
        let known =
            kinds.iter().map(|kind| match rounds.failed(&Failure::new(*kind, Effect::Unknown, "no")) {
                Round::Open => '.',
                Round::Over { is_answered: false } => 'o',
                Round::Over { is_answered: true } => 'a',
                Round::Foreign(_) => 'F',
            });
        known.collect()
    }

    #[test]
    fn two_rounds_in_a_row_tell_another_cluster() {
        use FailureKind::{Foreign, Unavailable};
        // One member has old data, and the others have no leader yet.
        let mut kinds = vec![Foreign, Unavailable, Unavailable, Unavailable, Unavailable, Unavailable];
        assert_eq!(known(3, &kinds), "..a..o");
        kinds.extend([Unavailable, Unavailable, Foreign, Foreign, Unavailable, Unavailable]);
        assert_eq!(known(3, &kinds), "..a..o..a..F");
        assert_eq!(known(1, &[Foreign, Unavailable, Foreign, Foreign]), "aoaF");
    }
}
